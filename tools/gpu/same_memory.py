"""The knowledge tree's policy and order next to stock vLLM's, at the same GPU memory, no host tier.

Ours evicts by PGDSF and lets requests overtake whose documents are cached; stock evicts the block
used longest ago and serves in the order of arrival. The KV cache has one size, the documents are
more or fewer, so that it holds 5 % or 20 % of their tokens. Requests with two documents each arrive
as a Poisson process, at a share of the rate at which stock answers one after another; above 1 they
queue up. Ratios are of TTFT, stock's over ours, with 95 % intervals from drawing the pairs of
requests again. The last line is one JSON object.
"""

from __future__ import annotations

import json
import sys
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))
sys.path.insert(0, str(Path(__file__).parents[2]))

from parts.servers.serving import Served

from ragcache_integrations.engine import RAGCacheEngine
from tools.gpu.setting import (
    Setting,
    Workload,
    compared,
    contest,
    medians,
    poisson,
    run_together,
    say,
    started,
)

STOCK, OURS = "stock", "ours"
SHARES = (0.05, 0.20)
LOADS = (0.7, 1.5)
WARM_UP = 80
RATED = 12
"""Requests that show the rate at which stock answers, the last ones before those that count."""
OUTPUT_TOKENS = 4
TOP_K = 2
CACHED_DOCUMENTS = 40
"""What the KV cache holds."""

Points = dict[tuple[float, float], dict[str, Served]]


def main() -> None:
    """Run and print."""
    setting = Setting.parse(__doc__, seconds=235.0)
    small = setting.cpu or setting.quick
    low, high = (60, 120) if setting.cpu else (500, 1000)
    cached = 12 if setting.cpu else CACHED_DOCUMENTS
    workloads = {
        share: Workload(setting, round(cached / share), low, high, top_k=TOP_K) for share in SHARES
    }
    window = max(workload.window for workload in workloads.values())
    gpu = max(cached * (low + high) // 2, window + 64)
    say(f"GPU {gpu} tokens, {setting.gib(gpu):.2f} GiB, for {cached} documents")
    starts = {
        STOCK: lambda: setting.engine(gpu, window, knowledge_tree=False),
        OURS: lambda: setting.engine(gpu, window),
    }
    points: Points = {
        (share, load): {name: Served() for name in starts} for share in SHARES for load in LOADS
    }
    requests, seeds = (10, 1) if small else (60, 4)
    longest = 0.0
    with ExitStack() as stack:
        engines, _ = started(starts, (STOCK, OURS), stack)
        for seed in range(seeds):
            for share, workload in workloads.items():
                if setting.left < longest:
                    continue
                began = time.monotonic()
                measure(points, workload, engines, share, requests, seed)
                longest = max(longest, time.monotonic() - began)
        tree = engines[OURS].stats().tree
    measured = {point: served for point, served in points.items() if served[OURS].ttft}
    shown: dict[str, Any] = {
        f"cache {share:.0%} load {load}": compared(served, OURS)
        for (share, load), served in measured.items()
    }
    result = setting.about() | {
        "documents": {str(share): one.count for share, one in workloads.items()},
        "document_tokens": {str(share): one.tokens for share, one in workloads.items()},
        "gpu_tokens": gpu,
        "top_k": TOP_K,
        "tree": str(tree),
        "points": shown,
    }
    print(json.dumps(result), flush=True)


def measure(
    points: Points,
    workload: Workload,
    engines: dict[str, RAGCacheEngine],
    share: float,
    requests: int,
    seed: int,
) -> None:
    """All loads of one share with one seed, from empty caches."""
    warm_up = min(WARM_UP, 2 * requests)
    prompts = workload.prompts(warm_up + RATED + requests * len(LOADS), seed)
    for engine in engines.values():
        engine.reset_cache()
    run_together(engines, prompts[:warm_up])
    first = warm_up + RATED
    rated = contest(engines, prompts[warm_up:first], None, OUTPUT_TOKENS, turn=4)
    rate = RATED / rated[STOCK].seconds
    sides = dict(reversed(engines.items())) if seed % 2 else engines
    for number, load in enumerate(LOADS):
        stretch = prompts[first + number * requests : first + (number + 1) * requests]
        now = contest(sides, stretch, poisson(load * rate, requests, (seed, number)), OUTPUT_TOKENS)
        for name, one in now.items():
            points[share, load][name].extend(one)
        cached = ", ".join(f"{name} {one.cached_share:.3f}" for name, one in now.items())
        say(f"seed {seed} cache {share:.0%} load {load}: {medians(now)}; cached {cached}")


if __name__ == "__main__":
    main()
