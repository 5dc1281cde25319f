"""A vLLM worker that writes down how its engine is set up, and spoils what it reads on demand.

Taken by vLLM through its own ``worker_cls`` argument. ``additional_config`` says what it does:
``watch`` is the folder that gets a file named after the process, and ``wrong_slots`` has blocks
read back from other places of the host's memory than those that hold them.
"""

from __future__ import annotations

import json
import logging
import os
from pathlib import Path
from typing import Any

import torch
from vllm import envs
from vllm.distributed.kv_transfer import get_kv_transfer_group
from vllm.platforms import current_platform

if current_platform.is_cpu():
    from vllm.v1.worker.cpu_worker import CPUWorker as Worker
else:
    from vllm.v1.worker.gpu_worker import Worker

__all__ = ["WatchedWorker", "facts", "wrong_slots"]

MOST_WARNINGS = 20
LONGEST_WARNING = 300


def facts(config: Any) -> dict[str, Any]:
    """What decides the numbers that an engine computes, and the order in which it does.

    Args:
        config: vLLM's ``VllmConfig``.
    """
    scheduler = config.scheduler_config.scheduler_cls
    layers = config.compilation_config.static_forward_context.values()
    attending = [layer for layer in layers if hasattr(layer, "get_attn_backend")]
    versions = {
        getattr(getattr(layer, "impl", None), "vllm_flash_attn_version", None)
        for layer in attending
    }
    return {
        "scheduler": getattr(getattr(scheduler, "func", scheduler), "__name__", None),
        "asynchronous": bool(config.scheduler_config.async_scheduling),
        "steps_in_flight": config.max_concurrent_batches,
        "model_runner": "V2" if config.use_v2_model_runner else "V1",
        "attention": sorted({layer.get_attn_backend().get_name() for layer in attending}),
        "flash_attention": sorted(version for version in versions if version),
        "block_size": config.cache_config.block_size,
        "dtype": str(config.model_config.dtype).removeprefix("torch."),
        "enforce_eager": config.model_config.enforce_eager,
        "compilation": str(config.compilation_config.mode),
        "cuda_graphs": str(config.compilation_config.cudagraph_mode),
        "batch_invariant": bool(envs.VLLM_BATCH_INVARIANT),
        "float32_matmul": torch.get_float32_matmul_precision(),
        "triton_float32": os.environ.get("TRITON_F32_DEFAULT", "default"),
    }


def wrong_slots(transfers: Any, slots: int) -> None:
    """Have each block read back from the next one's place.

    Args:
        transfers: A step's copies, changed in place.
        slots: Number of places on the host.
    """
    host, gpu = zip(*transfers.back, strict=True)
    others = [*host[1:], host[0]] if len(host) > 1 else [(host[0] + 1) % slots]
    transfers.back = list(zip(others, gpu, strict=True))


class Warnings(logging.Handler):
    """Keeps the warnings of this process, one of each kind."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.texts: list[str] = []
        self._kinds: set[str] = set()

    def emit(self, record: logging.LogRecord) -> None:
        """Keep a warning."""
        if record.msg not in self._kinds and len(self.texts) < MOST_WARNINGS:
            self._kinds.add(record.msg)
            self.texts.append(record.getMessage()[:LONGEST_WARNING])


class WatchedWorker(Worker):  # type: ignore[misc] # vLLM is untyped here
    """vLLM's worker for this device, watched."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._warnings = Warnings()
        logging.getLogger("vllm").addHandler(self._warnings)
        logging.getLogger("ragcache_integrations").addHandler(self._warnings)
        self._written = -1

    def execute_model(self, *args: Any, **kwargs: Any) -> Any:
        """Compute a step."""
        settings = self.vllm_config.additional_config
        if self._written != len(self._warnings.texts):
            self._written = len(self._warnings.texts)
            known = facts(self.vllm_config) | {"warnings": self._warnings.texts}
            path = Path(settings["watch"]) / f"{os.getpid()}.json"
            path.write_text(json.dumps(known), encoding="utf-8")
        plan = args[0] if args else kwargs["scheduler_output"]
        if settings.get("wrong_slots") and getattr(plan.kv_connector_metadata, "back", None):
            wrong_slots(plan.kv_connector_metadata, get_kv_transfer_group().host_blocks)
        return super().execute_model(*args, **kwargs)
