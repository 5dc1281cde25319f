"""Exact prefixes on disk: what the knowledge tree holds, kept for after a restart.

A file holds the keys and values of one document after one particular text, in whole blocks: what a
node of the tree holds, of layers with a window their last blocks. So a request reads files up to a
document's end, where all layers have what they need, and not up to a place within it. A file is
written as soon as its document was computed, not when it is evicted, so that neither an eviction
nor a crash loses it. A request reads what neither the GPU nor the host has.

vLLM's names of blocks may differ in the next process, so files have names of our own: a hash of the
tenant and of all tokens up to the document's end. A key stays at its position and is not turned, so
that what is read is what was computed, bit for bit.
"""

from __future__ import annotations

import hashlib
from array import array
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from ragcache_integrations.core.prompt import Span
from ragcache_integrations.engine.protocol import KEY_BYTES
from ragcache_integrations.knowledge_tree.tier import Windows

from .disk import DiskIndex
from .paged import NO_BLOCK, Tables, table
from .plan import Load
from .worker import Fetch, Moves, Save

__all__ = ["StoredPrefixes", "prefix_keys"]


@dataclass(slots=True)
class _Known:
    """A request with documents.

    Attributes:
        ends: 0, and where each document ends, or the text before them, in tokens of whole blocks.
        keys: One for each but the first of these.
        kept: How many have been computed or read, and written.
    """

    ends: tuple[int, ...]
    keys: tuple[bytes, ...]
    kept: int = 0

    def parts(self) -> Iterator[tuple[bytes, int, int]]:
        """Keys and spans, in order."""
        for key, (begin, end) in zip(self.keys, pairwise(self.ends), strict=True):
            yield key, begin, end


@dataclass(eq=False)
class StoredPrefixes:
    """The scheduler's side.

    Attributes:
        disk: What is on disk.
        scheduler: vLLM's scheduler.
        windows: Which blocks of a document layers keep.
        cache_depth: How many of a request's first documents are kept; ``None`` for all.
    """

    disk: DiskIndex
    scheduler: Any
    windows: Windows
    cache_depth: int | None

    def __post_init__(self) -> None:
        self._size: int = self.scheduler.block_size
        self._known: dict[str, _Known] = {}
        self._found: tuple[str, list[Load]] = "", []  # of the request that was matched last
        self._fetches: dict[bytes, Fetch] = {}
        self._loads: list[tuple[Load, Tables]] = []
        self._loaded: dict[str, int] = {}

    def enter(self, request: Any, spans: Sequence[Span]) -> None:
        """Name what a new request begins with."""
        kept = spans[: self.cache_depth]
        places = (kept[0][1], *(end for _, _, end in kept))
        ends = tuple(dict.fromkeys((0, *(at // self._size * self._size for at in places))))
        keys = prefix_keys(request.cache_salt or "", request.prompt_token_ids, ends)
        self._known[request.request_id] = _Known(ends, keys)

    def leave(self, request_ids: Iterable[str]) -> None:
        """Forget requests that have ended."""
        for name in request_ids:
            self._known.pop(name, None)
            self._loaded.pop(name, None)

    def match(self, request: Any, computed: int) -> int:
        """How many tokens after those in the GPU and on the host the disk has.

        Args:
            request: A waiting request.
            computed: Those tokens, in whole blocks.
        """
        found: list[Load] = []
        self._found = request.request_id, found
        known = self._known.get(request.request_id)
        if known is None or request.skip_reading_prefix_cache:
            return 0
        usable, at = (request.num_tokens - 1) // self._size * self._size, computed
        for key, begin, end in known.parts():
            if end <= at:
                continue
            if begin > at or at >= usable:
                break
            self.disk.look(key, end - begin)
            if key not in self.disk:
                break
            stop = min(end, usable)
            if stop < end and not self.windows.whole:
                break  # the window before this place is not in the file
            found.append(Load(key, begin, at, stop, end - begin))
            at = stop
        return at - computed

    def admit(self, request: Any, blocks: Any, external: int) -> int:
        """A request is admitted.

        Args:
            request: The request.
            blocks: Its blocks.
            external: Tokens that come from the host or the disk.

        Returns:
            How many of these :meth:`match` has just counted.
        """
        name = request.request_id
        (matched, found), self._found = self._found, ("", [])
        known = self._known.get(name)
        if known is None:
            return 0
        # Those before go last, as in the tree, because without them the others are of no use.
        self.disk.access(reversed(known.keys))
        if matched != name or not external:
            return 0
        tables = table(blocks)
        for load in found:
            self._loads.append((load, tables))
            self._fetches[load.key] = Fetch(load.key, load.tokens, stays=False)
        self._loaded[name] = sum(load.end - load.first for load in found)
        return self._loaded[name]

    def take_loaded(self, request_id: str) -> int:
        """Tokens that were read for a request when it was admitted."""
        return self._loaded.pop(request_id, 0)

    def add_moves(self, moves: Moves, plan: Any) -> None:
        """Add what the worker is to read before a planned step, and to write after it."""
        moves.fetches += self._fetches.values()
        moves.loads += self._loads
        self._fetches, self._loads = {}, []
        reading = {load.key for load, _ in moves.loads}
        for name, count in plan.num_scheduled_tokens.items():
            known = self._known.get(name)
            if known is not None and known.kept < len(known.keys):
                computed = self.scheduler.requests[name].num_computed_tokens + count
                moves.saves += self._saves(name, known, computed, reading)

    def _saves(
        self, name: str, known: _Known, computed: int, reading: set[bytes]
    ) -> Iterator[Save]:
        blocks = table(self.scheduler.kv_cache_manager.get_blocks(name))
        for number, (key, begin, end) in enumerate(known.parts()):
            if number < known.kept:
                continue
            if end > computed:
                break
            known.kept += 1
            if not self._has_all(blocks, begin, end):
                continue  # it was read, and some of it is in no window any more
            self.disk.look(key, end - begin)
            if key not in self.disk and self.disk.add(key, end - begin, reading):
                reading.add(key)
                self.disk.access(reversed(known.keys[:number]))
                yield Save(key, begin, end, blocks, stays=False, written=True, waits=False)

    def _has_all(self, blocks: Tables, begin: int, end: int) -> bool:
        """Whether a request still has all blocks that are kept of a document."""
        first, last = begin // self._size, end // self._size
        return all(
            NO_BLOCK not in numbers[self.windows.first(group, first, last) : last]
            for group, numbers in enumerate(blocks)
        )


def prefix_keys(salt: str, token_ids: Sequence[int], ends: Sequence[int]) -> tuple[bytes, ...]:
    """Keys of the parts of a prompt, each with all that is before it.

    Args:
        salt: The tenant.
        token_ids: The prompt.
        ends: 0, and where each part ends.
    """
    tenant = salt.encode("utf-8", "surrogatepass")  # it may hold any character
    content = hashlib.sha256(b"prefix %d " % len(tenant) + tenant)
    keys = []
    for begin, end in pairwise(ends):
        content.update(array("I", [end - begin, *token_ids[begin:end]]).tobytes())
        keys.append(content.digest()[:KEY_BYTES])
    return tuple(keys)
