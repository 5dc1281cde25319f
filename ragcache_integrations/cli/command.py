"""The command ``ragcache``: thin over the Python API."""

from __future__ import annotations

import argparse
import logging
import sys
from collections.abc import Callable, Sequence
from importlib.metadata import entry_points

from ragcache_integrations import __version__
from ragcache_integrations.core.interrupts import INTERRUPTED
from ragcache_integrations.errors import ConfigurationError, MissingExtraError, RAGCacheError

from .doctor import add_doctor
from .encode import add_encode
from .install_engine import add_install_engine
from .profile import add_profile
from .serve import add_serve

__all__ = ["main"]

USAGE_ERROR = 2

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
    parser = argparse.ArgumentParser(prog="ragcache", description="Make your RAG chain faster.")
    parser.add_argument("--version", action="version", version=f"%(prog)s {__version__}")
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)
    add_serve(commands)
    add_profile(commands)
    add_encode(commands)
    add_doctor(commands)
    add_install_engine(commands)
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
