"""The worker's side of reuse anywhere: bytes of documents, moved as the scheduler decides."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from .paged import Encoded, PagedMemory
from .plan import Load

__all__ = ["Moves", "StoreWorker"]

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Save:
    """A document that a step computes the last token of.

    Attributes:
        key: Its key.
        begin, end: Its span in the request.
        blocks: Numbers of the request's blocks.
    """

    key: bytes
    begin: int
    end: int
    blocks: tuple[int, ...]


@dataclass(slots=True)
class Moves:
    """What the worker does in a step, in this order.

    Attributes:
        loads: Documents' tokens to be written into requests' blocks, whose numbers come with them.
        drops: Documents that are forgotten after the forward pass.
        saves: Documents to be read out and kept after that.
    """

    loads: list[tuple[Load, tuple[int, ...]]] = field(default_factory=list)
    drops: list[bytes] = field(default_factory=list)
    saves: list[Save] = field(default_factory=list)


class StoreWorker:
    """Keeps documents' keys and values in the host's memory.

    Args:
        layers: vLLM's attention layers by their names.
        caches: Their paged memory.
        block_size: Tokens of a block.

    Raises:
        LayoutError: The KV cache isn't understood.
    """

    def __init__(
        self, layers: Mapping[str, Any], caches: Mapping[str, Tensor], block_size: int
    ) -> None:
        self._memory = PagedMemory(layers, caches, block_size)
        self._size = block_size
        self._documents: dict[bytes, Encoded] = {}
        self.lost: set[bytes] = set()
        self.unread: set[int] = set()

    def load(self, moves: Moves) -> None:
        """Write documents into requests' blocks before the forward pass.

        What cannot be written makes the request's blocks unread: vLLM ends it, and it is submitted
        again to be computed exactly.
        """
        for load, blocks in moves.loads:
            try:
                document = self._documents[load.key]
                self._memory.write(document, load.begin, load.first, load.end, blocks)
            except Exception:
                logger.exception("a stored document could not be read")
                self._documents.pop(load.key, None)
                self.lost.add(load.key)
                first, last = load.first // self._size, -(-load.end // self._size)
                self.unread.update(blocks[first:last])

    def save(self, moves: Moves) -> None:
        """Forget and keep documents after the forward pass."""
        for key in moves.drops:
            self._documents.pop(key, None)
        for save in moves.saves:
            try:
                self._documents[save.key] = self._memory.read(save.blocks, save.begin, save.end)
            except Exception:
                logger.exception("a document could not be stored")
                self.lost.add(save.key)
