"""One vLLM KV connector for the host tier, the store of documents, and the disk."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor
from vllm.distributed.kv_transfer import get_kv_transfer_group
from vllm.distributed.kv_transfer.kv_connector.v1.base import KVConnectorBase_V1, KVConnectorRole
from vllm.distributed.parallel_state import get_tensor_model_parallel_rank

from ragcache_integrations.engine.in_vllm.host_tier import (
    Failures,
    HostTierConnector,
    Transfers,
)
from ragcache_integrations.engine.in_vllm.kv_cache import unsuited, windows

from .disk import DISK_CACHE_DIR, DISK_CACHE_GIB, DiskIndex, DiskWorker, open_folder
from .encoded import Form
from .grouped import GroupedMemory
from .models import unsuited_for_files, unsuited_for_reuse
from .prefixes import StoredPrefixes
from .worker import Moves, StoreWorker

__all__ = ["DocumentConnector", "finish_writing"]


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


@dataclass
class _Step(Transfers):
    """What the worker does in a step, besides the host tier's copies."""

    moves: Moves = field(default_factory=Moves)


@dataclass
class _Report(Failures):
    """What a worker could not do in a step, besides the host tier's copies."""

    lost: set[bytes] = field(default_factory=set)
    unwritten: set[bytes] = field(default_factory=set)

    def aggregate(self, other: Failures) -> _Report:
        """Merge the reports of two workers."""
        merged = _Report(**vars(super().aggregate(other)))
        for report in (self, other):
            if isinstance(report, _Report):
                merged.lost |= report.lost
                merged.unwritten |= report.unwritten
        return merged


class DocumentConnector(HostTierConnector):
    """Asks the store first, for requests that reuse documents anywhere.

    For all others it asks the host tier, and the disk for what comes after that.
    """

    # Of what vLLM counts as hits of the host, some come from the store or the disk.
    _cache_hit_source = getattr(KVConnectorBase_V1, "_cache_hit_source", None)

    def __init__(self, vllm_config: Any, role: KVConnectorRole, kv_cache_config: Any) -> None:
        super().__init__(vllm_config, role, kv_cache_config)
        self._block_size = vllm_config.cache_config.block_size
        self._groups = [group.layer_names for group in kv_cache_config.kv_cache_groups]
        # The scheduler comes to the same conclusion, and then asks for nothing.
        self._unstored = (
            unsuited(kv_cache_config, vllm_config.cache_config)
            or unsuited_for_files(vllm_config, kv_cache_config)
        ) is not None
        self._windows = () if self._unstored else windows(kv_cache_config)
        # Keys are turned only where documents are reused anywhere; else there is the disk alone.
        self._turns = unsuited_for_reuse(vllm_config, kv_cache_config) is None
        extra = self._kv_transfer_config.get_from_extra_config
        if not self._turns and not float(extra(DISK_CACHE_GIB, 0.0)):
            self._unstored = True
        self.reuse: Any = None
        self.disk: DiskIndex | None = None
        self.prefixes: StoredPrefixes | None = None
        self._store: StoreWorker | None = None

    # The scheduler's side

    def get_num_new_matched_tokens(
        self, request: Any, num_computed_tokens: int
    ) -> tuple[int | None, bool]:
        """Tokens after the prefix hit that need no computing, or that rows compute."""
        if self.reuse is not None and self.reuse.knows(request):
            return self.reuse.match(request, num_computed_tokens), False
        on_host, _ = super().get_num_new_matched_tokens(request, num_computed_tokens)
        if on_host is None or self.prefixes is None:
            return on_host, False
        return on_host + self.prefixes.match(request, num_computed_tokens + on_host), False

    def update_state_after_alloc(self, request: Any, blocks: Any, num_external_tokens: int) -> None:
        """A request is admitted."""
        if self.reuse is not None and self.reuse.knows(request):
            self.reuse.admit(request, blocks, num_external_tokens)
            return
        on_host = num_external_tokens
        if self.prefixes is not None:
            on_host -= self.prefixes.admit(request, blocks, num_external_tokens)
        super().update_state_after_alloc(request, blocks, on_host)

    def build_connector_meta(self, scheduler_output: Any) -> _Step:
        """Hand this step's work to the worker."""
        transfers = super().build_connector_meta(scheduler_output)
        moves = self.reuse.take_moves(scheduler_output) if self.reuse else Moves()
        if self.prefixes is not None:
            self.prefixes.add_moves(moves, scheduler_output)
        if self.disk is not None:
            moves.removals, moves.used = self.disk.take_drops(), self.disk.take_used()
        return _Step(transfers.out, transfers.back, moves)

    def update_connector_output(self, connector_output: Any) -> None:
        """Take the failures from a step's output."""
        super().update_connector_output(connector_output)
        report = getattr(connector_output, "kv_connector_worker_meta", None)
        if not isinstance(report, _Report):
            return
        if self.reuse is not None:
            self.reuse.forget(report.lost)
        if self.disk is not None:
            self.disk.discard(report.lost | report.unwritten)

    # The worker's side

    def register_kv_caches(self, kv_caches: Mapping[str, Tensor]) -> None:
        """Take the layers."""
        super().register_kv_caches(kv_caches)
        if not self._unstored:
            layers = self._vllm_config.compilation_config.static_forward_context
            size = self._block_size
            memory = GroupedMemory(
                layers, kv_caches, self._groups, self._windows, size, turns=self._turns
            )
            steps = self._vllm_config.max_concurrent_batches
            self._store = StoreWorker(memory, self._block_size, steps)
            self._store.disk = self._open_disk(self._store.memory.form)

    def _open_disk(self, form: Form) -> DiskWorker | None:
        extra = self._kv_transfer_config.get_from_extra_config
        gib = float(extra(DISK_CACHE_GIB, 0.0))
        folder = open_folder(self._vllm_config, extra(DISK_CACHE_DIR, None)) if gib else None
        if folder is None:
            return None
        workers = self._vllm_config.parallel_config.world_size
        return DiskWorker(folder, form, gib, get_tensor_model_parallel_rank(), workers)

    def start_load_kv(self, forward_context: Any, **kwargs: Any) -> None:
        """Bring blocks and documents before the forward pass."""
        super().start_load_kv(forward_context, **kwargs)
        step = self._get_connector_metadata()
        if self._store is not None and isinstance(step, _Step):
            self._store.load(step.moves)

    def wait_for_save(self) -> None:
        """Keep documents after the forward pass."""
        super().wait_for_save()
        step = self._get_connector_metadata()
        if self._store is not None and isinstance(step, _Step):
            self._store.save(step.moves, self._unread)

    def get_block_ids_with_load_errors(self) -> set[int]:
        """Blocks that could not be filled in this step."""
        unread = super().get_block_ids_with_load_errors()
        if self._store is not None:
            unread |= self._store.unread
            self._store.unread = set()
        return unread

    def build_connector_worker_meta(self) -> _Report | None:
        """The failures of this step; ``None`` if there are none."""
        failures = super().build_connector_worker_meta()
        lost, unwritten = set[bytes](), set[bytes]()
        if self._store is not None:
            lost, self._store.lost = self._store.lost, set()
            if self._store.disk is not None:
                unwritten = self._store.disk.take_unwritten()
        if failures is None and not lost and not unwritten:
            return None
        return _Report(**vars(failures or Failures()), lost=lost, unwritten=unwritten)

    def finish_writing(self) -> tuple[set[bytes], str]:
        """Wait for the disk: keys of documents that could not be written, and why."""
        disk = self._store.disk if self._store is not None else None
        return (set(), "") if disk is None else disk.finish()

    def shutdown(self) -> None:
        """Free the host's memory, and write to the disk what waits for it."""
        super().shutdown()
        if self._store is not None:
            self._store.close()
        self._store = None
