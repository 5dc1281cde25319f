"""The host tier: a vLLM KV connector that keeps evicted blocks in the host's memory.

Two objects of this class exist, possibly in two processes. The scheduler's asks the knowledge tree
which blocks go out and come back; the worker's moves the bytes. In each step blocks are copied out
before anything overwrites them, and read back before the forward pass.

A copy that fails costs a computation and nothing else. Where one could not be made, its slot is
remembered as empty; whoever was to read one that can't be read is given up by vLLM and submitted
anew. Where that happens again and again, the tier is left alone.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from vllm.distributed.kv_transfer.kv_connector.v1.base import (
    KVConnectorBase_V1,
    KVConnectorMetadata,
    KVConnectorRole,
    SupportsHMA,
)

from ragcache_integrations.knowledge_tree import KnowledgeTree

from .kv_cache import block_bytes, unsuited

try:
    from vllm.distributed.kv_transfer.kv_connector.v1.base import KVConnectorWorkerMetadata
except ImportError:  # versions whose workers do not answer
    KVConnectorWorkerMetadata = object

try:
    from vllm.v1.metrics.cache_hit_source import CacheHitSource

    HOST_SOURCE = CacheHitSource.HOST
except ImportError:  # versions that do not tell sources apart
    HOST_SOURCE = None

__all__ = ["HostTierConnector", "host_blocks"]

logger = logging.getLogger(__name__)

GIB = 1 << 30
FAILED_STEPS_TOLERATED = 20
"""Steps with a failed copy, after which the host tier is used no more."""
HOST_CACHE_GIB = "host_cache_gib"


def host_blocks(host_cache_gib: float, kv_cache_config: Any, workers: int) -> int:
    """How many blocks the host tier holds.

    Args:
        host_cache_gib: Its size, for all workers together.
        kv_cache_config: vLLM's own.
        workers: Among how many a block is divided.

    Raises:
        ValueError: Not even one.
    """
    size = block_bytes(kv_cache_config) * workers
    blocks = int(host_cache_gib * GIB) // size
    if blocks < 1:
        msg = (
            f"host_cache_gib must hold at least one block of {size / GIB:.6f} GiB, "
            f"got {host_cache_gib}"
        )
        raise ValueError(msg)
    return blocks


@dataclass
class Transfers(KVConnectorMetadata):
    """What the worker is to copy in a step.

    Attributes:
        out: Pairs of GPU block and host slot.
        back: Pairs of host slot and GPU block.
    """

    out: list[tuple[int, int]] = field(default_factory=list)
    back: list[tuple[int, int]] = field(default_factory=list)


@dataclass
class Failures(KVConnectorWorkerMetadata):
    """What a worker could not copy in a step.

    Attributes:
        slots: Host slots whose content is not what it should be, or could not be read.
        blocks: Copies that failed.
        error: What the last of them said.
    """

    slots: set[int] = field(default_factory=set)
    blocks: int = 0
    error: str = ""

    def aggregate(self, other: Failures) -> Failures:
        """Those of two workers."""
        return Failures(
            self.slots | other.slots, self.blocks + other.blocks, other.error or self.error
        )

    def add(self, slots: Sequence[int], error: object) -> None:
        """Note another."""
        self.slots.update(slots)
        self.blocks += len(slots)
        self.error = str(error)


class HostTierConnector(KVConnectorBase_V1, SupportsHMA):
    """Both sides of the host tier."""

    _cache_hit_source = HOST_SOURCE

    def __init__(self, vllm_config: Any, role: KVConnectorRole, kv_cache_config: Any) -> None:
        super().__init__(vllm_config, role, kv_cache_config)
        parallel = vllm_config.parallel_config
        if parallel.pipeline_parallel_size > 1:  # its stages' blocks may differ in size
            msg = "host_cache_gib does not work with pipeline parallelism: set it to 0"
            raise ValueError(msg)
        gib = float(self._kv_transfer_config.get_from_extra_config(HOST_CACHE_GIB, 0.0))
        self.host_blocks = host_blocks(gib, kv_cache_config, parallel.world_size)
        self._unused = unsuited(kv_cache_config, vllm_config.cache_config) is not None
        self._gpu_blocks = kv_cache_config.num_blocks
        self._tree: KnowledgeTree[Any] | None = None
        self._found_at = 0
        self._back: list[tuple[int, int]] = []
        self._loaded: dict[str, int] = {}
        self._layers: list[_Layer] = []
        self._no_memory = ""
        # Slots that hold nothing usable, as this side knows them.
        self._bad: set[int] = set()
        self._failures = Failures()
        self._unread: set[int] = set()  # GPU blocks
        self.failed_blocks = 0
        self.last_error = ""
        self._failed_steps = 0

    @property
    def requires_kv_delivery(self) -> bool:
        """A cache may lose what it holds."""
        return False

    # The scheduler's side

    def attach(self, tree: KnowledgeTree[Any]) -> None:
        """Serve this tree."""
        self._tree = tree

    def take_loaded(self, request_id: str) -> int:
        """Tokens that were read back for a request when it was admitted."""
        return self._loaded.pop(request_id, 0)

    def get_num_new_matched_tokens(
        self, request: Any, num_computed_tokens: int
    ) -> tuple[int, bool]:
        """How many tokens behind the GPU's the host has. The last token must be computed."""
        tree = self._tree
        if tree is None or request.skip_reading_prefix_cache or self.given_up:
            return 0, False
        size = tree.block_size
        start = self._found_at = num_computed_tokens // size
        usable = request.block_hashes[: (request.num_tokens - 1) // size]
        found = tree.on_host(usable, start)
        # What the GPU has too, vLLM did not want; and evicting it in this step would free the
        # host's copy while it is being read.
        slots, bad = tree.host.slots, self._bad
        end = (
            at
            for at, key in enumerate(usable[start : start + found])
            if key in tree.gpu or slots[key] in bad
        )
        return next(end, found) * size, False

    def update_state_after_alloc(self, request: Any, blocks: Any, num_external_tokens: int) -> None:
        """Plan to read back what the call before found for the same request."""
        if self._tree is None or not num_external_tokens:
            return
        start = self._found_at
        stop = start + num_external_tokens // self._tree.block_size
        slots = self._tree.swap_in(request.block_hashes[start:stop])
        self._back += zip(slots, blocks.get_block_ids()[0][start:stop], strict=True)
        self._loaded[request.request_id] = num_external_tokens

    def build_connector_meta(self, scheduler_output: Any) -> Transfers:  # noqa: ARG002 - vLLM's
        """Hand this step's copies to the worker."""
        if self._tree is None:
            return Transfers()
        out = [(block.block_id, slot) for block, slot in self._tree.swap_out()]
        back, self._back = self._back, []
        if self.given_up:
            return Transfers()
        self._bad.difference_update(slot for _, slot in out)
        return Transfers(out, back)

    @property
    def given_up(self) -> bool:
        """Whether it failed so often that it is used no more."""
        return self._failed_steps > FAILED_STEPS_TOLERATED

    def distrust(self, slots: Iterable[int]) -> None:
        """Read nothing from these until something else is in them."""
        self._bad.update(slots)

    def update_connector_output(self, connector_output: Any) -> None:
        """Learn from a step's output what failed in it."""
        failures = getattr(connector_output, "kv_connector_worker_meta", None)
        if isinstance(failures, Failures):
            self._bad |= failures.slots
            self.failed_blocks += failures.blocks
            self.last_error = failures.error
            self._failed_steps += 1
            if self._failed_steps == FAILED_STEPS_TOLERATED + 1:
                logger.error("the host tier fails again and again and is used no more")

    def request_finished_all_groups(
        self, request: Any, block_ids: Any
    ) -> tuple[bool, dict[str, Any] | None]:
        """Nothing to wait for: the blocks may be freed."""
        del block_ids
        self._loaded.pop(request.request_id, None)
        return False, None

    # The worker's side

    def register_kv_caches(self, kv_caches: Mapping[str, torch.Tensor]) -> None:
        """Learn where the GPU's blocks are, and make room for as many of the host's as asked."""
        if self._unused:
            return
        on_gpu = [_blocks_first(layer, self._gpu_blocks) for layer in kv_caches.values()]
        try:
            self._layers = [_Layer(layer, self.host_blocks) for layer in on_gpu]
        except (RuntimeError, MemoryError) as error:  # torch says the former
            logger.exception("no memory for the host tier: nothing is kept there")
            self._layers = []
            self._no_memory = f"there was no memory for it: {error}"

    def handle_preemptions(self, kv_connector_metadata: Transfers) -> None:
        """Copy out. vLLM calls this before anything is overwritten, in every step."""
        if not kv_connector_metadata.out:
            return
        gpu, host = zip(*kv_connector_metadata.out, strict=True)
        try:
            self._copy_out(gpu, host)
        except Exception as error:  # noqa: BLE001 - whatever it is, a cache may go without
            self._note("copy to", host, error)
        else:
            self._bad.difference_update(host)

    def start_load_kv(self, forward_context: Any, **kwargs: Any) -> None:
        """Read back, before the forward pass."""
        del forward_context, kwargs
        transfers: Transfers = self._get_connector_metadata()
        if not transfers.back:
            return
        host, gpu = zip(*transfers.back, strict=True)
        try:
            self._read_back(host, gpu)
        except Exception as error:  # noqa: BLE001 - as above
            # Some layers may have been read: what is in these blocks is of no use.
            self._note("read from", host, error)
            self._unread.update(gpu)

    def _copy_out(self, gpu: Sequence[int], host: Sequence[int]) -> None:
        if self._no_memory:
            raise MemoryError(self._no_memory)
        for layer in self._layers:
            layer.copy_out(gpu, host)

    def _read_back(self, host: Sequence[int], gpu: Sequence[int]) -> None:
        if not self._bad.isdisjoint(host):
            msg = "it was to be read in the step in which copying it failed"
            raise RuntimeError(msg)
        for layer in self._layers:
            layer.read_back(host, gpu)

    def _note(self, what: str, host: Sequence[int], error: Exception) -> None:
        """A copy failed; the slots are not used until something else is in them."""
        if not self._bad:
            logger.error("could not %s the host", what, exc_info=error)
        self._bad.update(host)
        self._failures.add(host, error)

    def get_block_ids_with_load_errors(self) -> set[int]:
        """GPU blocks that were not read back in this step."""
        unread, self._unread = self._unread, set()
        return unread

    def build_connector_worker_meta(self) -> Failures | None:
        """What failed in this step."""
        if not self._failures.blocks:
            return None
        failures, self._failures = self._failures, Failures()
        return failures

    def wait_for_layer_load(self, layer_name: str) -> None:
        """Nothing to wait for: :meth:`start_load_kv` ends when the bytes are there."""

    def save_kv_layer(
        self, layer_name: str, kv_layer: torch.Tensor, attn_metadata: Any, **kwargs: Any
    ) -> None:
        """Nothing is saved as it is computed, only as it is evicted."""

    def wait_for_save(self) -> None:
        """Nothing to wait for."""


class _Layer:
    """One layer's blocks in the GPU and their copies on the host.

    Where the "GPU" is the CPU, NumPy copies: torch would wake all its threads for every layer, and
    take many times as long.

    Args:
        on_gpu: The layer's KV cache, blocks first.
        host_blocks: How many copies there is room for.
    """

    def __init__(self, on_gpu: torch.Tensor, host_blocks: int) -> None:
        shape = (host_blocks, *on_gpu.shape[1:])
        on_host = torch.empty(shape, dtype=on_gpu.dtype, pin_memory=on_gpu.is_cuda)
        self.on_host = on_host
        self._on_gpu = on_gpu
        self._bytes = None if on_gpu.is_cuda else (_as_bytes(on_gpu), _as_bytes(on_host))

    def copy_out(self, gpu: Sequence[int], host: Sequence[int]) -> None:
        """Copy GPU blocks to host slots."""
        if self._bytes is not None:
            on_gpu, on_host = self._bytes
            on_host[list(host)] = on_gpu[list(gpu)]
        else:
            taken = self._on_gpu.index_select(0, torch.tensor(gpu, device=self._on_gpu.device))
            self.on_host.index_copy_(0, torch.tensor(host), taken.cpu())

    def read_back(self, host: Sequence[int], gpu: Sequence[int]) -> None:
        """Copy host slots to GPU blocks."""
        if self._bytes is not None:
            on_gpu, on_host = self._bytes
            on_gpu[list(gpu)] = on_host[list(host)]
        else:
            kept = self.on_host.index_select(0, torch.tensor(host)).to(self._on_gpu.device)
            self._on_gpu.index_copy_(0, torch.tensor(gpu, device=self._on_gpu.device), kept)


_SAME_SIZE = {1: torch.uint8, 2: torch.int16, 4: torch.int32}


def _as_bytes(tensor: torch.Tensor) -> np.ndarray:
    """The same memory for NumPy, which does not know bfloat16."""
    return tensor.view(_SAME_SIZE[tensor.element_size()]).numpy()


def _blocks_first(layer: torch.Tensor, blocks: int) -> torch.Tensor:
    """A view whose first dimension counts blocks.

    Some backends have keys and values before it; some cut blocks into several smaller ones.
    """
    for dimension in (0, 1):
        if layer.shape[dimension] % blocks == 0:
            first = layer.movedim(dimension, 0)
            return first.view(blocks, -1, *first.shape[1:])
    msg = f"found no dimension of {blocks} blocks in a KV cache of shape {tuple(layer.shape)}"
    raise RuntimeError(msg)
