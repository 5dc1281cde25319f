"""The query cache beside a cache of answers (GPTCache), on the same questions.

A stream as in Proximity §4.2.2: real questions by Zipf's law, each time in other words, with
near-duplicates that ask for something else. Both caches get the same MiniLM embeddings and the same
tolerance; what misses is put in. GPTCache 0.1.44 as its own quick start sets it up (SQLite and
FAISS, the nearest key, the distance of the search), its files in memory; the query cache in front
of an exact store, re-ranking 20 k candidates. Median times of a lookup that hits, of one that
misses, and of putting a question in; embedding is not counted.

The two hit alike and serve different things: GPTCache the answer that was given to an earlier
question, the query cache documents that are ranked for the new one, which a model has yet to read.
*Recall* is that of the five documents an answer stands on: for GPTCache those of the earlier
question. *Another question's* is the share of its hits that answer a question of another meaning.
Without ``--data`` questions and passages are the bundled sample's. The last line is one JSON
object.
"""

from __future__ import annotations

import argparse
import atexit
import json
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray
from parts.query_cache.qualities import Asked, K, Knobs, ask
from parts.stats.intervals import median_ratio
from parts.stats.tables import Cell, print_table
from parts.traffic.embedded import Embedder
from parts.traffic.question_streams import Stream, zipf_stream
from parts.traffic.questions import load_corpus
from parts.vector_search.exact_store import ExactStore

from ragcache_integrations.query_cache import QueryCache

WARM_UP = 50
"""Lookups that are not counted in the ratio."""
CAPACITY = 2000
FARTHEST = 4.0
"""The largest squared distance between unit vectors."""


@dataclass(frozen=True)
class Outcome:
    """What a cache did with a stream.

    Attributes:
        lookups: Microseconds of every lookup.
        puts: Microseconds of putting a question in.
        hits: Places in the stream of the questions that hit.
        recall: Of each hit.
        elsewhere: Share of the hits that answer another question; ``None`` where documents, and not
            answers, are served.
    """

    lookups: list[float]
    puts: list[float]
    hits: list[int]
    recall: NDArray[np.float64]
    elsewhere: float | None

    def of_hits(self) -> list[float]:
        """Times of the lookups that hit."""
        return [self.lookups[number] for number in self.hits]

    def of_misses(self) -> list[float]:
        """Times of the others."""
        hits = set(self.hits)
        return [time for number, time in enumerate(self.lookups) if number not in hits]


class Peer(Protocol):
    """A cache that is asked, by places in the stream."""

    def look_up(self, number: int) -> Any:
        """What it serves; ``None`` for nothing."""

    def found(self, number: int) -> Any:
        """What is to be put in."""

    def put(self, number: int, found: Any) -> None:
        """Put it in."""


class Documents:
    """The query cache."""

    def __init__(self, asked: Asked, knobs: Knobs) -> None:
        self._asked = asked
        self._cache: QueryCache[int] = knobs.cache(asked.store)

    def look_up(self, number: int) -> Any:
        """Its hit."""
        return self._cache.lookup(self._asked.queries[number], K)

    def found(self, number: int) -> Any:
        """What the store says."""
        count = self._cache.fetch_count(K, self._asked.queries[number])
        return self._asked.store.candidates(self._asked.answers.documents[number, :count])

    def put(self, number: int, found: Any) -> None:
        """Put that in."""
        self._cache.insert(self._asked.queries[number], found, k=K)


class Answers:
    """GPTCache, whose answers here are the places of the questions that they were given to."""

    def __init__(self, asked: Asked, stream: Stream, tolerance: float, folder: Path) -> None:
        api = import_module("gptcache.adapter.api")
        manager = import_module("gptcache.manager")
        gptcache = import_module("gptcache")
        evaluation = import_module("gptcache.similarity_evaluation")
        vectors = dict(zip(stream.texts, asked.queries, strict=True))
        rows = manager.CacheBase("sqlite", sql_url=f"sqlite:///{folder}/answers.db")
        index = manager.VectorBase(
            "faiss", dimension=asked.store.dim, index_path=str(folder / "faiss.index"), top_k=1
        )
        self._cache = gptcache.Cache()
        self._cache.init(
            pre_embedding_func=import_module("gptcache.processor.pre").get_prompt,
            embedding_func=lambda text, **_: vectors[text],
            data_manager=manager.get_data_manager(rows, index, max_size=CAPACITY),
            similarity_evaluation=evaluation.SearchDistanceEvaluation(max_distance=FARTHEST),
            # A score is 4 less the squared distance, and enough from this share of 4 on.
            config=gptcache.Config(similarity_threshold=1 - tolerance**2 / FARTHEST),
        )
        self._get, self._put = api.get, api.put
        self._texts = stream.texts

    def look_up(self, number: int) -> Any:
        """An answer."""
        return self._get(self._texts[number], cache_obj=self._cache)

    def found(self, number: int) -> Any:
        """The answer to this question."""
        return str(number)

    def put(self, number: int, found: Any) -> None:
        """Put it in."""
        self._put(self._texts[number], found, cache_obj=self._cache)


def serve(peer: Peer, length: int) -> tuple[list[float], list[float], dict[int, Any]]:
    """Ask for every question; microseconds of lookups and puts, and what hits were served."""
    lookups, puts, served = [], [], {}
    for number in range(length):
        began = time.perf_counter_ns()
        hit = peer.look_up(number)
        lookups.append((time.perf_counter_ns() - began) / 1e3)
        if hit is not None:
            served[number] = hit
            continue
        found = peer.found(number)
        began = time.perf_counter_ns()
        peer.put(number, found)
        puts.append((time.perf_counter_ns() - began) / 1e3)
    return lookups, puts, served


def with_query_cache(asked: Asked, knobs: Knobs) -> Outcome:
    """Ask the query cache."""
    lookups, puts, served = serve(Documents(asked, knobs), len(asked.queries))
    hits = list(served)
    documents = [[candidate.document for candidate in hit.candidates] for hit in served.values()]
    recall = asked.store.recall(asked.queries[hits], documents, asked.answers.pick(hits))
    return Outcome(lookups, puts, hits, recall, None)


def with_gptcache(asked: Asked, stream: Stream, tolerance: float, folder: Path) -> Outcome:
    """Ask GPTCache."""
    lookups, puts, served = serve(Answers(asked, stream, tolerance, folder), len(stream))
    hits = list(served)
    sources = [int(answer) for answer in served.values()]
    documents = [asked.answers.documents[source, :K].tolist() for source in sources]
    recall = asked.store.recall(asked.queries[hits], documents, asked.answers.pick(hits))
    named = stream.originals
    others = [named[a] != named[b] for a, b in zip(hits, sources, strict=True)]
    return Outcome(lookups, puts, hits, recall, float(np.mean(others)) if others else 0.0)


def row(name: str, tolerance: float, outcomes: Sequence[Outcome]) -> list[Cell]:
    """A line of the table, over all seeds."""
    recall = np.concatenate([one.recall for one in outcomes])
    elsewhere = [outcome.elsewhere for outcome in outcomes if outcome.elsewhere is not None]
    rate = sum(len(one.hits) for one in outcomes) / sum(len(one.lookups) for one in outcomes)
    return [
        name,
        tolerance,
        rate,
        float(recall.mean()) if recall.size else None,
        statistics.fmean(elsewhere) if elsewhere else None,
        _median([time for one in outcomes for time in one.of_hits()]),
        _median([time for one in outcomes for time in one.of_misses()]),
        _median([time for one in outcomes for time in one.puts]),
    ]


def ratio(peer: Sequence[Outcome], ours: Sequence[Outcome]) -> list[float]:
    """Lookups of a peer over ours, question by question."""
    theirs, own = (
        [time for one in each for time in one.lookups[WARM_UP:]] for each in (peer, ours)
    )
    return median_ratio(theirs, own).as_list(4)


def _median(times: list[float]) -> float | None:
    return statistics.median(times) if times else None


def main() -> None:
    """Run and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--quick", action="store_true", help="a cut of it, in less than a minute")
    parser.add_argument("--data", type=Path, help="a folder of data sets; bundled if not given")
    parser.add_argument("--length", type=int, default=5000, help="questions asked")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--tolerances", type=float, nargs="+", default=(0.3, 0.5))
    options = parser.parse_args()
    if find_spec("gptcache") is None:
        sys.exit("GPTCache is not installed: pip install gptcache==0.1.44")
    topics, length, seeds, tolerances = 500, options.length, options.seeds, options.tolerances
    if options.quick:
        topics, length, seeds, tolerances = 25, 400, 1, (0.5,)
    corpus = load_corpus(options.data)
    embed = Embedder(show_progress=not options.quick)
    passages = corpus.passages[:250] if options.quick else corpus.passages
    store = ExactStore(embed([text[:200] for text in passages] if options.quick else passages))
    questions = corpus.questions["pubmedqa" if "pubmedqa" in corpus.questions else "nq"][:topics]
    files = tempfile.mkdtemp(dir=_in_memory())
    # GPTCache writes when the interpreter ends; what was registered before it is called after it.
    atexit.register(shutil.rmtree, files, ignore_errors=True)
    rows: list[list[Cell]] = []
    result: dict[str, Any] = {}
    for tolerance in tolerances:
        ways: dict[str, list[Outcome]] = {}
        for seed in range(seeds):
            stream = zipf_stream(questions, length, "medium", twins=len(questions) // 5, seed=seed)
            asked = ask(stream, store, embed)
            for index in ("flat", "lsh"):
                knobs = Knobs(tolerance=tolerance, index=index, capacity=CAPACITY, seed=seed)
                name = f"query cache, {index}"
                ways.setdefault(name, []).append(with_query_cache(asked, knobs))
            own = Path(tempfile.mkdtemp(dir=files))
            ways.setdefault("GPTCache", []).append(with_gptcache(asked, stream, tolerance, own))
        rows += [row(name, tolerance, outcomes) for name, outcomes in ways.items()]
        result[f"{tolerance:g}"] = {
            name: ratio(ways["GPTCache"], outcomes)
            for name, outcomes in ways.items()
            if name != "GPTCache"
        }
    head = ["", "tolerance", "hit rate", "recall", "another question's"]
    print_table(
        f"{length} questions, {seeds} seeds, {len(passages)} passages",
        [*head, "hit us", "miss us", "put us"],
        rows,
    )
    print(json.dumps({"lookup_ratio": result}))


def _in_memory() -> str | None:
    """A folder that is no disk, where there is one."""
    shared = Path("/dev/shm")  # noqa: S108 - a peer's files, deleted behind it
    return str(shared) if shared.is_dir() else None


if __name__ == "__main__":
    main()
