"""The command ``ragcache``: thin over the Python API."""

from __future__ import annotations

import argparse
import logging
import sys
from collections.abc import Callable, Sequence

from ragcache_integrations import __version__
from ragcache_integrations.core.interrupts import INTERRUPTED
from ragcache_integrations.errors import RAGCacheError

from .cache_report import add_cache_report
from .demo import add_demo
from .doctor import add_doctor
from .encode import add_encode
from .eval import add_eval
from .install_engine import add_install_engine
from .lint import add_lint
from .profile import add_profile
from .report import add_report
from .serve import add_serve
from .workload import add_workload

__all__ = ["main"]

USAGE_ERROR = 2

Command = Callable[[argparse.Namespace], int | None]
"""Does it, and gives the exit status where it is not 0."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line.

    Args:
        arguments: The command's arguments; ``None`` for those of the process.

    Returns:
        Exit status: 0, or what the command says; 2 for what the user can put right, 130 when
        interrupted.
    """
    parser = _parser()
    typed = list(sys.argv[1:] if arguments is None else arguments)
    options, more = parser.parse_known_args(typed)
    options.typed = typed
    options.more = more
    if options.more and not getattr(options, "takes_more", False):
        options.parser.error(f"unrecognized arguments: {' '.join(options.more)}")
    logging.basicConfig(format="%(message)s", level=logging.WARNING)
    command: Command = options.command
    try:
        return command(options) or 0
    except RAGCacheError as error:
        print(f"ragcache: {error}", file=sys.stderr)
        return USAGE_ERROR
    except KeyboardInterrupt:
        return INTERRUPTED


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="ragcache", description="Make your RAG chain faster.")
    parser.add_argument("--version", action="version", version=f"%(prog)s {__version__}")
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)
    add_demo(commands)
    add_serve(commands)
    add_profile(commands)
    add_workload(commands)
    add_cache_report(commands)
    add_encode(commands)
    add_lint(commands)
    add_eval(commands)
    add_report(commands)
    add_doctor(commands)
    add_install_engine(commands)
    for command in commands.choices.values():  # whose usage is shown where an option is unknown
        command.set_defaults(parser=command)
    return parser
