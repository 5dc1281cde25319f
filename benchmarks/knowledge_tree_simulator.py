"""Replacement policies in the simulator: hit rates and saved prefill time by cache size and skew.

Real questions retrieve their top-2 passages by keywords; the passages stand for documents of 100 to
4,000 tokens. Questions come by Zipf's law, all alike ("uniform"), or each once before any comes
again ("retrieval": documents are as popular as retrieval makes them). Cache sizes are shares of the
tokens of all documents that are ever retrieved; running requests live in the cache too. ``vllm`` is
stock vLLM's own block LRU. Nothing here runs a model: prefill times are the default cost model's.

Without ``--data`` the questions are the bundled 300; with it, the folder's ``nq`` and ``mmlu``.

The last line is one JSON object: geometric means of PGDSF / LRU over the Zipf streams, the worst
points, and the mean rates of every policy at every point.
"""

from __future__ import annotations

import argparse
import itertools
import json
import math
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from parts.traffic.corpora import (
    bundled_documents,
    bundled_questions,
    lexical_top_k,
    read_documents,
    read_questions,
)
from parts.traffic.traces import question_stream, sampled_lengths
from tqdm import tqdm

from ragcache_integrations.knowledge_tree.simulation.simulator import SIMULATED_POLICIES, simulate

ZIPF = (0.8, 1.0, 1.2)
UNIFORM = 0.0
RETRIEVAL = None
SHARES = (0.02, 0.05, 0.10, 0.20)
TOP_K = 2
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
    share: float

    @property
    def stream(self) -> str:
        """The stream's name."""
        names = {UNIFORM: "uniform", RETRIEVAL: "retrieval"}
        return f"{self.questions} {names.get(self.exponent, f'zipf {self.exponent}')}"


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


def run(options: argparse.Namespace, seeds: int, requests: int) -> Runs:
    """Simulate everything."""
    runs: Runs = {}
    sources = retrieved(options.data)
    exponents = (*ZIPF, UNIFORM, RETRIEVAL)
    streams = list(itertools.product(sources, exponents, range(seeds)))
    total = len(streams) * len(SHARES) * len(SIMULATED_POLICIES)
    with tqdm(total=total, unit="run") as progress:
        for source, exponent, seed in streams:
            answers = sources[source]
            lengths = sampled_lengths(itertools.chain.from_iterable(answers), seed=seed)
            trace = question_stream(
                answers, lengths, requests=requests, exponent=exponent, seed=seed
            )
            for share in SHARES:
                blocks = int(share * sum(lengths.values()) / options.block_size)
                rates: dict[str, Rates] = {}
                for policy in SIMULATED_POLICIES:
                    result = simulate(
                        trace, gpu_blocks=blocks, block_size=options.block_size, policy=policy
                    )
                    rates[policy] = {
                        "documents": result.stats.document_hit_rate,
                        "tokens": result.stats.token_hit_rate,
                        "saved_prefill": result.saved_share,
                    }
                    progress.update()
                runs.setdefault(Point(source, exponent, share), []).append(rates)
    return runs


def mean(runs: Sequence[dict[str, Rates]], policy: str, measure: str) -> float:
    """A policy's mean rate at one point, over the seeds."""
    return statistics.fmean(one[policy][measure] for one in runs)


def ratio(runs: Sequence[dict[str, Rates]], policy: str, measure: str) -> float:
    """A policy's mean rate at one point against that of LRU; NaN where LRU finds nothing."""
    theirs = mean(runs, "lru", measure)
    return mean(runs, policy, measure) / theirs if theirs else math.nan


def show(runs: Runs) -> None:
    """Print one table per measure."""
    for measure, title in MEASURES.items():
        policies = "".join(f"{policy:>8}" for policy in SIMULATED_POLICIES)
        print(f"\n{title}\n{'stream':<20}{'cache':>6}{policies}{'pgdsf/lru':>11}")
        for point, seeds in runs.items():
            rates = "".join(f"{mean(seeds, one, measure):8.3f}" for one in SIMULATED_POLICIES)
            against = ratio(seeds, "pgdsf", measure)
            print(f"{point.stream:<20}{point.share:>6.0%}{rates}{against:11.3f}")


def summary(runs: Runs) -> dict[str, object]:
    """The figures in one object."""

    def ratios(exponents: Iterable[float | None], policy: str, measure: str) -> list[float]:
        found = (
            ratio(seeds, policy, measure)
            for point, seeds in runs.items()
            if point.exponent in exponents
        )
        return [one for one in found if not math.isnan(one)]

    def over_lru(policy: str) -> dict[str, float]:
        return {
            one: round(statistics.geometric_mean(ratios(ZIPF, policy, one)), 4) for one in MEASURES
        }

    def worst(exponents: Iterable[float | None]) -> dict[str, float]:
        return {one: round(min(ratios(exponents, "pgdsf", one)), 4) for one in MEASURES}

    return {
        "pgdsf_over_lru": over_lru("pgdsf"),
        "worst_zipf": worst(ZIPF),
        "worst_uniform": worst((UNIFORM,)),
        "worst_retrieval": worst((RETRIEVAL,)),
        "others_over_lru": {
            policy: over_lru(policy)
            for policy in SIMULATED_POLICIES
            if policy not in {"pgdsf", "lru"}
        },
        "points": [
            {
                "stream": point.stream,
                "cache_share": point.share,
                **{
                    measure: {
                        one: round(mean(seeds, one, measure), 4) for one in SIMULATED_POLICIES
                    }
                    for measure in MEASURES
                },
            }
            for point, seeds in runs.items()
        ],
    }


def main() -> None:
    """Run and print."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--quick", action="store_true", help="one seed, 1,500 requests")
    parser.add_argument("--data", type=Path, help="folder with nq/ and mmlu/; the sample if none")
    parser.add_argument("--requests", type=int, default=10_000, help="for each seed")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--block-size", type=int, default=64, help="tokens per block")
    arguments = parser.parse_args()
    seeds, requests = (1, 1500) if arguments.quick else (arguments.seeds, arguments.requests)
    runs = run(arguments, seeds, requests)
    show(runs)
    print(
        json.dumps(
            {
                "requests": requests,
                "seeds": seeds,
                "block_size": arguments.block_size,
                **summary(runs),
            }
        )
    )


if __name__ == "__main__":
    main()
