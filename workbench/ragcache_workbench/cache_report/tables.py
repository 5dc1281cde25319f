"""The findings as rows of texts, for the terminal and the page."""

from __future__ import annotations

from collections.abc import Sequence

from ragcache_workbench.reports import percent

from .evidence import Count
from .replay import TOLERANCES
from .summary import Findings, Group, amount, spread

__all__ = ["GROUP_HEADS", "TOLERANCE_HEADS", "group_row", "group_tables", "tolerance_row"]

TOLERANCE_HEADS = ("tolerance", "saved", "wrong", "alone: saved", "alone: wrong")
GROUP_HEADS = ("questions", "saved", "wrong", "time saved", "cost saved")


def tolerance_row(findings: Findings, place: int) -> tuple[str, ...]:
    """Return what both rules do at a tolerance."""
    shares = [
        _with_spread(count)
        for rule in (findings.guarded, findings.plain)
        for count in (rule.saved(place), rule.wrong(place))
    ]
    return (f"{TOLERANCES[place]:.2f}", *shares)


def group_row(group: Group) -> tuple[str, ...]:
    """Return a group's name and what it saves."""
    return (
        group.name,
        f"{group.saved.total:,}",
        _with_spread(group.saved),
        _with_spread(group.wrong),
        amount(group.seconds, "s") or "-",
        amount(group.cost, "$") or "-",
    )


def group_tables(findings: Findings) -> dict[str, tuple[str, Sequence[Group]]]:
    """Return the groups that there are by title, with what their first column is called."""
    at = f"at tolerance {TOLERANCES[findings.shown]:.2f}"
    tables = {
        f"By tenant, {at}": ("tenant", findings.tenants()),
        f"By hour of the day in UTC, {at}": ("hour", findings.hours()),
    }
    return {title: table for title, table in tables.items() if table[1]}


def _with_spread(count: Count) -> str:
    return f"{percent(count.share)} ({spread(count)})" if count.total else "-"
