"""The scheduler of ``ragcache serve``: the knowledge tree's, with reports to the server.

vLLM imports it by its dotted name in every engine process. The settings come in
``--additional-config``, which vLLM passes to every engine, on any host.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from ragcache_integrations.core.prompt import PIN_TICKET
from ragcache_integrations.engine.in_vllm.kv_cache import block_bytes
from ragcache_integrations.engine.in_vllm.scheduler import (
    KnowledgeTreeAsyncScheduler,
    KnowledgeTreeScheduler,
)
from ragcache_integrations.engine.protocol import CacheSettings, heartbeat_seconds
from ragcache_integrations.knowledge_tree import TreeStats

from .reports import Pulse, refuse_pin, write_counts
from .settings import TREE_SETTINGS, ServingSettings

__all__ = ["ReportingAsyncScheduler", "ReportingScheduler", "make_scheduler"]


class _Reporting:
    """Adds reports to one of our schedulers, before which it must come as a base class."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        scheduler: Any = self
        settings = ServingSettings.from_environment()
        folder = settings.folder
        self._write: Callable[[TreeStats], None] | None = None
        self._pulse: Pulse | None = None
        self._folder = ""
        if not folder or not Path(folder).is_dir():  # an engine on another host
            return
        self._folder = folder
        seconds = heartbeat_seconds(settings.hang_timeout)
        self._pulse = Pulse(folder, seconds, scheduler.has_requests)
        if scheduler.documents is not None:
            parallel = scheduler.vllm_config.parallel_config
            rank = int(getattr(parallel, "data_parallel_index", parallel.data_parallel_rank) or 0)
            size = block_bytes(scheduler.kv_cache_config) * parallel.world_size
            self._write = partial(write_counts, folder, rank, size)
            self._write(scheduler.documents.stats())

    def add_request(self, request: Any) -> None:
        """Add a request, and report if its documents can't be pinned.

        Then nobody gets its answer, which ends with the first token.
        """
        super().add_request(request)  # type: ignore[misc]  # a mixin
        documents = self.documents  # type: ignore[attr-defined]  # a mixin
        why = documents.take_pin_refusal(request.request_id) if documents is not None else None
        if why is not None and self._folder:
            ticket = request.sampling_params.extra_args.get(PIN_TICKET)
            if refuse_pin(self._folder, ticket, why):
                request.max_tokens = 1

    def schedule(self, *args: Any, **kwargs: Any) -> Any:
        """Plan the next step, and report the counts if a request has ended."""
        if self._pulse is not None:
            self._pulse.moved()
        plan = super().schedule(*args, **kwargs)  # type: ignore[misc]  # a mixin
        if self._write is not None and plan.finished_req_ids:
            self._write(self.documents.stats())  # type: ignore[attr-defined]  # a mixin
        return plan

    def update_from_output(self, *args: Any, **kwargs: Any) -> Any:
        """Process a step's output."""
        if self._pulse is not None:
            self._pulse.moved()
        return super().update_from_output(*args, **kwargs)  # type: ignore[misc]  # a mixin


class ReportingScheduler(_Reporting, KnowledgeTreeScheduler):
    """Plans one step at a time."""


class ReportingAsyncScheduler(_Reporting, KnowledgeTreeAsyncScheduler):
    """Plans the next step while one is computed."""


def make_scheduler(*args: Any, vllm_config: Any, **kwargs: Any) -> Any:
    """Make the scheduler for vLLM's configuration; vLLM calls this in place of a class."""
    settings = CacheSettings(**vllm_config.additional_config[TREE_SETTINGS])
    asynchronous = bool(vllm_config.scheduler_config.async_scheduling)
    kind = ReportingAsyncScheduler if asynchronous else ReportingScheduler
    return kind(*args, vllm_config=vllm_config, cache_settings=settings, **kwargs)
