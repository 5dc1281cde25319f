"""Replacement policies in the simulator: hit rates and saved prefill time by stream and cache size.

Real questions retrieve their top-2 passages by keywords; the passages stand for documents of 100 to
4,000 tokens. Questions come by Zipf's law, all alike ("uniform"), or each once before any comes
again ("retrieval": documents are as popular as retrieval makes them). Popularity also drifts by one
rank every 50 requests ("slow drift") or every 5 ("fast drift"), or is drawn anew three times
("upheavals"), or three in ten requests ask for documents that come only once, in runs of 50
("scans"). Cache sizes are shares of the tokens of all documents that are ever retrieved; running
requests live in the cache too. ``vllm`` is stock vLLM's own block LRU, ``s3-fifo`` and
``w-tinylfu`` are policies of others over the same tree, and ``optimum`` knows the future: no policy
finds more tokens. Nothing here runs a model: prefill times are the default cost model's.

A policy's regret at a point is the share by which it finds less than the best policy there, the
optimum aside. Policies are ranked by their largest regret.

Then one tenant asks by Zipf's law, and for each of its requests another one sends eight: the tokens
that the first finds without quotas and with one, against what it finds alone in a cache of its
quota's size.

Without ``--data`` the questions are the bundled 300; with it, the folder's ``nq`` and ``mmlu``.

The last line is one JSON object: geometric means of PGDSF / LRU over the Zipf streams, the worst
points, the default policy against LRU, against the best policy of each point and against the
optimum, and the mean rates of every policy at every point. ``quiet_tenant`` has, by policy, the
share of its hits alone that the quiet tenant keeps with a quota and without, at the worst point.
"""

from __future__ import annotations

import argparse
import itertools
import json
import math
import statistics
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from parts.replacement.optimum import optimal_tier
from parts.replacement.peers import S3FifoTier, WTinyLfuTier
from parts.stats.intervals import geometric_mean_ratio
from parts.traffic.corpora import (
    bundled_documents,
    bundled_questions,
    lexical_top_k,
    read_documents,
    read_questions,
)
from parts.traffic.tenants import QUIET, flooded, of_tenant
from parts.traffic.traces import question_stream, sampled_lengths
from tqdm import tqdm

from ragcache_integrations.knowledge_tree.policies import DEFAULT_POLICY, POLICIES
from ragcache_integrations.knowledge_tree.tier import Tier
from ragcache_workbench.evaluation.scores import Interval, bootstrap_interval
from ragcache_workbench.simulation.simulator import (
    SIMULATED_POLICIES,
    SimulationResult,
    simulate,
)
from ragcache_workbench.simulation.traces import Trace

ZIPF = (0.8, 1.0, 1.2)
UNIFORM = 0.0
RETRIEVAL = None
CHANGES: dict[str, dict[str, Any]] = {
    "slow drift": {"drift": 1 / 50},
    "fast drift": {"drift": 1 / 5},
    "upheavals": {"upheavals": 3},
    "scans": {"scans": 0.3},
}
CHANGED = 0.8
"""Zipf's exponent of the streams that change."""
SHARES = (0.02, 0.05, 0.10, 0.20)
TOP_K = 2
OPTIMUM = "optimum"
ONLINE = (*SIMULATED_POLICIES, "s3-fifo", "w-tinylfu")
COMPARED = (*ONLINE, OPTIMUM)
QUOTA = 0.25
FLOOD = 8
"""Requests of the flooding tenant for each one of the quiet tenant's."""
MEASURES = {
    "documents": "hit rate by documents",
    "tokens": "hit rate by tokens",
    "saved_prefill": "saved share of the prefill time",
}


@dataclass(frozen=True)
class Point:
    """One cache under one stream."""

    questions: str
    exponent: float | None
    change: str
    share: float

    @property
    def stream(self) -> str:
        """The stream's name."""
        names = {UNIFORM: "uniform", RETRIEVAL: "retrieval"}
        popularity = names.get(self.exponent, f"zipf {self.exponent}")
        return " ".join(filter(None, (self.questions, popularity, self.change)))


Rates = dict[str, float]  # by measure
Runs = dict[Point, list[dict[str, Rates]]]  # by policy, for each seed


def retrieved(data: Path | None) -> dict[str, list[list[str]]]:
    """What each question retrieves, by the questions' source."""
    if data is None:
        return {"bundled": lexical_top_k(bundled_questions(), bundled_documents(), TOP_K)}
    documents = read_documents(data / "nq" / "passages.jsonl.gz")
    questions = {
        "nq": read_questions(data / "nq" / "questions.jsonl"),
        "mmlu": read_questions(data / "mmlu"),
    }
    return {name: lexical_top_k(asked, documents, TOP_K) for name, asked in questions.items()}


def kinds(sources: Sequence[str]) -> Iterator[tuple[str, float | None, str]]:
    """Source, exponent and change of every stream."""
    first, *others = sources
    for exponent in (*ZIPF, UNIFORM, RETRIEVAL):
        yield first, exponent, ""
    for change in CHANGES:
        yield first, CHANGED, change
    for source in others:
        yield source, RETRIEVAL, ""


def serve(trace: Trace, blocks: int, block_size: int, policy: str) -> SimulationResult:
    """Run a trace under a policy of ours or of others."""
    tiers: dict[str, Tier[int]] = {}
    if policy == OPTIMUM:
        tiers[policy] = optimal_tier(trace)
    elif policy == "s3-fifo":
        tiers[policy] = S3FifoTier(blocks)
    elif policy == "w-tinylfu":
        tiers[policy] = WTinyLfuTier(blocks)
    return simulate(
        trace,
        gpu_blocks=blocks,
        block_size=block_size,
        policy="lru" if tiers else policy,
        gpu_tier=tiers.get(policy),
    )


def run(options: argparse.Namespace, seeds: Iterable[int], requests: int) -> Runs:
    """Simulate everything."""
    runs: Runs = {}
    sources = retrieved(options.data)
    streams = list(itertools.product(seeds, kinds(list(sources))))
    with tqdm(total=len(streams) * len(SHARES) * len(COMPARED), unit="run") as progress:
        for seed, (source, exponent, change) in streams:
            answers = sources[source]
            lengths = sampled_lengths(itertools.chain.from_iterable(answers), seed=seed)
            trace = question_stream(
                answers,
                lengths,
                requests=requests,
                exponent=exponent,
                seed=seed,
                **CHANGES.get(change, {}),
            )
            for share in SHARES:
                blocks = int(share * sum(lengths.values()) / options.block_size)
                rates: dict[str, Rates] = {}
                for policy in COMPARED:
                    result = serve(trace, blocks, options.block_size, policy)
                    rates[policy] = {
                        "documents": result.stats.document_hit_rate,
                        "tokens": result.stats.token_hit_rate,
                        "saved_prefill": result.saved_share,
                    }
                    progress.update()
                runs.setdefault(Point(source, exponent, change, share), []).append(rates)
    return runs


def quiet_hits(trace: Trace, blocks: int, **settings: Any) -> int:
    """Tokens of the quiet tenant's prompts that are found."""
    cached = simulate(trace, gpu_blocks=blocks, **settings).cached_tokens
    requests = zip(cached, trace.requests, strict=True)
    return sum(tokens for tokens, request in requests if request.namespace == QUIET)


def run_tenants(
    options: argparse.Namespace, seeds: Iterable[int], requests: int
) -> dict[str, dict[str, float]]:
    """What a quiet tenant finds beside a flood, against what it finds alone, at its worst point."""
    answers = next(iter(retrieved(options.data).values()))
    worst: dict[str, dict[str, float]] = {}
    for seed, share in itertools.product(seeds, SHARES):
        lengths = sampled_lengths(itertools.chain.from_iterable(answers), seed=seed)
        quiet, flood = (
            question_stream(answers, lengths, requests=count, exponent=CHANGED, seed=number)
            for count, number in ((requests // FLOOD, seed), (requests, seed + 1000))
        )
        both = flooded(quiet, flood, FLOOD)
        blocks = int(share * sum(lengths.values()) / options.block_size)
        for policy in POLICIES:
            simulated = partial(quiet_hits, block_size=options.block_size, policy=policy)
            alone = simulated(of_tenant(quiet, QUIET), blocks)
            for name, quotas in (("with a quota", {QUIET: QUOTA}), ("without", None)):
                left = simulated(both, int(blocks / QUOTA), quotas=quotas) / alone
                least = worst.setdefault(policy, {})
                least[name] = min(left, least.get(name, math.inf))
    return worst


def mean(runs: Sequence[dict[str, Rates]], policy: str, measure: str) -> float:
    """A policy's mean rate at one point, over the seeds."""
    return statistics.fmean(rates[policy][measure] for rates in runs)


def ratio(runs: Sequence[dict[str, Rates]], policy: str, measure: str) -> float:
    """A policy's mean rate at one point against that of LRU; NaN where LRU finds nothing."""
    theirs = mean(runs, "lru", measure)
    return mean(runs, policy, measure) / theirs if theirs else math.nan


def by_seed(seeds: Sequence[dict[str, Rates]], policy: str, measure: str) -> list[float]:
    """A policy's rates at one point."""
    return [rates[policy][measure] for rates in seeds]


def over(runs: Runs, policy: str, other: str, measure: str) -> Interval:
    """Geometric mean over all points of a policy's mean rate against another's."""
    points = [
        (by_seed(seeds, policy, measure), by_seed(seeds, other, measure))
        for seeds in runs.values()
        if mean(seeds, other, measure)
    ]
    return geometric_mean_ratio(points, average=np.mean)


def largest_regret(runs: Runs, policy: str, measure: str) -> Interval:
    """The largest share by which a policy finds less than the best policy of a point."""
    # [policy, point, seed]; the seeds of all points are drawn together, as one run of everything.
    rates = np.array(
        [[by_seed(seeds, other, measure) for seeds in runs.values()] for other in ONLINE]
    )

    def largest(seeds: Any, axis: int) -> Any:
        means = rates[:, :, seeds.astype(int)].mean(axis=axis)
        return (1 - means[ONLINE.index(policy)] / means.max(axis=0)).max(axis=0)

    return bootstrap_interval(largest, [np.arange(rates.shape[-1])])


def show(runs: Runs) -> None:
    """Print one table per measure, and the ranking."""
    for measure, title in MEASURES.items():
        policies = "".join(f"{policy:>10}" for policy in COMPARED)
        print(f"\n{title}\n{'stream':<24}{'cache':>6}{policies}{'pgdsf/lru':>11}")
        for point, seeds in runs.items():
            rates = "".join(f"{mean(seeds, policy, measure):10.3f}" for policy in COMPARED)
            against = ratio(seeds, "pgdsf", measure)
            print(f"{point.stream:<24}{point.share:>6.0%}{rates}{against:11.3f}")
    for measure, title in MEASURES.items():
        print(f"\n{title}, over all streams and caches")
        print(f"{'policy':<12}{'largest regret':>24}{'over LRU':>24}{'of the optimum':>24}")
        for policy in ONLINE:
            figures = (
                largest_regret(runs, policy, measure),
                over(runs, policy, "lru", measure),
                over(runs, policy, OPTIMUM, measure),
            )
            print(f"{policy:<12}" + "".join(f"{figure!s:>24}" for figure in figures))


def summary(runs: Runs) -> dict[str, object]:
    """The figures in one object."""

    def ratios(exponents: Iterable[float | None], policy: str, measure: str) -> list[float]:
        found = (
            ratio(seeds, policy, measure)
            for point, seeds in runs.items()
            if point.exponent in exponents and not point.change
        )
        return [share for share in found if not math.isnan(share)]

    def over_lru(policy: str) -> dict[str, float]:
        return {
            measure: round(statistics.geometric_mean(ratios(ZIPF, policy, measure)), 4)
            for measure in MEASURES
        }

    def worst(exponents: Iterable[float | None]) -> dict[str, float]:
        return {measure: round(min(ratios(exponents, "pgdsf", measure)), 4) for measure in MEASURES}

    return {
        "default": DEFAULT_POLICY,
        "default_over_lru_tokens": over(runs, DEFAULT_POLICY, "lru", "tokens").as_list(4),
        "worst_gap_to_best": {
            policy: largest_regret(runs, policy, "tokens").as_list(4) for policy in ONLINE
        },
        "share_of_optimum": over(runs, DEFAULT_POLICY, OPTIMUM, "tokens").as_list(4),
        "pgdsf_over_lru": over_lru("pgdsf"),
        "worst_zipf": worst(ZIPF),
        "worst_uniform": worst((UNIFORM,)),
        "worst_retrieval": worst((RETRIEVAL,)),
        "others_over_lru": {
            policy: over_lru(policy) for policy in COMPARED if policy not in {"pgdsf", "lru"}
        },
        "points": [
            {
                "stream": point.stream,
                "cache_share": point.share,
                **{
                    measure: {policy: round(mean(seeds, policy, measure), 4) for policy in COMPARED}
                    for measure in MEASURES
                },
            }
            for point, seeds in runs.items()
        ],
    }


def main() -> None:
    """Run and print."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--quick", action="store_true", help="one seed, 1,000 requests")
    parser.add_argument("--data", type=Path, help="folder with nq/ and mmlu/; the sample if none")
    parser.add_argument("--requests", type=int, default=3_000, help="for each seed")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--block-size", type=int, default=256, help="tokens per block")
    arguments = parser.parse_args()
    seeds, requests = (1, 1000) if arguments.quick else (arguments.seeds, arguments.requests)
    runs = run(arguments, range(seeds), requests)
    show(runs)
    tenants = run_tenants(arguments, range(seeds), requests)
    print("\nwhat a quiet tenant finds beside a flood, over what it finds alone, worst point")
    for policy, left in tenants.items():
        print(f"{policy:<12}" + "".join(f"{name:>14}{part:7.3f}" for name, part in left.items()))
    print(
        json.dumps(
            {
                "requests": requests,
                "seeds": seeds,
                "block_size": arguments.block_size,
                **summary(runs),
                "quiet_tenant": {
                    policy: {name: round(part, 4) for name, part in left.items()}
                    for policy, left in tenants.items()
                },
            }
        )
    )


if __name__ == "__main__":
    main()
