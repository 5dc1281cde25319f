"""One vLLM KV connector for the host tier, the store of documents, and the disk."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor
from vllm.distributed.kv_transfer import get_kv_transfer_group
from vllm.distributed.kv_transfer.kv_connector.v1.base import (
    KVConnectorBase_V1,
    KVConnectorMetadata,
    KVConnectorRole,
    SupportsHMA,
)
from vllm.distributed.parallel_state import get_tensor_model_parallel_rank

from ragcache_integrations.engine.in_vllm.host_tier import (
    Failures,
    HostTierConnector,
    KVConnectorWorkerMetadata,
    Transfers,
)
from ragcache_integrations.engine.in_vllm.kv_cache import unsuited, windows

from .disk import DISK_CACHE_DIR, DISK_CACHE_GIB, DiskIndex, DiskWorker, open_folder
from .encoded import Form
from .grouped import GroupedMemory
from .models import unsuited_for_files, unsuited_for_reuse
from .prefixes import StoredPrefixes
from .worker import Moves, StoreWorker

__all__ = ["DocumentConnector", "finish_writing", "host_tier_of"]


def host_tier_of(connector: Any) -> HostTierConnector | None:
    """The host tier of a scheduler's connector, if it has one."""
    if isinstance(connector, DocumentConnector):
        return connector.host_tier
    return connector if isinstance(connector, HostTierConnector) else None


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
class _Step(KVConnectorMetadata):
    """What the worker does in a step."""

    transfers: Transfers
    moves: Moves


@dataclass
class _Report(KVConnectorWorkerMetadata):
    """What a worker could not do in a step."""

    failures: Failures | None = None
    lost: set[bytes] = field(default_factory=set)
    unwritten: set[bytes] = field(default_factory=set)

    def aggregate(self, other: _Report) -> _Report:
        """Merge the reports of two workers."""
        failures = self.failures or other.failures
        if self.failures and other.failures:
            failures = self.failures.aggregate(other.failures)
        return _Report(failures, self.lost | other.lost, self.unwritten | other.unwritten)


class DocumentConnector(KVConnectorBase_V1, SupportsHMA):
    """Asks the store first, for requests that reuse documents anywhere.

    For all others it asks the host tier, and the disk for what comes after that.
    """

    def __init__(self, vllm_config: Any, role: KVConnectorRole, kv_cache_config: Any) -> None:
        super().__init__(vllm_config, role, kv_cache_config)
        extra = self._kv_transfer_config.get_from_extra_config
        self.host_tier: HostTierConnector | None = None
        if float(extra("host_cache_gib", 0.0)):
            self.host_tier = HostTierConnector(vllm_config, role, kv_cache_config)
        self._block_size = vllm_config.cache_config.block_size
        self._groups = [group.layer_names for group in kv_cache_config.kv_cache_groups]
        # The scheduler comes to the same conclusion, and then asks for nothing.
        self._unused = (
            unsuited(kv_cache_config, vllm_config.cache_config)
            or unsuited_for_files(vllm_config, kv_cache_config)
        ) is not None
        self._windows = () if self._unused else windows(kv_cache_config)
        # Keys are turned only where documents are reused anywhere; else there is the disk alone.
        self._turns = unsuited_for_reuse(vllm_config, kv_cache_config) is None
        if not self._turns and not float(extra(DISK_CACHE_GIB, 0.0)):
            self._unused = True
        self.reuse: Any = None
        self.disk: DiskIndex | None = None
        self.prefixes: StoredPrefixes | None = None
        self._store: StoreWorker | None = None

    @property
    def requires_kv_delivery(self) -> bool:
        """False, because a cache may lose its content."""
        return False

    @classmethod
    def supports_sleep_mode(cls, kv_transfer_config: Any) -> bool:
        """False, as the host tier does not."""
        return HostTierConnector.supports_sleep_mode(kv_transfer_config)

    # The scheduler's side

    def get_num_new_matched_tokens(
        self, request: Any, num_computed_tokens: int
    ) -> tuple[int | None, bool]:
        """Tokens after the prefix hit that need no computing, or that rows compute."""
        if self.reuse is not None and self.reuse.knows(request):
            return self.reuse.match(request, num_computed_tokens), False
        on_host = 0
        if self.host_tier is not None:
            on_host, _ = self.host_tier.get_num_new_matched_tokens(request, num_computed_tokens)
        if self.prefixes is None:
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
        if self.host_tier is not None:
            self.host_tier.update_state_after_alloc(request, blocks, on_host)

    def build_connector_meta(self, scheduler_output: Any) -> _Step:
        """Hand this step's work to the worker."""
        host, reuse = self.host_tier, self.reuse
        transfers = host.build_connector_meta(scheduler_output) if host else Transfers()
        moves = reuse.take_moves(scheduler_output) if reuse else Moves()
        if self.prefixes is not None:
            self.prefixes.add_moves(moves, scheduler_output)
        if self.disk is not None:
            moves.removals, moves.used = self.disk.take_drops(), self.disk.take_used()
        return _Step(transfers, moves)

    def update_connector_output(self, connector_output: Any) -> None:
        """Take the failures from a step's output."""
        report = getattr(connector_output, "kv_connector_worker_meta", None)
        if not isinstance(report, _Report):
            return
        if self.reuse is not None:
            self.reuse.forget(report.lost)
        if self.disk is not None:
            self.disk.discard(report.lost | report.unwritten)
        if self.host_tier is not None and report.failures is not None:
            connector_output.kv_connector_worker_meta = report.failures
            self.host_tier.update_connector_output(connector_output)

    def request_finished_all_groups(
        self, request: Any, block_ids: Any
    ) -> tuple[bool, dict[str, Any] | None]:
        """Nothing to wait for: the blocks may be freed."""
        if self.host_tier is not None:
            self.host_tier.request_finished_all_groups(request, block_ids)
        return False, None

    # The worker's side

    def register_kv_caches(self, kv_caches: Mapping[str, Tensor]) -> None:
        """Take the layers."""
        if self.host_tier is not None:
            self.host_tier.register_kv_caches(kv_caches)
        if not self._unused:
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

    def bind_connector_metadata(self, connector_metadata: KVConnectorMetadata) -> None:
        """What is to be done in a step."""
        super().bind_connector_metadata(connector_metadata)
        if self.host_tier is not None and isinstance(connector_metadata, _Step):
            self.host_tier.bind_connector_metadata(connector_metadata.transfers)

    def clear_connector_metadata(self) -> None:
        """The step is over."""
        super().clear_connector_metadata()
        if self.host_tier is not None:
            self.host_tier.clear_connector_metadata()

    def handle_preemptions(self, kv_connector_metadata: Any) -> None:
        """Copy blocks out before anything is overwritten."""
        if self.host_tier is not None:
            self.host_tier.handle_preemptions(kv_connector_metadata.transfers)

    def start_load_kv(self, forward_context: Any, **kwargs: Any) -> None:
        """Bring blocks and documents before the forward pass."""
        if self.host_tier is not None:
            self.host_tier.start_load_kv(forward_context, **kwargs)
        step = self._get_connector_metadata()
        if self._store is not None and isinstance(step, _Step):
            self._store.load(step.moves)

    def wait_for_layer_load(self, layer_name: str) -> None:
        """Make the forward pass wait for the blocks of a layer."""
        if self.host_tier is not None:
            self.host_tier.wait_for_layer_load(layer_name)

    def save_kv_layer(
        self, layer_name: str, kv_layer: Tensor, attn_metadata: Any, **kwargs: Any
    ) -> None:
        """Nothing is saved as it is computed."""

    def wait_for_save(self) -> None:
        """Keep documents after the forward pass."""
        if self.host_tier is not None:
            self.host_tier.wait_for_save()
        step = self._get_connector_metadata()
        if self._store is not None and isinstance(step, _Step):
            unread = self.host_tier.unread if self.host_tier is not None else set[int]()
            self._store.save(step.moves, unread)

    def get_block_ids_with_load_errors(self) -> set[int]:
        """Blocks that could not be filled in this step."""
        unread = self.host_tier.get_block_ids_with_load_errors() if self.host_tier else set()
        if self._store is not None:
            unread |= self._store.unread
            self._store.unread = set()
        return unread

    def build_connector_worker_meta(self) -> _Report | None:
        """The failures of this step; ``None`` if there are none."""
        failures = self.host_tier.build_connector_worker_meta() if self.host_tier else None
        lost, unwritten = set[bytes](), set[bytes]()
        if self._store is not None:
            lost, self._store.lost = self._store.lost, set()
            if self._store.disk is not None:
                unwritten = self._store.disk.take_unwritten()
        return _Report(failures, lost, unwritten) if failures or lost or unwritten else None

    def finish_writing(self) -> tuple[set[bytes], str]:
        """Wait for the disk: keys of documents that could not be written, and why."""
        disk = self._store.disk if self._store is not None else None
        return (set(), "") if disk is None else disk.finish()

    def shutdown(self) -> None:
        """Free the host's memory, and write to the disk what waits for it."""
        if self.host_tier is not None:
            self.host_tier.shutdown()
        if self._store is not None:
            self._store.close()
        self._store = None
