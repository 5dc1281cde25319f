"""Plots as plain data, in per cent of their area; the report's template draws them as SVG."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from ragcache_integrations.characterisation.summary import Findings, short_number

__all__ = ["Chart", "Series", "Tick", "access", "prefill", "sizes"]

MOST_POINTS = 400
"""More of them would only make the page larger."""


@dataclass(frozen=True, slots=True)
class Tick:
    """A label on an axis and its place, in per cent."""

    label: str
    at: float


@dataclass(frozen=True, slots=True)
class Series:
    """A named SVG path. ``style`` is a CSS class of the template: ours, other or mark."""

    name: str
    style: str
    path: str


@dataclass(frozen=True, slots=True)
class Chart:
    """A plot: y runs from the top, as in SVG."""

    title: str
    note: str
    x_label: str
    y_label: str
    series: tuple[Series, ...]
    x_ticks: tuple[Tick, ...]
    y_ticks: tuple[Tick, ...]


@dataclass(frozen=True, slots=True)
class _Axis:
    low: float
    high: float
    log: bool = False
    text: Callable[[float], str] = short_number

    def place(self, value: float) -> float:
        low, high = self.low, self.high
        if self.log:
            low, high, value = math.log(low), math.log(high), math.log(value)
        return round(100 * (value - low) / (high - low), 2)

    def ticks(self, *, downwards: bool = False) -> tuple[Tick, ...]:
        values = self._log_values() if self.log else self._values()
        places = [(value, self.place(value)) for value in values]
        return tuple(
            Tick(self.text(value), round(100 - place, 2) if downwards else place)
            for value, place in places
        )

    def _values(self) -> list[float]:
        least = (self.high - self.low) / 4
        power = 10.0 ** math.floor(math.log10(least))
        step = next(factor * power for factor in (1, 2, 2.5, 5, 10) if factor * power >= least)
        first, last = math.ceil(self.low / step), math.floor(self.high / step + 1e-9)
        return [step * number for number in range(first, last + 1)]

    def _log_values(self) -> list[float]:
        powers = range(math.floor(math.log10(self.low)), math.ceil(math.log10(self.high)) + 1)
        for factors in ((1,), (1, 3), (1, 2, 5)):
            values = [factor * 10.0**power for power in powers for factor in factors]
            inside = [value for value in values if self.low <= value <= self.high]
            if len(inside) >= 3:  # noqa: PLR2004 - with fewer the scale can't be read
                break
        return inside


def _line(points: Sequence[tuple[float, float]], x: _Axis, y: _Axis) -> str:
    step = -(-len(points) // MOST_POINTS)
    kept = [*points[:-1:step], points[-1]]
    return "M" + "L".join(
        f"{x.place(at):g},{round(100 - y.place(value), 2):g}" for at, value in kept
    )


def _percent(value: float) -> str:
    return f"{value:g}%"


def access(findings: Findings) -> Chart:
    """Share of the accesses that goes to the most popular documents (RAGCache, figure 5)."""
    skew = findings.result.skew
    x = y = _Axis(0, 100, text=_percent)
    points = [(100 * part, 100 * share) for part, share in skew.curve()]
    return Chart(
        title="How skewed access is",
        note="The steeper it begins, the less memory finds the most.",
        x_label="documents, the most popular first",
        y_label="accesses to them",
        series=(
            Series("this workload", "ours", _line(points, x, y)),
            Series("if all were asked for alike", "other", _line([(0, 0), (100, 100)], x, y)),
        ),
        x_ticks=x.ticks(),
        y_ticks=y.ticks(downwards=True),
    )


def prefill(findings: Findings) -> Chart:
    """What a cached prefix saves (RAGCache, figure 4)."""
    times = findings.result.prefill
    highest = max(*times.uncached, *times.cached)
    scale, unit = (1.0, "s") if highest >= 1 else (1000.0, "ms")
    x = _Axis(0, times.prefix_tokens[-1])
    y = _Axis(0, 1.05 * scale * highest or 1.0)

    def line(seconds: Sequence[float]) -> str:
        scaled = [scale * one for one in seconds]
        return _line(list(zip(times.prefix_tokens, scaled, strict=True)), x, y)

    return Chart(
        title="Prefill time, computed and cached",
        note=f"With {times.new_tokens:,} new tokens, the median question, behind the prefix.",
        x_label="tokens of the prefix",
        y_label=unit,
        series=(
            Series("prefix cached", "ours", line(times.cached)),
            Series("prefix computed", "other", line(times.uncached)),
        ),
        x_ticks=x.ticks(),
        y_ticks=y.ticks(downwards=True),
    )


def sizes(findings: Findings) -> tuple[Chart, Chart]:
    """What caches of different sizes find, and what they save."""
    return (
        _sizes(
            findings,
            "Found by size of the cache",
            "Share of the documents' tokens that are found.",
            "token_hit_rate",
        ),
        _sizes(
            findings,
            "Prefill time saved by size of the cache",
            "Share of the prefill time of all requests.",
            "saved_share",
        ),
    )


def _sizes(findings: Findings, title: str, note: str, field: str) -> Chart:
    result = findings.result
    rates = {
        prefix: [100 * getattr(size, prefix + field) for size in result.sizes]
        for prefix in ("", "stock_")
    }
    highest = max(1.0, *rates[""], *rates["stock_"])
    low, high = result.sizes[0].tokens, result.sizes[-1].tokens
    x = _Axis(low, max(high, 2 * low), log=True)
    y = _Axis(0, min(100.0, 1.1 * highest), text=_percent)

    def line(prefix: str) -> str:
        tokens = [float(size.tokens) for size in result.sizes]
        return _line(list(zip(tokens, rates[prefix], strict=True)), x, y)

    series = [
        Series("knowledge tree, PGDSF", "ours", line("")),
        Series("stock vLLM, block LRU", "other", line("stock_")),
    ]
    if result.recommended is not None:
        at = float(result.recommended.tokens)
        series.append(Series("recommended", "mark", _line([(at, y.low), (at, y.high)], x, y)))
    return Chart(
        title=title,
        note=note,
        x_label="tokens that the cache holds",
        y_label="",
        series=tuple(series),
        x_ticks=x.ticks(),
        y_ticks=y.ticks(downwards=True),
    )
