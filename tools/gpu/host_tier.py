"""The host tier beside stock vLLM and vLLM's own OffloadingConnector, at the same GPU memory.

The GPU's KV cache holds 5 % of the documents' tokens, the host all of them. Every engine answers
the same requests, in turns; all hold their caches throughout. Documents are computed once before
anything is timed. Ratios are of TTFT, the other engine's over ours, with 95 % intervals from
drawing the pairs of requests again. Under load requests arrive as a Poisson process at a share of
the rate at which stock answers one request after another. The last line is one JSON object.
"""

from __future__ import annotations

import importlib.util
import json
import shutil
import sys
import time
from contextlib import ExitStack
from itertools import islice
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))
sys.path.insert(0, str(Path(__file__).parents[2]))

from parts.servers.serving import Served

from ragcache_integrations.engine import RAGCacheEngine
from tools.gpu.setting import (
    GIB,
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

STOCK, OFFLOADING, OURS = "stock", "offloading", "ours"
SHARE = 0.05
HOST_GIB = 40.0
LENGTHS = 3000, 4436
"""Tokens of a document: 3,718 in the mean, as of Wikipedia in RAGCache."""
HOST_ROOM = 1.1
"""The host's tokens, as a multiple of the documents'."""
LOADS = (None, 0.5, 0.8)
OUTPUT_TOKENS = 4
TURN = 8
TARGETS = {STOCK: 2.0, OFFLOADING: 1.0}


def offloading_config(host_bytes: int) -> dict[str, Any]:
    """Settings of vLLM's OffloadingConnector: every block is kept, in chunks of a block.

    Larger chunks would leave more of a document's end out; nothing has to be evicted, so that the
    policy does not matter.
    """
    extra: dict[str, Any] = {"cpu_bytes_to_use": host_bytes, "eviction_policy": "lru"}
    if shutil.disk_usage("/dev/shm").free < host_bytes * 1.02:  # noqa: S108 - vLLM's choice
        extra["spec_name"] = "PrivateOffloadingSpec"
        extra["spec_module_path"] = "tools.gpu.private_offloading"
    return {
        "kv_connector": "OffloadingConnector",
        "kv_role": "kv_both",
        "kv_connector_extra_config": extra,
    }


def start_offloading(setting: Setting, gpu: int, window: int, host_bytes: int) -> RAGCacheEngine:
    """Stock vLLM with its connector."""
    from vllm.config import KVTransferConfig  # noqa: PLC0415 - takes seconds

    config = KVTransferConfig(**offloading_config(host_bytes))
    return setting.engine(
        gpu, window, knowledge_tree=False, vllm_args={"kv_transfer_config": config}
    )


def main() -> None:
    """Run and print."""
    setting = Setting.parse(__doc__, seconds=280.0)
    host_gib = setting.host_gib(0.25 if setting.cpu else HOST_GIB)
    low, high = (100, 200) if setting.cpu else LENGTHS
    mean = (low + high) // 2
    most = 24 if setting.cpu else 64 if setting.quick else 200
    fitting = int(host_gib * GIB / HOST_ROOM / setting.token_bytes / mean)
    workload = Workload(setting, min(most, fitting), low, high)
    gpu = max(int(SHARE * workload.tokens), workload.window + 64)
    host_gib = setting.gib(int(HOST_ROOM * workload.tokens))
    say(
        f"{workload.count} documents, {workload.tokens} tokens; GPU {gpu} tokens, "
        f"{setting.gib(gpu):.2f} GiB; host {host_gib:.1f} GiB"
    )
    window = workload.window
    starts = {
        STOCK: lambda: setting.engine(gpu, window, knowledge_tree=False),
        OFFLOADING: lambda: start_offloading(setting, gpu, window, int(host_gib * GIB)),
        OURS: lambda: setting.engine(gpu, window, host_cache_gib=host_gib),
    }
    with ExitStack() as stack:
        engines, errors = started(starts, (STOCK, OURS), stack)
        run_together(engines, workload.each())
        say("every document was computed once")
        points = measure(setting, workload, engines)
        tree = engines[OURS].stats().tree
    result = setting.about() | {
        "documents": workload.count,
        "document_tokens": workload.tokens,
        "gpu_tokens": gpu,
        "host_gib": round(host_gib, 2),
        "offloading": offloading_config(int(host_gib * GIB))["kv_connector_extra_config"],
        "lmcache": "installed" if importlib.util.find_spec("lmcache") else "not installed",
        "errors": errors,
        "tree": str(tree),
        "points": points,
        "targets": {
            name: {
                "target": target,
                "median": points["sequential"][f"{name}_over_{OURS}"]["median"],
            }
            for name, target in TARGETS.items()
            if name in engines
        },
    }
    print(json.dumps(result), flush=True)


def measure(
    setting: Setting, workload: Workload, engines: dict[str, RAGCacheEngine]
) -> dict[str, Any]:
    """All points, seed after seed, as long as there is time."""
    requests, warm_up, seeds = (8, 4, 1) if setting.cpu or setting.quick else (40, 16, 5)
    served = {load: {name: Served() for name in engines} for load in LOADS}
    longest = 0.0
    for seed in range(seeds):
        if seed and setting.left < longest:
            break
        began, rate = time.monotonic(), 1.0
        prompts = iter(workload.prompts(warm_up + requests * len(LOADS), seed))
        contest(engines, list(islice(prompts, warm_up)), None, 1)
        names = list(engines)[seed % len(engines) :] + list(engines)[: seed % len(engines)]
        sides = {name: engines[name] for name in names}
        for number, load in enumerate(LOADS):
            arrivals = None if load is None else poisson(load * rate, requests, (seed, number))
            now = contest(sides, list(islice(prompts, requests)), arrivals, OUTPUT_TOKENS)
            if load is None:
                rate = requests / now[STOCK].seconds
            for name, one in now.items():
                served[load][name].extend(one)
            say(f"seed {seed} load {load or 'sequential'}: {medians(now)}")
        longest = max(longest, time.monotonic() - began)
    return {
        "sequential" if load is None else f"load {load}": compared(sides, OURS)
        for load, sides in served.items()
    }


if __name__ == "__main__":
    main()
