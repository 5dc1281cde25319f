"""vLLM's scheduler with the knowledge tree: replacement, host tier and reordering.

This module and its parts, :mod:`.queues` and :mod:`.connector`, are all that touches
non-public parts of vLLM. vLLM is unmodified: the scheduler class is configurable, and after its
``__init__`` two attributes are replaced, the pool's queue of free blocks and the queue of waiting
requests. All attributes that are relied upon are checked first. If one is missing, the scheduler
stays vLLM's own and reports why.
"""

from __future__ import annotations

import itertools
import logging
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from functools import partial
from operator import attrgetter
from typing import Any

from vllm.v1.core.kv_cache_utils import BlockHash, FreeKVCacheBlockQueue, KVCacheBlock
from vllm.v1.core.sched.async_scheduler import AsyncScheduler
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.request import Request

from ragcache_integrations.core.checks import is_number
from ragcache_integrations.core.prompt import FOREVER, PIN, spans_from_extra_args
from ragcache_integrations.engine.protocol import CacheSettings
from ragcache_integrations.errors import ConfigurationError
from ragcache_integrations.knowledge_tree import (
    KnowledgeTree,
    TreeSnapshot,
    TreeStats,
)
from ragcache_integrations.knowledge_tree.node import Path
from ragcache_integrations.knowledge_tree.prefill_cost import PrefillCostModel
from ragcache_integrations.knowledge_tree.tier import Windows

from .anywhere.disk import open_disk
from .anywhere.prefixes import StoredPrefixes
from .anywhere.requests import open_reuse
from .connector import DocumentConnector
from .kv_cache import unsuited, windows
from .queues import CacheAwareRequestQueue, DocumentFreeQueue, keep_to_quotas, topics
from .steps import Ahead, Steps, is_plain
from .unread import UnreadBlocks, submitted_name

__all__ = [
    "DocumentCache",
    "KnowledgeTreeAsyncScheduler",
    "KnowledgeTreeScheduler",
    "scheduler_class",
    "unsupported",
]

logger = logging.getLogger(__name__)


FIRST_GROUP = b"\0\0\0\0"
"""vLLM's suffix for the hashes of blocks in the first KV cache group."""

RECENT = 256
"""Number of requests that have left and whose accesses may still be retracted."""

UNPINNABLE = 4096
"""Most requests of which it is remembered why their documents could not be pinned. The engine's
process takes each out; a server never does, so that the number needs a limit."""

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
    "kv_cache_manager.coordinator.find_longest_cache_hit",
    "kv_cache_manager.get_block_ids",
    "kv_cache_manager.allocate_slots",
    "max_model_len",
    "max_num_scheduled_tokens",
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
    for path in _RELIED_UPON:
        try:
            attrgetter(path)(scheduler)
        except AttributeError:
            return f"this version of vLLM has no {path} in its scheduler"
    operations = {name for name in vars(FreeKVCacheBlockQueue) if not name.startswith("_")}
    if unknown := operations - _QUEUE_METHODS:
        return f"this version of vLLM has unknown operations on free blocks: {sorted(unknown)}"
    if not hasattr(Scheduler, "_handle_invalid_blocks"):
        return "this version of vLLM ends requests whose blocks cannot be read back in another way"
    if getattr(scheduler, "hash_block_size", scheduler.block_size) != scheduler.block_size:
        return "blocks and block hashes have different sizes"
    return unsuited(scheduler.kv_cache_config, scheduler.cache_config)


class DocumentCache:
    """The knowledge tree of one scheduler.

    Args:
        scheduler: vLLM's scheduler, right after its ``__init__``.
        settings: Settings of the knowledge tree.

    Attributes:
        reuse_is_off: Why documents are not reused anywhere; ``None`` where they are, or where
            nobody wants that.
        disk_is_off: The same of keeping them on disk.
    """

    def __init__(self, scheduler: Any, settings: CacheSettings) -> None:
        connector = scheduler.connector
        has_host_tier = isinstance(connector, DocumentConnector) and connector.host_blocks
        self._host_tier: DocumentConnector | None = connector if has_host_tier else None
        self._windows = windows(
            scheduler.kv_cache_config, drafts=scheduler.vllm_config.speculative_config is not None
        )
        profile = settings.prefill_profile
        seconds = PrefillCostModel.from_dict(profile) if profile else None
        self._disk, self.disk_is_off = open_disk(scheduler, settings, seconds)
        self._ahead = Ahead(scheduler)
        self._reuse, self.reuse_is_off = open_reuse(
            scheduler, settings, seconds, self._ahead, self._disk
        )
        self._prefixes: StoredPrefixes | None = None
        self._requests: dict[str, Request] = scheduler.requests
        self._block_size: int = scheduler.block_size
        self._pool = scheduler.kv_cache_manager.block_pool
        coordinator = scheduler.kv_cache_manager.coordinator
        self._longest_hit: Callable[[Any, int], Sequence[Any]] = coordinator.find_longest_cache_hit
        if any(self._windows):
            # Otherwise vLLM keeps of windowed layers only what is before the end of a prompt. The
            # tree needs what is before the end of each document, and lets the others go first.
            coordinator.retention_interval = None
        self._paths: dict[str, Path] = {}
        # A speculative request may be complete before its documents turn out to be wrong.
        self._recent: deque[tuple[str, Path]] = deque(maxlen=RECENT)
        # With asynchronous scheduling, up to ``_in_flight`` steps are planned before the outputs of
        # earlier ones arrive. vLLM frees a request's blocks only after the steps that were in
        # flight when it ended, and its nodes must still be in the tree then. So requests leave the
        # tree ``_in_flight`` plans after the plan that lists them as finished.
        self._in_flight: int = scheduler.vllm_config.max_concurrent_batches - 1
        self._ended: deque[Iterable[str]] = deque()
        self._preemptions = 0
        self.tree: KnowledgeTree[KVCacheBlock] = KnowledgeTree(
            block_size=self._block_size,
            lookahead=getattr(scheduler, "num_hash_lookahead_tokens", 0),  # not in older versions
            gpu_blocks=self._pool.num_gpu_blocks - 1,  # vLLM keeps one to itself
            host_blocks=self._host_tier.host_blocks if self._host_tier else 0,
            windows=Windows(self._windows),
            policy=settings.policy,
            prefill_seconds=seconds,
            cache_depth=settings.cache_depth,
            frequency_window=settings.frequency_window,
            quotas=settings.quotas,
            longest_request=-(-scheduler.max_model_len // self._block_size) * len(self._windows),
        )
        if self._host_tier:
            self._host_tier.attach(self.tree)
        if self._disk is not None:
            depth = settings.cache_depth
            self._prefixes = StoredPrefixes(self._disk, scheduler, self.tree.windows, depth)
            scheduler.connector.disk, scheduler.connector.prefixes = self._disk, self._prefixes
        self.unread = UnreadBlocks(scheduler, self.tree, self._host_tier, self._in_flight)
        self._free_blocks = DocumentFreeQueue(
            self._pool.free_block_queue.get_all_free_blocks(), self.tree, self._pool
        )
        self._pool.free_block_queue = self._free_blocks
        self._unpinnable: dict[str, str] = {}
        computes_ahead = self.tree.windows.whole and self._reuse is None
        ahead = self._ahead if computes_ahead else None
        self._steps = Steps(scheduler, self.tree, self._in_gpu, ahead)
        if settings.quotas:
            keep_to_quotas(scheduler, self.tree, self._free_blocks, len(self._windows))
        self._waiting: CacheAwareRequestQueue | None = None
        if settings.reorder_window is not None and scheduler.scheduler_config.policy == "fcfs":
            self._waiting = scheduler.waiting = CacheAwareRequestQueue(
                self._order_priority, settings.reorder_window, self._paths
            )

    def enter(self, request: Request) -> None:
        """Give the documents of a new request their path in the tree."""
        if self.knows(request):
            return  # another part of a request whose input is streamed
        extra_args = getattr(request.sampling_params, "extra_args", None)
        try:
            spans = spans_from_extra_args(extra_args, request.num_prompt_tokens)
        except ConfigurationError:  # our engine has checked them, a server's client may not have
            logger.exception("the request's documents are ignored")
            return
        is_ahead = request.request_id == self._ahead.name
        if not is_ahead:
            self._ahead.stop()
            self._ahead.hasher = request._block_hasher  # noqa: SLF001 - ours need one, too
        if self._reuse is not None and self._reuse.enter(
            request, spans, extra_args or {}, self._cached_tokens
        ):
            return  # what is approximate is not for the tree
        documents = spans
        if not is_ahead:
            spans = self._steps.enter(request, spans, extra_args or {})
        if spans:
            path = self._paths[request.request_id] = self.tree.enter(
                request.cache_salt or "",
                spans,
                request.block_hashes,
                request.priority,
                named=bool(documents) and not is_ahead,
            )
            self._pin(request, path, (extra_args or {}).get(PIN))
            if self._prefixes is not None and is_plain(request):
                self._prefixes.enter(request, spans)

    def _pin(self, request: Request, path: Path, seconds: object) -> None:
        """Pin or unpin a request's documents, as it says."""
        if not is_number(seconds):
            return
        if seconds <= 0:
            self.tree.unpin(path)
            return
        try:
            self.tree.pin(path, None if seconds >= FOREVER else seconds)
        except ConfigurationError as error:
            logger.warning("documents are not pinned: %s", error)
            if len(self._unpinnable) < UNPINNABLE:
                self._unpinnable[submitted_name(request.request_id)] = str(error)

    def take_pin_refusal(self, request_id: str) -> str | None:
        """Why a request's documents could not be pinned; ``None`` if they were."""
        return self._unpinnable.pop(submitted_name(request_id), None)

    def knows(self, request: Request) -> bool:
        """Whether a request has a path in the tree."""
        reuses = self._reuse is not None and self._reuse.knows(request)
        return reuses or request.request_id in self._paths

    def keeps(self, key: bytes, tokens: int) -> bool:
        """Whether a document is kept, to be reused at any place: on the disk, if there is one."""
        return self._reuse is not None and self._reuse.keeps(key, tokens)

    def why_not_kept(self, tokens: int) -> str:
        """Why no document of this many tokens is kept; empty if some are."""
        longest = None if self._reuse is None else self._reuse.longest
        if longest is None or tokens < longest:
            return ""
        return f"one has {tokens:,} tokens, and the model's layers have a window of {longest:,}"

    def forget_files(self, keys: Iterable[bytes]) -> None:
        """Documents are not on the disk."""
        if self._disk is not None:
            self._disk.discard(keys)

    def refuse(self, request: Request) -> None:
        """Remove the path of a request that has just entered and that vLLM refused."""
        for part in (self._reuse, self._prefixes):
            if part is not None:
                part.leave([request.request_id])
        path = self._paths.pop(request.request_id, None)
        if path is not None:
            self.tree.leave(path)

    def retract(self, names: Collection[str]) -> None:
        """Take back the accesses of requests whose documents were a wrong guess.

        Args:
            names: Names of the requests' first attempts; all attempts are meant. Requests that
                ended long ago are ignored.
        """
        for request_id, path in itertools.chain(self._paths.items(), self._recent):
            if submitted_name(request_id).partition(".")[0] in names:
                self.tree.retract(path)

    def before_step(self) -> None:
        """Prepare the planning of a step."""
        self.tree.expire_pins()
        if self._reuse is not None:
            self._reuse.before_step()
        self._steps.before_step()
        if self._waiting is not None:
            self._waiting.begin_step()

    def after_step(self, plan: Any) -> None:
        """Record a planned step.

        Documents count as accessed when their request is admitted: that is when vLLM decides which
        blocks are reused. Of the computed tokens, those read back come from the host or the disk,
        the others from the GPU.

        Args:
            plan: vLLM's ``SchedulerOutput``.
        """
        for admitted in plan.scheduled_new_reqs:
            path = self._paths.get(admitted.req_id)
            if path is None:
                continue
            host_tokens = self._host_tier.take_loaded(admitted.req_id) if self._host_tier else 0
            if self._prefixes is not None:
                host_tokens += self._prefixes.take_loaded(admitted.req_id)
            self.tree.access(
                path,
                admitted.num_computed_tokens - host_tokens,
                host_tokens,
                self._requests[admitted.req_id].num_prompt_tokens,
            )
            if admitted.req_id == self._ahead.name:
                self.tree.retract(path)  # nobody has asked for it yet
        if self._waiting is not None:
            self._note_prefills(self._waiting, plan.scheduled_cached_reqs)
        self.unread.after_step(plan)
        self._ended.append(plan.finished_req_ids)
        if len(self._ended) > self._in_flight:
            self._leave(self._ended.popleft())
        self._preemptions += len(plan.preempted_req_ids or ())
        if self._reuse is not None:
            self._reuse.after_step(plan)
        if self._prefixes is not None:
            self._prefixes.leave(plan.finished_req_ids)

    def after_output(self) -> None:
        """A step's output was processed."""
        if self._reuse is not None:
            self._reuse.encode_pending()
        self._steps.get_ready()

    @property
    def host_failures(self) -> tuple[int, str]:
        """Number of blocks that the host tier failed to copy, and its last error message."""
        tier = self._host_tier
        return (tier.failed_blocks, tier.last_error) if tier else (0, "")

    @property
    def idles(self) -> bool:
        """Whether nobody waits for anything that the scheduler has."""
        return self._ahead.idles

    @contextmanager
    def making_way(self) -> Iterator[None]:
        """Stop requests without a waiting user, and keep nothing until the end of the block."""
        self._free_blocks.lends_pinned = True
        try:
            self._ahead.stop()
            yield
        finally:
            self._free_blocks.lends_pinned = False

    def reset(self) -> None:
        """Empty the tree after vLLM has emptied its cache.

        Requests that wait, or were preempted for the reset, get new paths.
        """
        self._free_blocks.forget_documents()
        known = list(self._paths)
        self._paths.clear()
        self._recent.clear()
        if self._reuse is not None:
            self._reuse.clear()
        for request_id in known:
            request = self._requests.get(request_id)
            if request is not None:
                self.enter(request)

    def stats(self) -> TreeStats:
        """Counts since the engine started."""
        waiting = self._waiting
        return replace(
            self.tree.stats(),
            reorderings=0 if waiting is None else waiting.reorderings,
            longest_overtaking=0 if waiting is None else waiting.longest_overtaking,
            preemptions=self._preemptions,
        )

    def snapshot(self) -> TreeSnapshot:
        """The tree as plain data."""
        # Once all blocks but vLLM's placeholder are free, no step is in flight: requests that have
        # ended need not wait for further plans to leave the tree.
        pinned = len(self.tree.gpu) - self.tree.gpu.idle
        if self._pool.get_num_free_blocks() + pinned == self._pool.num_gpu_blocks - 1:
            self._leave(name for name in list(self._paths) if name not in self._requests)
        return self.tree.snapshot()

    def _leave(self, request_ids: Iterable[str]) -> None:
        for request_id in request_ids:
            path = self._paths.pop(request_id, None)
            if path is not None:
                self.tree.leave(path)
                self._recent.append((request_id, path))

    def _note_prefills(self, waiting: CacheAwareRequestQueue, running: Any) -> None:
        """Update waiting requests whose documents a running prompt has just computed a chunk of.

        Prompts that are computed in chunks are cached in chunks, so that priorities of waiting
        requests rise with every chunk.
        """
        for request_id, computed in zip(running.req_ids, running.num_computed_tokens, strict=True):
            path = self._paths.get(request_id)
            if path is not None and computed < self._requests[request_id].num_prompt_tokens:
                waiting.refresh(topics(path))

    def _order_priority(self, request: Request) -> float:
        """CachedLength / ComputationLength (RAGCache §5.2)."""
        cached = self._cached_tokens(request)
        if self._reuse is not None and self._reuse.knows(request):
            cached = min(request.num_tokens - 1, cached + self._reuse.stored_tokens(request))
        return float(cached / max(1, request.num_tokens - cached))

    def _cached_tokens(self, request: Request, *, host: bool = True) -> int:
        """How many tokens of a request's beginning are cached in either tier, or on the GPU."""
        return self._cached_blocks(request, host=host) * self._block_size

    def _in_gpu(self, key: BlockHash) -> bool:
        return self._pool.cached_block_hash_to_block.get_one_block(key + FIRST_GROUP) is not None

    def _cached_blocks(self, request: Request, *, host: bool = True) -> int:
        """How many leading blocks of a request are cached in either tier, or on the GPU.

        Cached blocks form a prefix, so that its end ``n`` is found in ``O(log n)`` look-ups:
        doubling steps bracket it, then bisection finds it. Throughout, the first ``low`` blocks
        are known to be cached. Where layers need different parts of a prompt, vLLM finds the end.
        """
        if not self.tree.windows.whole:
            hashes = request.block_hashes
            # A hash that looks ahead comes later than its block.
            most = min(request.num_tokens - 1, len(hashes) * self._block_size)
            tokens: int = self._longest_hit(hashes, most)[1]
            return tokens // self._block_size
        in_gpu = self._pool.cached_block_hash_to_block.get_one_block
        on_host = self.tree.host.slots if host else ()
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
    """Adds the knowledge tree to vLLM's scheduler, before which it must come as a base class."""

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
        """Add a request."""
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
        """Process a step's output."""
        documents = self.documents
        if documents is None:
            return super().update_from_output(plan, output)  # type: ignore[misc]  # a mixin
        unread = getattr(output.kv_connector_output, "invalid_block_ids", None)
        wrong: list[BlockHash] = []
        if unread:
            wrong = documents.unread.forget(self.running, unread)  # type: ignore[attr-defined]  # a mixin
        outputs = super().update_from_output(plan, output)  # type: ignore[misc]  # a mixin
        documents.unread.release_copies(wrong)
        documents.after_output()
        return outputs

    def _handle_invalid_blocks(
        self, invalid_block_ids: set[int], *args: Any, **kwargs: Any
    ) -> Collection[str]:
        """Requests to be ended because blocks of theirs could not be read back."""
        documents = self.documents
        if documents is None or documents.tree.windows.whole:
            found: set[str] = super()._handle_invalid_blocks(  # type: ignore[misc]  # a mixin
                invalid_block_ids, *args, **kwargs
            )
            return found
        return documents.unread.requests

    def reset_prefix_cache(self, *args: Any, **kwargs: Any) -> bool:
        """Forget all KV caches."""
        documents = self.documents
        with nullcontext() if documents is None else documents.making_way():
            done: bool = super().reset_prefix_cache(*args, **kwargs)  # type: ignore[misc]  # a mixin
        if done and documents is not None:
            documents.reset()
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
