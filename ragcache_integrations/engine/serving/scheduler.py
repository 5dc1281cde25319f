"""The scheduler of ``ragcache serve``: the knowledge tree's, told its settings by vLLM's.

vLLM imports it by its dotted name in every engine process. The settings come in
``--additional-config``, which vLLM carries to wherever an engine runs.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ragcache_integrations.engine._kv_cache import block_bytes
from ragcache_integrations.engine._scheduler import (
    KnowledgeTreeAsyncScheduler,
    KnowledgeTreeScheduler,
)
from ragcache_integrations.engine.serving.counts import CountsFile
from ragcache_integrations.engine.serving.settings import TREE_SETTINGS, ServingSettings
from ragcache_integrations.engine.settings import CacheSettings

__all__ = ["ReportingAsyncScheduler", "ReportingScheduler", "make_scheduler"]


class _Reporting:
    """Before one of our schedulers in the list of base classes: leaves its counts in a file."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        scheduler: Any = self
        folder = ServingSettings.from_environment().stats_folder
        self._counts: CountsFile | None = None
        if scheduler.documents is not None and folder and Path(folder).is_dir():
            parallel = scheduler.vllm_config.parallel_config
            rank = int(getattr(parallel, "data_parallel_index", parallel.data_parallel_rank) or 0)
            size = block_bytes(scheduler.kv_cache_config) * parallel.world_size
            self._counts = CountsFile(folder, rank, size)
            self._counts.write(scheduler.documents.stats())

    def schedule(self, *args: Any, **kwargs: Any) -> Any:
        """Plan the next step; where a request has ended, counts have changed."""
        plan = super().schedule(*args, **kwargs)  # type: ignore[misc]  # a mixin
        if self._counts is not None and plan.finished_req_ids:
            self._counts.write(self.documents.stats())  # type: ignore[attr-defined]  # a mixin
        return plan


class ReportingScheduler(_Reporting, KnowledgeTreeScheduler):
    """Plans one step at a time."""


class ReportingAsyncScheduler(_Reporting, KnowledgeTreeAsyncScheduler):
    """Plans the next step while one is computed."""


def make_scheduler(*args: Any, vllm_config: Any, **kwargs: Any) -> Any:
    """Make the scheduler that suits vLLM's configuration; called as its class would be."""
    settings = CacheSettings(**vllm_config.additional_config[TREE_SETTINGS])
    asynchronous = bool(vllm_config.scheduler_config.async_scheduling)
    kind = ReportingAsyncScheduler if asynchronous else ReportingScheduler
    return kind(*args, vllm_config=vllm_config, cache_settings=settings, **kwargs)
