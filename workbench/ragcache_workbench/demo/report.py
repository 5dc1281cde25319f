"""The result as one HTML file that needs nothing but a browser, and on the terminal."""

from __future__ import annotations

import itertools
import statistics
import textwrap
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.markup import escape

from ragcache_integrations.engine.tiny_model import has_random_weights
from ragcache_integrations.resources import Passage, load_questions
from ragcache_workbench.evaluation.datasets import exact_match
from ragcache_workbench.evaluation.scores import paired_intervals
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

from .apps import Observation
from .quality import BLOCKS, WAYS
from .run import TURN, DemoResult, FrameworkResult, Request, stream
from .settings import FRAMEWORKS, WORDS, DemoSettings
from .speculative import Pair, median_ttfts

__all__ = [
    "Example",
    "cumulative",
    "examples",
    "figures_table",
    "milliseconds",
    "parts",
    "render",
    "retrievals",
    "show",
    "show_conditions",
    "show_pairs",
    "ttfts",
    "verdict",
    "write_report",
]

SNIPPET = 100
"""Characters of a passage that are shown on the terminal."""
QUESTION = 60
"""Characters of a question there."""

PARTS = {
    "embedding": "embedding",
    "search or cache": "search",
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
            _framework(name, framework, result.settings)
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


def _framework(name: str, result: FrameworkResult, settings: DemoSettings) -> dict[str, Any]:
    text, pays = verdict(FRAMEWORKS[name], result)
    return {
        "name": FRAMEWORKS[name],
        "verdict": text,
        "pays": pays,
        "swap": [
            (sign, line.format(k=settings.top_k, t=settings.tolerance))
            for sign, line in WORDS["swaps"][name]
        ],
        "tiles": _tiles(result),
        "parts": parts(result),
        "charts": [cumulative(result), retrievals(result), ttfts(result)],
        "figures": figures_table(result),
    }


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


# Words and numbers, on the page and on the terminal

WORTHWHILE = 0.05
"""The least share of the time, or of the searches, that is worth a change."""

_SHOWN = (next(iter(WAYS)), *BLOCKS.values())
"""Ways to compute an answer whose answers are shown."""

TIMES = {
    "Embedding": "embedding_ms",
    "Search or cache": "retrieval_ms",
    "LLM call to first token (TTFT)": "ttft_ms",
    "Question to first token": "first_token_ms",
    "Question to last token": "end_to_end_ms",
}


@dataclass(frozen=True, slots=True)
class Example:
    """A question of the stream, and what became of it after the swap.

    Attributes:
        request: The question as the stream has it.
        observation: Its times, documents and answer after the swap.
        first_wording: Its wording the first time, if that was another; else empty.
        documents: What was retrieved, best first.
        right: Answers that Natural Questions counts as right.
    """

    request: Request
    observation: Observation
    first_wording: str
    documents: tuple[Passage, ...]
    right: tuple[str, ...]

    @property
    def story(self) -> str:
        """How its documents were found."""
        if not self.request.repeated:
            kind = "First time"
        elif not self.request.rephrased:
            kind = "Repeated"
        else:
            kind = f"Repeated in slightly different words (before: “{self.first_wording}”)"
        place = "found in the query cache" if self.observation.hit else "searched in the store"
        return f"{kind}: {place} in {milliseconds(self.observation.retrieval_ms)} ms."


def milliseconds(value: float) -> str:
    """A time with as many digits as it deserves."""
    digits = max(0, 2 - len(f"{value:.0f}".lstrip("0")))
    return f"{value:,.{digits}f}"


def _change(before: float, after: float) -> str:
    if before == 0:
        return ""
    percent = round(100 * (after / before - 1))
    return "±0 %" if percent == 0 else f"{percent:+d} %"


def verdict(name: str, result: FrameworkResult) -> tuple[str, bool]:
    """What to do after the demo, in a sentence, and whether the swap paid off.

    A first token that chance may have brought sooner does not count: both sides answered in turns,
    but a busy machine slows down some answers.

    Args:
        name: The framework's name.
        result: What was measured with it.
    """
    before, after = (
        [seen.first_token_ms for seen in side] for side in (result.before, result.after)
    )
    difference, _ = paired_intervals(before, after)
    mean = statistics.fmean(before)
    sooner, most, least = (-end / mean for end in difference.as_list())
    searches, saved = (
        sum(seen.store_calls for seen in side) for side in (result.before, result.after)
    )
    fewer = 1 - saved / max(1, searches)
    sign, word = (1, "sooner") if sooner > 0 else (-1, "later")
    # Adding 0 turns a minus zero into a zero.
    low, high = sorted(round(sign * end, 2) + 0.0 for end in (least, most))
    moved = f"{abs(sooner):.0%} {word} (95 % interval {low:.0%} to {high:.0%})"
    measured = f"the first token came {moved}, with {fewer:.0%} fewer searches"
    faster = sooner >= WORTHWHILE and least > 0
    if faster:
        what, advice = "the swap pays off for these questions", "Swap both classes."
    elif fewer >= WORTHWHILE:
        what, advice = "only the retriever pays off for these questions", "Swap that class."
    else:
        what, advice = "the swap does not pay off for these questions", "Leave your chain as it is."
    return f"{name}: {what}: {measured}. {advice}", faster or fewer >= WORTHWHILE


def figures_table(result: FrameworkResult) -> Table:
    """The table of one framework."""
    sides = list(result.sides.values())
    before, after, anywhere = result.figures.values()

    def row(
        label: str, texts: Sequence[str], changes: Sequence[str] = ("", "")
    ) -> tuple[Cell, ...]:
        old, new, other = texts
        return (
            *(Cell(label), Cell(old)),
            *(Cell(new, style="strong"), Cell(changes[0])),
            *(Cell(other, style="strong"), Cell(changes[1])),
        )

    def compared(label: str, values: Sequence[float], texts: Sequence[str]) -> tuple[Cell, ...]:
        old, *others = values
        return row(label, texts, [_change(old, other) for other in others])

    def count(label: str, name: str) -> tuple[Cell, ...]:
        sums = [sum(getattr(seen, name) for seen in side) for side in sides]
        return compared(label, sums, [f"{number:,}" for number in sums])

    def time(label: str, name: str) -> tuple[Cell, ...]:
        values = [[float(getattr(seen, name)) for seen in side] for side in sides]
        means = [statistics.fmean(some) for some in values]
        texts = [
            f"{milliseconds(mean)} ({milliseconds(statistics.median(some))})"
            for mean, some in zip(means, values, strict=True)
        ]
        return compared(f"{label}, ms", means, texts)

    ratios = [f"{result.ttft_ratio(side):.3f}" for side in ("after", "anywhere")]
    recall = "none" if after.hit_recall is None else f"{after.hit_recall:.3f}"
    return Table(
        ("Times: mean (median)", "before", "after", "change", "anywhere", "change"),
        (
            count("Vector-store calls", "store_calls"),
            *(time(label, name) for label, name in TIMES.items()),
            row("TTFT ratio, median of pairs", ["1", *ratios]),
            count("Prompt tokens", "prompt_tokens"),
            count("Cached prompt tokens", "cached_prompt_tokens"),
            row("Query-cache hits", [str(side.hits) for side in (before, after, anywhere)]),
            row("Recall on hits", ["", recall, ""]),
        ),
    )


def quality_table(result: DemoResult) -> Table | None:
    """The table of answers' quality; ``None`` where nothing was scored."""
    rows = tuple(
        (
            Cell(quality.way),
            Cell(f"{quality.f1:.3f}", style="strong"),
            Cell(f"{quality.exact:.1%}"),
            Cell(f"{quality.same:.0%}"),
            Cell(f"{quality.cached:.0%}"),
        )
        for quality in result.quality
    )
    heads = ("Answers", "F1", "exact", "same as in full", "cached tokens")
    return Table(heads, rows) if rows else None


def answers_table(result: DemoResult) -> Table | None:
    """The table of the answers themselves, in full and block by block; ``None`` where none are."""
    shown = [quality for quality in result.quality if quality.texts and quality.way in _SHOWN]
    if not shown:
        return None
    rows = []
    for place, question in enumerate(result.scored):
        texts = [quality.texts[place] for quality in shown]
        cells = [
            Cell(text, style="good" if exact_match(text, question.answers) else "words")
            for text in texts
        ]
        right = Cell("; ".join(question.answers), style="words")
        rows.append((Cell(question.text, style="words"), right, *cells))
    return Table(("Question", "right", *(quality.way for quality in shown)), tuple(rows))


def conditions(settings: DemoSettings, requests: Sequence[Request]) -> list[str]:
    """What is run, in sentences."""
    repeated = sum(request.repeated for request in requests)
    rephrased = sum(request.rephrased for request in requests)
    compiled = "compiled by vLLM" if settings.compiled else "without vLLM's compilation"
    random = has_random_weights(settings.model)
    bundled = "the tiny random model" if random else "the bundled reader"
    model = bundled if settings.model is None else f"the model {settings.model}"
    stream = (
        f"{settings.questions:,} questions drawn from {settings.topics} by Zipf's law (exponent "
        f"0.8): {repeated:,} of them are repeated, {rephrased:,} of these in slightly different "
        "words."
    )
    store = (
        f"The store: {settings.passages:,} passages of Wikipedia and {settings.distractors:,} "
        "generated vectors, which make searches take longer and are never found, in an exact "
        f"index; {settings.top_k} documents per question."
    )
    engines = (
        f"Both sides run {model}, {compiled}, each on a separate engine with "
        f"{settings.kv_cache_gib:g} GiB of KV cache and prefix caching on; "
        f"at most {settings.max_tokens} tokens per answer."
    )
    anywhere = (
        "Reuse anywhere is after the swap, too, and on the same engine: documents were encoded "
        f"ahead, into {settings.document_cache_gib:g} GiB of their own, and only the first "
        f"{settings.link_tokens} tokens of each are computed again. It is an approximation."
    )
    noise = "The answers are noise: the model's weights are random. The timings are real."
    return [stream, store, engines, anywhere, *([noise] if random else [])]


def examples(result: DemoResult) -> list[Example]:
    """Choose a few questions: new ones, and hits in the same and in other words, if there are any.

    They are the first of their kinds, independent of their answers.
    """
    questions = load_questions()
    framework = next(iter(result.frameworks.values()))
    first: dict[int, str] = {}
    for request in result.requests:
        first.setdefault(request.topic, request.text)

    def chosen(kind: Callable[[Request, Observation], bool]) -> list[Example]:
        pairs = zip(result.requests, framework.after, strict=True)
        return [
            Example(
                request,
                seen,
                first[request.topic] if request.text != first[request.topic] else "",
                tuple(result.passages[document_id] for document_id in seen.document_ids),
                questions[request.topic].answers,
            )
            for request, seen in pairs
            if kind(request, seen)
        ]

    return [
        *chosen(lambda request, seen: not seen.hit and not request.repeated)[:3],
        *chosen(lambda request, seen: seen.hit and not request.rephrased)[:1],
        *chosen(lambda request, seen: seen.hit and request.rephrased)[:2],
    ]


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
        columns.append((embedding, retrieval, ttft, whole - first_token))
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
    title = "Time spent on retrieval"
    return Panel(title, "questions", "count", tuple(curves), "count", "seconds", note)


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
