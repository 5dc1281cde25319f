"""One query with and without speculation, event by event, and its timeline as a picture."""

from __future__ import annotations

import statistics
import textwrap
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from tqdm import tqdm

from ragcache_integrations.core.checks import check_int, check_number
from ragcache_integrations.core.extras import require
from ragcache_integrations.core.interrupts import remove_when_ended
from ragcache_integrations.engine import Prompt, PromptDocument, RAGCacheEngine, SamplingOptions
from ragcache_integrations.engine.engine import engine_settings
from ragcache_integrations.resources import load_passages, load_questions
from ragcache_integrations.speculation import SpeculationReport, Speculator, StageOfDocuments
from ragcache_workbench.reports import LIGHT, add_legend, new_picture, picture, strip_axes

from .engines import quiet_start

__all__ = [
    "Pair",
    "Span",
    "SpeculativeSettings",
    "Traced",
    "draw_timeline",
    "median_ttfts",
    "most_eventful",
    "pairs_as_dict",
    "run_speculative",
    "spans",
]

SYSTEM = "Answer from the documents, and from nothing else."
CHUNK_TOKENS = 512
"""Longest stretch of a prefill that a terminated guess occupies the engine with."""

CLUSTERS = 32
STAGES = 8
WARM_UP_QUESTIONS = 3

INK, SOFT, BEFORE, AFTER = (LIGHT[name] for name in ("ink", "soft", "other", "c0"))
SEARCH, PREFILL, DECODE = (LIGHT[name] for name in ("search", "prefill", "decode"))
WRONG = LIGHT["overhead"]
MS = 1000.0
HEIGHT = 0.62
LABEL_FLIPS = 0.8
"""Share of the width beyond which a label is to the left of what it names."""


@dataclass(frozen=True, slots=True)
class SpeculativeSettings:
    """The settings of the comparison.

    Attributes:
        questions: Number of questions, each of which is answered both ways; at least 1.
        top_k: Documents per question; at least 1.
        search_ms: Duration of a search in milliseconds; above 0.
        max_tokens: Limit of an answer in tokens; at least 1.
        kv_cache_gib: KV cache of the engine in GiB.
        model: Path or hub name of the model; ``None`` for the bundled one.

    Raises:
        ConfigurationError: A setting is out of its range.
        ModelNotFoundError: ``model`` looks like a path and no model is there.
    """

    questions: int = 12
    top_k: int = 5
    search_ms: float = 300.0
    max_tokens: int = 8
    kv_cache_gib: float = 0.5
    model: str | None = None

    def __post_init__(self) -> None:
        for name in ("questions", "top_k", "max_tokens"):
            check_int(name, getattr(self, name), 1)
        check_number("search_ms", self.search_ms, 0, above=True, unit="milliseconds")
        engine_settings(self.model, kv_cache_gib=self.kv_cache_gib)


@dataclass(frozen=True, slots=True)
class Traced:
    """A query's course.

    Attributes:
        report: Everything that happened, in seconds since the query began.
        ttft: Seconds to the first token that the user sees.
        seconds: Seconds to the last token.
        token_ids: The tokens of the answer.
    """

    report: SpeculationReport
    ttft: float
    seconds: float
    token_ids: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Pair:
    """A question answered both ways."""

    question: str
    sequential: Traced
    speculative: Traced


@dataclass(frozen=True, slots=True)
class _FoundBy:
    """The documents of a search's stage, and the share of the search's time when it came."""

    share: float
    ids: tuple[str, ...]


def run_speculative(
    settings: SpeculativeSettings, *, show_progress: bool = True
) -> tuple[Pair, ...]:
    """Ask questions with and without speculation, in turns.

    What each stage of a search finds comes from a real IVF search of the bundled passages; the
    stages are then spread over ``search_ms``, as a large store on another machine would take.

    Args:
        settings: The configuration of the run.
        show_progress: Show on standard error what is going on.

    Raises:
        MissingExtraError: Something that it needs is not installed.
        EngineError: The engine does not start, or fails.
    """
    for module, extra in (("faiss", "faiss"), ("ragcache_minilm", "embeddings")):
        require(module, feature="The demo", extra=extra)
    with TemporaryDirectory(prefix="ragcache-demo-") as folder:
        remove_when_ended(folder)
        log, what = Path(folder) / "engine.log", "Starting the engine, embedding passages"
        with quiet_start(log, what, 2, show_progress=show_progress) as progress:
            questions = [question.text for question in load_questions()]
            questions = questions[: WARM_UP_QUESTIONS + settings.questions]
            searches = _search(questions, settings.top_k)
            progress.update()
            started = RAGCacheEngine(
                settings.model,
                kv_cache_gib=settings.kv_cache_gib,
                vllm_args={"enforce_eager": True, "max_num_batched_tokens": CHUNK_TOKENS},
            )
            progress.update()
        with started as engine:
            inputs = list(zip(questions, searches, strict=True))
            pairs = [
                _ask_both_ways(engine, question, stages, settings)
                for question, stages in tqdm(inputs, "Questions", disable=not show_progress)
            ]
    return tuple(pairs[WARM_UP_QUESTIONS:])


def median_ttfts(pairs: Sequence[Pair]) -> tuple[float, float]:
    """Median seconds to the first token, sequential and speculative."""
    return (
        statistics.median(pair.sequential.ttft for pair in pairs),
        statistics.median(pair.speculative.ttft for pair in pairs),
    )


def most_eventful(pairs: Sequence[Pair]) -> Pair:
    """Return the pair whose speculation was confirmed, with the most guesses among these."""
    return max(
        pairs,
        key=lambda pair: (pair.speculative.report.confirmed, pair.speculative.report.guesses),
    )


def pairs_as_dict(pairs: Sequence[Pair]) -> dict[str, Any]:
    """Return the measurements as plain data for JSON."""
    sequential, speculative = median_ttfts(pairs)
    reports = [pair.speculative.report for pair in pairs]
    return {
        "questions": len(pairs),
        "median_ttft_ms": {
            "sequential": round(1000 * sequential, 1),
            "speculative": round(1000 * speculative, 1),
        },
        "right_guesses": sum(report.confirmed for report in reports),
        "guesses": sum(report.guesses for report in reports),
        "aborted": sum(report.aborted for report in reports),
        "same_answers": sum(
            pair.sequential.token_ids == pair.speculative.token_ids for pair in pairs
        ),
    }


def _search(questions: Sequence[str], k: int) -> list[list[_FoundBy]]:
    """What an IVF index over the passages finds for each question, stage by stage."""
    import faiss  # noqa: PLC0415 - an extra

    from ragcache_integrations.embeddings.minilm import MiniLM  # noqa: PLC0415 - slow
    from ragcache_integrations.vector_search import StagedIndex, StagePlan  # noqa: PLC0415 - slow

    from .apps import Corpus  # noqa: PLC0415 - slow

    model = MiniLM()
    corpus = Corpus(0)
    vectors = corpus.index.reconstruct_n(0, corpus.index.ntotal)
    index: Any = faiss.IndexIVFFlat(faiss.IndexFlatL2(MiniLM.dim), MiniLM.dim, CLUSTERS)
    index.train(vectors)
    index.add(vectors)
    index.nprobe = CLUSTERS
    staged = StagedIndex(index, [document.id for document in corpus.documents])
    searches = []
    for vector in model.embed_batch(questions):
        stages = list(staged.stages(vector, k, plan=StagePlan(number=STAGES)))
        whole = stages[-1].elapsed
        searches.append([_FoundBy(stage.elapsed / whole, stage.ids) for stage in stages])
    return searches


def _ask_both_ways(
    engine: RAGCacheEngine,
    question: str,
    stages: Sequence[_FoundBy],
    settings: SpeculativeSettings,
) -> Pair:
    passages = {passage.id: passage for passage in load_passages()}
    options = SamplingOptions(max_tokens=settings.max_tokens, ignore_eos=True)

    def prompt_of(ids: tuple[str, ...]) -> Prompt:
        documents = [PromptDocument(passages[name].text, name) for name in ids]
        return Prompt.rag(question, documents, system=SYSTEM)

    traces = []
    for speculate in (False, True):
        engine.reset_cache()  # both begin with nothing cached
        speculator = Speculator(engine, speculate=speculate)
        began = time.perf_counter()
        search = _replay(stages, settings.search_ms / 1000)
        with speculator.stream(search, prompt_of, options) as stream:
            next(stream)
            ttft = time.perf_counter() - began
            answer = stream.result()
        seconds = time.perf_counter() - began
        traces.append(Traced(answer.report, ttft, seconds, answer.generation.token_ids))
    return Pair(question, *traces)


def _replay(stages: Sequence[_FoundBy], seconds: float) -> Iterator[StageOfDocuments[str]]:
    """The stages of a search, spread over some seconds."""
    began = time.perf_counter()
    for number, stage in enumerate(stages, 1):
        time.sleep(max(0.0, began + stage.share * seconds - time.perf_counter()))
        yield StageOfDocuments(stage.ids, final=number == len(stages))


# The timeline


@dataclass(frozen=True, slots=True)
class Span:
    """A stretch of a query's time, in seconds since it began.

    Attributes:
        kind: ``stage`` of the search, ``wrong`` guess, ``prefill`` or ``decode`` of the answer.
        number: Number of the stage or the guess.
        begin, end: Seconds since the query began.
    """

    kind: str
    number: int
    begin: float
    end: float


def spans(trace: Traced) -> tuple[Span, ...]:
    """What happened when, from the report's events."""
    report = trace.report
    stretches: list[Span] = []
    begin = 0.0
    for event in report.events:
        if event.what in {"stage", "final stage"}:
            stretches.append(Span("stage", event.number, begin, event.seconds))
            begin = event.seconds
    submitted = _times(report, "submitted")
    ended = _times(report, "terminated")
    first_tokens = _times(report, "first token")
    for number, begin in submitted.items():
        if number in ended:
            stretches.append(Span("wrong", number, begin, ended[number]))
            continue
        first = first_tokens.get(number, trace.seconds)
        stretches.append(Span("prefill", number, begin, first))
        stretches.append(Span("decode", number, first, max(first, trace.seconds)))
    return tuple(stretches)


def _times(report: SpeculationReport, what: str) -> dict[int, float]:
    return {event.number: event.seconds for event in report.events if event.what == what}


def draw_timeline(pair: Pair, path: Path) -> None:
    """Draw a query's two courses, one above the other, on one scale.

    Args:
        pair: A query with its sequential and its speculative course.
        path: PNG file to write.
    """
    question = textwrap.shorten(pair.question, 90, placeholder=" …")
    figure = new_picture(10.0, 4.8, f"“{question}”")
    panels = figure.subplots(2, 1, sharex=True)
    end = 1.02 * MS * max(pair.sequential.seconds, pair.speculative.seconds)
    sides = (
        ("Sequential: search, then generate", BEFORE, pair.sequential),
        ("Speculative: generate while the search runs", AFTER, pair.speculative),
    )
    for panel, (title, colour, trace) in zip(panels, sides, strict=True):
        panel.set_xlim(0, end)
        _draw(panel, title, colour, trace)
    panels[-1].set_xlabel("ms since the question", color=SOFT, fontsize=9)
    add_legend(figure, _legend(), 5, 9)
    path.write_bytes(picture(figure))


def _draw(panel: Any, title: str, colour: str, trace: Traced) -> None:
    colours = {"stage": SEARCH, "wrong": WRONG, "prefill": PREFILL, "decode": DECODE}
    rows = {"stage": 1, "wrong": 0, "prefill": 0, "decode": 0}
    for span in spans(trace):
        panel.barh(
            rows[span.kind],
            MS * (span.end - span.begin),
            HEIGHT,
            MS * span.begin,
            color=colours[span.kind],
            hatch="////" if span.kind == "wrong" else None,
            edgecolor="white",
            linewidth=1.0,
        )
        middle = MS * (span.begin + span.end) / 2
        if span.kind == "wrong":
            panel.annotate(
                f"guess {span.number}, terminated",
                (middle, -HEIGHT / 2),
                (0, -3),
                textcoords="offset points",
                ha="center",
                va="top",
                fontsize=8,
                color=SOFT,
            )
    seen = MS * trace.ttft
    late = seen > LABEL_FLIPS * panel.get_xlim()[1]
    panel.axvline(seen, color=colour, linewidth=1.6, linestyle=(0, (4, 2)))
    panel.annotate(
        f"first token: {seen:.0f} ms",
        (seen, 1.45),
        (-5 if late else 5, 0),
        textcoords="offset points",
        ha="right" if late else "left",
        va="center",
        fontsize=9,
        weight="bold",
        color=colour,
    )
    panel.set_title(title, loc="left", fontsize=10, color=INK)
    strip_axes(panel, grid="x")
    panel.set_yticks([0, 1], ["engine", "search"], fontsize=9, color=INK)
    panel.set_ylim(-0.75, 1.75)


def _legend() -> list[Any]:
    from matplotlib.patches import Patch  # noqa: PLC0415 - an extra

    return [
        Patch(color=SEARCH, label="stages of the search"),
        Patch(facecolor=WRONG, edgecolor="white", hatch="////", label="wrong guess"),
        Patch(color=PREFILL, label="prefill of the answer"),
        Patch(color=DECODE, label="its decoding"),
    ]
