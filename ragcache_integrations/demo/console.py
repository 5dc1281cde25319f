"""The result on the terminal."""

from __future__ import annotations

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from ragcache_integrations.demo.run import DemoResult, stream
from ragcache_integrations.demo.settings import FRAMEWORKS, DemoSettings
from ragcache_integrations.demo.summary import conditions, examples, rows

__all__ = ["show", "show_conditions"]

SNIPPET = 100


def show_conditions(settings: DemoSettings, console: Console) -> None:
    """Say what is going to be run."""
    for sentence in conditions(settings, stream(settings)):
        console.print(f"• {escape(sentence)}", highlight=False)


def show(result: DemoResult, console: Console) -> None:
    """Write one table per framework, and a few questions."""
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
        for row in rows(framework):
            table.add_row(row.label, row.before, row.after, row.change)
        console.print()
        console.print(table)
    console.print()
    console.print("A few questions, after the swap", style="bold")
    for example in examples(result):
        console.print()
        console.print(f"[bold]Q[/bold] {escape(example.request.text)}", highlight=False)
        console.print(f"  [dim]{escape(example.story)}[/dim]", highlight=False)
        for passage in example.documents:
            line = f"  • {passage.title}: {passage.text[:SNIPPET]}"
            console.print(escape(line), no_wrap=True, overflow="ellipsis", highlight=False)
        console.print(f"[bold]A[/bold] {escape(example.observation.answer)}", highlight=False)
