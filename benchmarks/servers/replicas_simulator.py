"""One to sixteen replicas in the simulator: routed by document, by session, in turns, at random.

Requests for two of 220 documents of 200 to 500 tokens, popular by Zipf's law, come from eight users
for each replica. Each replica has memory for a tenth of the documents and serves one request at a
time; prefill times are those that ``ragcache profile`` measured (``--profile``). Requests arrive as
a Poisson process at shares of the rate that the replicas bear in turns. The first ones of each run
warm up and are not counted. No model runs.

The hit rate is the share of prompt tokens that are cached. TTFT ratios are in turns over the other
way, of means; intervals draw the seeds again. At last two replicas get as many requests as in
the recorded run of ``benchmarks/servers/replicas.py``, and its figures are printed next to the
simulated ones. The last line is one JSON object.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1]))

from parts.stats.intervals import mean_ratio
from parts.stats.tables import print_table
from parts.traffic.traces import document_stream, sampled_lengths
from tqdm import tqdm

from ragcache_integrations.knowledge_tree.prefill_cost import PrefillCostModel
from ragcache_workbench.evaluation.scores import bootstrap_interval
from ragcache_workbench.simulation.replicas import (
    BALANCE_FACTOR,
    ReplicasResult,
    simulate_replicas,
)
from ragcache_workbench.simulation.traces import Trace

ROOT = Path(__file__).parents[2]
PROFILE = ROOT / "benchmarks" / "recorded" / "prefill_profile.json"
ENGINES = ROOT / "docs/results/servers-replicas-only-questions-seeds-3-requests-60-load-0.8.json"
"""The recorded run of real engines, whose settings the last part repeats."""
ENGINES_REPLICAS, ENGINES_REQUESTS, ENGINES_WARM_UP, ENGINES_LOAD = 2, 60, 60, 0.8

DOCUMENTS, DOCUMENT_TOKENS = 220, (200, 500)
TOP_K, EXPONENT, SHARE = 2, 1.0, 0.1
SYSTEM_TOKENS = QUESTION_TOKENS = 24
USERS = 8
BLOCK = 32
IN_TURNS, NO_BOUND = "round_robin", "document, no bound"
WAYS: Mapping[str, tuple[str, int]] = {
    IN_TURNS: (IN_TURNS, 0),
    "random": ("random", 0),
    "session": ("session", BALANCE_FACTOR),
    "document": ("document", BALANCE_FACTOR),
    NO_BOUND: ("document", 0),
}
"""Routing and balance factor, by name."""


@dataclass(frozen=True)
class Run:
    """What the counted requests of a simulation found.

    Attributes:
        hit_rate: Share of their prompt tokens that were cached.
        ttft: Their seconds to the first token.
        busiest_share: Share of them on the replica with the most.
    """

    hit_rate: float
    ttft: Sequence[float]
    busiest_share: float

    @classmethod
    def of(cls, result: ReplicasResult, warm_up: int) -> Run:
        """Leave out the first requests."""
        cached, prompt = sum(result.cached_tokens[warm_up:]), sum(result.prompt_tokens[warm_up:])
        counts = np.bincount(result.assigned[warm_up:])
        return cls(cached / prompt, result.ttft[warm_up:], float(counts.max() / counts.sum()))


@dataclass(frozen=True)
class Bench:
    """What all simulations share.

    Attributes:
        costs: Prefill times.
        load: Share of the rate that the replicas bear in turns.
    """

    costs: PrefillCostModel
    load: float

    def run(self, replicas: int, requests: int, warm_up: int, seed: int) -> dict[str, Run]:
        """Simulate each way with the same requests at the same times; one replica once."""
        lengths = sampled_lengths(
            map(str, range(DOCUMENTS)), low=DOCUMENT_TOKENS[0], high=DOCUMENT_TOKENS[1], seed=seed
        )
        trace = with_users(
            document_stream(
                lengths,
                top_k=TOP_K,
                requests=warm_up + requests,
                exponent=EXPONENT,
                seed=seed,
                system_tokens=SYSTEM_TOKENS,
                question_tokens=QUESTION_TOKENS,
            ),
            USERS * replicas,
            seed,
        )
        settings: dict[str, Any] = {
            "replicas": replicas,
            "gpu_blocks": int(SHARE * sum(lengths.values()) / BLOCK),
            "block_size": BLOCK,
            "prefill_seconds": self.costs,
            "seed": seed,
        }
        at_once = simulate_replicas(trace, routing=IN_TURNS, **settings)
        seconds = max(replica.prefill_seconds for replica in at_once.replicas)
        rate = self.load * len(trace.requests) / seconds
        return {
            name: Run.of(
                simulate_replicas(
                    trace, routing=routing, balance_factor=factor, rate=rate, **settings
                ),
                warm_up,
            )
            for name, (routing, factor) in WAYS.items()
            if replicas > 1 or name == IN_TURNS
        }


def with_users(trace: Trace, users: int, seed: int) -> Trace:
    """Let each request come from a user, drawn alike."""
    drawn = np.random.default_rng([seed, 7]).integers(users, size=len(trace.requests)).tolist()
    requests = zip(trace.requests, drawn, strict=True)
    return dataclasses.replace(
        trace,
        requests=tuple(
            dataclasses.replace(request, session=f"user {user}") for request, user in requests
        ),
    )


def show(title: str, runs: Sequence[Mapping[str, Run]]) -> dict[str, Any]:
    """Print a table of all seeds' runs, and give its figures."""
    rows: list[list[Any]] = []
    figures: dict[str, Any] = {}
    means = {name: [float(np.mean(run[name].ttft)) for run in runs] for name in runs[0]}
    for name, of_seeds in means.items():
        of_way = [run[name] for run in runs]
        hits = bootstrap_interval(np.mean, [[run.hit_rate for run in of_way]])
        ratio = mean_ratio(means[IN_TURNS], of_seeds)
        ttft = np.concatenate([run.ttft for run in of_way])
        mean, median, late = ttft.mean(), np.quantile(ttft, 0.5), np.quantile(ttft, 0.95)
        busiest = float(np.mean([run.busiest_share for run in of_way]))
        times = [f"{1e3 * float(seconds):.0f}" for seconds in (mean, median, late)]
        shown = name.replace("_", " ")
        rows.append([shown, str(hits), *times, str(ratio), busiest])
        figures[name] = {
            "hit_rate": hits.as_list(4),
            "ttft_mean_s": round(float(mean), 4),
            "ttft_median_s": round(float(median), 4),
            "ttft_p95_s": round(float(late), 4),
            "ttft_ratio": ratio.as_list(4),
            "busiest_share": round(busiest, 4),
        }
    head = ["by", "hit rate", "mean ms", "median ms", "p95 ms", "round robin / it", "busiest"]
    print_table(title, head, rows)
    return figures


def show_engines() -> dict[str, Any]:
    """Print what real engines found, and give it."""
    found: dict[str, Any] = json.loads(ENGINES.read_text(encoding="utf-8"))["result"]["questions"]
    rows: list[list[Any]] = [
        [
            name,
            one["hit_rate"],
            f"{one['ttft_median_ms']:.0f}",
            "{:.3f} [{:.3f}, {:.3f}]".format(*one["ttft_ratio"]),
            one["busiest_share"],
        ]
        for name, one in found.items()
    ]
    head = ["by", "hit rate", "median ms", "round robin / it, medians", "busiest"]
    print_table("two real engines, the same numbers of requests (recorded)", head, rows)
    return {name: one["hit_rate"] for name, one in found.items()}


def simulated(bench: Bench, options: argparse.Namespace) -> dict[str, Any]:
    """Simulate each number of replicas."""
    figures = {}
    for replicas in options.replicas:
        runs = [
            bench.run(replicas, options.requests * replicas, options.warm_up * replicas, seed)
            for seed in tqdm(range(options.seeds), desc=f"{replicas} replicas", leave=False)
        ]
        plural = "s" * (replicas > 1)
        figures[str(replicas)] = show(f"{replicas} replica{plural}, load {bench.load:g}", runs)
    return figures


def main() -> None:
    """Run and print."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--quick", action="store_true", help="a cut of it, in less than a minute")
    parser.add_argument("--profile", type=Path, default=PROFILE, help="of ragcache profile")
    parser.add_argument("--replicas", type=int, nargs="+", default=(1, 2, 4, 8, 16))
    parser.add_argument("--requests", type=int, default=200, help="for each replica and seed")
    parser.add_argument("--warm-up", type=int, default=100, help="requests a replica before them")
    parser.add_argument(
        "--loads", type=float, nargs="+", default=(0.4, 0.8), help="of what round robin bears"
    )
    parser.add_argument("--seeds", type=int, default=5)
    options = parser.parse_args()
    if options.quick:
        options.replicas, options.loads = (1, 2, 4), (0.8,)
        options.requests, options.warm_up, options.seeds = 100, 50, 4
    costs = PrefillCostModel.load(options.profile)
    result: dict[str, Any] = {"requests": options.requests, "seeds": options.seeds}
    result["loads"] = {
        f"{load:g}": simulated(Bench(costs, load), options) for load in options.loads
    }
    like_engines = Bench(costs, ENGINES_LOAD)
    result["recorded"] = {
        "simulated": show(
            "two replicas, 60 requests after 60",
            [
                like_engines.run(ENGINES_REPLICAS, ENGINES_REQUESTS, ENGINES_WARM_UP, seed)
                for seed in range(options.seeds)
            ],
        ),
        "engines": show_engines(),
    }
    print(json.dumps(result))


if __name__ == "__main__":
    main()
