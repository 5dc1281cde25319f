"""Programs in processes of their own, which are forks unless a test wants them as for users."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ragcache_integrations.engine.serving import launch

from .vllm_forks import LOADED, SERVER_LOADED, forks

__all__ = ["run_program", "start_kernel", "start_program", "start_server"]

LONGEST = 550.0
"""Seconds that a program may take."""


def start_program(
    program: str | Path,
    arguments: Sequence[str],
    out: int,
    err: int,
    *,
    environment: Mapping[str, str] | None = None,
    folder: str | os.PathLike[str] | None = None,
    anew: bool = False,
    is_server: bool = False,
) -> subprocess.Popen[bytes]:
    """Run a program, in a session of its own.

    Args:
        program: The name of a module, or the path of a script.
        arguments: Its own.
        out: Descriptor of its standard output.
        err: Likewise.
        environment: Its own, whole; ours where ``None``.
        folder: Its working directory; ours where ``None``.
        anew: Start it as users do: it and its engine load everything one after the other.
        is_server: Whether it starts vLLM's own processes, and no engine of ours.
    """
    environment = os.environ if environment is None else environment
    loaded = forks(SERVER_LOADED if is_server else LOADED)
    if not anew and loaded.suits(environment):
        return loaded.start(
            program,
            arguments,
            environment,
            output=(out, err),
            folder=folder,
            starts_engines=not is_server,
        )
    named = [program] if isinstance(program, Path) else ["-m", program]
    return subprocess.Popen(
        [sys.executable, *named, *arguments],
        stdin=subprocess.DEVNULL,
        stdout=out,
        stderr=err,
        env=dict(environment),
        cwd=folder,
        start_new_session=True,
    )


def start_server(
    module: str, arguments: Sequence[str], out: int, err: int, *, anew: bool = False
) -> subprocess.Popen[bytes]:
    """Run a server; the arguments are those of :func:`start_program`."""
    environment = {**launch._environment(), **os.environ, "VLLM_LOGGING_LEVEL": "WARNING"}
    return start_program(
        *(module, arguments, out, err), environment=environment, anew=anew, is_server=True
    )


def run_program(
    program: str | Path, *arguments: str, **others: Any
) -> subprocess.CompletedProcess[str]:
    """Run a program to its end; the arguments are those of :func:`start_program`."""
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        process = start_program(program, arguments, out.fileno(), err.fileno(), **others)
        try:
            status = process.wait(LONGEST)
        finally:
            process.kill()
            process.wait()
        said = [os.pread(file.fileno(), os.fstat(file.fileno()).st_size, 0) for file in (out, err)]
    return subprocess.CompletedProcess([str(program), *arguments], status, *map(bytes.decode, said))


def start_kernel(command: Sequence[str], **others: Any) -> subprocess.Popen[bytes]:
    """What stands in for :func:`jupyter_client.launcher.launch_kernel`."""
    _, _, module, *arguments = command
    return start_program(module, arguments, 1, 2, environment=others["env"], folder=others["cwd"])
