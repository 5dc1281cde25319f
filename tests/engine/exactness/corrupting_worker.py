"""A vLLM worker that spoils its KV cache on demand, to see whether the tests would notice.

Taken by vLLM through its own ``worker_cls`` argument.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import torch
from vllm.distributed.kv_transfer import get_kv_transfer_group
from vllm.v1.worker.cpu_worker import CPUWorker

TRIGGER = "RAGCACHE_TEST_CORRUPT"
"""Environment variable: the next step spoils the cached blocks when the file it names exists."""


class CorruptingWorker(CPUWorker):  # type: ignore[misc] # vLLM is untyped here
    def execute_model(self, *args: Any, **kwargs: Any) -> Any:
        trigger = Path(os.environ[TRIGGER])
        if trigger.exists():
            trigger.unlink()
            for cache in self.model_runner.kv_caches:
                cache.mul_(torch.where(torch.rand_like(cache, dtype=torch.float32) < 0.5, 0.5, 1.5))
        return super().execute_model(*args, **kwargs)


CORRUPT_HOST = "RAGCACHE_TEST_CORRUPT_HOST"
"""Environment variable: where it is not empty, copies on the host are spoilt before each step."""


class HostCorruptingWorker(CPUWorker):  # type: ignore[misc] # vLLM is untyped here
    def execute_model(self, *args: Any, **kwargs: Any) -> Any:
        if os.environ[CORRUPT_HOST]:
            dtype = self.model_runner.kv_caches[0].dtype
            for _, host in get_kv_transfer_group()._copies._parts:
                values = torch.from_numpy(host).view(torch.uint8).view(dtype)
                noise = torch.rand_like(values, dtype=torch.float32) < 0.5
                values.mul_(torch.where(noise, 0.5, 1.5))
        return super().execute_model(*args, **kwargs)
