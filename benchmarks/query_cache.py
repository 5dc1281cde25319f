"""The query cache: how long a lookup takes, what it saves, and what its hits are worth.

- ``match``: matching and re-ranking times from Python by dimension and number of keys, beside
  Proximity's algorithm in plain NumPy and the bare product of all keys with the query (NumPy's own
  BLAS with as many threads as it takes).
- ``quality``: streams of real questions as in Proximity §4.2.2, in which no text occurs twice and
  near-duplicates ask for something else (rules: the workbench's
  ``evaluation/workloads.py``, ``parts/traffic/near_duplicates.py``), over all passages
  in an exact index: store calls saved, recall of the hits (a document counts if it is no farther
  than the true k-th), by kind of repetition and for sweeps of every knob.
- ``certified``: hits that are proven exact, for stores of several sizes.
- ``auto``: the learned tolerance, started far too high and far too low, beside the best fixed one
  in hindsight.
- ``polarity``: questions of opposite meaning.

k = 5, MiniLM embeddings (kept in the user's cache folder), L2 between unit vectors. Without
``--data`` the questions and passages are the bundled sample's. The last line is one JSON object.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from functools import cache, cached_property
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
from parts.query_cache.learned_tolerance import GRID, Learned, learn, print_learned, summary
from parts.query_cache.match_times import (
    DOCUMENTS,
    Filled,
    LSHTimes,
    fill_lsh,
    flat_times,
    lsh_times,
    rerank_times,
    time_keys,
    time_lsh,
)
from parts.query_cache.polarity import polarity
from parts.query_cache.qualities import (
    Asked,
    K,
    Knobs,
    Result,
    ask,
    generated,
    paraphrase_distances,
    print_results,
    run,
    with_median,
)
from parts.stats.sweeps import Sweep, plot_sweep, plot_times, sweep
from parts.stats.timing import call_apart
from parts.traffic.embedded import Embedder
from parts.traffic.near_duplicates import polarity_pairs
from parts.traffic.question_streams import Stream, uniform_stream, zipf_stream
from parts.traffic.questions import Question, load_corpus
from parts.vector_search.exact_store import ExactStore, pad

from ragcache_workbench.evaluation.workloads import KINDS, Kind

TAUS = (0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.8, 1.0)
FIXED = Knobs(tolerance=0.5)
LSH = replace(FIXED, index="lsh")
PROBING = replace(LSH, multi_probe=8)
# Only proven hits are served: the tolerance is there to bound the work.
EXACT = Knobs(tolerance=1.0, guarantee="exact")
LARGE_DIM = 1000
AUTO = Knobs(tolerance="auto")
LOOKUPS = 4000
MEDIAN = 0.23
"""Median distance of the certified stream's rephrasings to their originals."""


class Bench:
    """The material, at the size that was asked for.

    Args:
        options: The command line's.
    """

    def __init__(self, options: argparse.Namespace) -> None:
        self.quick: bool = options.quick
        self.seeds = range(1 if self.quick else options.seeds)
        self.plots: Path | None = options.plots
        self.corpus = load_corpus(options.data)
        self.embed = Embedder(show_progress=not self.quick)
        self.passages: Sequence[str] = self.corpus.passages
        self.main = "pubmedqa" if "pubmedqa" in self.corpus.questions else "nq"
        if self.quick:  # embedding takes longest: the beginnings of some will do
            wanted = [question.passage for question in self.questions(self.main)]
            some = list(dict.fromkeys([*wanted, *self.passages]))[:250]
            self.passages = [text[:200] for text in some]

    @cached_property
    def store(self) -> ExactStore:
        """The passages and nothing else."""
        return ExactStore(self.embed(self.passages))

    def padded(self, total: int) -> ExactStore:
        """All passages among generated neighbours."""
        return ExactStore(pad(self.embed(self.passages), total, seed=0))

    def questions(self, data_set: str) -> Sequence[Question]:
        """The questions that streams are made of: 500 as in the paper, or a cut."""
        return self.corpus.questions[data_set][: 25 if self.quick else 500]

    def zipf(self, kind: Kind, seed: int = 0, data_set: str = "", length: int = 10_000) -> Stream:
        """The Zipf stream with one near-duplicate for every five questions."""
        questions = self.questions(data_set or self.main)
        return zipf_stream(
            questions,
            600 if self.quick else length,
            kind,
            twins=len(questions) // 5,
            seed=seed,
        )

    def asked(self, stream: Stream) -> Asked:
        """A stream for the passages alone."""
        return ask(stream, self.store, self.embed)

    def draw(self, swept: Sweep) -> None:
        """Plot a sweep if plots are wanted."""
        if self.plots is not None:
            plot_sweep(swept, self.plots)


def match(bench: Bench, largest: Callable[[], LSHTimes] | None = None) -> dict[str, Any]:
    """Matching and re-ranking times.

    Args:
        bench: The material.
        largest: For the quick run: times a cache of a million keys.
    """
    count = LOOKUPS
    if bench.quick:
        timed = [time_keys(768, keys, count) for keys in (1000, 5120)]
        lsh, peer = lsh_times([*timed, (largest or time_largest)()], count)
        stores = DOCUMENTS[:1]
        reranked = rerank_times((768,), (20,), count // 2, stores=stores)
        reranked[768] |= rerank_times((768,), (100,), count // 2, keys=1280, stores=stores)[768]
        flat, bare = flat_times((768,), (10_000,), count // 2)
    else:
        dims = (384, 768, 1536)
        # Of 1,536 dimensions a million keys take too much memory.
        sizes = {
            dim: (1000, 5120, 10_000, 100_000, 1_000_000)[: 5 if dim < LARGE_DIM else 4]
            for dim in dims
        }
        timed = [call_apart(time_keys, dim, keys, count) for dim in dims for keys in sizes[dim]]
        lsh, peer = lsh_times(timed, count)
        reranked = rerank_times(dims, (20, 100), count // 2, call=call_apart)
        real = bench.embed(bench.zipf("medium").texts)
        flat, bare = flat_times(dims, (20, 200, 2000, 10_000, 50_000, 200_000), count, real)
    if bench.plots is not None:
        times = {f"LSH {dim}": by_keys for dim, by_keys in lsh.items()}
        times |= {f"FLAT {dim}": by_keys for dim, by_keys in flat.items()}
        plot_times("lookup time by keys", times, bench.plots)

    def rounded(times: dict[int, float]) -> dict[str, float]:
        return {str(size): round(time, 2) for size, time in times.items()}

    return {
        "dim": 768,
        "lsh_match_us": rounded(lsh[768]),
        "flat_match_us": rounded(flat[768]),
        "flat_bare_matvec_us": rounded(bare[768]),
        "rerank_us": rounded(reranked[768]),
        "numpy_lsh_match_us": round(peer, 2),
    }


@cache
def largest() -> Filled:
    """A million keys of 768 dimensions: takes a quarter of a minute and 3 GiB."""
    return fill_lsh(768, 1_000_000)


def fill_largest() -> None:
    """Fill it, to be there when it is timed in this process."""
    largest()


def time_largest() -> LSHTimes:
    """Time it."""
    return time_lsh(largest(), LOOKUPS)


def quality(bench: Bench) -> dict[str, Any]:
    """By kind of repetition in every seed; then the sweeps."""
    kinds: Sequence[Kind] = ("medium",) if bench.quick else KINDS
    modes = {
        "flat": FIXED,
        "flat, rho 4": replace(FIXED, rerank_factor=4),
        "flat, rho 1": replace(FIXED, rerank_factor=1),
        "lsh": LSH,
        "lsh, multi-probe": PROBING,
        "exact": EXACT,
        "auto": AUTO,
    }
    found: dict[tuple[Kind, str], list[Result]] = {}
    for kind in kinds:
        # Embedding takes longest: the other kinds are shown for one seed.
        for seed in bench.seeds if kind == "medium" else bench.seeds[:1]:
            stream = bench.zipf(kind, seed)
            asked = bench.asked(stream)
            results = [run(asked, knobs, name) for name, knobs in modes.items()]
            apart = float(np.median(paraphrase_distances(stream, bench.embed)))
            print_results(
                f"zipf, {kind}, median distance to the original {apart:.3f}, seed {seed}", results
            )
            for result in results:
                found.setdefault((kind, result.name), []).append(result)
    if not bench.quick:
        sweeps(bench)
        uniform(bench)

    def means(name: str, kind: Kind = "medium") -> dict[str, float]:
        rows = [result.as_dict() for result in found[kind, name]]
        names = [one for one in rows[0] if all(row[one] is not None for row in rows)]
        return {one: round(statistics.fmean(row[one] for row in rows), 5) for one in names}

    return {
        "zipf": {
            **means("flat"),
            "tolerance": FIXED.tolerance,
            "rephrasing": "medium",
            "lsh": means("lsh"),
            "lsh_multi_probe": means("lsh, multi-probe"),
            "by_kind": {
                kind: {name: means(name, kind)["calls_saved"] for name in modes} for kind in kinds
            },
        }
    }


def sweeps(bench: Bench) -> None:
    """Every knob in turn, on one stream."""
    asked = bench.asked(bench.zipf("medium"))
    capacities = {f"c {one}": {"capacity": one} for one in (100, 500, 1000, 2000)}
    planes = {f"L {one}": {"num_hyperplanes": one} for one in (4, 6, 8, 10)}
    evictions = {
        f"{index} {eviction}": {"index": index, "eviction": eviction, "capacity": 500}
        for index in ("flat", "lsh")
        for eviction in ("lru", "fifo")
    }
    indexes: dict[str, dict[str, Any]] = {
        "flat": {"index": "flat"},
        "lsh": {"index": "lsh"},
        "lsh, multi-probe": {"index": "lsh", "multi_probe": 8},
    }
    plain: dict[str, dict[str, Any]] = {"": {}}
    wanted: list[tuple[str, Knobs, str, Sequence[Any], Mapping[str, Mapping[str, Any]]]] = [
        ("zipf, tau by eviction (figure 7)", FIXED, "tolerance", TAUS, evictions),
        ("zipf, tau by c, FLAT (figure 11a)", FIXED, "tolerance", TAUS, capacities),
        ("zipf, tau by L, LSH (figures 7c, 9, 11b)", LSH, "tolerance", TAUS, planes),
        ("zipf, b, LSH (figure 8)", LSH, "bucket_capacity", (5, 10, 20, 30), plain),
        ("zipf, multi-probe, LSH", LSH, "multi_probe", (0, 1, 2, 4, 8), plain),
        ("zipf, rho by index", FIXED, "rerank_factor", (1, 2, 4, 10, 20, 50), indexes),
        ("zipf, tau by index, rho 4", replace(FIXED, rerank_factor=4), "tolerance", TAUS, indexes),
    ]
    for title, base, x, values, lines in wanted:
        bench.draw(sweep(title, asked, base, x, values, lines))


def uniform(bench: Bench) -> None:
    """Four prefixed variants of 200 questions, no re-ranking, as in the paper's figure 6."""
    capacities = {f"c {one}": {"capacity": one} for one in (10, 50, 100, 200, 300)}
    base = replace(FIXED, rerank_factor=1)
    for name in bench.corpus.questions:
        stream = uniform_stream(bench.questions(name)[:200], twins=40)
        title = f"uniform, {name}, rho 1 (figure 6)"
        bench.draw(sweep(title, bench.asked(stream), base, "tolerance", TAUS, capacities))


def certified(bench: Bench) -> dict[str, Any]:
    """Proven hits only, by size of the store and re-ranking factor."""
    modes = {f"rho{one}": replace(EXACT, rerank_factor=one) for one in (4, 20, 50)}
    modes["rho20to50"] = replace(EXACT, max_rerank_factor=50)
    if not bench.quick:  # what each kind of proof adds
        modes["rho20_chord"] = replace(EXACT, unit_vectors=False)
        modes["rho20_angles"] = replace(EXACT, together=False)
    modes["rho20_lsh_multi_probe"] = replace(EXACT, index="lsh", multi_probe=PROBING.multi_probe)
    result: dict[str, Any] = {}
    # Short questions, such as those of Natural Questions, move farther by the same changes.
    near: Kind = "light" if bench.main == "pubmedqa" else "slight"
    kinds: Sequence[Kind] = (near,) if bench.quick else (near, "medium", "heavy")
    sizes = [len(bench.store)] if bench.quick else [len(bench.store), 100_000, 1_000_000]
    for size in sizes:
        store = bench.store if size == len(bench.store) else bench.padded(size)
        for kind in kinds:
            stream = bench.zipf(kind)
            asked = ask(stream, store, bench.embed)
            distances = paraphrase_distances(stream, bench.embed)
            if kind == near:
                kept = with_median(distances, MEDIAN)
                asked, distances = asked.pick(kept), distances[kept]
            apart = float(np.median(distances))
            results = [run(asked, knobs, name) for name, knobs in modes.items()]
            print_results(
                f"exact, {size} documents, {len(distances)} questions, {kind}, median distance to "
                f"the original {apart:.3f}",
                results,
            )
            rows = {one.name: one.as_dict() for one in results}
            if not result:
                result |= {**rows, "median_distance": round(apart, 4)}
            result.setdefault("by_store", {}).setdefault(str(size), {})[kind] = rows
    return {"certified": result}


def auto(bench: Bench) -> dict[str, Any]:
    """The learned tolerance on streams that nothing was fitted to."""
    learned: dict[int, list[Learned]] = {20: [], 4: []}
    for name, seed, asked in learning_streams(bench):
        for factor, found in learned.items():
            base = replace(AUTO, rerank_factor=factor, seed=seed)
            grid = GRID[::2] if bench.quick else GRID
            found.append(learn(f"{name} {seed}", asked, base, grid))
    for factor, found in learned.items():
        print_learned(
            f"auto compared with the best fixed tolerance in hindsight, rho {factor}", found
        )
    return {"auto": {**summary(learned[20]), "rho4": summary(learned[4])}}


def learning_streams(bench: Bench) -> Iterator[tuple[str, int, Asked]]:
    """Streams with names and seeds; for the quick run, one of generated questions."""
    if bench.quick:
        queries = generated(bench.zipf("medium"), bench.embed, 6000)
        yield "generated", 0, Asked(bench.store, queries, bench.store.answer(queries, 20 * K))
        return
    for seed in bench.seeds:
        yield "medium", seed, bench.asked(bench.zipf("medium", seed))
    yield "heavy", 0, bench.asked(bench.zipf("heavy"))
    if len(bench.corpus.questions) > 1:
        names = list(bench.corpus.questions)[::-1]
        first, then = (bench.zipf("medium", 0, name, 5000) for name in names)
        yield " then ".join(names), 0, bench.asked(first + then)


def opposite(bench: Bench) -> dict[str, Any]:
    """Questions of opposite meaning."""
    questions = [one for asked in bench.corpus.questions.values() for one in asked]
    count = 40 if bench.quick else 100
    pairs = polarity_pairs(questions, bench.corpus.titles, count, seed=0)
    ones, others = (bench.embed(texts) for texts in zip(*pairs, strict=True))
    return {"polarity": polarity(bench.asked(bench.zipf("medium")), ones, others)}


PARTS: dict[str, Callable[[Bench], dict[str, Any]]] = {
    "match": match,
    "quality": quality,
    "certified": certified,
    "auto": auto,
    "polarity": opposite,
}


def main() -> None:
    """Run and print."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--quick", action="store_true", help="a cut of it, in less than a minute")
    parser.add_argument("--only", choices=PARTS, help="one part of it")
    parser.add_argument("--data", type=Path, help="folder with nq/ and pubmedqa/")
    parser.add_argument("--plots", type=Path, metavar="DIR", help="save plots of the sweeps there")
    parser.add_argument("--seeds", type=int, default=3, help="streams per setting")
    options = parser.parse_args()
    if options.plots is not None:
        options.plots.mkdir(parents=True, exist_ok=True)
    if options.quick and options.only is None:
        result = quick(options)
    else:
        bench = Bench(options)
        wanted = PARTS if options.only is None else (options.only,)
        result = {}
        for name in wanted:
            result |= PARTS[name](bench)
    print(json.dumps(result))


def quick(options: argparse.Namespace) -> dict[str, Any]:
    """All parts.

    The largest cache is filled in a process of its own, where it stands in nobody's way, while
    what is not timed runs in another.
    """
    spawn = get_context("spawn")
    with (
        ProcessPoolExecutor(1, spawn) as filler,
        ProcessPoolExecutor(1, spawn, initializer=one_thread) as other,
    ):
        filling = filler.submit(fill_largest)
        found = other.submit(qualities, options).result()
        filling.result()
        return match(Bench(options), lambda: filler.submit(time_largest).result()) | found


def one_thread() -> None:
    """Embed in one thread: two, and who fills the cache, would wait for each other."""
    os.environ["OMP_NUM_THREADS"] = "1"


def qualities(options: argparse.Namespace) -> dict[str, Any]:
    """All parts but ``match``."""
    bench = Bench(options)
    result: dict[str, Any] = {}
    for name, part in PARTS.items():
        if name != "match":
            result |= part(bench)
    return result


if __name__ == "__main__":
    main()
