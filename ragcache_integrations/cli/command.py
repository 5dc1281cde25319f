"""The command ``ragcache``: thin over the Python API."""

from __future__ import annotations

import argparse
import logging
import signal
import sys
from collections.abc import Callable, Sequence
from importlib.metadata import entry_points

from ragcache_integrations import __version__
from ragcache_integrations.core.interrupts import INTERRUPTED, deadline, end_process
from ragcache_integrations.errors import ConfigurationError, MissingExtraError, RAGCacheError

__all__ = ["main", "run_process"]

USAGE_ERROR = 2

NOTICED_SECONDS = 0.1
"""How long the deadline's thread may take to notice a signal."""

ENTRY_POINTS = "ragcache.commands"
"""Functions of other distributions that add commands, or options to a command of ours."""
WORKBENCH = ("cache-report", "demo", "eval", "lint", "profile --workload", "report")
"""What ragcache-workbench adds."""

Command = Callable[[argparse.Namespace], int | None]
"""Runs the command; returns its exit status, or ``None`` for 0."""


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
    # Imported here: it takes long, and may be interrupted meanwhile.
    from .doctor import add_doctor  # noqa: PLC0415 - may be interrupted
    from .encode import add_encode  # noqa: PLC0415 - may be interrupted
    from .install_engine import add_install_engine  # noqa: PLC0415 - may be interrupted
    from .profile import add_profile  # noqa: PLC0415 - may be interrupted
    from .serve import add_serve  # noqa: PLC0415 - may be interrupted

    parser = argparse.ArgumentParser(prog="ragcache", description="Make your RAG chain faster.")
    parser.add_argument("--version", action="version", version=f"%(prog)s {__version__}")
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)
    for add in (add_serve, add_profile, add_encode, add_doctor, add_install_engine):
        add(commands)
    _add_others(commands)
    for command in commands.choices.values():  # whose usage is shown where an option is unknown
        command.set_defaults(parser=command)
    return parser


def _add_others(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add what other distributions register; what is not there says what to install."""
    problems: dict[str, RAGCacheError] = {
        words: MissingExtraError(f"ragcache {words}", "eval") for words in WORKBENCH
    }
    for entry in entry_points(group=ENTRY_POINTS):
        words = next((words for words in WORKBENCH if words.split()[0] == entry.name), entry.name)
        try:
            entry.load()(commands)
        except ImportError as error:
            problems[words] = ConfigurationError(str(error))
        else:
            problems.pop(words, None)
    for words, problem in problems.items():
        name, *options = words.split()
        if name not in commands.choices:
            commands.add_parser(name, add_help=False, help="not available; it says why")
        parser = commands.choices[name]
        command = parser.get_default("command")
        parser.set_defaults(command=_unavailable(problem, command, *options), takes_more=True)


def _unavailable(problem: RAGCacheError, command: Command | None, *missing: str) -> Command:
    """Return a command that fails, or fails only with an option that is missing."""

    def run(options: argparse.Namespace) -> int | None:
        if command is None or any(word.startswith(missing) for word in options.more):
            raise problem
        if options.more:
            options.parser.error(f"unrecognized arguments: {' '.join(options.more)}")
        return command(options)

    return run


def run_process() -> int:
    """Run the command line in a process of its own, which ends soon when it is interrupted."""
    end_soon = deadline()
    end_soon.watch()
    try:
        status = main()
    except KeyboardInterrupt:
        status = INTERRUPTED
    except BaseException:
        # A library has made another error of the interruption, or a server was still loading.
        if not end_soon.begun.wait(NOTICED_SECONDS):
            raise
        status = INTERRUPTED
    # Ctrl-C during what Python does at the end is for the deadline alone.
    signal.signal(signal.SIGINT, lambda *_: None)
    if status and end_soon.begun.wait(NOTICED_SECONDS):
        if end_soon.status == INTERRUPTED:
            sys.stderr.write("\nragcache: interrupted\n")
        end_process(end_soon.status or 0)
    return status
