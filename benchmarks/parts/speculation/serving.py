"""Answering questions whose searches are replayed, as they arrive, and what is left afterwards."""

from __future__ import annotations

import asyncio
import random
import threading
import time
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import faiss
import numpy as np

from parts.speculation.recorded_stages import RecordedStages, Recording
from parts.traffic.embedded import Embedder
from parts.traffic.questions import load_corpus
from parts.vector_search.large_indexes import large_index
from ragcache_integrations.engine import Prompt, PromptDocument, RAGCacheEngine, SamplingOptions
from ragcache_integrations.resources import load_passages
from ragcache_integrations.speculation import (
    SpeculationReport,
    Speculator,
    StageOfDocuments,
    stages_of_index,
)
from ragcache_integrations.vector_search import StagedIndex, StagePlan

__all__ = [
    "TOP_K",
    "Asked",
    "Corpus",
    "LocalSearch",
    "Replay",
    "Search",
    "count_leaks",
    "serve",
    "serve_and_cancel",
]

OPTIONS = SamplingOptions(max_tokens=8, ignore_eos=True)
SYSTEM = "Answer from the documents, and from nothing else."
SETTLING_SECONDS = 30.0
TOP_K = 2
PLAN = StagePlan(number=8)

Stages = AsyncGenerator[StageOfDocuments[str], None]


class Search(Protocol):
    """Finds documents for the number of a query."""

    def __len__(self) -> int:
        """How many queries there are."""

    def __call__(self, query: int) -> Stages:
        """Search."""

    def agreeing(self) -> float:
        """Share of the queries whose first stage has the final documents."""


class Corpus:
    """A document for every id, of about so many words, made of bundled passages.

    Args:
        words: Length of a document.
    """

    def __init__(self, words: int) -> None:
        self._words = words
        self._text = " ".join(passage.text for passage in load_passages()).split()

    def document(self, name: str) -> PromptDocument:
        """The document of an id; its first words are its own, so that none begin alike."""
        start = 37 * hash_of(name) % (len(self._text) - self._words)
        return PromptDocument(f"{name}: " + " ".join(self._text[start : start + self._words]), name)

    def prompt(self, question: str, ids: Sequence[str]) -> Prompt:
        """The question over some documents."""
        return Prompt.rag(question, [self.document(one) for one in ids], system=SYSTEM)


def hash_of(name: str) -> int:
    """A number that is the same in every run."""
    return sum((place + 1) * byte for place, byte in enumerate(name.encode()))


@dataclass(frozen=True)
class Replay:
    """Recorded searches in the place of a store elsewhere: they take time and no core.

    Attributes:
        recording: Real searches, stage by stage.
        seconds: What the median search is stretched to; the others in proportion.
    """

    recording: Recording
    seconds: float

    def stages(self, query: int) -> RecordedStages:
        """The stages of a query, at the times at which they are to come."""
        stages = self.recording.queries[query % len(self.recording.queries)]
        scale = self.seconds / self.recording.seconds()
        return [(elapsed * scale, ids) for elapsed, ids in stages]

    def __len__(self) -> int:
        return len(self.recording.queries)

    def agreeing(self) -> float:
        """Share of the queries whose first stage has the final documents."""
        return self.recording.agreeing()

    async def __call__(self, query: int) -> Stages:
        """Search."""
        began = time.perf_counter()
        stages = self.stages(query)
        for number, (elapsed, ids) in enumerate(stages, 1):
            await asyncio.sleep(max(0.0, began + elapsed - time.perf_counter()))
            yield StageOfDocuments(ids, final=number == len(stages))


class LocalSearch:
    """Searches all clusters of an IVF index, on one of the cores that the engine computes on.

    Args:
        data: Folder with more passages and questions than the bundled ones.
        vectors: Size of the index.
    """

    def __init__(self, data: Path | None, vectors: int) -> None:
        corpus = load_corpus(data)
        embed = Embedder()
        index = large_index("ivf", vectors, embed(corpus.passages))
        index.nprobe = index.nlist
        faiss.omp_set_num_threads(1)
        self._index = StagedIndex(index)
        self._queries = embed([one.text for some in corpus.questions.values() for one in some])
        self._first_is_final: dict[int, bool] = {}

    def __len__(self) -> int:
        return len(self._queries)

    def agreeing(self) -> float:
        """Share of the queries, of those that were asked, whose first stage was right."""
        return float(np.mean(list(self._first_is_final.values())))

    async def __call__(self, query: int) -> Stages:
        """Search."""
        found = []
        stages = stages_of_index(self._index, self._queries[query], TOP_K, tuple, plan=PLAN)
        async with aclosing(stages):
            async for stage in stages:
                found.append(stage.documents)
                if stage.final:
                    self._first_is_final[query] = found[0] == found[-1]
                yield stage


@dataclass(frozen=True)
class Asked:
    """What became of a question; times in seconds.

    Attributes:
        ttft: From arrival to the first token.
        seconds: To the last one.
        report: What speculation did.
        token_ids: The answer.
        computed_tokens: Prompt tokens computed for the answer, guesses that were wrong excluded.
    """

    ttft: float
    seconds: float
    report: SpeculationReport
    token_ids: tuple[int, ...]
    computed_tokens: int


def serve(
    speculator: Speculator,
    corpus: Corpus,
    search: Search,
    queries: Sequence[int],
    arrivals: Sequence[float] | None,
    namespace: str,
) -> list[Asked]:
    """Answer questions.

    Args:
        speculator: Who answers.
        corpus: Documents by id.
        search: Finds documents for the number of a query.
        queries: What is asked.
        arrivals: Seconds after the start at which each comes; ``None`` for one after another.
        namespace: Nothing is cached across.
    """
    return asyncio.run(_serve(speculator, corpus, search, queries, arrivals, namespace))


async def _serve(
    speculator: Speculator,
    corpus: Corpus,
    search: Search,
    queries: Sequence[int],
    arrivals: Sequence[float] | None,
    namespace: str,
) -> list[Asked]:
    began = time.perf_counter()

    async def ask(query: int, arrival: float | None) -> Asked:
        if arrival is None:
            arrived = time.perf_counter()
        else:
            arrived = began + arrival
            await asyncio.sleep(max(0.0, arrived - time.perf_counter()))
        stream = await speculator.astream(
            search(query),
            lambda ids: corpus.prompt(f"What do they say about number {query}?", ids),
            OPTIONS,
            namespace=namespace,
        )
        async with stream:
            await anext(stream)
            ttft = time.perf_counter() - arrived
            answer = await stream.aresult()
        usage = answer.generation.usage
        return Asked(
            ttft,
            time.perf_counter() - arrived,
            answer.report,
            answer.generation.token_ids,
            usage.prompt_tokens - usage.cached_tokens,
        )

    if arrivals is None:
        return [await ask(query, None) for query in queries]
    return list(await asyncio.gather(*map(ask, queries, arrivals)))


def serve_and_cancel(
    speculator: Speculator,
    corpus: Corpus,
    search: Search,
    requests: int,
    *,
    within: float,
    seed: int,
) -> None:
    """Begin requests, some at a time, and cancel most of them at a random moment.

    Args:
        speculator: Who answers.
        corpus: Documents by id.
        search: Finds documents for the number of a query.
        requests: How many.
        within: Seconds within which they are cancelled.
        seed: Decides when.
    """
    chance = random.Random(seed)  # noqa: S311 - nothing secret

    async def ask(query: int) -> None:
        await speculator.arun(search(query), lambda ids: corpus.prompt("why?", ids), OPTIONS)

    async def begin(query: int) -> None:
        task = asyncio.create_task(ask(query))
        await asyncio.wait([task], timeout=chance.uniform(0, within))
        task.cancel()
        await asyncio.wait([task])

    async def all_of_them() -> None:
        for first in range(0, requests, 8):
            await asyncio.gather(*map(begin, range(first, min(first + 8, requests))))
        left = len(asyncio.all_tasks()) - 1
        if left:
            raise RuntimeError(f"{left} tasks are left behind")

    asyncio.run(all_of_them())


def count_leaks(engine: RAGCacheEngine, speculators: Sequence[Speculator]) -> int:
    """Count what is left of requests that are over: threads, engine requests, pinned nodes.

    Aborts take effect between the engine's steps; they are given some time.
    """
    deadline = time.monotonic() + SETTLING_SECONDS
    while (left := _left(engine, speculators)) and time.monotonic() < deadline:
        time.sleep(0.1)
    return left


def _left(engine: RAGCacheEngine, speculators: Sequence[Speculator]) -> int:
    load, tree = engine.load(), engine.tree()
    pinned = [] if tree is None else [node for node in tree.nodes() if node.place == "in use"]
    threads = [one for one in threading.enumerate() if one.name.startswith("ragcache-s")]
    pooled = sum(speculator.stats().pending for speculator in speculators)
    return (
        load.running_requests
        + load.waiting_requests
        + (load.free_kv_tokens != load.total_kv_tokens)
        + len(pinned)
        + len(threads)
        + pooled
    )
