"""The plots of a workload's characterisation."""

from __future__ import annotations

from collections.abc import Sequence

from ragcache_workbench.reports import Axis, Chart, Series

from .summary import Findings, short_number

__all__ = ["access", "prefill", "sizes"]


OURS, OTHER, MARK = "c0", "other dashed", "c1 thin"


def _percent(value: float) -> str:
    return f"{value:g}%"


def access(findings: Findings) -> Chart:
    """Share of the accesses that goes to the most popular documents (RAGCache, figure 5)."""
    x = Axis(0, 100, text=_percent, label="documents, the most popular first")
    y = Axis(0, 100, text=_percent, label="accesses to them")
    points = [(100 * part, 100 * share) for part, share in findings.result.skew.curve()]
    return Chart(
        "How skewed access is",
        x,
        y,
        (
            Series("this workload", OURS, points),
            Series("if all were equally popular", OTHER, [(0, 0), (100, 100)]),
        ),
        "The steeper it begins, the less memory finds the most.",
    )


def prefill(findings: Findings) -> Chart:
    """What a cached prefix saves (RAGCache, figure 4)."""
    times = findings.result.prefill
    highest = max(*times.uncached, *times.cached)
    scale, unit = (1.0, "s") if highest >= 1 else (1000.0, "ms")
    x = Axis(0, times.prefix_tokens[-1], text=short_number, label="tokens of the prefix")
    y = Axis(0, 1.05 * scale * highest or 1.0, text=short_number, label=unit)

    def points(times_in_seconds: Sequence[float]) -> list[tuple[float, float]]:
        scaled = [scale * seconds for seconds in times_in_seconds]
        return list(zip(times.prefix_tokens, scaled, strict=True))

    return Chart(
        "Prefill time, computed and cached",
        x,
        y,
        (
            Series("prefix cached", OURS, points(times.cached)),
            Series("prefix computed", OTHER, points(times.uncached)),
        ),
        f"With {times.new_tokens:,} new tokens, the median question, after the prefix.",
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
    ours, stock = (
        [(float(size.tokens), 100 * getattr(size, prefix + field)) for size in result.sizes]
        for prefix in ("", "stock_")
    )
    highest = max(1.0, *(rate for _, rate in (*ours, *stock)))
    low, high = result.sizes[0].tokens, result.sizes[-1].tokens
    label = "tokens that the cache holds"
    x = Axis(low, max(high, 2 * low), log=True, text=short_number, label=label)
    y = Axis(0, min(100.0, 1.1 * highest), text=_percent)
    series = [
        Series("knowledge tree", OURS, ours),
        Series("stock vLLM, block LRU", OTHER, stock),
    ]
    if result.recommended is not None:
        at = float(result.recommended.tokens)
        series.append(Series("recommended", MARK, [(at, y.low), (at, y.high)]))
    return Chart(title, x, y, tuple(series), note)
