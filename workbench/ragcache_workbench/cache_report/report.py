"""The findings as a report."""

from __future__ import annotations

from collections.abc import Sequence

from ragcache_workbench.reports import (
    Cell,
    Panel,
    Report,
    Section,
    Table,
    Tile,
    comparison,
    marked,
    percent,
)

from .evidence import Count
from .replay import TOLERANCES
from .summary import Findings, Group, amount, spread

__all__ = ["charts", "report_of"]

TOLERANCE_HEADS = ("tolerance", "saved", "wrong", "alone: saved", "alone: wrong")
GROUP_HEADS = ("questions", "saved", "wrong", "time saved", "cost saved")


def report_of(findings: Findings) -> Report:
    """Return the report."""
    return Report(
        question="What would a cache of answers serve?",
        lead=f"What a cache of answers would have served on the questions in {findings.name}, and "
        "what of it was another question's.",
        name=findings.name,
        pays=findings.pays,
        verdict=findings.verdict(),
        advice=findings.advice(),
        notes=findings.notes(),
        tiles=_tiles(findings),
        charts=charts(findings),
        sections=_sections(findings),
    )


def _tiles(findings: Findings) -> list[Tile]:
    taken, total = findings.guarded.proof.taken, findings.total(findings.shown)
    judged = {
        "answers": "judged by their recorded answers",
        "documents": "judged by their recorded documents",
        None: "none can be judged",
    }
    return [
        Tile("Questions", f"{len(findings.questions):,}", judged[findings.judge]),
        Tile(
            "Recommended tolerance",
            "none" if taken is None else f"{TOLERANCES[taken]:.2f}",
            f"for at most {percent(findings.error)} wrong answers",
        ),
        Tile(
            "Calls saved" if taken is not None else "Calls saved by the same words",
            percent(total.saved.share),
            f"95% interval {spread(total.saved)}",
        ),
        Tile(
            "Saved",
            amount(total.seconds, "s") or amount(total.cost, "$") or "not recorded",
            f"and {amount(total.cost, '$')}"
            if total.seconds is not None and total.cost is not None
            else "",
        ),
    ]


def charts(findings: Findings) -> list[Panel]:
    """Plot the share of the calls that are saved, and of the wrong hits, by tolerance."""
    rules = {f"with {findings.guards}": findings.guarded, "tolerance alone": findings.plain}
    taken = findings.guarded.proof.taken

    def chart(title: str, note: str, counts: dict[str, list[Count]]) -> Panel:
        lines = {
            name: zip(TOLERANCES, (count.share for count in own), strict=True)
            for name, own in counts.items()
        }
        at = None if taken is None else TOLERANCES[taken]
        return comparison(title, note, "tolerance", lines, at)

    return [
        chart(
            "Calls saved",
            "Share of the questions that would have been served an earlier answer.",
            {name: list(map(rule.saved, range(len(TOLERANCES)))) for name, rule in rules.items()},
        ),
        chart(
            "Another question's",
            "Share of the judged hits that were wrong.",
            {name: rule.replay.wrong_counts() for name, rule in rules.items()},
        ),
    ]


def _sections(findings: Findings) -> list[Section]:
    """The table of all tolerances, and those of the groups that there are."""
    rows = []
    for place, tolerance in enumerate(TOLERANCES):
        shares = [
            _with_spread(count)
            for rule in (findings.guarded, findings.plain)
            for count in (rule.saved(place), rule.wrong(place))
        ]
        is_recommended = place == findings.guarded.proof.taken
        rows.append(marked((f"{tolerance:.2f}", *shares), is_recommended=is_recommended))
    at = f"at tolerance {TOLERANCES[findings.shown]:.2f}"
    groups: dict[str, tuple[str, Sequence[Group]]] = {
        f"By tenant, {at}": ("tenant", findings.tenants()),
        f"By hour of the day in UTC, {at}": ("hour", findings.hours()),
    }
    return [
        Section(
            f"By tolerance, {len(findings.questions):,} questions",
            Table(TOLERANCE_HEADS, tuple(rows)),
            f"With {findings.guards}, and with the tolerance alone; in brackets the 95% intervals.",
            every=3,
        ),
        *(
            Section(title, Table((first, *GROUP_HEADS), tuple(map(_group_row, own))))
            for title, (first, own) in groups.items()
            if own
        ),
    ]


def _group_row(group: Group) -> tuple[Cell, ...]:
    texts = (
        group.name,
        f"{group.saved.total:,}",
        _with_spread(group.saved),
        _with_spread(group.wrong),
        amount(group.seconds, "s") or "-",
        amount(group.cost, "$") or "-",
    )
    return tuple(map(Cell, texts))


def _with_spread(count: Count) -> str:
    return f"{percent(count.share)} ({spread(count)})" if count.total else "-"
