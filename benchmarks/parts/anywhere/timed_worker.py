"""vLLM's CPU worker, which writes down how long each step moves documents' KV caches.

Taken by vLLM through its own ``worker_cls`` argument.
"""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

from vllm.v1.worker.cpu_worker import CPUWorker

from ragcache_integrations.engine.in_vllm.anywhere.worker import StoreWorker

__all__ = ["TIMES", "TimedWorker"]

TIMES = "RAGCACHE_BENCHMARK_TIMES"
"""Environment variable: names a file to which a line of seconds is added for each such step."""

load = StoreWorker.load


def timed_load(self: StoreWorker, moves: Any) -> None:
    """Turn and write as usual."""
    begun = time.perf_counter()
    load(self, moves)
    if moves.loads:
        with Path(os.environ[TIMES]).open("a", encoding="utf-8") as file:
            file.write(f"{time.perf_counter() - begun}\n")


class TimedWorker(CPUWorker):  # type: ignore[misc] # vLLM is untyped here
    """The worker; with it comes what times the store."""


StoreWorker.load = timed_load  # type: ignore[method-assign] # what is measured has no hook
