"""The plots of what caches would have done with a log."""

from __future__ import annotations

from ragcache_workbench.reports import Axis, Chart, Series

from .evidence import Count
from .replay import TOLERANCES
from .summary import Findings, Rule

__all__ = ["saved", "wrong"]

_GUARDED, _PLAIN, _MARK = "c0", "other dashed", "c1 thin"


def _percent(value: float) -> str:
    return f"{value:g}%"


def saved(findings: Findings) -> Chart:
    """Share of the calls that are saved, by tolerance."""

    def counts(rule: Rule) -> list[Count]:
        return [rule.saved(place) for place in range(len(TOLERANCES))]

    return _chart(
        findings,
        "Calls saved",
        "Share of the questions that would have been served an earlier answer.",
        counts(findings.guarded),
        counts(findings.plain),
    )


def wrong(findings: Findings) -> Chart:
    """Share of the wrong hits, by tolerance."""
    return _chart(
        findings,
        "Another question's",
        "Share of the judged hits that were wrong.",
        findings.guarded.replay.wrong_counts(),
        findings.plain.replay.wrong_counts(),
    )


def _chart(
    findings: Findings, title: str, note: str, guarded: list[Count], plain: list[Count]
) -> Chart:
    lines = [
        [
            (tolerance, 100 * count.share)
            for tolerance, count in zip(TOLERANCES, counts, strict=True)
        ]
        for counts in (guarded, plain)
    ]
    highest = max(share for line in lines for _, share in line)
    x = Axis(0, TOLERANCES[-1], label="tolerance")
    y = Axis(0, min(100.0, 1.1 * highest) or 1.0, text=_percent)
    series = [
        Series(f"with {findings.guards}", _GUARDED, lines[0]),
        Series("tolerance alone", _PLAIN, lines[1]),
    ]
    if findings.guarded.proof.taken is not None:
        at = TOLERANCES[findings.guarded.proof.taken]
        series.append(Series("recommended", _MARK, [(at, y.low), (at, y.high)]))
    return Chart(title, x, y, tuple(series), note)
