"""Runs the demo: three applications per framework, on one stream of questions.

Before and after the swap, and after it with documents that are reused anywhere. The last two share
an engine: their requests differ, and nothing approximate is found by what is exact.
"""

from __future__ import annotations

import importlib
import itertools
import random
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
from tqdm import tqdm

from ragcache_integrations.core.extras import require
from ragcache_integrations.core.interrupts import remove_when_ended
from ragcache_integrations.engine import RAGCacheEngine
from ragcache_integrations.engine.arguments import bundled_dtype
from ragcache_integrations.engine.tiny_model import default_model_path, has_random_weights
from ragcache_integrations.errors import EngineStartError
from ragcache_integrations.resources import Passage, Question, load_questions
from ragcache_workbench.evaluation.workloads import rephrase
from ragcache_workbench.simulation import zipf_ranks

from .apps import App, Corpus, Observation, passage_text
from .engines import StockEngine, preset, quiet_start
from .quality import BLOCKS, WAYS, Quality, answer_quality, block_quality, documents_of
from .settings import FRAMEWORKS, DemoSettings

__all__ = [
    "NEEDED",
    "TURN",
    "DemoResult",
    "Figures",
    "FrameworkResult",
    "Request",
    "figures",
    "run_demo",
    "scored_questions",
    "stream",
    "zipf_stream",
]

NEEDED = {
    "vllm": "vllm",
    "transformers": "vllm",
    "faiss": "faiss",
    "ragcache_minilm": "embeddings",
    "onnxruntime": "embeddings",
    "tokenizers": "embeddings",
    "langchain_community": "eval",
    "llama_index.vector_stores.faiss": "eval",
    "rich": "eval",
    "scipy": "eval",
}
"""Modules that the demo needs, and the extras that install them."""

TURN = 20
"""Questions that one side answers before it is the other's turn."""

STOCK_SPIN_SECONDS = 1.1
"""vLLM's worker busy-waits for a second after its last request (``SpinCondition`` in its
``shm_broadcast.py``), on a core that the other side needs."""

EXPONENT = 0.8
"""The r-th most popular question is drawn with a probability proportional to ``r ** -EXPONENT``;
this is common in measured traffic."""

WARM_UP_QUESTIONS = 5
WARM_UP = "to warm up, "


@dataclass(frozen=True, slots=True)
class Request:
    """One question of the stream.

    Attributes:
        text: Its wording.
        topic: Position of the question in the list that the stream is drawn from.
        repeated: Whether the topic came before.
        rephrased: Whether it is a repeated topic in other words.
    """

    text: str
    topic: int
    repeated: bool
    rephrased: bool


@dataclass(frozen=True, slots=True)
class Figures:
    """A whole stream of questions: counts are sums, times are means per question."""

    store_calls: int
    embedding_ms: float
    retrieval_ms: float
    ttft_ms: float
    end_to_end_ms: float
    prompt_tokens: int
    cached_prompt_tokens: int
    hits: int
    hit_recall: float | None


def figures(observations: Sequence[Observation], hit_recall: float | None) -> Figures:
    """Summarise the measurements of a stream.

    Args:
        observations: The observations of one side; at least one.
        hit_recall: Recall of the documents from the query cache; ``None`` without a hit.
    """
    means = ("embedding_ms", "retrieval_ms", "ttft_ms", "end_to_end_ms")
    sums = ("store_calls", "prompt_tokens", "cached_prompt_tokens")
    summed: dict[str, Any] = {
        name: kind(getattr(seen, name) for seen in observations)
        for names, kind in ((means, statistics.fmean), (sums, sum))
        for name in names
    }
    return Figures(**summed, hits=sum(seen.hit for seen in observations), hit_recall=hit_recall)


@dataclass(frozen=True, slots=True)
class FrameworkResult:
    """The observations of one framework's applications, question by question.

    Attributes:
        before: Those with the plain retriever and stock vLLM.
        after: Those with our two classes.
        anywhere: Those with our two classes and documents that are reused anywhere.
        hit_recall: Recall of the documents from the query cache after the swap; ``None`` without a
            hit.
    """

    before: tuple[Observation, ...]
    after: tuple[Observation, ...]
    anywhere: tuple[Observation, ...]
    hit_recall: float | None

    @property
    def sides(self) -> dict[str, tuple[Observation, ...]]:
        """The observations by the name of the side."""
        return {"before": self.before, "after": self.after, "anywhere": self.anywhere}

    @property
    def figures(self) -> dict[str, Figures]:
        """Each side's stream summed up; documents that are reused anywhere have the same hits."""
        recalls = {"before": None}
        return {
            name: figures(side, recalls.get(name, self.hit_recall))
            for name, side in self.sides.items()
        }

    def ttft_ratio(self, side: str) -> float:
        """Median ratio of a question's time to first token, a side by before."""
        pairs = zip(self.before, self.sides[side], strict=True)
        return statistics.median(new.ttft_ms / old.ttft_ms for old, new in pairs)


@dataclass(frozen=True, slots=True)
class DemoResult:
    """Everything that was measured.

    Attributes:
        settings: The configuration of the run.
        requests: The stream of questions.
        frameworks: The results, by the name of the framework.
        passages: The passages that were retrieved, by id.
        model: Path or name of the model that answered.
        seconds: Duration of the run in seconds.
        quality: Quality of the answers, by where the documents came from; empty for a model with
            random weights.
        scored: The questions whose answers were scored.
        encoded: Documents that were encoded ahead, to be reused anywhere.
        encoding_seconds: How long that took.
    """

    settings: DemoSettings
    requests: tuple[Request, ...]
    frameworks: dict[str, FrameworkResult]
    passages: dict[str, Passage]
    model: str
    seconds: float
    quality: tuple[Quality, ...] = ()
    scored: tuple[Question, ...] = ()
    encoded: int = 0
    encoding_seconds: float = 0.0

    def as_dict(self) -> dict[str, Any]:
        """Return plain data for ``--json``."""
        quality = {scores.way: scores.as_dict() for scores in self.quality}
        blocks = {str(links): quality[way]["f1"] for links, way in BLOCKS.items() if way in quality}
        scored = {"quality": quality, "blocks": blocks}
        return {name: content for name, content in scored.items() if content} | {
            name: {side: asdict(summed) for side, summed in result.figures.items()}
            | {
                "ttft_ratio": result.ttft_ratio("after"),
                "anywhere_ttft_ratio": result.ttft_ratio("anywhere"),
            }
            for name, result in self.frameworks.items()
        }


@dataclass(frozen=True, slots=True)
class _Ground:
    """What both sides use: the store, and an engine for each."""

    corpus: Corpus
    stock: StockEngine
    engine: RAGCacheEngine


def stream(settings: DemoSettings) -> tuple[Request, ...]:
    """Return the stream of questions of some settings."""
    questions = [question.text for question in load_questions()[: settings.topics]]
    return tuple(zipf_stream(questions, settings.questions, seed=settings.seed))


def zipf_stream(questions: Sequence[str], length: int, *, seed: int = 0) -> list[Request]:
    """Draw questions by Zipf's law, and rephrase half of those that come again slightly.

    Args:
        questions: The questions to draw from, at least one; their ranks are drawn, too.
        length: Number of questions to draw; at least 1.
        seed: The same seed gives the same stream.
    """
    rng = np.random.default_rng(seed)
    by_rank = rng.permutation(len(questions)).tolist()
    topics = [by_rank[rank] for rank in zipf_ranks(len(questions), length, EXPONENT, rng)]
    first = {topic: place for place, topic in reversed(list(enumerate(topics)))}
    repeats = [place for place, topic in enumerate(topics) if first[topic] != place]
    changed = set(rng.choice(repeats, len(repeats) // 2, replace=False).tolist())
    wordings: set[str] = set()
    return [
        Request(
            text=rephrase(questions[topic], "slight", rng, wordings)
            if place in changed
            else questions[topic],
            topic=topic,
            repeated=first[topic] != place,
            rephrased=place in changed,
        )
        for place, topic in enumerate(topics)
    ]


def scored_questions(settings: DemoSettings) -> tuple[Question, ...]:
    """Return the questions whose answers are scored, drawn by the seed."""
    questions = load_questions()
    return tuple(random.Random(settings.seed).sample(questions, settings.scored))


def run_demo(settings: DemoSettings, *, show_progress: bool = True) -> DemoResult:
    """Run the demo.

    Args:
        settings: The configuration of the run.
        show_progress: Whether to show progress bars on standard error.

    Raises:
        MissingExtraError: A package that the demo needs is not installed.
        EngineError: An engine does not start, or fails.
    """
    begun = time.perf_counter()
    requests = stream(settings)
    warm_up = [question.text for question in load_questions()[:WARM_UP_QUESTIONS]]
    results = {}
    with _prepared(settings, show_progress=show_progress) as ground:
        asked = [*warm_up, *(f"{WARM_UP}{text}" for text in warm_up)]
        asked += [request.text for request in requests]
        scored = scored_questions(settings)
        asked += [question.text for question in scored]
        encoded, seconds = _encode(ground, asked, settings.top_k)
        for name in settings.frameworks:
            _warm_up(_apps(name, ground, settings, warms_up=True), ground, warm_up)
            apps = _apps(name, ground, settings)
            with tqdm(
                total=len(apps) * len(requests), desc=FRAMEWORKS[name], disable=not show_progress
            ) as progress:
                before, after, anywhere = _in_turns(apps, requests, progress.update)
            recall = _hit_recall(ground.corpus, requests, after, settings.top_k)
            results[name] = FrameworkResult(tuple(before), tuple(after), tuple(anywhere), recall)
        quality = _quality(ground, settings, scored, show_progress=show_progress)
        retrieved = {
            document_id
            for result in results.values()
            for observation in (*result.before, *result.after)
            for document_id in observation.document_ids
        }
        return DemoResult(
            settings=settings,
            requests=requests,
            frameworks=results,
            passages={name: ground.corpus.passage(name) for name in retrieved},
            model=ground.engine.model,
            seconds=time.perf_counter() - begun,
            quality=quality,
            scored=scored if quality else (),
            encoded=encoded,
            encoding_seconds=seconds,
        )


def _encode(ground: _Ground, questions: Sequence[str], top_k: int) -> tuple[int, float]:
    """Encode what the questions will retrieve: the number of documents, and the seconds."""
    found = itertools.chain.from_iterable(ground.corpus.nearest(questions, top_k))
    texts = [passage_text(ground.corpus.passage(name)) for name in dict.fromkeys(found)]
    begun = time.perf_counter()
    ground.engine.encode(texts)
    return len(texts), time.perf_counter() - begun


def _quality(
    ground: _Ground,
    settings: DemoSettings,
    questions: Sequence[Question],
    *,
    show_progress: bool,
) -> tuple[Quality, ...]:
    """Score the answers to some questions, each computed in several ways."""
    if not questions or has_random_weights(settings.model):
        return ()
    documents = documents_of(ground.corpus, questions, settings.top_k)
    exact = preset(ground.engine, reuse="prefix")
    with tqdm(
        total=(len(WAYS) + len(BLOCKS)) * len(questions),
        desc="Scoring answers",
        disable=not show_progress,
    ) as progress:
        scores = answer_quality(exact, questions, documents, progress.update)
        return scores + block_quality(
            ground.engine, questions, documents, scores[0], progress.update
        )


@contextmanager
def _prepared(settings: DemoSettings, *, show_progress: bool) -> Iterator[_Ground]:
    """Start the engines and build the store, all at the same time."""
    starts: list[Future[Any]] = []
    with TemporaryDirectory(prefix="ragcache-demo-") as folder, ExitStack() as cleanup:
        remove_when_ended(folder)
        cleanup.callback(_close, starts)
        log = Path(folder) / "engines.log"
        what = "Starting two engines, embedding passages"
        with quiet_start(log, what, 3, show_progress=show_progress) as progress:
            # Imported here one after another: concurrent imports may see half-imported modules.
            for module, extra in NEEDED.items():
                require(module, feature="The demo", extra=extra)
            # These two import what they name when it is first asked for.
            _ = sys.modules["transformers"].AutoTokenizer, sys.modules["vllm"].AsyncEngineArgs
            knobs: dict[str, Any] = {
                "model": settings.model or str(default_model_path()),
                "kv_cache_gib": settings.kv_cache_gib,
                "dtype": "auto" if settings.model else bundled_dtype(),
                "vllm_args": {} if settings.compiled else {"enforce_eager": True},
            }
            anywhere: dict[str, Any] = {
                "reuse": "anywhere",
                "link_tokens": settings.link_tokens,
                "document_cache_gib": settings.document_cache_gib,
            }
            with ThreadPoolExecutor(2) as pool:  # waits for both, also after an error
                starts.append(pool.submit(StockEngine, **knobs))
                starts.append(pool.submit(partial(RAGCacheEngine, **knobs, **anywhere)))
                for start in starts:
                    start.add_done_callback(lambda _: progress.update())
                corpus = Corpus(
                    settings.distractors, passages=settings.passages, seed=settings.seed
                )
                progress.update()
        stock, engine = starts
        ours = engine.result()  # first: its errors are the clear ones
        try:
            theirs = stock.result()
        except Exception as error:
            words = log.read_text(encoding="utf-8", errors="replace")[-2000:]
            raise EngineStartError(f"stock vLLM did not start: {error}\n{words}") from error
        yield _Ground(corpus, theirs, ours)


def _close(starts: Sequence[Future[Any]]) -> None:
    for start in starts:
        if start.exception() is None:
            start.result().close()


def _apps(
    framework: str, ground: _Ground, settings: DemoSettings, *, warms_up: bool = False
) -> tuple[App, ...]:
    """A framework's applications, which find no KV cache that others of them have left.

    Documents that are reused anywhere stay, because they are in a namespace. What warms up has
    another number of link tokens instead, by which prompts are kept apart, too.
    """
    ways: list[Any] = [
        (preset(ground.engine, reuse="prefix"), framework + ", to warm up" * warms_up),
        (preset(ground.engine, link_tokens=settings.link_tokens + warms_up), ""),
    ]
    module = importlib.import_module(f"{__package__}.{framework}")  # slow
    apps: tuple[App, ...] = module.make_apps(ground.corpus, ground.stock, ways, settings)
    return apps


def _warm_up(apps: tuple[App, ...], ground: _Ground, questions: Sequence[str]) -> None:
    """Let all sides answer a few questions, then empty stock's cache."""
    for question, app in itertools.product(questions, apps):
        app.ask(f"{WARM_UP}{question}")
    ground.stock.reset_cache()


def _in_turns(
    apps: tuple[App, ...], requests: Sequence[Request], on_answer: Callable[[], object]
) -> tuple[list[Observation], ...]:
    """Ask all sides all questions in turns of :data:`TURN`; their order alternates."""
    observations = tuple(list[Observation]() for _ in apps)
    sides = range(len(apps))
    previous = 0
    for number, start in enumerate(range(0, len(requests), TURN)):
        for side in sides if number % 2 == 0 else reversed(sides):
            if previous == 0 and side:
                time.sleep(STOCK_SPIN_SECONDS)
            previous = side
            for request in requests[start : start + TURN]:
                observations[side].append(apps[side].ask(request.text))
                on_answer()
    return observations


def _hit_recall(
    corpus: Corpus, requests: Sequence[Request], after: Sequence[Observation], top_k: int
) -> float | None:
    hits = [(request, seen) for request, seen in zip(requests, after, strict=True) if seen.hit]
    if not hits:
        return None
    return corpus.recall(
        [request.text for request, _ in hits], [seen.document_ids for _, seen in hits], top_k
    )
