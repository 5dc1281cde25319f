"""The plots of a workload's characterisation."""

from __future__ import annotations

from collections.abc import Sequence

from ragcache_integrations.core.plots import Axis, Chart, Series, line
from ragcache_integrations.workload_report.summary import Findings, short_number

__all__ = ["access", "prefill", "sizes"]


def _percent(value: float) -> str:
    return f"{value:g}%"


def access(findings: Findings) -> Chart:
    """Share of the accesses that goes to the most popular documents (RAGCache, figure 5)."""
    skew = findings.result.skew
    x = y = Axis(0, 100, text=_percent)
    points = [(100 * part, 100 * share) for part, share in skew.curve()]
    return Chart(
        title="How skewed access is",
        note="The steeper it begins, the less memory finds the most.",
        x_label="documents, the most popular first",
        y_label="accesses to them",
        series=(
            Series("this workload", "ours", line(points, x, y)),
            Series("if all were asked for alike", "other", line([(0, 0), (100, 100)], x, y)),
        ),
        x_ticks=x.ticks(),
        y_ticks=y.ticks(downwards=True),
    )


def prefill(findings: Findings) -> Chart:
    """What a cached prefix saves (RAGCache, figure 4)."""
    times = findings.result.prefill
    highest = max(*times.uncached, *times.cached)
    scale, unit = (1.0, "s") if highest >= 1 else (1000.0, "ms")
    x = Axis(0, times.prefix_tokens[-1], text=short_number)
    y = Axis(0, 1.05 * scale * highest or 1.0, text=short_number)

    def path(seconds: Sequence[float]) -> str:
        scaled = [scale * one for one in seconds]
        return line(list(zip(times.prefix_tokens, scaled, strict=True)), x, y)

    return Chart(
        title="Prefill time, computed and cached",
        note=f"With {times.new_tokens:,} new tokens, the median question, behind the prefix.",
        x_label="tokens of the prefix",
        y_label=unit,
        series=(
            Series("prefix cached", "ours", path(times.cached)),
            Series("prefix computed", "other", path(times.uncached)),
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
    x = Axis(low, max(high, 2 * low), log=True, text=short_number)
    y = Axis(0, min(100.0, 1.1 * highest), text=_percent)

    def path(prefix: str) -> str:
        tokens = [float(size.tokens) for size in result.sizes]
        return line(list(zip(tokens, rates[prefix], strict=True)), x, y)

    series = [
        Series("knowledge tree, PGDSF", "ours", path("")),
        Series("stock vLLM, block LRU", "other", path("stock_")),
    ]
    if result.recommended is not None:
        at = float(result.recommended.tokens)
        series.append(Series("recommended", "mark", line([(at, y.low), (at, y.high)], x, y)))
    return Chart(
        title=title,
        note=note,
        x_label="tokens that the cache holds",
        y_label="",
        series=tuple(series),
        x_ticks=x.ticks(),
        y_ticks=y.ticks(downwards=True),
    )
