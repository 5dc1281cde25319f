"""Figures in the results of benchmarks, and which of them got worse.

A result is the JSON object in the last line that a benchmark prints. Each number in it is a figure,
named by its path: ``{"a": {"b": 2}}`` has the figure ``a/b``. ``[1.5, 1.2, 1.9]`` is a value with
its interval, and so are ``"x_ratio": 1.5`` and ``"x_interval": [1.2, 1.9]`` next to each other.
``tools/bench/figures.toml`` says which way a figure is better.
"""

from __future__ import annotations

import math
import re
import statistics
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, Self

__all__ = ["Figure", "Rule", "Rules", "figures_of", "judge", "merged"]

RULES = Path(__file__).with_suffix(".toml")
TRIPLE = 3
"""A value, and the ends of its interval."""

DIRECTIONS = ("higher", "lower", "none")
"""Which way a figure is better; ``none``: it is a setting, or a figure of a peer."""


@dataclass(frozen=True)
class Figure:
    """A number, and how far it spreads.

    Attributes:
        value: The number; the median where there are several runs.
        low: The lower end of its interval; without one, the least of all runs.
        high: The upper end, and the most of all runs.
        has_interval: Whether the benchmark printed an interval.
    """

    value: float
    low: float
    high: float
    has_interval: bool = False

    def __str__(self) -> str:
        """The number with its interval in brackets, or with the spread of the runs."""
        if self.has_interval:
            return f"{self.value:.4g} [{self.low:.4g}, {self.high:.4g}]"
        if self.low == self.high:
            return f"{self.value:.4g}"
        return f"{self.value:.4g} ({self.low:.4g} to {self.high:.4g})"

    def as_list(self) -> list[Any]:
        """Plain data for JSON, with six digits."""
        numbers = [float(f"{number:.6g}") for number in (self.value, self.low, self.high)]
        return [*numbers, self.has_interval]

    @classmethod
    def from_list(cls, data: Sequence[Any]) -> Self:
        """Read what :meth:`as_list` returned.

        Raises:
            TypeError: It is something else; so is ``ValueError``.
        """
        *numbers, has_interval = data
        value, low, high = numbers
        if not (all(map(_is_number, numbers)) and low <= high and isinstance(has_interval, bool)):
            msg = f"a figure must be a number, both ends of its interval, and a flag, got {data!r}"
            raise ValueError(msg)
        return cls(value, low, high, has_interval)


def figures_of(result: Mapping[str, Any]) -> dict[str, Figure]:
    """Return the figures of a result, by path.

    Args:
        result: What a benchmark printed. Text and missing values are no figures.
    """
    found: dict[str, Figure] = {}
    pairs: dict[str, tuple[float, float]] = {}
    for path, numbers in _leaves(result, ""):
        if isinstance(numbers, float):
            found[path] = Figure(numbers, numbers, numbers)
        elif len(numbers) == TRIPLE and numbers[1] <= numbers[0] <= numbers[2]:
            value, low, high = numbers
            found[path] = Figure(value, low, high, has_interval=True)
        elif len(numbers) == TRIPLE - 1 and "_interval" in path:
            pairs[path] = numbers[0], numbers[1]
        else:
            for place, number in enumerate(numbers):
                found[f"{path}/{place}"] = Figure(number, number, number)
    for path, (low, high) in pairs.items():
        names = (re.sub("_interval(?=/|$)", ending, path) for ending in ("", "_ratio"))
        name = next((name for name in names if name in found), None)
        if name is None:
            found |= {f"{path}/0": Figure(low, low, low), f"{path}/1": Figure(high, high, high)}
        else:
            found[name] = Figure(found[name].value, low, high, has_interval=True)
    return found


def _leaves(value: Any, path: str) -> Iterator[tuple[str, float | list[float]]]:
    """Numbers, and lists of numbers, by their paths."""
    if isinstance(value, Mapping):
        for name, part in value.items():
            yield from _leaves(part, f"{path}/{name}" if path else str(name))
    elif isinstance(value, list):
        if value and all(_is_number(part) for part in value):
            yield path, [float(part) for part in value]
        else:
            for place, part in enumerate(value):
                yield from _leaves(part, f"{path}/{place}")
    elif _is_number(value):
        yield path, float(value)


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and math.isfinite(value)


def merged(runs: Sequence[Mapping[str, Figure]]) -> dict[str, Figure]:
    """Return the figures of several runs of the same benchmark as one: medians, and all spreads."""
    paths = dict.fromkeys(path for run in runs for path in run)
    found = {}
    for path in paths:
        figures = [run[path] for run in runs if path in run]
        found[path] = Figure(
            statistics.median(figure.value for figure in figures),
            min(figure.low for figure in figures),
            max(figure.high for figure in figures),
            any(figure.has_interval for figure in figures),
        )
    return found


@dataclass(frozen=True)
class Rule:
    """How some figures are judged.

    Attributes:
        figures: Patterns of their paths, the benchmark's name before them; ``*`` stands for any
            text.
        better: One of :data:`DIRECTIONS`.
        time: Whether it is an absolute time, which says nothing on another machine.
        slack: Share of a figure by which it may differ without being better or worse.
    """

    figures: tuple[str, ...]
    better: str
    time: bool = False
    slack: float = 0.0

    def __post_init__(self) -> None:
        """Refuse what is no direction or no share.

        Raises:
            ValueError: ``better`` or ``slack`` is out of range.
        """
        if self.better not in DIRECTIONS:
            raise ValueError(f"better must be one of {', '.join(DIRECTIONS)}, got {self.better!r}")
        if not 0 <= self.slack < 1:
            raise ValueError(f"slack must be from 0 to below 1, got {self.slack!r}")


@dataclass(frozen=True)
class Rules:
    """The content of ``tools/bench/figures.toml``.

    Attributes:
        rules: The first that has a pattern for a figure decides.
        headlines: Patterns of each benchmark's most important figures, without its name.
    """

    rules: tuple[Rule, ...]
    headlines: Mapping[str, tuple[str, ...]]

    @classmethod
    def read(cls, path: Path = RULES) -> Self:
        """Read the file.

        Raises:
            ValueError: It is no TOML, or a rule is wrong.
        """
        content = tomllib.loads(path.read_text(encoding="utf-8"))
        rules = [Rule(**{**entry, "figures": tuple(entry["figures"])}) for entry in content["rule"]]
        headlines = {name: tuple(paths) for name, paths in content["headlines"].items()}
        return cls(tuple(rules), headlines)

    def of(self, benchmark: str, path: str) -> Rule | None:
        """The rule for a figure of a benchmark; ``None`` if it is unknown."""
        name = f"{benchmark}/{path}"
        for rule in self.rules:
            if any(fnmatchcase(name, pattern) for pattern in rule.figures):
                return rule
        return None


def judge(rule: Rule, recorded: Figure, now: Figure) -> str:
    """Compare a figure with the recorded one.

    Returns:
        ``worse`` or ``better`` if the intervals do not overlap, else ``same``. A figure without an
        interval has the spread of its runs, widened by as much on both sides: few runs show less
        than the whole spread.
    """
    low, high = _spread(rule, recorded)
    low_now, high_now = _spread(rule, now)
    if low_now > high:
        return "better" if rule.better == "higher" else "worse"
    if high_now < low:
        return "worse" if rule.better == "higher" else "better"
    return "same"


def _spread(rule: Rule, figure: Figure) -> tuple[float, float]:
    # Both sides of a comparison get half of the slack.
    margin = rule.slack * abs(figure.value) / 2
    if not figure.has_interval:
        margin = max(margin, figure.high - figure.low)
    return figure.low - margin, figure.high + margin
