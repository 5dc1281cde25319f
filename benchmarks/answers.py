"""Caches of answers beside each other: how many answers they serve again, and how many are wrong.

Streams of real questions by Zipf's law among near-duplicates with other answers (numbers, negations
and subjects exchanged): ``rephrased`` by rule, with a fifth word for word; and, with ``--pairs``,
``written``: questions that doctors have put in other words, or have turned into other ones.
The right answer to a question is known by construction, and any other one counts as wrong.

- *AnswerCache* with its defaults, and without the guard; its documents are the five nearest
  passages. It begins with nothing learnt; what it learns from are the answers it misses, and the
  hits that it checks.
- *fixed*: the answer to the nearest question up to a distance, which is what GPTCache, redisvl's
  ``SemanticCache`` and LangChain's semantic caches do. Its best tolerance at the same error is
  chosen with the right answers in hand: of a grid, the one with most hits among those with no
  larger share of wrong answers than AnswerCache. For each stream it is another one; ``all streams``
  has the best one for all of them, as a cache that serves both kinds of users must choose.
- *vCache*'s algorithm at the same bound, written anew after the paper.
- *GPTCache* itself, at a usual tolerance.
- *LangChain's InMemoryCache*, which serves equal prompts alone. LlamaIndex caches no answers.

``overhead``: a hit through LangChain's ``invoke`` over a call of its own RunnableLambda, and what a
miss adds to the chain that is wrapped; embedding and search take no time.

The last line is one JSON object.
"""

from __future__ import annotations

import argparse
import atexit
import json
import logging
import shutil
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from parts.answers.caches import Cache, FixedTolerance, GPTCache, LangChainCache, Ours, VCache
from parts.answers.streams import (
    AnswerStream,
    doctors_pairs,
    rephrased_stream,
    written_stream,
)
from parts.answers.wrapped_chain import overhead
from parts.stats.tables import Cell, print_table
from parts.traffic.embedded import Embedder
from parts.traffic.questions import load_corpus
from parts.vector_search.exact_store import ExactStore

from ragcache_integrations.answers import AnswerKnobs
from ragcache_workbench.evaluation.scores import bootstrap_interval

K = 5
PARTS = ("streams", "overhead")
GRID = tuple(np.round(np.arange(0.0, 0.62, 0.02), 2).tolist())
OURS, FIXED, ALL = "AnswerCache", "fixed", "all streams"
USUAL = 0.3
"""The tolerance at which GPTCache is run as somebody would who knows no better."""
REDISVL = (
    "redisvl's SemanticCache needs a Redis with search, which is not here: its rule is *fixed*"
)


@dataclass(frozen=True)
class Outcome:
    """What a cache did with a stream, question by question.

    Attributes:
        hits: Whether it was served.
        wrong: Whether what was served was another question's answer.
        seconds: Of the whole stream.
    """

    hits: NDArray[np.bool_]
    wrong: NDArray[np.bool_]
    seconds: float


def serve(cache: Cache, stream: AnswerStream) -> Outcome:
    """Ask every question of a stream."""
    began = time.perf_counter()
    served = [cache.ask(number) for number in range(len(stream))]
    seconds = time.perf_counter() - began
    hits = np.array([answer is not None for answer in served])
    wrong = hits & np.array(
        [answer != right for answer, right in zip(served, stream.meanings, strict=True)]
    )
    return Outcome(hits, wrong, seconds)


@dataclass(frozen=True)
class Way:
    """A cache over all seeds.

    Attributes:
        name: Its name.
        outcomes: By seed.
    """

    name: str
    outcomes: Sequence[Outcome]

    @property
    def hits(self) -> float:
        """Share of the questions that were served."""
        return float(np.concatenate([outcome.hits for outcome in self.outcomes]).mean())

    @property
    def wrong(self) -> float:
        """Share of the served answers that were wrong."""
        hits = sum(int(outcome.hits.sum()) for outcome in self.outcomes)
        return sum(int(outcome.wrong.sum()) for outcome in self.outcomes) / max(1, hits)

    def row(self) -> list[Cell]:
        """A line of the table."""
        hits, wrong = (
            np.concatenate([getattr(outcome, name) for outcome in self.outcomes]).astype(float)
            for name in ("hits", "wrong")
        )
        shares = [_mean(hits), _mean(wrong[hits > 0]) if hits.any() else None]
        microseconds = sum(outcome.seconds for outcome in self.outcomes) / len(hits) * 1e6
        return [
            self.name,
            *(None if share is None else str(share) for share in shares),
            microseconds,
        ]


def _mean(numbers: NDArray[np.float64]) -> Any:
    return bootstrap_interval(np.mean, [numbers])


class Bench:
    """The caches, each asked the same streams.

    Args:
        options: The command line's.
    """

    def __init__(self, options: argparse.Namespace) -> None:
        self._options = options
        self._embed = Embedder(show_progress=not options.quick)
        self._corpus = load_corpus(options.data)
        self._store = ExactStore(self._embed(self._corpus.passages))
        self._files = tempfile.mkdtemp(dir=_in_memory())
        # GPTCache writes when the interpreter ends; what was registered first is called last.
        atexit.register(shutil.rmtree, self._files, ignore_errors=True)

    def streams(self) -> dict[str, list[AnswerStream]]:
        """The streams by name, one for each seed."""
        options, seeds = self._options, range(self._options.seeds)
        questions = self._corpus.questions["nq"][: options.questions]
        twins = len(questions) // 2
        streams = {
            "rephrased": [
                rephrased_stream(questions, options.length, twins, seed) for seed in seeds
            ]
        }
        if options.pairs is not None:
            pairs = doctors_pairs(options.pairs)
            streams["written"] = [
                written_stream(pairs, options.length, options.questions, seed) for seed in seeds
            ]
        return streams

    def ask(self, streams: Sequence[AnswerStream]) -> list[Way]:
        """Ask all caches the streams of one kind; AnswerCache is the first."""
        bound = self._options.bound
        vectors = [self._embed(stream.texts) for stream in streams]
        found = [self._store.answer(rows, K).documents for rows in vectors]
        seeds = range(len(streams))

        def way(name: str, make: Callable[[int], Cache]) -> Way:
            return Way(name, [serve(make(seed), streams[seed]) for seed in seeds])

        def ours(seed: int, **knobs: Any) -> Cache:
            settings = AnswerKnobs(error=bound, capacity=10**6, seed=seed, **knobs)
            return Ours(streams[seed], vectors[seed], found[seed], settings)

        def fixed(tolerance: float) -> Way:
            return way(
                f"{FIXED} {tolerance:g}",
                lambda seed: FixedTolerance(streams[seed], vectors[seed], tolerance),
            )

        ways = [
            way(OURS, ours),
            way("without the guard", lambda seed: ours(seed, guard=False)),
            way(
                "vCache's algorithm",
                lambda seed: VCache(streams[seed], vectors[seed], bound, seed),
            ),
        ]
        ways.append(way("LangChain's InMemoryCache", lambda seed: LangChainCache(streams[seed])))
        if find_spec("gptcache") is not None:
            ways.append(way(f"GPTCache {USUAL:g}", self._gptcache(streams, vectors, USUAL)))
        return ways + [fixed(tolerance) for tolerance in GRID]

    def figures(self, name: str, ways: Sequence[Way]) -> dict[str, Any]:
        """Print a table of what caches did, and return its figures."""
        own, bound = ways[0], self._options.bound
        tolerances = [one for one in ways if one.name.startswith(FIXED)]
        # As many wrong answers as ours, or none: a tolerance that is less wrong is as good.
        as_right = [one for one in tolerances if one.wrong <= own.wrong] or tolerances[:1]
        best = max(as_right, key=lambda one: one.hits)
        usual = next(one for one in tolerances if one.name == f"{FIXED} {USUAL:g}")
        shown = [
            *(one for one in ways if one not in tolerances),
            Way(f"{best.name} (best at this error)", best.outcomes),
            usual,
        ]
        count = sum(len(outcome.hits) for outcome in own.outcomes)
        print_table(
            f"{name}: {count} questions, bound {bound:g}",
            ["", "served", "wrong of those served", "us a question"],
            [one.row() for one in shown],
        )
        return {
            "wrong_share": round(own.wrong, 5),
            "bound": bound,
            "hits": round(own.hits, 4),
            "fixed_hits_at_same_error": round(best.hits, 4),
            "peers": {
                one.name: {"hits": round(one.hits, 4), "wrong_share": round(one.wrong, 5)}
                for one in shown[1:]
            },
        }

    def _gptcache(
        self,
        streams: Sequence[AnswerStream],
        vectors: Sequence[NDArray[np.float32]],
        tolerance: float,
    ) -> Callable[[int], Cache]:
        def make(seed: int) -> Cache:
            folder = Path(tempfile.mkdtemp(dir=self._files))
            return GPTCache(streams[seed], vectors[seed], tolerance, folder)

        return make


def _in_memory() -> str | None:
    """A folder that is no disk, where there is one."""
    shared = Path("/dev/shm")  # noqa: S108 - a peer's files, deleted behind it
    return str(shared) if shared.is_dir() else None


def main() -> None:
    """Run and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--quick", action="store_true", help="a cut of it, in less than 90 seconds")
    parser.add_argument("--only", nargs="+", choices=PARTS, default=PARTS, help="parts of it")
    parser.add_argument("--data", type=Path, help="a folder of data sets; bundled if not given")
    parser.add_argument("--pairs", type=Path, help="mqp.csv, Medical Question Pairs")
    parser.add_argument("--length", type=int, default=6000, help="questions asked")
    parser.add_argument("--questions", type=int, default=300, help="of different meaning")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--bound", type=float, default=0.01, help="on the share of wrong answers")
    options = parser.parse_args()
    if options.quick:
        options.length, options.questions, options.seeds = 2500, 200, 1
    logging.getLogger("gptcache").setLevel(logging.ERROR)
    result: dict[str, Any] = {}
    if "streams" in options.only:
        print(REDISVL, flush=True)
        bench = Bench(options)
        ways = {name: bench.ask(each) for name, each in bench.streams().items()}
        figures = {name: bench.figures(name, each) for name, each in ways.items()}
        if len(ways) > 1:
            together = [
                Way(same[0].name, [outcome for one in same for outcome in one.outcomes])
                for same in zip(*ways.values(), strict=True)
            ]
            figures[ALL] = bench.figures(ALL, together)
        result |= list(figures.values())[-1] | {"streams": figures}
    if "overhead" in options.only:
        costs = overhead(200 if options.quick else 2000)
        print_table("overhead", list(costs), [[str(cost) for cost in costs.values()]])
        result["overhead"] = costs
    print(json.dumps(result))


if __name__ == "__main__":
    main()
