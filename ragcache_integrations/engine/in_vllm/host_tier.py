"""The host tier: a vLLM KV connector that keeps evicted blocks in the host's memory.

Two objects of this class exist, possibly in two processes. The scheduler's asks the knowledge tree
which blocks to copy out and which to read back; the worker's moves the bytes. In each step all
blocks are copied out before anything overwrites them, and read back before the forward pass. So a
slot that is freed in a step may be filled in the same step, but must not be read in it.

A copy that fails costs a computation and nothing else. If a block could not be copied out, its slot
is remembered as bad until something else is copied into it. If a block could not be read back, vLLM
ends the request that needed it, and the application submits the request again. After
:data:`FAILED_STEPS_TOLERATED` steps with failures the tier is disabled.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from vllm.config import CUDAGraphMode
from vllm.distributed.kv_transfer.kv_connector.v1.base import (
    KVConnectorBase_V1,
    KVConnectorMetadata,
    KVConnectorRole,
    SupportsHMA,
)

from ragcache_integrations.engine.arguments import GIB
from ragcache_integrations.knowledge_tree import KnowledgeTree

from .host_copies import HostCopies, block_runs, host_copies
from .kv_cache import block_bytes, unsuited

try:
    from vllm.distributed.kv_transfer.kv_connector.v1.base import KVConnectorWorkerMetadata
except ImportError:  # versions whose workers report nothing to the scheduler
    KVConnectorWorkerMetadata = object

try:
    from vllm.v1.metrics.cache_hit_source import CacheHitSource

    HOST_SOURCE = CacheHitSource.HOST
except ImportError:  # versions that do not distinguish sources
    HOST_SOURCE = None

__all__ = ["Failures", "HostTierConnector", "Transfers", "host_blocks"]

logger = logging.getLogger(__name__)

FAILED_STEPS_TOLERATED = 20
"""Number of steps with a failed copy that are tolerated; one more disables the host tier."""
HOST_CACHE_GIB = "host_cache_gib"


def host_blocks(host_cache_gib: float, kv_cache_config: Any, workers: int) -> int:
    """How many blocks the host tier holds.

    Args:
        host_cache_gib: Size of the tier in GiB, for all workers together.
        kv_cache_config: vLLM's ``KVCacheConfig``.
        workers: Number of workers among which each block is divided.

    Raises:
        ValueError: The size does not suffice for a single block.
    """
    size = block_bytes(kv_cache_config) * workers
    blocks = int(host_cache_gib * GIB) // size
    if blocks < 1:
        raise ValueError(
            f"host_cache_gib must hold at least one block of {size / GIB:.6f} GiB, "
            f"got {host_cache_gib}"
        )
    return blocks


@dataclass
class Transfers(KVConnectorMetadata):
    """The copies that the worker makes in a step.

    Attributes:
        out: Pairs of GPU block and host slot.
        back: Pairs of host slot and GPU block.
    """

    out: list[tuple[int, int]] = field(default_factory=list)
    back: list[tuple[int, int]] = field(default_factory=list)


@dataclass
class Failures(KVConnectorWorkerMetadata):
    """The copies that a worker could not make in a step.

    Attributes:
        slots: Host slots with wrong content, or that could not be read.
        blocks: Number of copies that failed.
        error: Message of the last failure.
    """

    slots: set[int] = field(default_factory=set)
    blocks: int = 0
    error: str = ""

    def aggregate(self, other: Failures) -> Failures:
        """Merge the failures of two workers."""
        return Failures(
            self.slots | other.slots, self.blocks + other.blocks, other.error or self.error
        )

    def add(self, slots: Sequence[int], error: object) -> None:
        """Record a failed copy of some slots."""
        self.slots.update(slots)
        self.blocks += len(slots)
        self.error = str(error)


class HostTierConnector(KVConnectorBase_V1, SupportsHMA):
    """Both sides of the host tier; see the module for how they work together.

    It does nothing with a ``host_cache_gib`` of 0.

    Attributes:
        host_blocks: How many blocks the host holds; 0 for none.
    """

    _cache_hit_source = HOST_SOURCE

    def __init__(self, vllm_config: Any, role: KVConnectorRole, kv_cache_config: Any) -> None:
        super().__init__(vllm_config, role, kv_cache_config)
        parallel = vllm_config.parallel_config
        gib = float(self._kv_transfer_config.get_from_extra_config(HOST_CACHE_GIB, 0.0))
        if gib and parallel.pipeline_parallel_size > 1:  # its stages' blocks may differ in size
            raise ValueError("host_cache_gib does not work with pipeline parallelism: set it to 0")
        self.host_blocks = host_blocks(gib, kv_cache_config, parallel.world_size) if gib else 0
        self._unused = not gib or unsuited(kv_cache_config, vllm_config.cache_config) is not None
        self._gpu_blocks = kv_cache_config.num_blocks
        # The draft model runs after the forward pass and before ``wait_for_save``, and may be one
        # CUDA graph where the forward pass is not.
        self._drafts = vllm_config.speculative_config is not None
        self._tree: KnowledgeTree[Any] | None = None
        self._found_at = 0
        self._back: list[tuple[int, int]] = []
        self._loaded: dict[str, int] = {}
        self._copies: HostCopies | None = None
        self._unavailable = ""
        # Bad slots, as this side knows them: the worker learns of a failed copy as it happens, the
        # scheduler later, from the step's output. In between the worker refuses to read them.
        self._bad: set[int] = set()
        self._failures = Failures()
        self._unread: set[int] = set()  # GPU blocks
        self.failed_blocks = 0
        self.last_error = ""
        self._failed_steps = 0

    @property
    def requires_kv_delivery(self) -> bool:
        """False, because a cache may lose its content."""
        return False

    @classmethod
    def supports_sleep_mode(cls, kv_transfer_config: Any) -> bool:
        """False: nobody has tried what copies do while the GPU's memory is given away."""
        del kv_transfer_config
        return False

    # The scheduler's side

    def attach(self, tree: KnowledgeTree[Any]) -> None:
        """Copy the blocks of this tree."""
        self._tree = tree

    def take_loaded(self, request_id: str) -> int:
        """Tokens that were read back for a request when it was admitted."""
        return self._loaded.pop(request_id, 0)

    def get_num_new_matched_tokens(
        self, request: Any, num_computed_tokens: int
    ) -> tuple[int | None, bool]:
        """How many tokens the host has after those in the GPU.

        The last token of a request must be computed to get its logits, so that at most
        ``(num_tokens - 1) // block_size`` blocks are usable.
        """
        tree = self._tree
        if tree is None or request.skip_reading_prefix_cache or self.disabled:
            return 0, False
        size = tree.block_size
        start = self._found_at = num_computed_tokens // size
        usable = request.block_hashes[: (request.num_tokens - 1) // size]
        # Stop at a block that the GPU has, too: vLLM has just decided not to use that one, and if
        # it is evicted in this step, its host slot may be freed while we read from it. Stop also
        # at a bad slot.
        slots, bad = tree.host.slots, self._bad
        count = tree.on_host(
            usable, start, lambda key: key not in tree.gpu and slots[key] not in bad
        )
        return count * size, False

    def update_state_after_alloc(self, request: Any, blocks: Any, num_external_tokens: int) -> None:
        """Plan to read back the blocks that :meth:`get_num_new_matched_tokens` has just counted.

        vLLM calls the two one after the other for the same request, in one thread, so that
        ``_found_at`` still is the index of the first of these blocks.
        """
        if self._tree is None or not num_external_tokens:
            return
        start = self._found_at
        stop = start + num_external_tokens // self._tree.block_size
        for group, places in enumerate(blocks.blocks):
            first = self._tree.windows.first(group, start, stop)
            pairs = zip(request.block_hashes[first:stop], places[first:stop], strict=True)
            # vLLM may leave out blocks that the tree counts to a window, which is longer with a
            # draft model, and those that nobody needs at the end of what comes from the disk.
            needed = {key: place.block_id for key, place in pairs if not place.is_null}
            slots = self._tree.swap_in(needed, group)
            self._back += zip(slots, needed.values(), strict=True)
        self._loaded[request.request_id] = num_external_tokens

    def build_connector_meta(self, scheduler_output: Any) -> Transfers:  # noqa: ARG002 - vLLM's
        """Hand this step's copies to the worker.

        A slot that is filled in this step is not bad any more. If that copy fails as well, the
        worker's report makes it bad again.
        """
        if self._tree is None:
            return Transfers()
        out = [(block.block_id, slot) for block, slot in self._tree.swap_out()]
        back, self._back = self._back, []
        if self.disabled:
            return Transfers()
        self._bad.difference_update(slot for _, slot in out)
        return Transfers(out, back)

    @property
    def disabled(self) -> bool:
        """Whether the tier has failed too often to be used any longer."""
        return self._failed_steps > FAILED_STEPS_TOLERATED

    def distrust(self, slots: Iterable[int]) -> None:
        """Read nothing from these slots until something else is in them."""
        self._bad.update(slots)

    def update_connector_output(self, connector_output: Any) -> None:
        """Take the failures from a step's output."""
        failures = getattr(connector_output, "kv_connector_worker_meta", None)
        if isinstance(failures, Failures) and failures.blocks:
            self._bad |= failures.slots
            self.failed_blocks += failures.blocks
            self.last_error = failures.error
            self._failed_steps += 1
            if self._failed_steps == FAILED_STEPS_TOLERATED + 1:
                logger.error("the host tier has failed too often and is disabled")

    def request_finished_all_groups(
        self, request: Any, block_ids: Any
    ) -> tuple[bool, dict[str, Any] | None]:
        """Nothing to wait for: the blocks may be freed."""
        del block_ids
        self._loaded.pop(request.request_id, None)
        return False, None

    # The worker's side

    def register_kv_caches(self, kv_caches: Mapping[str, torch.Tensor]) -> None:
        """Take the GPU's layers, and allocate memory for the copies on the host."""
        if self._unused:
            return
        for layer in kv_caches.values():
            block_runs(layer, self._gpu_blocks)  # or an error that nobody can do anything about
        try:
            self._copies = host_copies(kv_caches, self._gpu_blocks, self.host_blocks)
        except (RuntimeError, MemoryError) as error:  # torch raises the former
            logger.exception("no memory for the host tier: nothing is kept there")
            self._unavailable = f"there was no memory for it: {error}"

    def handle_preemptions(self, kv_connector_metadata: Transfers) -> None:
        """Copy blocks out. vLLM calls this in every step before anything is overwritten."""
        if not kv_connector_metadata.out:
            return
        gpu, host = zip(*kv_connector_metadata.out, strict=True)
        try:
            self._available_copies().copy_out(gpu, host)
        except Exception as error:  # noqa: BLE001 - a cache may miss a block for any reason
            self._record_failure("copy to", host, error)
        else:
            self._bad.difference_update(host)

    def start_load_kv(self, forward_context: Any, **kwargs: Any) -> None:
        """Read blocks back before the forward pass, or while it runs."""
        del kwargs
        transfers: Transfers = self._get_connector_metadata()
        if not transfers.back:
            return
        host, gpu = zip(*transfers.back, strict=True)
        try:
            self._read_back(host, gpu)
        except Exception as error:  # noqa: BLE001 - as above
            # Some layers may have been read and others not, so that these blocks are useless.
            self._record_failure("read from", host, error)
            self._unread.update(gpu)
        else:
            if self._drafts or not _waits_by_layer(forward_context):
                self._available_copies().wait()

    def _available_copies(self) -> HostCopies:
        if self._copies is None:
            raise MemoryError(self._unavailable)
        return self._copies

    def _read_back(self, host: Sequence[int], gpu: Sequence[int]) -> None:
        if not self._bad.isdisjoint(host):
            raise RuntimeError("a block was to be read in the step in which copying it failed")
        self._available_copies().read_back(host, gpu)

    def _record_failure(self, action: str, host: Sequence[int], error: Exception) -> None:
        """Mark slots as bad after a failed copy; the first of a series is logged."""
        if not self._bad:
            logger.error("could not %s the host", action, exc_info=error)
        self._bad.update(host)
        self._failures.add(host, error)

    def get_block_ids_with_load_errors(self) -> set[int]:
        """GPU blocks that could not be read back in this step."""
        unread, self._unread = self._unread, set()
        return unread

    def build_connector_worker_meta(self) -> Failures | None:
        """The failures of this step; ``None`` if there are none."""
        if not self._failures.blocks:
            return None
        failures, self._failures = self._failures, Failures()
        return failures

    def wait_for_layer_load(self, layer_name: str) -> None:
        """Make the forward pass wait for the blocks of a layer."""
        if self._copies is not None:
            self._copies.wait(layer_name)

    def save_kv_layer(
        self, layer_name: str, kv_layer: torch.Tensor, attn_metadata: Any, **kwargs: Any
    ) -> None:
        """Nothing is saved as it is computed, only as it is evicted."""

    def wait_for_save(self) -> None:
        """Make all that follows the forward pass wait for blocks that it did not need."""
        if self._copies is not None:
            self._copies.wait()

    def shutdown(self) -> None:
        """Wait for all copies and free the host's memory."""
        if self._copies is not None:
            self._copies.close()


def _waits_by_layer(forward_context: Any) -> bool:
    """Whether this step's forward pass calls :meth:`HostTierConnector.wait_for_layer_load`.

    It does for each layer that attends, unless all of it is a CUDA graph.
    """
    if not getattr(forward_context, "attn_metadata", None):
        return False
    mode = getattr(forward_context, "cudagraph_runtime_mode", CUDAGraphMode.FULL)
    return bool(mode in {CUDAGraphMode.NONE, CUDAGraphMode.PIECEWISE})
