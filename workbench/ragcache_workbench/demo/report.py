"""The result as one HTML file that needs nothing but a browser, and on the terminal."""

from __future__ import annotations

import itertools
import statistics
import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.markup import escape

from ragcache_workbench.reports import (
    Cell,
    Panel,
    Table,
    Tile,
    curve_of,
    render_page,
    terminal_table,
    write_page,
)

from .run import TURN, DemoResult, FrameworkResult, stream
from .settings import FRAMEWORKS, WORDS, DemoSettings
from .speculative import Pair, median_ttfts
from .summary import (
    TIMES,
    answers_table,
    conditions,
    examples,
    figures_table,
    milliseconds,
    quality_table,
    verdict,
)

__all__ = [
    "cumulative",
    "parts",
    "render",
    "retrievals",
    "show",
    "show_conditions",
    "show_pairs",
    "ttfts",
    "write_report",
]

SNIPPET = 100
"""Characters of a passage that are shown on the terminal."""
QUESTION = 60
"""Characters of a question there."""

PARTS = {
    "embedding": "embedding",
    "search or cache": "search",
    "framework": "overhead",
    "to first token": "prefill",
    "rest of the answer": "decode",
}
"""Names of the parts of a question's time, and their colours."""


def render(result: DemoResult) -> str:
    """The report as HTML: no script, nothing loaded from anywhere."""
    return render_page(
        "demo/report.html.j2",
        conditions=conditions(result.settings, result.requests),
        seconds=round(result.seconds),
        turn=TURN,
        encoded=result.encoded,
        encoding=round(result.encoding_seconds),
        frameworks=[
            _framework(framework)
            | {"name": FRAMEWORKS[name], "swap": _swap(name, result.settings)}
            | dict(zip(("verdict", "pays"), verdict(FRAMEWORKS[name], framework), strict=True))
            for name, framework in result.frameworks.items()
        ],
        scored=len(result.scored),
        quality=quality_table(result),
        answers=answers_table(result),
        examples=examples(result),
        command=result.settings.command(),
        milliseconds=milliseconds,
    )


def write_report(result: DemoResult, path: Path) -> None:
    """Write the report to a file.

    Raises:
        ConfigurationError: The file cannot be written.
    """
    write_page(render(result), path)


def _framework(result: FrameworkResult) -> dict[str, Any]:
    return {
        "tiles": _tiles(result),
        "parts": parts(result),
        "charts": [cumulative(result), retrievals(result), ttfts(result)],
        "figures": figures_table(result),
    }


def _swap(framework: str, settings: DemoSettings) -> list[tuple[str, str]]:
    return [
        (sign, line.format(k=settings.top_k, t=settings.tolerance))
        for sign, line in WORDS["swaps"][framework]
    ]


def _tiles(framework: FrameworkResult) -> list[Tile]:
    before, after, _ = framework.figures.values()
    recall = "no hits" if after.hit_recall is None else f"recall {after.hit_recall:.3f} on hits"
    first, second = (
        statistics.median(seen.ttft_ms for seen in side)
        for side in (framework.before, framework.after)
    )
    hits = f"{after.hits:,} hits, {recall}"
    ratio = f"median; ratio of pairs {framework.ttft_ratio('after'):.2f}"
    return [
        Tile("Vector-store calls", f"{after.store_calls:,}", hits, f"{before.store_calls:,}"),
        _time("Search or cache", before.retrieval_ms, after.retrieval_ms),
        _time("Question to last token", before.end_to_end_ms, after.end_to_end_ms),
        _time("Time to first token", first, second, ratio),
    ]


def _time(label: str, before: float, after: float, note: str = "mean per question") -> Tile:
    return Tile(label, f"{milliseconds(after)} ms", note, milliseconds(before))


# The plots

SIDES = {"before": "other", "after": "c0", "anywhere": "c1"}
"""Colours of the sides."""


def parts(result: FrameworkResult) -> Table:
    """Where the mean time of a question goes, on each side, in milliseconds."""
    columns = []
    for side in result.sides.values():
        embedding, retrieval, ttft, first_token, whole = (
            statistics.fmean(getattr(seen, name) for seen in side) for name in TIMES.values()
        )
        framework = max(0.0, first_token - embedding - retrieval - ttft)
        columns.append((embedding, retrieval, framework, ttft, whole - first_token))
    rows = [
        (Cell(name, style=colour), *(Cell(milliseconds(time), time) for time in row))
        for (name, colour), row in zip(PARTS.items(), zip(*columns, strict=True), strict=True)
    ]
    return Table(("ms", *result.sides), tuple(rows))


def cumulative(result: FrameworkResult) -> Panel:
    """Time spent on retrieval so far, over the stream."""
    curves = []
    for name in ("before", "after"):
        spent = ((seen.embedding_ms + seen.retrieval_ms) / 1000 for seen in result.sides[name])
        sums = enumerate(itertools.accumulate(spent, initial=0.0))
        curves.append(curve_of(name, SIDES[name], sums))
    note = "Embedding, and searching the store or the cache, added up over the stream."
    title, unit = "Time spent on retrieval", "count"
    return Panel(title, "questions", unit, tuple(curves), "count", "seconds", note)


def retrievals(result: FrameworkResult) -> Panel:
    """Each question's retrieval after the swap: searches and hits are worlds apart."""
    kinds = {"searched in the store": (False, "other"), "found in the query cache": (True, "c0")}
    curves = []
    for name, (hit, colour) in kinds.items():
        after = enumerate(result.after, 1)
        times = [(number, seen.retrieval_ms) for number, seen in after if seen.hit is hit]
        if times:
            curves.append(curve_of(name, colour, times, "dots"))
    note = "After the swap, embedding not included; the scale is logarithmic if times differ much."
    title, label = "Search or cache, question by question", "questions in their order"
    return Panel(title, label, "ms", tuple(curves), "count", "ms", note)


def ttfts(result: FrameworkResult) -> Panel:
    """Share of questions whose first token came within a time, from the call of the LLM."""
    times = {name: sorted(seen.ttft_ms for seen in side) for name, side in result.sides.items()}
    # The slowest few would squeeze everything else into a corner.
    high = max(
        statistics.quantiles(side, n=50)[-1] if len(side) > 1 else side[0]
        for side in times.values()
    )
    curves = []
    for name, side in times.items():
        steps = [
            (value, count / len(side))
            for rank, value in enumerate(side)
            for count in (rank, rank + 1)
            if value <= high
        ]
        curves.append(curve_of(name, SIDES[name], steps))
    note = "From the call of the LLM. Share of questions answered within that time."
    return Panel("Time to first token", "ms", "share", tuple(curves), "ms", note=note)


# The terminal


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
        title = f"{FRAMEWORKS[name]}: times are the mean (and the median) per question"
        console.print()
        console.print(terminal_table(figures_table(framework), title))
    quality = quality_table(result)
    if quality is not None:
        title = f"Answers to {len(result.scored)} questions, by how they were found"
        console.print()
        console.print(terminal_table(quality, title))
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


def show_pairs(pairs: Sequence[Pair], search_ms: float, console: Console) -> None:
    """Write a table of questions answered with and without speculation."""
    rows = []
    for pair in pairs:
        report = pair.speculative.report
        question = textwrap.shorten(pair.question, QUESTION, placeholder="…")
        times = (f"{1000 * side.ttft:.0f}" for side in (pair.sequential, pair.speculative))
        rows.append((question, *times, str(report.guesses), str(report.aborted)))
    medians = (f"{1000 * seconds:.0f}" for seconds in median_ttfts(pairs))
    rows.append(("median", *medians, "", ""))
    heads = ("question", "sequential", "speculative", "guesses", "terminated")
    title = f"Time to first token in ms; each search takes {search_ms:g} ms in 8 stages"
    console.print()
    console.print(terminal_table(Table(heads, tuple(tuple(map(Cell, row)) for row in rows)), title))
