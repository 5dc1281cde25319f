"""Sweeps over two knobs at a time: tables, and plots like Proximity's figures 6 to 11."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from parts.query_cache.qualities import Asked, Knobs, Result, print_results, run
from parts.query_cache.replay import Replayed

__all__ = ["Sweep", "plot_sweep", "plot_times", "sweep"]

MEASURES: dict[str, Callable[[Replayed], float | None]] = {
    "store calls saved": lambda one: one.calls_saved,
    "recall of hits": lambda one: one.hit_recall,
    "entries in the end": lambda one: float(one.occupancy),
    "lookup, median µs": lambda one: one.lookup_us,
}


@dataclass(frozen=True)
class Sweep:
    """Replays of one stream with two knobs turned.

    Attributes:
        title: What the stream is.
        x: The knob along the horizontal axis.
        lines: Settings that make a line each, by name.
        results: One for every value of ``x`` and every line, line by line.
    """

    title: str
    x: str
    lines: Mapping[str, Mapping[str, Any]]
    results: tuple[Result, ...]


def sweep(
    title: str,
    asked: Asked,
    base: Knobs,
    x: str,
    values: Sequence[Any],
    lines: Mapping[str, Mapping[str, Any]],
) -> Sweep:
    """Replay a stream for every value and line, and print the table.

    Args:
        title: What the stream is.
        asked: The stream.
        base: The settings that the sweep starts from.
        x: Name of a knob.
        values: Its values.
        lines: Settings that make a line each, by name.
    """
    results = tuple(
        run(asked, replace(base, **settings, **{x: value}), f"{name}, {x} {value}".strip(", "))
        for (name, settings), value in itertools.product(lines.items(), values)
    )
    print_results(title, results)
    return Sweep(title, x, lines, results)


def plot_sweep(swept: Sweep, folder: Path) -> None:
    """Draw a sweep, one panel per measure, and save it under its title.

    Args:
        swept: The sweep.
        folder: Where the picture goes; must exist.
    """
    pyplot = _pyplot()
    figure, panels = pyplot.subplots(1, len(MEASURES), figsize=(16, 4))
    per_line = len(swept.results) // len(swept.lines)
    for panel, (measure, value) in zip(panels, MEASURES.items(), strict=True):
        for place, name in enumerate(swept.lines):
            results = swept.results[place * per_line : (place + 1) * per_line]
            at = [getattr(result.knobs, swept.x) for result in results]
            panel.plot(at, [value(result.replayed) for result in results], "o-", label=name)
        panel.set_xlabel(swept.x)
        panel.set_title(measure)
    if len(swept.lines) > 1:
        panels[0].legend()
    figure.suptitle(swept.title)
    _save(figure, swept.title, folder)


def plot_times(title: str, times: Mapping[str, Mapping[int, float]], folder: Path) -> None:
    """Draw times by the number of keys, both axes logarithmic.

    Args:
        title: Heading, and name of the file.
        times: Microseconds by number of keys, by the name of the line.
        folder: Where the picture goes; must exist.
    """
    figure, panel = _pyplot().subplots(figsize=(6, 4))
    for name, by_keys in times.items():
        panel.loglog(list(by_keys), list(by_keys.values()), "o-", label=name)
    panel.set_xlabel("keys")
    panel.set_ylabel("median µs")
    panel.set_title(title)
    panel.legend()
    _save(figure, title, folder)


def _pyplot() -> Any:
    # Takes a second to import, and most runs draw nothing. Comes with the extra "eval".
    import matplotlib as mpl  # noqa: PLC0415 - see above

    mpl.use("Agg")
    from matplotlib import pyplot as plt  # noqa: PLC0415 - after the backend was chosen

    return plt


def _save(figure: Any, title: str, folder: Path) -> None:
    name = "-".join("".join(c if c.isalnum() else " " for c in title.casefold()).split())
    figure.tight_layout()
    figure.savefig(folder / f"{name}.png", dpi=120)
    _pyplot().close(figure)
