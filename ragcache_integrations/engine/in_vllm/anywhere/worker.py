"""The worker's side of reuse anywhere: bytes of documents, moved as the scheduler decides."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Collection
from dataclasses import dataclass, field

from .codecs import Encoded, codec_of
from .disk import DiskWorker
from .files import DocumentFileError
from .paged import NO_BLOCK, GroupedMemory, Tables
from .plan import Load

__all__ = ["Moves", "StoreWorker"]

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Save:
    """A document that a step computes the last token of.

    Attributes:
        key: Its key.
        begin, end: Its span in the request.
        blocks: The request's blocks.
        stays: Whether it stays in memory.
        written: Whether it is written to the disk.
        waits: Whether the step waits where much is to be written; else this is left out.
    """

    key: bytes
    begin: int
    end: int
    blocks: Tables
    stays: bool
    written: bool
    waits: bool = True


@dataclass(frozen=True, slots=True)
class Fetch:
    """A document that comes from the disk.

    Attributes:
        key: Its key.
        tokens: Its length.
        stays: Whether it stays in memory after the step.
    """

    key: bytes
    tokens: int
    stays: bool


@dataclass(slots=True)
class Moves:
    """What the worker does in a step, in this order.

    Attributes:
        fetches: Documents that are brought from the disk.
        loads: Documents' tokens to be written into requests' blocks, which come with them.
        drops: Documents that are forgotten after the forward pass.
        removals: Names of documents that are removed from the disk after that.
        saves: Documents to be read out and kept after that.
        used: Names of documents on the disk that were used, the latest last.
    """

    fetches: list[Fetch] = field(default_factory=list)
    loads: list[tuple[Load, Tables]] = field(default_factory=list)
    drops: list[bytes] = field(default_factory=list)
    removals: list[bytes] = field(default_factory=list)
    saves: list[Save] = field(default_factory=list)
    used: list[bytes] = field(default_factory=list)


class StoreWorker:
    """Keeps documents' keys and values in the host's memory, and on the disk if there is one.

    Args:
        memory: The paged memory.
        block_size: Tokens of a block.
        steps: Most steps that are planned before the output of the first of them is known.
        disk: The disk; ``None`` for none.

    Attributes:
        memory: The paged memory.
        disk: The disk; ``None`` for none.
        lost: Keys of documents that could not be read or stored since this was last emptied.
        fault: Why the latest document could not be stored; empty if all could.
        unread: Numbers of blocks that could not be filled since then.
    """

    def __init__(
        self,
        memory: GroupedMemory,
        block_size: int,
        steps: int = 1,
        disk: DiskWorker | None = None,
    ) -> None:
        self.memory = memory
        self.disk = disk
        self._size = block_size
        self._documents: dict[bytes, Encoded] = {}
        self.lost: set[bytes] = set()
        self.fault = ""
        self.unread: set[int] = set()
        self._wrong: deque[set[int]] = deque(maxlen=steps)

    def load(self, moves: Moves) -> None:
        """Write documents into requests' blocks before the forward pass.

        What cannot be written makes the request's blocks unread: vLLM ends it, and it is submitted
        again to be computed exactly.
        """
        passing: dict[bytes, Encoded] = {}
        for fetch in moves.fetches:
            document = self._fetch(fetch)
            if document is not None:
                (self._documents if fetch.stays else passing)[fetch.key] = document
        for load, blocks in moves.loads:
            document = self._documents.get(load.key) or passing.get(load.key)
            if document is None or not self._write(document, load, blocks):
                self._documents.pop(load.key, None)
                self.lost.add(load.key)
                first, last = load.first // self._size, -(-load.end // self._size)
                self.unread |= _numbers(blocks, first, last)

    def save(self, moves: Moves, unread: Collection[int] = ()) -> None:
        """Forget and keep documents after the forward pass.

        Args:
            moves: What to do.
            unread: Numbers of further blocks that could not be filled before the pass. Nothing is
                kept that was computed from any of these: a step that was planned before vLLM knew
                of them may still do that.
        """
        self._wrong.append({*unread, *self.unread})
        wrong = set[int]().union(*self._wrong)
        for key in moves.drops:
            self._documents.pop(key, None)
        if self.disk is not None:
            self.disk.remove(moves.removals)
        for save in moves.saves:
            if not wrong.isdisjoint(_numbers(save.blocks, 0, -(-save.end // self._size))):
                self.lost.add(save.key)
                continue
            if not save.waits and self.disk is not None and self.disk.busy:
                self.disk.leave_out(save.key)
                continue
            try:
                document = self.memory.read(codec_of(save.key), save.blocks, save.begin, save.end)
            except Exception as error:
                logger.exception("a document could not be stored")
                self.fault = str(error)
                self.lost.add(save.key)
                continue
            if save.stays:
                self._documents[save.key] = document
            if save.written and self.disk is not None:
                self.disk.write(save.key, document)
        if self.disk is not None:
            self.disk.touch(moves.used)

    def close(self) -> None:
        """Write to the disk what waits for it."""
        if self.disk is not None:
            self.disk.close()

    def _fetch(self, fetch: Fetch) -> Encoded | None:
        """A document from the disk; ``None``, with a warning, if it can't be read."""
        if self.disk is None:
            return None
        try:
            return self.disk.read(fetch.key, fetch.tokens)
        except (DocumentFileError, OSError) as error:
            logger.warning("a document on disk is computed again: %s", error)
            self.lost.add(fetch.key)
            return None

    def _write(self, document: Encoded, load: Load, blocks: Tables) -> bool:
        """Write a document into a request's blocks; ``False``, with an error, if that fails."""
        try:
            self.memory.write(document, load, blocks)
        except Exception:
            logger.exception("a stored document could not be read")
            return False
        return True


def _numbers(blocks: Tables, first: int, last: int) -> set[int]:
    """Numbers of a request's blocks in all groups, from the first up to the last."""
    return {number for group in blocks for number in group[first:last]} - {NO_BLOCK}
