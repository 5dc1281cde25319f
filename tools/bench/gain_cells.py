"""Rows of tables that are written from recorded results, and how their figures look."""

from __future__ import annotations

import re
import shlex
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tools.results import Result

Results = Mapping[str, Result]
"""Recorded results, by command."""


@dataclass(frozen=True)
class Gain:
    """A row: what is said of a benchmark's results, and the command that prints them.

    Attributes:
        part: The first cell.
        arguments: The script, without ``benchmarks/`` and ``.py``, and its arguments.
        words: The cells after it, from the results.
        more: Arguments of other commands, whose results are looked at, too.
    """

    part: str
    arguments: str
    words: Callable[[Any], str]
    more: Sequence[str] = ()

    def cells(self, results: Results) -> str:
        """Return what is said of the results."""
        found = result(results, self.arguments).found
        for arguments in self.more:
            others = result(results, arguments).found
            found = found | {name: value for name, value in others.items() if value is not None}
        return self.words(found)


def command_of(arguments: str) -> str:
    """Return the command of a script, as the results have it."""
    script, *rest = shlex.split(arguments)
    folder = "" if script.startswith("tools/") else "benchmarks/"
    return shlex.join(["python", f"{folder}{script}.py", *rest])


def times(interval: list[float]) -> str:
    """A ratio and its interval of 95 %."""
    middle, low, high = interval
    digits = 1 if middle >= 10 else 2  # noqa: PLR2004 - three digits in all
    return f"**{middle:.{digits}f}** [{low:.{digits}f}, {high:.{digits}f}]"


def percent(share: float, digits: int = 1) -> str:
    """A share, as exact as may be, and 100 % only where it is."""
    return f"{share:.{digits}%}" if share < 1 else "100 %"


def result(results: Results, arguments: str) -> Result:
    """Return the result of a command, or end with a message."""
    command = command_of(arguments)
    if command not in results:
        sys.exit(f"docs/results has no result of {command}")
    return results[command]


def printed(results: Results, arguments: str, row: str) -> list[float]:
    """Return the numbers in the last row of that name in the tables that a command printed."""
    output = result(results, arguments).output
    rows = re.findall(rf"^ *{re.escape(row)} +(.+)$", output, re.MULTILINE)
    return [float(number) for number in re.findall(r"[-+.\de]*\d", rows[-1].replace(",", ""))]
