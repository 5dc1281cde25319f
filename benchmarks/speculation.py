"""Speculative pipelining against search first, generate then (RAGCache figure 19, table 3).

Both ways answer the same questions on one engine, in turns; their KV caches are kept apart by
namespaces, so that neither finds what the other computed. Sequential is the same code with
``speculate=False``. Ratios are sequential over speculative, of medians over the same requests, with
95 % intervals from drawing the pairs of requests again; above 1 speculation is better.

The store is one on another machine: stage results *and* timings of real IVF and HNSW searches of a
million vectors are replayed, stretched to 100-400 ms in all (``benchmarks/recorded/stages``, by
``staged_search.py --record``). How often the first stage has the final documents is printed beside
the results: that is what there is to gain from. The graph (HNSW) is searched with the efSearch that
finds 90 % of the two nearest; ``hnsw-hasty`` with a smaller one, whose stages change their minds
more often. ``local`` searches as many vectors for real, on the cores that the engine computes on.
``pgvector`` is a PostgreSQL server whose searches take so much longer, behind the query cache with
its default tolerance, and ``pgvector-strict`` with one of 0.05: what the cache guesses is the first
stage. Real questions come again and again in other words, with near-duplicates that ask for
something else; the first ones fill the cache, and are not counted.

Documents are long (``--words``), so that a prefill of the tiny model takes on a CPU about what a
search takes, as those of 7B models do on the paper's GPUs; how long is printed first, and a slower
machine wants fewer words, and shorter chunks of a prefill (``--chunk-tokens``). Requests arrive as
a Poisson process at a share of the rate that the engine can bear. The last line is one JSON object.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
from collections import Counter
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import numpy as np
from parts.speculation.distant_store import DistantStore, Guessing
from parts.speculation.recorded_stages import load
from parts.speculation.serving import (
    TOP_K,
    Asked,
    Corpus,
    LocalSearch,
    Replay,
    Search,
    count_leaks,
    serve,
    serve_and_cancel,
)
from parts.stats.intervals import geometric_mean_ratio, mean_ratio, median_ratio
from parts.stats.tables import print_table
from parts.stores.servers import postgres

from ragcache_integrations.engine import RAGCacheEngine
from ragcache_integrations.speculation import Speculator

RECORDINGS = Path(__file__).parent / "recorded" / "stages"
SIDES = ("sequential", "speculative")
TURN, SATURATED_TURN = 8, 24
"""Requests until the other way has its turn; a queue must be able to build up at saturation."""
WARM_UP = 6
CHUNK_TOKENS = 512
QUICK_WORDS, QUICK_CHUNK_TOKENS = 64, 256
"""So few that a slow machine is done in time, too."""
SATURATED = 2.0
LONGER = 4
"""Times as many requests where the engine is saturated: they come fast, and differ the more."""
LOW = 0.2
TOLERANCES: dict[str, float | None] = {"pgvector": None, "pgvector-strict": 0.05}
"""Of the query cache in front of a store; ``None`` for its default."""
BEFOREHAND, QUICK_BEFOREHAND = 1000, 30
"""Questions that fill it, as many as it keeps."""


@dataclass(frozen=True)
class Point:
    """A setting.

    Attributes:
        kind: ``ivf``, ``hnsw`` or ``hnsw-hasty`` for a recording, ``local`` for a search beside
            the engine, ``pgvector`` or ``pgvector-strict`` for a store.
        search_ms: Of the median search, of all vectors in case of IVF; what is added to that of a
            store; not for ``local``.
        share: Part of the vectors that are searched.
        load: Arrivals, as a share of what the engine can bear.
    """

    kind: str = "ivf"
    search_ms: float = 200.0
    share: float = 1.0
    load: float = LOW

    def __str__(self) -> str:
        if self.kind == "local":
            return f"local search, load {self.load:g}"
        if self.kind in TOLERANCES:
            return f"{self.kind} {self.search_ms:g} ms load {self.load:g}"
        return f"{self.kind} {self.search_ms:g} ms ratio {self.share:.1%} load {self.load:g}"


@dataclass
class Compared:
    """What both ways did at a point, request by request."""

    sides: dict[str, list[Asked]] = field(default_factory=lambda: {name: [] for name in SIDES})

    tally: Counter[str] = field(default_factory=Counter)
    """What the query cache in front of a store did, with speculation."""

    def column(self, side: str, name: str) -> list[float]:
        """A figure of every request; of its report where the request has none of that name."""
        return [
            float(getattr(one if hasattr(one, name) else one.report, name))
            for one in self.sides[side]
        ]

    def pair(self, name: str) -> tuple[list[float], list[float]]:
        """A figure of both ways."""
        return self.column(SIDES[0], name), self.column(SIDES[1], name)

    def ttft_where_slow(self, seconds: float) -> tuple[list[float], list[float]]:
        """TTFT of both ways, of the requests whose search took so long at least in both."""
        slow = [
            place
            for place, times in enumerate(zip(*self.pair("search_seconds"), strict=True))
            if min(times) >= seconds
        ]
        sequential, speculative = self.pair("ttft")
        return [sequential[place] for place in slow], [speculative[place] for place in slow]

    @property
    def wasted_share(self) -> float:
        """Prompt tokens computed for wrong guesses, of all that were computed."""
        wasted = sum(self.column("speculative", "wasted_prefill_tokens"))
        return wasted / (wasted + sum(self.column("speculative", "computed_tokens")))


class Bench:
    """One engine, and what was measured on it."""

    def __init__(
        self, options: argparse.Namespace, engine: RAGCacheEngine, stack: ExitStack
    ) -> None:
        self.engine = engine
        self._options = options
        self._stack = stack
        self._guessing: dict[tuple[str, int], dict[str, Guessing]] = {}
        self.corpus = Corpus(options.words)
        folder = options.recordings
        self.recordings = {path.stem: load(path) for path in folder.glob("*.json")}
        if not self.recordings:
            raise SystemExit(f"no recordings in {folder}: run staged_search.py --record {folder}")
        self._local = partial(LocalSearch, options.data, options.vectors)
        self.speculators = {
            "sequential": Speculator(engine, speculate=False),
            "speculative": Speculator(engine),
        }
        self.measured: dict[Point, Compared] = {}
        self.service_seconds = self._warm_up()

    @cached_property
    def local(self) -> LocalSearch:
        """A search beside the engine; the index takes a while to make."""
        return self._local()

    @cached_property
    def store(self) -> DistantStore:
        """A server with a store; it ends with the benchmark."""
        folder = tempfile.TemporaryDirectory(ignore_cleanup_errors=True)
        address = self._stack.enter_context(postgres(Path(self._stack.enter_context(folder))))
        return DistantStore(self._options.data, address, TOP_K, quick=self._options.quick)

    def guessing(self, point: Point, seed: int) -> dict[str, Guessing]:
        """The store of a point, behind a query cache for each of both ways."""
        if (point.kind, seed) not in self._guessing:
            beforehand = QUICK_BEFOREHAND if self._options.quick else BEFOREHAND
            self._guessing[point.kind, seed] = {
                side: self.store.guessing(
                    seed,
                    beforehand,
                    point.search_ms / 1000,
                    tolerance=TOLERANCES[point.kind],
                )
                for side in SIDES
            }
        return self._guessing[point.kind, seed]

    def search(self, point: Point) -> Search:
        """The store of a point."""
        if point.kind in TOLERANCES:
            return self.guessing(point, 0)["speculative"]
        if point.kind == "local":
            return self.local
        if point.kind != "ivf":
            return Replay(self.recordings[point.kind], point.search_ms / 1000)
        recording, whole = (self.recordings[f"ivf-{share:g}"] for share in (point.share, 1))
        part = recording.seconds() / whole.seconds()
        return Replay(recording, part * point.search_ms / 1000)

    def _warm_up(self) -> float:
        """Let both ways do everything a few times; how long the engine takes for a request."""
        search = self.search(Point(search_ms=20))
        for speculator in self.speculators.values():
            asked = serve(speculator, self.corpus, search, range(WARM_UP), None, "warm-up")
            self.engine.reset_cache()
        asked = serve(
            self.speculators["sequential"],
            self.corpus,
            search,
            range(WARM_UP, 2 * WARM_UP),
            None,
            "warm-up",
        )
        self.engine.reset_cache()
        return statistics.median(one.seconds - one.report.search_seconds for one in asked)

    def compare(self, point: Point, requests: int, seeds: int) -> Compared:
        """Measure a point; both ways in turns, who goes first alternates."""
        compared = Compared()
        rate = point.load / self.service_seconds
        for seed in range(seeds):
            rng = np.random.default_rng([seed, 7])
            searches: Mapping[str, Search]
            if point.kind in TOLERANCES:
                searches = guessing = self.guessing(point, seed)
                queries, _ = (search.take(requests) for search in guessing.values())
            else:
                searches = dict.fromkeys(SIDES, self.search(point))
                queries = rng.permutation(len(searches[SIDES[0]]))[:requests].tolist()
            gaps = rng.exponential(1 / rate, size=len(queries))
            turn = TURN if point.load < 1 else SATURATED_TURN
            order = list(SIDES if seed % 2 == 0 else reversed(SIDES))
            for first in range(0, len(queries), turn):
                arrivals = np.cumsum(gaps[first : first + turn]).tolist()
                for side in order:
                    compared.sides[side] += serve(
                        self.speculators[side],
                        self.corpus,
                        searches[side],
                        queries[first : first + turn],
                        arrivals,
                        f"{side} {point} {seed}",
                    )
                order.reverse()
            if point.kind in TOLERANCES:
                compared.tally += guessing["speculative"].tally
        self.measured[point] = compared
        return compared

    def agreeing(self, point: Point) -> float:
        """Share of the first stages, or of the guesses in front of a store, that were right."""
        tally = self.measured[point].tally
        if tally:
            return tally["right"] / max(1, tally["guessed"])
        return self.search(point).agreeing()

    def row(self, point: Point) -> list[Any]:
        """A line of the table."""
        compared = self.measured[point]
        ttft = compared.pair("ttft")
        apart = compared.pair("non_overlapped_seconds")
        confirmed = compared.column("speculative", "confirmed")
        return [
            str(point),
            self.agreeing(point),
            *(1000 * statistics.median(one) for one in ttft),
            str(median_ratio(*ttft)),
            *(1000 * statistics.fmean(one) for one in apart),
            str(mean_ratio(*apart)),
            statistics.fmean(confirmed),
            compared.wasted_share,
        ]


HEAD = (
    "search and load",
    "first stage right",
    "TTFT ms",
    "speculative",
    "ratio",
    "not overlapped ms",
    "speculative",
    "ratio of means",
    "guess right",
    "wasted",
)


def points(*, quick: bool) -> dict[str, list[Point]]:
    """What is measured, by part."""
    if quick:
        return {
            "low load": [Point(search_ms=200)],
            "saturated": [Point(load=SATURATED)],
            "store": [Point("pgvector", 100)],
        }
    return {
        "low load": [
            Point(kind, search_ms) for kind in ("ivf", "hnsw") for search_ms in (100, 200, 400)
        ],
        "loads": [Point(load=load) for load in (0.5, 0.8)],
        "hasty": [Point("hnsw-hasty", load=load) for load in (LOW, SATURATED)],
        "local": [Point("local", load=load) for load in (LOW, 0.5)],
        "saturated": [Point(kind, load=SATURATED) for kind in ("ivf", "hnsw")],
        "store": [Point(kind, 100, load=load) for kind in TOLERANCES for load in (LOW, SATURATED)],
        "ratios": [Point(search_ms=400, share=share) for share in (0.125, 0.25, 0.5)],
    }


PARTS = tuple(points(quick=False))


def describe_guesses(point: Point, compared: Compared) -> None:
    """Print what the query cache in front of a store did."""
    tally = compared.tally
    if tally:
        asking = compared.ttft_where_slow(point.search_ms / 1000)
        print(
            f"{point}: of {tally['asked']} questions the query cache answered {tally['answered']}; "
            f"it guessed for {tally['guessed']}, right for {tally['right']}; ratio of the mean "
            f"TTFTs of all: {mean_ratio(*compared.pair('ttft'))}; of the {len(asking[0])} that "
            f"reach the store: {mean_ratio(*asking)} (medians: {median_ratio(*asking)})"
        )


def run(bench: Bench, options: argparse.Namespace) -> dict[str, Any]:
    """Measure and print everything."""
    requests, seeds = options.requests, options.seeds
    chosen = {
        part: [point for point in settings if options.kind in {None, point.kind}]
        for part, settings in points(quick=options.quick).items()
        if options.only is None or part in options.only
    }
    chosen = {part: settings for part, settings in chosen.items() if settings}
    print(
        f"the engine takes {1000 * bench.service_seconds:.0f} ms for a request with "
        f"{options.words} words in each document, search not included"
    )
    for part, settings in chosen.items():
        for point in settings:
            longer = LONGER if point.load > 1 and not options.quick else 1
            bench.compare(point, longer * requests, seeds)
        print_table(part, HEAD, [bench.row(point) for point in settings])
        for point in settings:
            describe_guesses(point, bench.measured[point])
    whole = max(
        [point for point in bench.measured if point.load == LOW] or list(bench.measured),
        key=lambda point: (point.share, point.search_ms),
    )

    def ttft_ratio(part: str) -> list[float]:
        pairs = [bench.measured[point].pair("ttft") for point in chosen.get(part, ())]
        return geometric_mean_ratio(pairs).as_list(4) if pairs else []

    serve_and_cancel(
        bench.speculators["speculative"],
        bench.corpus,
        bench.search(whole),
        options.cancellations,
        within=1.5 * whole.search_ms / 1000,
        seed=0,
    )
    leaks = count_leaks(bench.engine, list(bench.speculators.values()))
    print(f"\n{options.cancellations} requests cancelled at random leave {leaks} things behind")
    equal = [
        side.token_ids == other.token_ids
        for compared in bench.measured.values()
        for side, other in zip(*compared.sides.values(), strict=True)
    ]
    print(f"{sum(equal)} of {len(equal)} answers are the same both ways")
    return {
        "ttft_ratio_low_load": ttft_ratio("low load"),
        "ttft_ratio_saturated": ttft_ratio("saturated"),
        "non_overlapped_ratio": mean_ratio(
            *bench.measured[whole].pair("non_overlapped_seconds")
        ).as_list(4),
        "non_overlapped_ratios": {
            str(point): mean_ratio(*compared.pair("non_overlapped_seconds")).as_list(4)
            for point, compared in bench.measured.items()
        },
        "wasted_prefill_share": {
            str(point): round(compared.wasted_share, 4)
            for point, compared in bench.measured.items()
        },
        "leaks": leaks,
        "cancelled": options.cancellations,
        "ttft_ratio": {
            str(point): median_ratio(*compared.pair("ttft")).as_list(4)
            for point, compared in bench.measured.items()
        },
        "first_stage_right": {
            str(point): round(bench.agreeing(point), 4) for point in bench.measured
        },
        "mean_ttft_ratio": {
            str(point): mean_ratio(*compared.pair("ttft")).as_list(4)
            for point, compared in bench.measured.items()
        },
        "mean_ttft_ratio_at_the_store": {
            str(point): mean_ratio(*compared.ttft_where_slow(point.search_ms / 1000)).as_list(4)
            for point, compared in bench.measured.items()
            if compared.tally
        },
        "guesses": {
            str(point): dict(compared.tally)
            for point, compared in bench.measured.items()
            if compared.tally
        },
        "same_answers": [sum(equal), len(equal)],
    }


def main() -> None:
    """Run and print."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--quick", action="store_true", help="a cut of it, in less than a minute")
    parser.add_argument("--model", help="path or hub name; a tiny random one by default")
    parser.add_argument("--dummy-weights", action="store_true", help="do not load any weights")
    parser.add_argument("--dtype", default="float32", help="float32 lets answers be compared")
    parser.add_argument("--kv-cache-gib", type=float, default=0.5)
    parser.add_argument("--max-model-len", type=int, help="the model's own by default")
    parser.add_argument("--cuda-graphs", action="store_true", help="of a GPU: compile and capture")
    parser.add_argument("--chunk-tokens", type=int, default=CHUNK_TOKENS, help="of a prefill")
    parser.add_argument("--only", nargs="+", metavar="PART", help=f"of {', '.join(PARTS)}")
    parser.add_argument("--kind", help="of search: ivf, hnsw, ..., pgvector-strict")
    parser.add_argument("--words", type=int, default=350, help="of a document")
    parser.add_argument("--recordings", type=Path, default=RECORDINGS, help="folder")
    parser.add_argument("--data", type=Path, help="folder with nq/ and pubmedqa/")
    parser.add_argument("--vectors", type=int, default=1_000_000, help="searched beside the engine")
    parser.add_argument("--requests", type=int, default=40, help="for each point and seed")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--cancellations", type=int, default=500)
    options = parser.parse_args()
    if unknown := set(options.only or ()) - set(PARTS):
        parser.error(f"--only takes {', '.join(PARTS)}; got {', '.join(unknown)}")
    if options.quick:
        options.requests, options.seeds, options.cancellations = 5, 1, 15
        options.words, options.chunk_tokens = QUICK_WORDS, QUICK_CHUNK_TOKENS
    arguments: dict[str, Any] = {
        "enforce_eager": not options.cuda_graphs,
        "max_num_batched_tokens": options.chunk_tokens,
    }
    if options.dummy_weights:
        arguments["load_format"] = "dummy"
    with (
        ExitStack() as stack,
        RAGCacheEngine(
            options.model,
            dtype=options.dtype,
            kv_cache_gib=options.kv_cache_gib,
            max_model_len=options.max_model_len,
            vllm_args=arguments,
        ) as engine,
    ):
        result = run(Bench(options, engine, stack), options)
    print(json.dumps(result))


if __name__ == "__main__":
    main()
