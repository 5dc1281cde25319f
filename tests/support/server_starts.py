"""Servers in processes of their own, which are forks unless a test wants them as for users."""

from __future__ import annotations

import functools
import os
import subprocess
import sys
from collections.abc import Sequence

from ragcache_integrations.engine.serving import launch

from .vllm_forks import Forks

__all__ = ["start_program"]


def _environment() -> dict[str, str]:
    return {**launch._environment(), **os.environ, "VLLM_LOGGING_LEVEL": "WARNING"}


@functools.cache
def _forks() -> Forks:
    return Forks("tests.support.server_loaded", _environment())


def start_program(
    module: str, arguments: Sequence[str], out: int, err: int, *, anew: bool = False
) -> subprocess.Popen[bytes]:
    """Run a server, in a session of its own.

    Args:
        module: The program.
        arguments: Its own.
        out: Descriptor of its standard output.
        err: Likewise.
        anew: Start it as users do; its three processes then load vLLM one after the other.
    """
    environment = _environment()
    if not anew and _forks().suits(environment):
        return _forks().start(module, arguments, environment, output=(out, err))
    return subprocess.Popen(
        [sys.executable, "-m", module, *arguments],
        stdin=subprocess.DEVNULL,
        stdout=out,
        stderr=err,
        env=environment,
        start_new_session=True,
    )
