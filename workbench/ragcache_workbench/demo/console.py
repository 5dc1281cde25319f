"""The result on the terminal."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from ragcache_workbench import reports

from .run import DemoResult, stream
from .settings import FRAMEWORKS, DemoSettings
from .speculative import Pair, median_ttfts
from .summary import conditions, examples, quality_table, rows, verdict

__all__ = ["show", "show_conditions", "show_pairs"]

SNIPPET = 100


def show_conditions(settings: DemoSettings, console: Console) -> None:
    """Say what is going to be run."""
    for sentence in conditions(settings, stream(settings)):
        console.print(f"• {escape(sentence)}", highlight=False)


def show(result: DemoResult, console: Console) -> None:
    """Write what to do and one table per framework, and a few questions."""
    console.print()
    for name, framework in result.frameworks.items():
        text, pays = verdict(FRAMEWORKS[name], framework)
        console.print(text, style="bold green" if pays else "bold red", highlight=False)
    for name, framework in result.frameworks.items():
        table = Table(
            title=f"{FRAMEWORKS[name]}: times are the mean (and the median) per question",
            title_justify="left",
            title_style="bold",
        )
        table.add_column("")
        table.add_column("before", justify="right")
        table.add_column("after", justify="right", style="bold")
        table.add_column("change", justify="right")
        table.add_column("anywhere", justify="right", style="bold")
        table.add_column("change", justify="right")
        for row in rows(framework):
            table.add_row(
                row.label, row.before, row.after, row.change, row.anywhere, row.anywhere_change
            )
        console.print()
        console.print(table)
    quality = quality_table(result)
    if quality is not None:
        console.print()
        console.print(_quality_table(quality, len(result.scored)))
    console.print()
    console.print("A few questions, after the swap", style="bold")
    for example in examples(result):
        console.print()
        console.print(f"[bold]Q[/bold] {escape(example.request.text)}", highlight=False)
        console.print(f"  [dim]{escape(example.story)}[/dim]", highlight=False)
        for passage in example.documents:
            line = f"  • {passage.title}: {passage.text[:SNIPPET]}"
            console.print(escape(line), no_wrap=True, overflow="ellipsis", highlight=False)
        right = escape("; ".join(example.right))
        answer = f"[bold]A[/bold] {escape(example.observation.answer)} [dim](right: {right})[/dim]"
        console.print(answer, highlight=False)


def _quality_table(quality: reports.Table, questions: int) -> Table:
    title = f"Answers to {questions} questions, by how they were found"
    table = Table(title=title, title_justify="left", title_style="bold")
    for place, name in enumerate(quality.heads):
        table.add_column(name, justify="right" if place else "left")
    for row in quality.rows:
        table.add_row(*(cell.text for cell in row))
    return table


def show_pairs(pairs: Sequence[Pair], search_ms: float, console: Console) -> None:
    """Write a table of questions answered with and without speculation."""
    table = Table(
        title=f"Time to first token in ms; each search takes {search_ms:g} ms in 8 stages",
        title_justify="left",
        title_style="bold",
    )
    table.add_column("question", overflow="ellipsis", no_wrap=True, max_width=60)
    for name in ("sequential", "speculative", "guesses", "terminated"):
        table.add_column(name, justify="right", min_width=len(name))
    for pair in pairs:
        report = pair.speculative.report
        times = (f"{1000 * side.ttft:.0f}" for side in (pair.sequential, pair.speculative))
        table.add_row(escape(pair.question), *times, str(report.guesses), str(report.aborted))
    medians = [f"{1000 * seconds:.0f}" for seconds in median_ttfts(pairs)]
    table.add_section()
    table.add_row("median", *medians, style="bold")
    console.print()
    console.print(table)
