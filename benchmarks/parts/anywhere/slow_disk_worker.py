"""vLLM's CPU worker with a disk that reads documents at a given speed.

Taken by vLLM through its own ``worker_cls`` argument.
"""

from __future__ import annotations

import os
import time

from vllm.v1.worker.cpu_worker import CPUWorker

from ragcache_integrations.engine.in_vllm.anywhere.codecs import Encoded
from ragcache_integrations.engine.in_vllm.anywhere.disk import DiskWorker

__all__ = ["DISK_MB", "SlowDiskWorker"]

DISK_MB = "RAGCACHE_BENCHMARK_DISK_MB"
"""Environment variable: MB that the disk reads in a second."""

read = DiskWorker.read


def slow_read(self: DiskWorker, key: bytes, tokens: int) -> Encoded:
    """Read as usual, but not before the disk would have been done."""
    begun = time.perf_counter()
    document = read(self, key, tokens)
    seconds = document.nbytes / 1e6 / float(os.environ[DISK_MB])
    time.sleep(max(0.0, begun + seconds - time.perf_counter()))
    return document


class SlowDiskWorker(CPUWorker):  # type: ignore[misc] # vLLM is untyped here
    """The worker; with it comes the slow disk."""


DiskWorker.read = slow_read  # type: ignore[method-assign] # there is no hook for it
