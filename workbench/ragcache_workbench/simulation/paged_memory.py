"""Paged GPU memory as vLLM keeps it, for one request at a time; content is left out.

Blocks are named by integers that stand for their content and all before it, as vLLM's hashes do.
What a request may reuse is a prefix of whole blocks, and at least the last token of its prompt is
computed (vLLM 0.32, ``v1/core/kv_cache_manager.py``: ``get_computed_blocks``). A request ends with
its last block freed first; a block that never became full goes to the front of the free blocks
(``v1/core/block_pool.py``: ``free_blocks``).
"""

from __future__ import annotations

import itertools
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass

from ragcache_integrations.knowledge_tree.node import Path, Span
from ragcache_integrations.knowledge_tree.stats import Tally, TreeStats
from ragcache_integrations.knowledge_tree.tree import KnowledgeTree

from .traces import Trace, TraceRequest

__all__ = ["CachedPrefix", "PagedMemory", "PagedRequest", "Pager", "StockMemory", "TreeMemory"]

BLOCK_BITS = 24
"""A key is the number of a path and, in its last bits, the number of a block in the prompt."""


@dataclass(slots=True, eq=False)
class PagedRequest:
    """A request cut into blocks.

    Attributes:
        spans: Its documents.
        prompt_tokens: Length of the prompt.
        keys: Its full blocks in order, those of the answer included.
        prompt_keys: How many of them lie in the prompt.
        blocks: How many blocks it needs in all.
        topic: The same for all requests that begin with the same document.
        namespace: The tenant.
        path: Its way through the tree, once it has entered.
    """

    spans: tuple[Span, ...]
    prompt_tokens: int
    keys: list[int]
    prompt_keys: int
    blocks: int
    topic: int
    namespace: str = ""
    path: Path | None = None


class Pager:
    """Cuts requests into blocks and names these.

    A block belongs to the part of the prompt in which its last token falls.

    Args:
        trace: Where the requests come from.
        block_size: Tokens per block.
        output_tokens: Length of every answer. The last token of an answer is never computed, so
            that it needs no memory.
    """

    def __init__(self, trace: Trace, block_size: int, output_tokens: int) -> None:
        self._system_tokens = trace.system_tokens
        self._block_size = block_size
        self._output_tokens = output_tokens
        self._paths: dict[tuple[int, str, int], int] = {}
        self._numbers = itertools.count(1)

    def blocks(self, prompt_tokens: int) -> int:
        """How many blocks a request with such a prompt needs."""
        return -(-(prompt_tokens + self._output_tokens - 1) // self._block_size)

    def page(self, request: TraceRequest) -> PagedRequest:
        """Cut a request into blocks."""
        size, end = self._block_size, self._system_tokens
        path = self._path(0, request.namespace, 0) if request.namespace else 0
        keys = list(_keys(path, 0, end // size))
        spans: list[Span] = []
        topic = None
        for name, tokens in request.documents:
            spans.append((name, end, end + tokens))
            path, end = self._path(path, name, tokens), end + tokens
            topic = topic or path
            keys += _keys(path, len(keys), end // size)
        if request.question is None:
            path = next(self._numbers)
        else:  # no document has a negative length
            path = self._path(path, request.question, -request.question_tokens)
        end += request.question_tokens
        full = (end + self._output_tokens - 1) // size
        keys += _keys(path, len(keys), full)
        return PagedRequest(
            tuple(spans),
            end,
            keys,
            end // size,
            self.blocks(end),
            topic or path,
            request.namespace,
        )

    def _path(self, before: int, name: str, tokens: int) -> int:
        step = (before, name, tokens)
        path = self._paths.get(step)
        if path is None:
            path = self._paths[step] = next(self._numbers)
        return path


def _keys(path: int, begin: int, end: int) -> range:
    return range(path << BLOCK_BITS | begin, path << BLOCK_BITS | end)


@dataclass(frozen=True, slots=True)
class CachedPrefix:
    """Leading tokens of a prompt that were found in the GPU, and after them on the host."""

    gpu_tokens: int
    host_tokens: int

    @property
    def cached_tokens(self) -> int:
        """In either tier."""
        return self.gpu_tokens + self.host_tokens


class TreeMemory:
    """Memory that a knowledge tree rules over, which serves one request at a time.

    Blocks of no document stay cached in the order of their last use until they are taken, which
    happens before any document's block is.

    Args:
        gpu_blocks: Capacity.
        tree: Whose GPU slots are block numbers from 0 on.
    """

    def __init__(self, gpu_blocks: int, tree: KnowledgeTree[int]) -> None:
        self._tree = tree
        self._block_size = tree.block_size
        self._free = list(range(gpu_blocks))
        self._anonymous: OrderedDict[int, int] = OrderedDict()

    def enter(self, request: PagedRequest) -> None:
        """A request has arrived."""
        if request.spans:
            keys = request.keys[: request.prompt_keys]
            request.path = self._tree.enter(request.namespace, request.spans, keys)

    def find(self, request: PagedRequest) -> CachedPrefix:
        """What of its prompt is cached now."""
        gpu, host = self._find(request, request.keys[: _reusable(request, self._block_size)])
        return CachedPrefix(gpu * self._block_size, host * self._block_size)

    def serve(self, request: PagedRequest) -> CachedPrefix:
        """Run a request from its prefill to its end.

        Returns:
            What was cached when it began.
        """
        tree, size = self._tree, self._block_size
        keys = request.keys[: _reusable(request, size)]
        hits, on_host = self._find(request, keys)
        tree.charge(request.namespace, request.blocks)
        slots = [self._use(key) for key in keys[:hits]]
        slots += self._take(request.blocks - hits)
        tree.swap_in(keys[hits : hits + on_host])
        prefix = CachedPrefix(hits * size, on_host * size)
        if request.path is not None:
            tree.access(request.path, prefix.gpu_tokens, prefix.host_tokens, request.prompt_tokens)
        tree.swap_out()
        tree.charge(request.namespace, -request.blocks)
        self._release(request.keys, slots)
        if request.path is not None:
            tree.leave(request.path)
        return prefix

    def stats(self) -> TreeStats:
        """What happened so far."""
        return self._tree.stats()

    def _find(self, request: PagedRequest, keys: Sequence[int]) -> tuple[int, int]:
        kept, anonymous = self._tree.gpu.slots, self._anonymous
        hits = 0
        for key in keys:
            if key not in kept and key not in anonymous:
                break
            hits += 1
        return hits, self._tree.on_host(keys, hits) if request.path is not None else 0

    def _use(self, key: int) -> int:
        slot = self._anonymous.pop(key, None)
        if slot is None:
            slot = self._tree.gpu.slots[key]
            self._tree.reuse(key, slot)
        return slot

    def _take(self, blocks: int) -> list[int]:
        kept = max(0, len(self._free) - blocks)
        taken = self._free[kept:]
        del self._free[kept:]
        while len(taken) < blocks and self._anonymous:
            taken.append(self._anonymous.popitem(last=False)[1])
        if len(taken) < blocks:
            taken += self._tree.evict(blocks - len(taken))
        return taken

    def _release(self, keys: Sequence[int], slots: Sequence[int]) -> None:
        self._free += slots[len(keys) :]
        release, anonymous = self._tree.release, self._anonymous
        for key, slot in zip(reversed(keys), reversed(slots[: len(keys)]), strict=True):
            if release(key, slot):
                continue
            if key in self._tree.gpu.slots:
                self._free.append(slot)  # computed again, though it was cached: its last token
            else:
                older = anonymous.pop(key, None)
                if older is not None:
                    self._free.append(older)
                anonymous[key] = slot


class StockMemory:
    """Memory as vLLM itself rules over it: the block that was least recently used goes first.

    Args:
        gpu_blocks: Capacity, without the one block that vLLM keeps to itself.
        block_size: Tokens per block.
    """

    def __init__(self, gpu_blocks: int, block_size: int) -> None:
        self._block_size = block_size
        self._free = list(range(gpu_blocks))
        self._idle: OrderedDict[int, int] = OrderedDict()  # key by slot, the next to go first
        self._cached: dict[int, int] = {}  # slot by key
        # A prompt that is cached to its end has its last block computed again; both copies stay.
        self._copies: dict[int, list[int]] = {}
        self._tally = Tally()

    def enter(self, request: PagedRequest) -> None:
        """A request has arrived."""

    def find(self, request: PagedRequest) -> CachedPrefix:
        """What of its prompt is cached now."""
        hits = 0
        for key in request.keys[: _reusable(request, self._block_size)]:
            if key not in self._cached:
                break
            hits += 1
        return CachedPrefix(hits * self._block_size, 0)

    def serve(self, request: PagedRequest) -> CachedPrefix:
        """Run a request from its prefill to its end."""
        prefix = self.find(request)
        hits = prefix.gpu_tokens // self._block_size
        slots = [self._cached[key] for key in request.keys[:hits]]
        for slot in slots:
            del self._idle[slot]
        slots += self._take(request.blocks - hits)
        full = len(request.keys)
        for key, slot in zip(request.keys[hits:], slots[hits:full], strict=True):
            if self._cached.setdefault(key, slot) != slot:
                self._copies.setdefault(key, []).append(slot)
        self._free += slots[full:]
        for key, slot in zip(reversed(request.keys), reversed(slots[:full]), strict=True):
            self._idle[slot] = key
        if request.spans:
            self._tally.access(
                request.spans, self._block_size, prefix.gpu_tokens, prefix.gpu_tokens
            )
        return prefix

    def stats(self) -> TreeStats:
        """What happened so far; what only a tree counts is 0."""
        return TreeStats(**self._tally, shares=())

    def _take(self, blocks: int) -> list[int]:
        kept = max(0, len(self._free) - blocks)
        taken = self._free[kept:]
        del self._free[kept:]
        self._tally["gpu_evicted_blocks"] += blocks - len(taken)
        while len(taken) < blocks:
            slot, key = self._idle.popitem(last=False)
            taken.append(slot)
            copies = self._copies.get(key)
            if copies is None:
                del self._cached[key]
                continue
            if self._cached[key] == slot:
                self._cached[key] = copies.pop(0)
            else:
                copies.remove(slot)
            if not copies:
                del self._copies[key]
        return taken


PagedMemory = TreeMemory | StockMemory
"""GPU memory that serves one request at a time."""


def _reusable(request: PagedRequest, block_size: int) -> int:
    """How many blocks may be reused, so that the last token of the prompt is computed."""
    return (request.prompt_tokens - 1) // block_size
