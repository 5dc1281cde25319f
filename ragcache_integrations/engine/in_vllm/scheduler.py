"""vLLM's scheduler with the knowledge tree: replacement, host tier and reordering.

With its parts, :mod:`._free_blocks`, :mod:`._waiting` and :mod:`._host_tier`, all that touches
what vLLM calls non-public. vLLM is unmodified: the scheduler class is configurable, and after its
``__init__`` two attributes are replaced, the pool's queue of free blocks and the queue of waiting
requests. Whether all that is relied upon is there is checked first; if not, the scheduler stays
vLLM's own, and says why.
"""

from __future__ import annotations

import itertools
import logging
from collections import deque
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import replace
from functools import partial
from operator import attrgetter
from typing import Any

from vllm.v1.core.kv_cache_utils import BlockHash, FreeKVCacheBlockQueue, KVCacheBlock
from vllm.v1.core.sched.async_scheduler import AsyncScheduler
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.request import Request

from ragcache_integrations.core.spans import spans_from_extra_args
from ragcache_integrations.engine.settings import CacheSettings
from ragcache_integrations.errors import ConfigurationError
from ragcache_integrations.knowledge_tree import (
    KnowledgeTree,
    ReorderingQueue,
    TreeSnapshot,
    TreeStats,
)
from ragcache_integrations.knowledge_tree.path import Path
from ragcache_integrations.knowledge_tree.prefill_cost import PrefillCostModel

from .free_blocks import DocumentFreeQueue
from .host_tier import HostTierConnector
from .kv_cache import unsuited
from .waiting import CacheAwareRequestQueue, topics

__all__ = [
    "DocumentCache",
    "KnowledgeTreeAsyncScheduler",
    "KnowledgeTreeScheduler",
    "RequestsLeftError",
    "scheduler_class",
    "unsupported",
]

logger = logging.getLogger(__name__)

FIRST_GROUP = b"\0\0\0\0"
"""What vLLM appends to the hash of a block of the first, here the only, KV cache group."""

RECENT = 256
"""Requests that have left whose accesses may still be taken back."""

UNREAD = 4096
"""Requests ended for what could not be read back; a server never asks for them."""

# Attribute paths of the scheduler and methods of its parts that are relied upon.
_RELIED_UPON = (
    "waiting",
    "requests",
    "connector",
    "running",
    "block_size",
    "cache_config.enable_prefix_caching",
    "kv_cache_config.kv_cache_groups",
    "kv_cache_config.num_blocks",
    "kv_cache_manager.block_pool.cached_block_hash_to_block.get_one_block",
    "kv_cache_manager.block_pool.free_block_queue.num_free_blocks",
    "kv_cache_manager.block_pool.evict_blocks",
    "kv_cache_manager.block_pool.num_gpu_blocks",
    "kv_cache_manager.get_block_ids",
    "scheduler_config.policy",
    "vllm_config.max_concurrent_batches",
)
_QUEUE_METHODS = {
    "num_free_blocks",
    *("popleft", "popleft_n", "remove", "append", "append_n", "prepend_n"),
    *("get_all_free_blocks", "iter_blocks_after"),
}


def unsupported(scheduler: Any) -> str | None:
    """Why the knowledge tree can't work with this scheduler; ``None`` if it can."""
    missing = _missing(scheduler)
    if missing is not None:
        return missing
    if getattr(scheduler, "hash_block_size", scheduler.block_size) != scheduler.block_size:
        return "blocks and block hashes have different sizes"
    return unsuited(scheduler.kv_cache_config, scheduler.cache_config)


def _missing(scheduler: Any) -> str | None:
    """What this version of vLLM lacks, or has beyond what we know."""
    for path in _RELIED_UPON:
        try:
            attrgetter(path)(scheduler)
        except AttributeError:
            return f"this version of vLLM has no {path} in its scheduler"
    operations = {name for name in vars(FreeKVCacheBlockQueue) if not name.startswith("_")}
    if unknown := operations - _QUEUE_METHODS:
        return f"this version of vLLM has unknown operations on free blocks: {sorted(unknown)}"
    return None


class RequestsLeftError(RuntimeError):
    """Requests have left that may have used what could not be read back from the host.

    They could have left wrong blocks behind. This ends the engine, and with it all that is cached.
    """

    def __init__(self) -> None:
        super().__init__("documents could not be read back from the host, and requests have left")


def submitted_name(request_id: str) -> str:
    """A request's name as it was submitted: vLLM adds a suffix of its own."""
    return request_id.partition("-")[0]


class DocumentCache:
    """The knowledge tree and its hold on one scheduler.

    Args:
        scheduler: vLLM's, fresh from its ``__init__``.
        settings: The knobs.
    """

    def __init__(self, scheduler: Any, settings: CacheSettings) -> None:
        connector = scheduler.connector
        self._host_tier = connector if isinstance(connector, HostTierConnector) else None
        self._requests: dict[str, Request] = scheduler.requests
        self._block_size: int = scheduler.block_size
        self._pool = scheduler.kv_cache_manager.block_pool
        self._block_ids: Callable[[str], Sequence[list[int]]] = (
            scheduler.kv_cache_manager.get_block_ids
        )
        self._paths: dict[str, Path] = {}
        # A guess may have been answered to its end before it turns out to be wrong.
        self._recent: deque[tuple[str, Path]] = deque(maxlen=RECENT)
        # Steps that are planned while others compute keep the blocks of who ended meanwhile, and
        # a document's nodes must be there when its blocks are freed.
        self._in_flight: int = scheduler.vllm_config.max_concurrent_batches - 1
        self._ended: deque[Iterable[str]] = deque()
        self._preemptions = 0
        # Who was admitted in the plans whose outputs are still to come.
        self._admitted: deque[Collection[str]] = deque(maxlen=self._in_flight + 1)
        self._unread: deque[str] = deque(maxlen=UNREAD)
        profile = settings.prefill_profile
        self.tree: KnowledgeTree[KVCacheBlock] = KnowledgeTree(
            block_size=self._block_size,
            host_blocks=self._host_tier.host_blocks if self._host_tier else 0,
            policy=settings.policy,
            prefill_seconds=PrefillCostModel.from_dict(profile) if profile else None,
            cache_depth=settings.cache_depth,
            frequency_window=settings.frequency_window,
        )
        if self._host_tier:
            self._host_tier.attach(self.tree)
        self._free_blocks = DocumentFreeQueue(
            self._pool.free_block_queue.get_all_free_blocks(), self.tree, self._pool
        )
        self._pool.free_block_queue = self._free_blocks
        self._waiting: ReorderingQueue[Request] | None = None
        if settings.reorder_window is not None and scheduler.scheduler_config.policy == "fcfs":
            self._waiting = ReorderingQueue(self._order_priority, settings.reorder_window)
            scheduler.waiting = CacheAwareRequestQueue(self._waiting, self._paths)

    def enter(self, request: Request) -> None:
        """A request arrives: its documents get their path in the tree."""
        if self.knows(request):
            return  # the next turn of a request that takes its input in pieces
        extra_args = getattr(request.sampling_params, "extra_args", None)
        try:
            spans = spans_from_extra_args(extra_args, request.num_prompt_tokens)
        except ConfigurationError:  # checked before, but for what a server was sent
            logger.exception("the request's documents are ignored")
            return
        if spans:
            self._paths[request.request_id] = self.tree.enter(
                request.cache_salt or "", spans, request.block_hashes
            )

    def knows(self, request: Request) -> bool:
        """Whether a request has a path in the tree."""
        return request.request_id in self._paths

    def refuse(self, request: Request) -> None:
        """A request that has just entered was not taken in: nothing of it stays."""
        path = self._paths.pop(request.request_id, None)
        if path is not None:
            self.tree.leave(path)

    def retract(self, names: Collection[str]) -> None:
        """The documents of these requests were a wrong guess, which is no access to them.

        Args:
            names: As the requests were first submitted, whichever attempt it is. Those that ended
                long ago are ignored.
        """
        for request_id, path in itertools.chain(self._paths.items(), self._recent):
            if submitted_name(request_id).partition(".")[0] in names:
                self.tree.retract(path)

    def before_step(self) -> None:
        """A step is about to be planned."""
        if self._waiting is not None:
            self._waiting.begin_step()

    def after_step(self, plan: Any) -> None:
        """A step was planned; ``plan`` is vLLM's ``SchedulerOutput``."""
        for admitted in plan.scheduled_new_reqs:
            path = self._paths.get(admitted.req_id)
            if path is None:
                continue
            host_tokens = self._host_tier.take_loaded(admitted.req_id) if self._host_tier else 0
            self.tree.access(
                path,
                admitted.num_computed_tokens - host_tokens,
                host_tokens,
                self._requests[admitted.req_id].num_prompt_tokens,
            )
        if self._waiting is not None:
            self._note_prefills(self._waiting, plan.scheduled_cached_reqs)
        self._admitted.append(
            [
                *(new.req_id for new in plan.scheduled_new_reqs),
                *plan.scheduled_cached_reqs.resumed_req_ids,
            ]
        )
        self._ended.append(plan.finished_req_ids)
        if len(self._ended) > self._in_flight:
            self._leave(self._ended.popleft())
        self._preemptions += len(plan.preempted_req_ids or ())

    @property
    def host_failures(self) -> tuple[int, str]:
        """Blocks that the host tier failed to copy so far, and what it said last."""
        tier = self._host_tier
        return (tier.failed_blocks, tier.last_error) if tier else (0, "")

    def unread(self, running: Sequence[Request], blocks: Collection[int]) -> list[BlockHash]:
        """Blocks could not be read back from the host: what is computed from them is wrong.

        It is forgotten here: vLLM, which is about to end whoever uses them, would keep what the
        second of two users of a block made of it.

        Args:
            running: vLLM's running requests.
            blocks: Numbers of the blocks.

        Returns:
            The hashes of all that is wrong.

        Raises:
            RequestsLeftError: Somebody who may have used them has gone already.
        """
        known = {request.request_id for request in running}
        if not all(known.issuperset(names) for names in self._admitted):
            raise RequestsLeftError
        wrong: list[BlockHash] = []
        for request in running:
            numbers = self._block_ids(request.request_id)[0]
            first = next((at for at, number in enumerate(numbers) if number in blocks), None)
            if first is not None:
                self._unread.append(submitted_name(request.request_id))
                wrong += request.block_hashes[first:]
                self._pool.evict_blocks(set(numbers[first:]))
        if self._host_tier is not None:
            copies = self.tree.host.slots
            self._host_tier.distrust(copies[key] for key in wrong if key in copies)
        return wrong

    def forgotten(self, keys: Iterable[BlockHash]) -> None:
        """These blocks of requests that were ended are forgotten: nothing holds their copies."""
        cached = self._pool.cached_block_hash_to_block.get_one_block
        for key in keys:
            owner = self.tree.owner(key)
            if owner is not None and key in self.tree.host and cached(key + FIRST_GROUP) is None:
                self.tree.host.release(owner, key)

    def take_unread(self, name: str) -> bool:
        """Whether a request was ended because its documents could not be read back."""
        if name not in self._unread:
            return False
        self._unread.remove(name)
        return True

    def reset(self) -> None:
        """All KV caches were forgotten. Whoever waits, or was preempted for it, enters anew."""
        self._free_blocks.forget_documents()
        known = list(self._paths)
        self._paths.clear()
        self._recent.clear()
        for request_id in known:
            request = self._requests.get(request_id)
            if request is not None:
                self.enter(request)

    def stats(self) -> TreeStats:
        """What happened so far."""
        waiting = self._waiting
        return replace(
            self.tree.stats(),
            reorderings=0 if waiting is None else waiting.reorderings,
            longest_overtaking=0 if waiting is None else waiting.longest_overtaking,
            preemptions=self._preemptions,
        )

    def snapshot(self) -> TreeSnapshot:
        """The tree to look at."""
        if self._pool.get_num_free_blocks() == self._pool.num_gpu_blocks - 1:  # vLLM keeps one
            self._leave(name for name in list(self._paths) if name not in self._requests)
        return self.tree.snapshot()

    def _leave(self, request_ids: Iterable[str]) -> None:
        for request_id in request_ids:
            path = self._paths.pop(request_id, None)
            if path is not None:
                self.tree.leave(path)
                self._recent.append((request_id, path))

    def _note_prefills(self, waiting: ReorderingQueue[Request], running: Any) -> None:
        """Prompts that are computed in chunks are cached in chunks."""
        for request_id, computed in zip(running.req_ids, running.num_computed_tokens, strict=True):
            path = self._paths.get(request_id)
            if path is not None and computed < self._requests[request_id].num_prompt_tokens:
                waiting.refresh(topics(path))

    def _order_priority(self, request: Request) -> float:
        """CachedLength / ComputationLength (RAGCache §5.2)."""
        cached = self._cached_blocks(request) * self._block_size
        return float(cached / max(1, request.num_tokens - cached))

    def _cached_blocks(self, request: Request) -> int:
        """How many leading blocks either tier holds.

        What is cached is a prefix, so that doubling steps and then halving ones find its end.
        """
        in_gpu = self._pool.cached_block_hash_to_block.get_one_block
        on_host = self.tree.host.slots
        hashes = request.block_hashes
        limit = min(len(hashes), (request.num_tokens - 1) // self._block_size)

        def cached(index: int) -> bool:
            key = hashes[index]
            return in_gpu(key + FIRST_GROUP) is not None or key in on_host

        low, step = 0, 1
        while low + step <= limit and cached(low + step - 1):
            low += step
            step *= 2
        high = min(limit, low + step - 1)
        while low < high:
            middle = (low + high) // 2
            if cached(middle):
                low = middle + 1
            else:
                high = middle
        return low


class _KnowledgeTreeMixin:
    """To be put before vLLM's scheduler in the list of base classes."""

    def __init__(
        self, *args: Any, cache_settings: CacheSettings | None = None, **kwargs: Any
    ) -> None:
        super().__init__(*args, **kwargs)
        self.documents: DocumentCache | None = None
        self.fallback_reason = unsupported(self)
        if self.fallback_reason is None:
            self.documents = DocumentCache(self, cache_settings or CacheSettings())
        else:
            logger.warning("the knowledge tree is off: %s", self.fallback_reason)

    def add_request(self, request: Request) -> None:
        """Take a request in."""
        documents = self.documents
        if documents is None or documents.knows(request):
            super().add_request(request)  # type: ignore[misc]  # a mixin
            return
        documents.enter(request)
        try:
            super().add_request(request)  # type: ignore[misc]  # a mixin
        except BaseException:
            documents.refuse(request)
            raise

    def schedule(self, *args: Any, **kwargs: Any) -> Any:
        """Plan the next step."""
        if self.documents is None:
            return super().schedule(*args, **kwargs)  # type: ignore[misc]  # a mixin
        self.documents.before_step()
        plan = super().schedule(*args, **kwargs)  # type: ignore[misc]  # a mixin
        self.documents.after_step(plan)
        return plan

    def update_from_output(self, plan: Any, output: Any) -> Any:
        """Take a step's output in."""
        documents = self.documents
        unread = getattr(output.kv_connector_output, "invalid_block_ids", None)
        if documents is None or not unread:
            return super().update_from_output(plan, output)  # type: ignore[misc]  # a mixin
        wrong = documents.unread(self.running, unread)  # type: ignore[attr-defined]  # a mixin
        outputs = super().update_from_output(plan, output)  # type: ignore[misc]  # a mixin
        documents.forgotten(wrong)
        return outputs

    def reset_prefix_cache(self, *args: Any, **kwargs: Any) -> bool:
        """Forget all KV caches."""
        done: bool = super().reset_prefix_cache(*args, **kwargs)  # type: ignore[misc]  # a mixin
        if done and self.documents is not None:
            self.documents.reset()
        return done


class KnowledgeTreeScheduler(_KnowledgeTreeMixin, Scheduler):
    """vLLM's synchronous scheduler with the knowledge tree."""


class KnowledgeTreeAsyncScheduler(_KnowledgeTreeMixin, AsyncScheduler):
    """vLLM's asynchronous scheduler, the default on CUDA, with the knowledge tree."""


def scheduler_class(settings: CacheSettings, *, asynchronous: bool) -> Callable[..., Scheduler]:
    """The scheduler with these settings, for vLLM's ``scheduler_cls``.

    vLLM does nothing with it but call it, and pickle it for workers in processes of their own.
    """
    kind = KnowledgeTreeAsyncScheduler if asynchronous else KnowledgeTreeScheduler
    return partial(kind, cache_settings=settings)
