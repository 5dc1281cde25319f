"""One vLLM KV connector for the host tier, the store of documents, and the disk.

The host tier keeps evicted blocks in the host's memory. The store and the disk, in
:mod:`.anywhere`, are asked first for requests that reuse documents anywhere; for all others the
disk is asked for what comes after the host tier.

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
from vllm.distributed.kv_transfer import get_kv_transfer_group
from vllm.distributed.kv_transfer.kv_connector.v1.base import (
    KVConnectorBase_V1,
    KVConnectorMetadata,
    KVConnectorRole,
    KVConnectorWorkerMetadata,
    SupportsHMA,
)
from vllm.distributed.parallel_state import get_tensor_model_parallel_rank

from ragcache_integrations.engine.arguments import GIB
from ragcache_integrations.knowledge_tree import KnowledgeTree

from .anywhere.codecs import Form
from .anywhere.disk import DISK_CACHE_DIR, DISK_CACHE_GIB, DiskIndex, DiskWorker, open_folder
from .anywhere.paged import GroupedMemory
from .anywhere.prefixes import StoredPrefixes
from .anywhere.worker import Moves, StoreWorker
from .host_copies import HostCopies, block_runs, host_copies
from .kv_cache import block_bytes, unsuited, unsuited_for_files, unsuited_for_reuse, windows

try:
    from vllm.v1.metrics.cache_hit_source import CacheHitSource

    HOST_SOURCE = CacheHitSource.HOST
except ImportError:  # versions that do not distinguish sources
    HOST_SOURCE = None

__all__ = ["DocumentConnector", "Failures", "Transfers", "finish_writing", "host_blocks"]

logger = logging.getLogger(__name__)

FAILED_STEPS_TOLERATED = 20
"""Number of steps with a failed copy that are tolerated; one more disables the host tier."""
HOST_CACHE_GIB, REUSES_ANYWHERE = "host_cache_gib", "reuses_anywhere"


def finish_writing(worker: object) -> tuple[set[bytes], str]:
    """Wait until a worker has written all documents that wait for it.

    Args:
        worker: vLLM's worker, in whose process this runs.

    Returns:
        Keys of documents that could not be written, and why; empty if none is there.
    """
    del worker
    connector = get_kv_transfer_group()
    return connector.finish_writing() if isinstance(connector, DocumentConnector) else (set(), "")


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
    """What the worker does in a step.

    Attributes:
        out: Pairs of GPU block and host slot to copy.
        back: Pairs of host slot and GPU block to copy.
        moves: What it does with documents.
    """

    out: list[tuple[int, int]] = field(default_factory=list)
    back: list[tuple[int, int]] = field(default_factory=list)
    moves: Moves = field(default_factory=Moves)


@dataclass
class Failures(KVConnectorWorkerMetadata):
    """What a worker could not do in a step.

    Attributes:
        slots: Host slots with wrong content, or that could not be read.
        blocks: Number of copies to and from the host that failed.
        error: Message of the last such failure.
        lost: Keys of documents that could not be read or stored.
        unwritten: Keys of documents that could not be written to the disk.
    """

    slots: set[int] = field(default_factory=set)
    blocks: int = 0
    error: str = ""
    lost: set[bytes] = field(default_factory=set)
    unwritten: set[bytes] = field(default_factory=set)

    def aggregate(self, other: Failures) -> Failures:
        """Merge the failures of two workers."""
        return Failures(
            self.slots | other.slots,
            self.blocks + other.blocks,
            other.error or self.error,
            self.lost | other.lost,
            self.unwritten | other.unwritten,
        )

    def add(self, slots: Sequence[int], error: object) -> None:
        """Record a failed copy of some slots."""
        self.slots.update(slots)
        self.blocks += len(slots)
        self.error = str(error)


class DocumentConnector(KVConnectorBase_V1, SupportsHMA):
    """Both sides of the connector; see the module for how they work together.

    There is no host tier with a ``host_cache_gib`` of 0, and no store of documents where none are
    reused anywhere or kept on the disk.

    Attributes:
        host_blocks: How many blocks the host holds; 0 for none.
        reuse: Decides what is read and stored for requests that reuse documents anywhere; ``None``
            for none.
        disk: What is on the disk; ``None`` without a disk.
        prefixes: Decides what is read and written for all other requests; ``None`` without a disk.
    """

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
        self.reuse: Any = None
        self.disk: DiskIndex | None = None
        self.prefixes: StoredPrefixes | None = None
        self._store: StoreWorker | None = None
        extra = self._kv_transfer_config.get_from_extra_config
        self._disk_gib = float(extra(DISK_CACHE_GIB, 0.0))
        anywhere = bool(extra(REUSES_ANYWHERE, None))
        self._turns = self._stores = False
        if not (self._disk_gib or anywhere):
            # Otherwise some of what vLLM counts as hits of the host come from elsewhere.
            self._cache_hit_source = HOST_SOURCE
        elif not (
            unsuited(kv_cache_config, vllm_config.cache_config)
            or unsuited_for_files(vllm_config, kv_cache_config)
        ):
            # The scheduler comes to the same conclusion, and else asks for nothing. Keys are turned
            # only where documents are reused anywhere; else there is the disk alone.
            self._turns = unsuited_for_reuse(vllm_config, kv_cache_config) is None
            self._stores = self._turns or bool(self._disk_gib)

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
        """Tokens after those in the GPU that need no computing, or that rows compute."""
        if self.reuse is not None and self.reuse.knows(request):
            return self.reuse.match(request, num_computed_tokens), False
        on_host = self._match_host(request, num_computed_tokens)
        if self.prefixes is None:
            return on_host, False
        return on_host + self.prefixes.match(request, num_computed_tokens + on_host), False

    def _match_host(self, request: Any, num_computed_tokens: int) -> int:
        """How many tokens the host has after those in the GPU.

        The last token of a request must be computed to get its logits, so that at most
        ``(num_tokens - 1) // block_size`` blocks are usable.
        """
        tree = self._tree
        if tree is None or request.skip_reading_prefix_cache or self.disabled:
            return 0
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
        return count * size

    def update_state_after_alloc(self, request: Any, blocks: Any, num_external_tokens: int) -> None:
        """A request is admitted."""
        if self.reuse is not None and self.reuse.knows(request):
            self.reuse.admit(request, blocks, num_external_tokens)
            return
        on_host = num_external_tokens
        if self.prefixes is not None:
            on_host -= self.prefixes.admit(request, blocks, num_external_tokens)
        if self._tree is not None and on_host:
            self._read_back_soon(self._tree, request, blocks, on_host)

    def _read_back_soon(
        self, tree: KnowledgeTree[Any], request: Any, blocks: Any, tokens: int
    ) -> None:
        """Plan to read back the blocks that :meth:`get_num_new_matched_tokens` has just counted.

        vLLM calls the two one after the other for the same request, in one thread, so that
        ``_found_at`` still is the index of the first of these blocks.
        """
        start = self._found_at
        stop = start + tokens // tree.block_size
        for group, places in enumerate(blocks.blocks):
            first = tree.windows.first(group, start, stop)
            pairs = zip(request.block_hashes[first:stop], places[first:stop], strict=True)
            # vLLM may leave out blocks that the tree counts to a window, which is longer with a
            # draft model, and those that nobody needs at the end of what comes from the disk.
            needed = {key: place.block_id for key, place in pairs if not place.is_null}
            slots = tree.swap_in(needed, group)
            self._back += zip(slots, needed.values(), strict=True)
        self._loaded[request.request_id] = tokens

    def build_connector_meta(self, scheduler_output: Any) -> Transfers:
        """Hand this step's work to the worker.

        A slot that is filled in this step is not bad any more. If that copy fails as well, the
        worker's report makes it bad again.
        """
        moves = self.reuse.take_moves(scheduler_output) if self.reuse else Moves()
        if self.prefixes is not None:
            self.prefixes.add_moves(moves, scheduler_output)
        if self.disk is not None:
            moves.removals, moves.used = self.disk.take_drops(), self.disk.take_used()
        swapped = () if self._tree is None else self._tree.swap_out()
        out = [(block.block_id, slot) for block, slot in swapped]
        back, self._back = self._back, []
        if self.disabled:
            return Transfers(moves=moves)
        self._bad.difference_update(slot for _, slot in out)
        return Transfers(out, back, moves)

    @property
    def disabled(self) -> bool:
        """Whether the tier has failed too often to be used any longer."""
        return self._failed_steps > FAILED_STEPS_TOLERATED

    def distrust(self, slots: Iterable[int]) -> None:
        """Read nothing from these slots until something else is in them."""
        self._bad.update(slots)

    def update_connector_output(self, connector_output: Any) -> None:
        """Take the failures from a step's output."""
        failures = connector_output.kv_connector_worker_meta
        if not isinstance(failures, Failures):
            return
        if self.reuse is not None:
            self.reuse.forget(failures.lost)
        if self.disk is not None:
            self.disk.discard(failures.lost | failures.unwritten)
        if failures.blocks:
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
        if not self._unused:
            self._allocate(kv_caches)
        if self._stores:
            config = self._vllm_config
            memory = GroupedMemory(
                config.compilation_config.static_forward_context,
                kv_caches,
                [group.layer_names for group in self._kv_cache_config.kv_cache_groups],
                windows(self._kv_cache_config),
                config.cache_config.block_size,
                turns=self._turns,
            )
            size, steps = config.cache_config.block_size, config.max_concurrent_batches
            self._store = StoreWorker(memory, size, steps, self._open_disk(memory.form))

    def _open_disk(self, form: Form) -> DiskWorker | None:
        extra = self._kv_transfer_config.get_from_extra_config
        place = extra(DISK_CACHE_DIR, None)
        folder = open_folder(self._vllm_config, place) if self._disk_gib else None
        if folder is None:
            return None
        workers = self._vllm_config.parallel_config.world_size
        return DiskWorker(folder, form, self._disk_gib, get_tensor_model_parallel_rank(), workers)

    def _allocate(self, kv_caches: Mapping[str, torch.Tensor]) -> None:
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
        """Read blocks back before the forward pass, or while it runs, and documents before it."""
        del kwargs
        transfers: Transfers = self._get_connector_metadata()
        if transfers.back:
            self._bring_back(transfers.back, forward_context)
        if self._store is not None:
            self._store.load(transfers.moves)

    def _bring_back(self, pairs: Sequence[tuple[int, int]], forward_context: Any) -> None:
        host, gpu = zip(*pairs, strict=True)
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
        """GPU blocks that could not be filled in this step."""
        unread, self._unread = self._unread, set()
        if self._store is not None:
            unread |= self._store.unread
            self._store.unread = set()
        return unread

    def build_connector_worker_meta(self) -> Failures | None:
        """The failures of this step; ``None`` if there are none."""
        failures, self._failures = self._failures, Failures()
        if self._store is not None:
            failures.lost, self._store.lost = self._store.lost, set()
            if self._store.disk is not None:
                failures.unwritten = self._store.disk.take_unwritten()
        return failures if failures != Failures() else None

    def finish_writing(self) -> tuple[set[bytes], str]:
        """Wait for the disk: keys of documents that could not be written, and why."""
        if self._store is None:
            return set(), ""
        fault, self._store.fault = self._store.fault, ""
        unwritten, unwritten_why = (
            (set[bytes](), "") if self._store.disk is None else self._store.disk.finish()
        )
        return unwritten, fault or unwritten_why

    def wait_for_layer_load(self, layer_name: str) -> None:
        """Make the forward pass wait for the blocks of a layer."""
        if self._copies is not None:
            self._copies.wait(layer_name)

    def save_kv_layer(
        self, layer_name: str, kv_layer: torch.Tensor, attn_metadata: Any, **kwargs: Any
    ) -> None:
        """Nothing is saved as it is computed, only as it is evicted."""

    def wait_for_save(self) -> None:
        """Make all that follows the forward pass wait for blocks that it did not need.

        Then keep documents.
        """
        if self._copies is not None:
            self._copies.wait()
        if self._store is not None:
            self._store.save(self._get_connector_metadata().moves, self._unread)

    def shutdown(self) -> None:
        """Wait for all copies, free the host's memory, and write to the disk what waits for it."""
        if self._copies is not None:
            self._copies.close()
        if self._store is not None:
            self._store.close()
        self._store = None


def _waits_by_layer(forward_context: Any) -> bool:
    """Whether this step's forward pass calls :meth:`DocumentConnector.wait_for_layer_load`.

    It does for each layer that attends, unless all of it is a CUDA graph.
    """
    if not getattr(forward_context, "attn_metadata", None):
        return False
    mode = getattr(forward_context, "cudagraph_runtime_mode", CUDAGraphMode.FULL)
    return bool(mode in {CUDAGraphMode.NONE, CUDAGraphMode.PIECEWISE})
