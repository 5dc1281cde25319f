"""The knowledge tree (RAGCache §5.1): documents' KV caches over GPU and host memory.

The tree decides, its caller moves the bytes. It deals in blocks, as paged KV caches do: a block
belongs to the document in which its last token falls, because its content depends on everything
before; if its key covers tokens after it, the last of these counts. Eviction takes the
lowest-priority leaf of a tier, last block first, and only as many blocks as are needed; what
requests wait for goes only once nothing else is left. Not thread-safe: its caller is a scheduler.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from operator import attrgetter
from typing import Generic, NamedTuple, TypeVar

from ragcache_integrations.core.memo import Memo
from ragcache_integrations.errors import ConfigurationError

from .node import History, Key, Node
from .path import Path, Span
from .policies import DEFAULT_POLICY, POLICIES
from .popularity import Popularity
from .prefill_cost import PrefillCostModel
from .snapshot import TreeSnapshot, snapshot_children
from .stats import Tally, TreeStats
from .tier import Tier

__all__ = ["Copy", "KnowledgeTree"]

Slot = TypeVar("Slot")

HISTORY = 100_000
"""Evicted documents whose frequency and cost are remembered."""

SAMPLE = 8192
"""Of a larger cache, a part of about this many blocks is simulated to tune the half-life."""

NO_SLOT = -1
"""Host slot of a block that was evicted from the GPU in this step."""


class Copy(NamedTuple, Generic[Slot]):
    """A block to copy from the GPU to the host, before its GPU memory is used again."""

    gpu: Slot
    host: int


class KnowledgeTree(Generic[Slot]):
    """Nodes, tiers and statistics.

    A GPU block is in use, idle or gone. The caller reports when one becomes idle
    (:meth:`release`) and when it is used again (:meth:`reuse`), and asks for some back when memory
    is short (:meth:`evict`). What was evicted for the first time is then copied to the host
    (:meth:`swap_out`), where its copy stays while the block is in the cache at all, so that later
    evictions copy nothing.

    Args:
        block_size: Tokens per block.
        lookahead: Tokens after a block that its key covers. With EAGLE and MTP vLLM's hashes do,
            because the draft model's KV cache depends on them.
        gpu_blocks: Capacity of the GPU in blocks, those in use included.
        host_blocks: Capacity of the host tier in blocks; 0 for none.
        policy: ``lrfu``, ``pgdsf``, ``gdsf``, ``lru`` or ``lfu``.
        prefill_seconds: T(alpha, beta), the time to prefill beta tokens after alpha cached
            ones.
        cache_depth: Only the first documents of a request are kept (RAGCache §8); ``None`` for all.
        frequency_window: Seconds for which accesses count towards the frequency; ``None`` for ever.
        now: Clock for the window, in seconds.

    Raises:
        ConfigurationError: An argument is out of its range.
    """

    def __init__(
        self,
        *,
        block_size: int,
        lookahead: int = 0,
        gpu_blocks: int,
        host_blocks: int = 0,
        policy: str = DEFAULT_POLICY,
        prefill_seconds: Callable[[int, int], float] | None = None,
        cache_depth: int | None = None,
        frequency_window: float | None = None,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        if block_size < 1 or gpu_blocks < 1 or lookahead < 0 or host_blocks < 0:
            msg = (
                "block_size and gpu_blocks must be at least 1, lookahead and host_blocks at least "
                f"0, got {block_size}, {gpu_blocks}, {lookahead} and {host_blocks}"
            )
            raise ConfigurationError(msg)
        if policy not in POLICIES:
            msg = f"unknown policy {policy!r}: allowed are {', '.join(POLICIES)}"
            raise ConfigurationError(msg)
        if cache_depth is not None and cache_depth < 1:
            msg = f"cache_depth must be at least 1 document, or None, got {cache_depth}"
            raise ConfigurationError(msg)
        if frequency_window is not None and not frequency_window > 0:
            msg = f"frequency_window must be above 0 seconds, or None, got {frequency_window}"
            raise ConfigurationError(msg)
        self.block_size = block_size
        self._lookahead = lookahead
        self.gpu_blocks = gpu_blocks
        self.host_blocks = host_blocks
        self.policy = policy
        self._prefill_seconds = prefill_seconds or PrefillCostModel.default()
        self._cache_depth = cache_depth
        self._frequency_window = frequency_window
        self._now = now
        self.gpu: Tier[Slot] = Tier(attrgetter("gpu"), POLICIES[policy])
        self.host: Tier[int] = Tier(attrgetter("host"), POLICIES[policy])
        self._tally = Tally()
        self._start()

    def _start(self) -> None:
        self.root = Node(("", None), None, None, ())
        self._owners: dict[Key, Node] = {}
        self._history: Memo[Key, History] = Memo(HISTORY)
        self._accesses = 0
        blocks = self.gpu_blocks + self.host_blocks
        self._popularity = Popularity(blocks, every=-(-blocks // SAMPLE))
        self._free_host_slots = list(range(self.host_blocks - 1, -1, -1))
        self._leaving: dict[Key, Slot] = {}  # evicted from the GPU, not yet copied to the host
        self._versions: dict[tuple[Node, str], Key] = {}
        self._count_nodes = 0

    # Requests

    def enter(self, namespace: str, spans: Sequence[Span], keys: Sequence[Key]) -> Path:
        """Find a request's path, making what nodes are missing.

        Args:
            namespace: Tenant; whose ``keys`` must differ from every other tenant's.
            spans: The prompt's documents, in order and without overlap.
            keys: The prompt's full blocks, in order. A key stands for the block's content and all
                that is before it.

        Raises:
            ValueError: There are no documents.
        """
        if not spans:
            msg = "a path needs at least one document, got no spans"
            raise ValueError(msg)
        kept = spans[: self._cache_depth]
        node, begin, nodes, ends = self.root, 0, [], []
        start = 0
        boundaries = [(namespace, kept[0][1]), *((name, end) for name, _, end in kept)]
        for name, token_end in boundaries:
            end = min(max(0, token_end - self._lookahead) // self.block_size, len(keys))
            node = self._child(node, name, keys, begin, end)
            node.tokens = token_end - start
            node.requests += 1
            nodes.append(node)
            ends.append(end)
            begin, start = end, token_end
        return Path(tuple(nodes), tuple(ends), tuple(spans))

    def access(self, path: Path, gpu_tokens: int, host_tokens: int, prompt_tokens: int) -> None:
        """Count a request's access when it is admitted (RAGCache algorithm 1, lines 1-13).

        Args:
            path: From :meth:`enter`.
            gpu_tokens: Leading tokens of the prompt found in the GPU.
            host_tokens: Tokens after them that were found in the host tier.
            prompt_tokens: Length of the prompt.
        """
        if path.accessed or path.closed or self._void(path):
            return
        path.accessed = True
        self._accesses += 1
        cached = gpu_tokens + host_tokens
        computed = max(1, prompt_tokens - cached)
        cost = self._prefill_seconds(cached, computed) / computed
        now = path.accessed_at = self._now() if self._frequency_window is not None else 0.0
        path.counted_at = self._popularity.advance(path.ends[-1])
        for node, end in zip(path.nodes, path.ends, strict=True):
            node.running += 1
            node.last_access = self._accesses
            self._count(node.history, now)
            self._popularity.count(node.history, len(node.keys))
            if end * self.block_size > cached:
                node.history.total_cost += cost
                node.history.computed += 1
            self.gpu.price(node)
            self.host.price(node)
        self._tally.access(path.spans, self.block_size, gpu_tokens, cached, self._lookahead)

    def retract(self, path: Path) -> None:
        """Take an access back: the request was a guess, and its documents were not asked for.

        Their frequencies are what they would be without it. What computing them cost stays known.
        It may have left meanwhile. One that was not accessed is ignored.
        """
        if not path.accessed or path.retracted or self._void(path):
            return
        path.retracted = True
        for node in path.nodes:
            self._uncount(node.history, path.accessed_at)
            self._popularity.take_back(node.history, path.counted_at)
            self.gpu.price(node)
            self.host.price(node)

    def leave(self, path: Path) -> None:
        """A request has finished or was aborted. Its blocks were released before."""
        if path.closed:
            return
        path.closed = True
        if self._void(path):
            return
        for node in reversed(path.nodes):
            node.requests -= 1
            node.running -= path.accessed
            if not node.requests:
                self.gpu.spare(node)
                self.host.spare(node)
            self._forget_if_unused(node)

    # GPU tier

    def owner(self, key: Key) -> Node | None:
        """The node to which a block belongs; ``None`` for text after the documents."""
        return self._owners.get(key)

    def release(self, key: Key, slot: Slot) -> bool:
        """A GPU block is in use no more.

        Returns:
            Whether the tree keeps it; ``False`` for a block of no document and for a second copy.
        """
        node = self._owners.get(key)
        if node is None:
            return False
        if key in self.gpu.slots:
            self.gpu.touch(node, key)
            return False
        self.gpu.add_idle(node, key, slot)
        if key in self._leaving:  # another copy of it was evicted in this step
            del self._leaving[key]
            self.host.remove(node, key)
        elif key in self.host.slots:
            self.host.hold(node, key)
        return True

    def reuse(self, key: Key, slot: Slot) -> bool:
        """A GPU block is in use again.

        Returns:
            Whether the tree had kept it.
        """
        if self.gpu.slots.get(key) != slot:
            return False
        self.gpu.remove(self._owners[key], key)
        return True

    def evict(self, blocks: int) -> list[Slot]:
        """Evict idle GPU blocks (RAGCache algorithm 1, lines 15-23).

        Args:
            blocks: How many; at least this many must be idle.
        """
        if blocks > len(self.gpu):
            msg = f"asked to evict {blocks} blocks, only {len(self.gpu)} are idle"
            raise RuntimeError(msg)
        slots: list[Slot] = []
        while len(slots) < blocks and (evicted := self.gpu.evict(blocks - len(slots))):
            node, gone = evicted
            for key, slot in gone:
                slots.append(slot)
                if key in self.host.slots:
                    self.host.release(node, key)  # swapped out only once
                elif self.host_blocks:
                    # Its place is taken at once, so that nothing before it can be evicted first.
                    if node.host.empty:
                        self.host.price(node)  # starts from the host's clock
                    self.host.add_idle(node, key, NO_SLOT)
                    self._leaving[key] = slot
            self._tally.evicted("gpu", len(gone), whole=node.gpu.empty)
            self._forget_if_unused(node)
        return slots

    # Host tier

    def on_host(self, keys: Sequence[Key], start: int) -> int:
        """How many of the blocks from ``start`` on are in the host tier without a gap."""
        slots, stop = self.host.slots, start
        while stop < len(keys) and slots.get(keys[stop], NO_SLOT) != NO_SLOT:
            stop += 1
        return stop - start

    def swap_in(self, keys: Iterable[Key]) -> list[int]:
        """Read blocks back into the GPU: their host slots. The host copies stay."""
        slots = [self.host.hold(self._owners[key], key) for key in keys]
        self._tally["swap_ins"] += len(slots)
        return slots

    def swap_out(self) -> list[Copy[Slot]]:
        """Take what was evicted from the GPU since the last call into the host tier.

        Where that is too much, the lowest-priority leaves go, newcomers among them.

        To be called once all blocks that this step reads back are swapped in, so that none of
        their slots is given away.
        """
        while (excess := len(self.host) - self.host_blocks) > 0:
            evicted = self.host.evict(excess)
            if evicted is None:
                break
            node, gone = evicted
            slots = [slot for _, slot in gone if slot != NO_SLOT]
            for key, slot in gone:
                if slot == NO_SLOT:
                    del self._leaving[key]
            self._free_host_slots += slots
            self._tally["dropped"] += len(gone) - len(slots)
            self._tally.evicted("host", len(slots), whole=bool(slots) and node.host.empty)
            self._forget_if_unused(node)
        copies = []
        for key, gpu_slot in self._leaving.items():
            host_slot = self.host.slots[key] = self._free_host_slots.pop()
            copies.append(Copy(gpu_slot, host_slot))
        self._leaving.clear()
        self._tally["swap_outs"] += len(copies)
        return copies

    # All of it

    def clear(self) -> None:
        """Forget every node, block and frequency. The statistics continue.

        No GPU block may be in use. Paths from before are void: nothing is kept for them any more.
        """
        self.gpu.clear()
        self.host.clear()
        self._start()

    def stats(self) -> TreeStats:
        """What happened so far, and what the tree holds."""
        return TreeStats(
            **self._tally,
            gpu_clock=self.gpu.clock,
            host_clock=self.host.clock,
            gpu_idle_blocks=len(self.gpu),
            host_used_blocks=len(self.host) - len(self._leaving),
            host_blocks=self.host_blocks,
            nodes=self._count_nodes,
        )

    def snapshot(self) -> TreeSnapshot:
        """The tree to look at."""
        return TreeSnapshot(
            policy=self.policy,
            block_size=self.block_size,
            gpu_clock=self.gpu.clock,
            host_clock=self.host.clock,
            roots=snapshot_children(self.root),
        )

    def nodes(self) -> Iterator[Node]:
        """Every node but the root, parents first."""
        waiting = deque([self.root])
        while waiting:
            for node in waiting.popleft().children.values():
                yield node
                waiting.append(node)

    # Inside

    def _void(self, path: Path) -> bool:
        """Whether all was forgotten since the path was entered."""
        return path.nodes[0].under is not self.root

    def _child(self, under: Node, name: str, keys: Sequence[Key], begin: int, end: int) -> Node:
        label = (name, keys[end - 1] if end > begin else None)
        child = under.children.get(label)
        return child or self._new_node(under, label, keys, begin, end)

    def _new_node(
        self,
        under: Node,
        label: tuple[str, Key | None],
        keys: Sequence[Key],
        begin: int,
        end: int,
    ) -> Node:
        # Another path may own the first blocks already, such as a conversation's earlier turns.
        parent = under
        while begin < end and (owner := self._owners.get(keys[begin])) is not None:
            parent = owner
            begin += 1
        node = Node(label, parent, under, tuple(keys[begin:end]))
        under.children[label] = node
        parent.links += 1
        for key in node.keys:
            self._owners[key] = node
        if node.keys and (history := self._history.pop(node.keys[-1], None)) is not None:
            node.history = history
        self._count_nodes += 1
        self._note_version(under, label)
        return node

    def _note_version(self, under: Node, label: tuple[str, Key | None]) -> None:
        """Notice an id that stands for other text than before. It is never served: keys differ."""
        name, last = label
        if under is self.root or last is None:
            return
        known = self._versions.get((under, name))
        if known is not None and known != last:
            self._tally["changed_documents"] += 1
        self._versions[under, name] = last

    def _count(self, history: History, now: float) -> None:
        if self._frequency_window is None:
            history.frequency += 1
            return
        times = history.times
        if times is None:
            times = history.times = deque()
        times.append(now)
        while times[0] < now - self._frequency_window:
            times.popleft()
        history.frequency = len(times)

    def _uncount(self, history: History, counted_at: float) -> None:
        times = history.times
        if times is None:
            history.frequency -= 1
        elif counted_at in times:  # otherwise it has left the window meanwhile
            times.remove(counted_at)
            history.frequency = len(times)

    def _forget_if_unused(self, node: Node) -> None:
        """Drop a node that holds nothing; its history is kept in case it comes back."""
        candidates = [node]
        while candidates:
            node = candidates.pop()
            parent, under = node.parent, node.under
            if (
                parent is None
                or under is None
                or under.children.get(node.label) is not node
                or node.requests
                or node.links
                or node.children
                or not (node.gpu.empty and node.host.empty)
            ):
                continue
            del under.children[node.label]
            parent.links -= 1
            for key in node.keys:
                del self._owners[key]
            if node.keys and node.history.frequency:
                self._history[node.keys[-1]] = node.history
            if self._versions.get((under, node.name)) == node.label[1]:
                self._versions.pop((under, node.name), None)
            self._count_nodes -= 1
            candidates.append(parent)
            if under is not parent:
                candidates.append(under)
