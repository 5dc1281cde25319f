"""The result as one HTML file that needs nothing but a browser, and on the terminal."""

from __future__ import annotations

import itertools
import statistics
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.markup import escape

from ragcache_workbench.reports import (
    Axis,
    Cell,
    Chart,
    Series,
    Table,
    Tile,
    dot_series,
    render_page,
    terminal_table,
    write_page,
)

from .measures import Observation
from .run import TURN, DemoResult, FrameworkResult, stream
from .settings import FRAMEWORKS, WORDS, DemoSettings
from .speculative import Pair, median_ttfts
from .summary import (
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
    )


def write_report(result: DemoResult, path: Path) -> None:
    """Write the report to a file.

    Raises:
        ConfigurationError: The file cannot be written.
    """
    write_page(render(result), path)


def _framework(result: FrameworkResult) -> dict[str, Any]:
    bars = parts(result)
    return {
        "tiles": _tiles(result),
        "bars": bars,
        "parts": parts_table(bars),
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

BEFORE, AFTER, ANYWHERE = "other", "c0", "c1"
"""Colours of the sides."""


@dataclass(frozen=True, slots=True)
class Part:
    """A stretch of a bar.

    Attributes:
        name: What the time goes to.
        style: CSS classes of its colour and of its mark in the legend.
        text: The time in milliseconds.
        width: In per cent of the longest bar.
    """

    name: str
    style: str
    text: str
    width: float


@dataclass(frozen=True, slots=True)
class Bar:
    """A bar made of parts.

    Attributes:
        name: ``before``, ``after`` or ``anywhere``.
        text: Its length in words.
        parts: From left to right.
    """

    name: str
    text: str
    parts: tuple[Part, ...]


def parts(result: FrameworkResult) -> tuple[Bar, ...]:
    """Where the mean time of a question goes, on each side."""
    sides = result.sides
    longest = max(
        statistics.fmean(observation.end_to_end_ms for observation in side)
        for side in sides.values()
    )
    return tuple(_bar(name, observations, longest) for name, observations in sides.items())


def _bar(name: str, observations: Sequence[Observation], longest: float) -> Bar:
    def mean(field: str) -> float:
        return statistics.fmean(getattr(observation, field) for observation in observations)

    embedding, retrieval, ttft = mean("embedding_ms"), mean("retrieval_ms"), mean("ttft_ms")
    first_token, whole = mean("first_token_ms"), mean("end_to_end_ms")
    spans = (
        ("embedding", "embedding", embedding),
        ("search or cache", "search", retrieval),
        ("framework", "overhead", max(0.0, first_token - embedding - retrieval - ttft)),
        ("to first token", "prefill", ttft),
        ("rest of the answer", "decode", whole - first_token),
    )
    stretches = tuple(
        Part(purpose, f"{colour} area", milliseconds(span), round(100 * span / longest, 2))
        for purpose, colour, span in spans
    )
    return Bar(name, f"{milliseconds(whole)} ms", stretches)


def parts_table(bars: Sequence[Bar]) -> Table:
    """The parts of bars in numbers."""
    columns = zip(*(bar.parts for bar in bars), strict=True)
    rows = tuple((Cell(row[0].name), *(Cell(part.text) for part in row)) for row in columns)
    return Table(("ms", *(bar.name for bar in bars)), rows)


def cumulative(result: FrameworkResult) -> Chart:
    """Time spent on retrieval so far, over the stream."""
    sums = []
    for observations in (result.before, result.after):
        spent = ((seen.embedding_ms + seen.retrieval_ms) / 1000 for seen in observations)
        sums.append(list(itertools.accumulate(spent)))
    x = Axis(0, len(result.before), label="questions")
    y = Axis(0, max(sums[0][-1], sums[1][-1]), label="seconds")
    return Chart(
        "Time spent on retrieval",
        x,
        y,
        _sides([[(0, 0), *enumerate(seconds, 1)] for seconds in sums]),
        "Embedding, and searching the store or the cache, added up over the stream.",
    )


def _sides(points: Sequence[Sequence[tuple[float, float]]]) -> tuple[Series, ...]:
    """A line for each side that there are points of: before, after, anywhere."""
    kinds = (("before", BEFORE), ("after", AFTER), ("anywhere", ANYWHERE))
    return tuple(
        Series(name, colour, line) for (name, colour), line in zip(kinds, points, strict=False)
    )


def retrievals(result: FrameworkResult) -> Chart:
    """Each question's retrieval after the swap: searches and hits are worlds apart."""
    times = [(number, seen.retrieval_ms) for number, seen in enumerate(result.after, 1)]
    hits = [point for point, seen in zip(times, result.after, strict=True) if seen.hit]
    misses = [point for point, seen in zip(times, result.after, strict=True) if not seen.hit]
    x = Axis(0, len(times) + 1, label="questions in their order")
    y = Axis(0.1, 1.3 * max(1.0, *(value for _, value in times)), log=True, label="ms")
    return Chart(
        "Search or cache, question by question",
        x,
        y,
        (
            dot_series("searched in the store", BEFORE, misses),
            dot_series("found in the query cache", AFTER, hits),
        ),
        "After the swap, embedding not included; the scale is logarithmic.",
    )


def ttfts(result: FrameworkResult) -> Chart:
    """Share of questions whose first token came within a time, from the call of the LLM."""
    sides = [sorted(seen.ttft_ms for seen in side) for side in result.sides.values()]
    # The slowest few would squeeze everything else into a corner.
    high = max(statistics.quantiles(side, n=50)[-1] if len(side) > 1 else side[0] for side in sides)
    x, y = Axis(0, high, label="ms"), Axis(0, 100, label="% of questions")
    steps = [
        [
            (value, 100 * count / len(side))
            for rank, value in enumerate(side)
            for count in (rank, rank + 1)
            if value <= high
        ]
        for side in sides
    ]
    note = "From the call of the LLM. Share of questions answered within that time."
    return Chart("Time to first token", x, y, _sides(steps), note)


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
