"""The findings as one HTML file that needs nothing but a browser."""

from __future__ import annotations

from pathlib import Path

from ragcache_workbench.cache_report import charts
from ragcache_workbench.reports import Cell, Table, Tile, percent, render_page, write_page

from .replay import TOLERANCES
from .summary import Findings, amount, spread
from .tables import GROUP_HEADS, TOLERANCE_HEADS, group_row, group_tables, tolerance_row

__all__ = ["render", "write_report"]


def render(findings: Findings) -> str:
    """The report as HTML: no script, nothing loaded from anywhere."""
    groups = {
        title: Table(
            (first, *GROUP_HEADS),
            tuple(tuple(map(Cell, group_row(group))) for group in groups),
        )
        for title, (first, groups) in group_tables(findings).items()
    }
    return render_page(
        "cache_report/report.html.j2",
        findings=findings,
        figures=_tiles(findings),
        charts=[charts.saved(findings), charts.wrong(findings)],
        tolerances=_tolerances(findings),
        groups=groups,
    )


def write_report(findings: Findings, path: Path) -> None:
    """Write the report to a file.

    Raises:
        ConfigurationError: The file cannot be written.
    """
    write_page(render(findings), path)


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


def _tolerances(findings: Findings) -> Table:
    rows = []
    for place in range(len(TOLERANCES)):
        recommended = place == findings.guarded.proof.taken
        name, *texts = tolerance_row(findings, place)
        name += " ← recommended" if recommended else ""
        style = "good" if recommended else ""
        rows.append(tuple(Cell(text, style=style) for text in (name, *texts)))
    return Table(TOLERANCE_HEADS, tuple(rows))
