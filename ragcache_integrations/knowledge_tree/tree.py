"""The knowledge tree (RAGCache §5.1): documents' KV caches over GPU and host memory.

The tree decides, its caller moves the bytes. It deals in blocks, as paged KV caches do: a block
belongs to the document in which its last token falls, because its content depends on everything
before; if its key covers tokens after it, the last of these counts. Eviction takes the
lowest-priority leaf of a tier, last block first, and only as many blocks as are needed; what
requests wait for goes only once nothing else is left. Not thread-safe: its caller is a scheduler.

Layers that see a part of the prompt only have blocks of their own, in groups. The tree keeps those
that a prompt needs to continue after a document, and leaves the others to its caller (see
:class:`.Windows`).
"""

from __future__ import annotations

import itertools
import time
from collections import deque
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from operator import attrgetter
from typing import Any, Generic, NamedTuple, TypeVar

from ragcache_integrations.core.checks import (
    check_choice,
    check_field,
    check_int,
    check_seconds,
    or_none,
)
from ragcache_integrations.core.memo import Memo
from ragcache_integrations.errors import ConfigurationError

from .node import History, Key, Node, Path, Span, in_group
from .policies import DEFAULT_POLICY, POLICIES
from .prefill_cost import PrefillCostModel
from .promises import HINTED, Hints, Pins, chain
from .shares import Share, Shares, ShareStats, check_quotas
from .snapshot import TreeSnapshot, snapshot_children
from .stats import Tally, TreeStats
from .tier import Tier, Windows

__all__ = ["Copy", "KnowledgeTree"]

Slot = TypeVar("Slot")
AnySlot = TypeVar("AnySlot")

HISTORY = 100_000
"""Evicted documents whose frequency and cost are remembered."""

NO_SLOT = -1
"""Host slot of a block that was evicted from the GPU in this step."""


class Copy(NamedTuple, Generic[Slot]):
    """A block to copy from the GPU to the host, before its GPU memory is used again."""

    gpu: Slot
    host: int


@dataclass(eq=False, kw_only=True)
class KnowledgeTree(Generic[Slot]):
    """Nodes, tiers and statistics.

    A GPU block is in use, idle or gone. The caller reports when one becomes idle
    (:meth:`release`) and when it is used again (:meth:`reuse`), and asks for some back when memory
    is short (:meth:`evict`). What was evicted for the first time is then copied to the host
    (:meth:`swap_out`), where its copy stays while the block is in the cache at all, so that later
    evictions copy nothing.

    Attributes:
        block_size: Tokens per block.
        lookahead: Tokens after a block that its key covers. With EAGLE and MTP vLLM's hashes do,
            because the draft model's KV cache depends on them.
        gpu_blocks: Capacity of the GPU in blocks, those in use included.
        host_blocks: Capacity of the host tier in blocks; 0 for none.
        windows: Which blocks of a document its followers need.
        policy: ``lrfu``, ``pgdsf``, ``gdsf``, ``lru`` or ``lfu``.
        prefill_seconds: T(alpha, beta), the time to prefill beta tokens after alpha cached ones;
            ``None`` for the default model's.
        cache_depth: Only the first documents of a request are kept (RAGCache §8); ``None`` for all.
        frequency_window: Seconds for which accesses count towards the frequency; ``None`` for ever.
        quotas: Part of every tier that belongs to each of some tenants (see :mod:`.shares`); the
            others have the rest together.
        longest_request: Blocks of the longest request, of all groups, for which pins must leave
            room.
        now: Clock for the window and for pins, in seconds.

    Raises:
        ConfigurationError: An argument is out of its range.
    """

    block_size: int
    lookahead: int = 0
    gpu_blocks: int
    host_blocks: int = 0
    windows: Windows = field(default_factory=Windows)
    policy: str = DEFAULT_POLICY
    prefill_seconds: Callable[[int, int], float] | None = None
    cache_depth: int | None = None
    frequency_window: float | None = None
    quotas: Mapping[str, float] | None = None
    longest_request: int = 0
    now: Callable[[], float] = time.monotonic

    def __post_init__(self) -> None:
        check_field(self, check_int, "block_size", 1, unit="tokens")
        check_field(self, check_int, "gpu_blocks", 1)
        check_field(self, check_int, "lookahead", 0, unit="tokens")
        check_field(self, check_int, "host_blocks", 0)
        check_field(self, check_choice, "policy", tuple(POLICIES))
        check_field(self, or_none(check_int), "cache_depth", 1, unit="documents", also="None")
        check_field(self, check_seconds, "frequency_window")
        self._seconds = self.prefill_seconds or PrefillCostModel.default()
        self._quotas = check_quotas(self.quotas or {})
        self.gpu: Tier[Slot] = Tier(attrgetter("gpu"), POLICIES[self.policy])
        self.host: Tier[int] = Tier(attrgetter("host"), POLICIES[self.policy])
        self._tally = Tally()
        self._start()

    def _start(self) -> None:
        self.root = Node(("", None), None, None, ())
        self._owners: dict[Key, Node] = {}
        self.windows.clear()
        self._history: Memo[Key, History] = Memo(HISTORY)
        self._accesses = 0
        self._shares = Shares(self._quotas, self.gpu_blocks + self.host_blocks)
        self.pins = Pins(
            gpu=self.gpu,
            capacity=self.gpu_blocks,
            longest=self.longest_request,
            block_size=self.block_size,
            now=self.now,
            windows=self.windows,
        )
        self.hints = Hints(self._spare, lambda node: self.windows.size(len(node.keys)), self.now)
        self._free_host_slots = list(range(self.host_blocks - 1, -1, -1))
        self._leaving: dict[Key, Slot] = {}  # evicted from the GPU, not yet copied to the host
        self._versions: dict[tuple[Node, str], Key] = {}
        self._count_nodes = 0

    # Requests

    def enter(
        self,
        namespace: str,
        spans: Sequence[Span],
        keys: Sequence[Key],
        priority: int = 0,
        *,
        named: bool = True,
    ) -> Path:
        """Find a request's path, making what nodes are missing.

        Args:
            namespace: Tenant; whose ``keys`` must differ from every other tenant's.
            spans: The prompt's documents, in order and without overlap.
            keys: The prompt's full blocks, in order. A key stands for the block's content and all
                that is before it.
            priority: Of the request, as vLLM counts: documents that only requests with higher
                numbers had are evicted first.
            named: Whether an id stands for a text, so that other text of the same id has changed.

        Raises:
            ValueError: There are no documents.
        """
        if not spans:
            raise ValueError("a path needs at least one document, got no spans")
        kept = spans[: self.cache_depth]
        node, begin, nodes, ends = self.root, 0, [], []
        start = 0
        boundaries = [(namespace, kept[0][1]), *((name, end) for name, _, end in kept)]
        for name, token_end in boundaries:
            end = min(max(0, token_end - self.lookahead) // self.block_size, len(keys))
            node = self._child(node, name, keys, begin, end, named=named)
            node.tokens = token_end - start
            node.requests += 1
            node.urgency = max(node.urgency, -priority)
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
        cost = self._seconds(cached, computed) / computed
        now = path.accessed_at = self.now() if self.frequency_window is not None else 0.0
        popularity = self._shares[path.nodes[0].name].popularity
        stretches = itertools.pairwise((0, *path.ends))
        size = self.windows.size
        path.counted_at = popularity.advance(sum(size(end - at) for at, end in stretches))
        for node, end in zip(path.nodes, path.ends, strict=True):
            node.running += 1
            node.last_access = self._accesses
            self._count(node.history, now)
            popularity.count(node.history, size(len(node.keys)))
            if end * self.block_size > cached:
                node.history.total_cost += cost
                node.history.computed += 1
            self.gpu.price(node)
            self.host.price(node)
        self._tally.access(path.spans, self.block_size, gpu_tokens, cached, self.lookahead)

    def retract(self, path: Path) -> None:
        """Take an access back: the request was a guess, and its documents were not asked for.

        Their frequencies are what they would be without it. What computing them cost stays known.
        It may have left meanwhile. One that was not accessed is ignored.
        """
        if not path.accessed or path.retracted or self._void(path):
            return
        path.retracted = True
        popularity = self._shares[path.nodes[0].name].popularity
        for node in path.nodes:
            self._uncount(node.history, path.accessed_at)
            popularity.take_back(node.history, path.counted_at)
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
                self._spare(node)
            self._forget_unused(node)

    # Promises

    def pin(self, path: Path, ttl: float | None = None) -> None:
        """Keep a path's documents, and all that is before them, in the GPU.

        What of them is not computed yet is kept once it is. Documents beyond ``cache_depth`` are
        not kept. A path that is pinned gets the new time.

        Args:
            path: Of a request that has not left.
            ttl: Seconds; ``None`` until it is unpinned, or everything is forgotten.

        Raises:
            ConfigurationError: There would be no room for the longest request, or the pins would
                exceed the tenant's quota.
        """
        if path.closed or self._void(path):
            return
        self.expire_pins()
        try:
            self.pins.add(path.nodes, ttl, quotas=bool(self._quotas))
        except ConfigurationError:
            self._tally["refused_pins"] += 1
            raise

    def unpin(self, path: Path) -> bool:
        """Let a path's documents be evicted again.

        Returns:
            Whether they were pinned.
        """
        return self._unpin(path.nodes[-1])

    def expire_pins(self) -> None:
        """Unpin what was pinned long enough."""
        for node in self.pins.over():
            self._unpin(node)

    def _unpin(self, last: Node) -> bool:
        nodes = self.pins.remove(last)
        self._forget_unused(*nodes)
        return bool(nodes)

    def hint(self, name: Hashable, path: Path, steps: int, ttl: float) -> bool:
        """Evict a path, and all that is before it, after what has no hint or is needed later.

        Args:
            name: Of the hint; another one of this name is replaced.
            path: Of a request that has not left.
            steps: How many steps of a workflow are before it.
            ttl: Seconds for which the hint holds.

        Returns:
            Whether there is room for it: all hints of a tenant keep at most :data:`HINTED` of its
            share of the GPU.
        """
        if path.closed or self._void(path):
            return False
        part = self._shares[path.nodes[0].name].blocks(self.gpu_blocks)
        nodes = tuple(chain(path.nodes))
        accepted, spared = self.hints.add(name, nodes, steps, ttl, int(HINTED * part))
        self._forget_unused(*spared)
        return accepted

    def end_hint(self, name: Hashable) -> None:
        """What a hint was about has come, or does not come."""
        self._forget_unused(*self.hints.remove(name))

    def expire_hints(self) -> None:
        """End the hints whose time is over."""
        self._forget_unused(*self.hints.expire())

    def charge(self, namespace: str, blocks: int) -> None:
        """Charge GPU blocks to a tenant whose requests use them; a negative number ends that.

        Only of use where there are quotas.
        """
        self._shares[namespace].used += blocks

    def payer(self, namespace: str) -> str:
        """To whom a tenant's blocks are charged: itself, or all tenants without a quota."""
        return self._shares[namespace].namespace

    def affords(self, namespace: str, blocks: int) -> bool:
        """Whether a tenant may use more GPU blocks, and nothing within others' quotas is lost."""
        own = self._shares[namespace]
        free = own.blocks(self.gpu_blocks) + sum(
            max(0, share.blocks(self.gpu_blocks) - self._held(self.gpu, share))
            for share in self._shares
            if share is not own
        )
        return own.used + own.pinned + blocks <= free

    # GPU tier

    def owner(self, key: Key) -> Node | None:
        """The node to which a block belongs; ``None`` for text after the documents."""
        return self._owners.get(key)

    def release(self, key: Key, slot: Slot, group: int = 0) -> bool:
        """A GPU block is in use no more.

        Returns:
            Whether the tree keeps it; ``False`` for a block of no document, for one that nothing
            after its document needs, and for a second copy.
        """
        node = self._owners.get(key)
        if node is None or not self.windows.keep(key, group):
            return False
        key = in_group(key, group)
        if key in self.gpu.slots:
            self.gpu.touch(node, key)
            return False
        self.gpu.add_idle(node, key, slot)
        if node.pins:
            self.gpu.hold(node, key)
        if key in self._leaving:  # another copy of it was evicted in this step
            del self._leaving[key]
            self.host.remove(node, key)
        elif key in self.host.slots:
            self.host.hold(node, key)
        return True

    def reuse(self, key: Key, slot: Slot, group: int = 0) -> bool:
        """A GPU block is in use again.

        Returns:
            Whether the tree had kept it.
        """
        kept = in_group(key, group)
        if self.gpu.slots.get(kept) != slot:
            return False
        self.gpu.remove(self._owners[key], kept)
        return True

    def evict(self, blocks: int) -> list[Slot]:
        """Evict idle GPU blocks (RAGCache algorithm 1, lines 15-23).

        Args:
            blocks: How many; at least this many must be idle, and not pinned. They are charged to
                whom they are for already.
        """
        if blocks > self.gpu.idle:
            raise RuntimeError(f"asked to evict {blocks} blocks, only {self.gpu.idle} are idle")
        slots: list[Slot] = []
        while len(slots) < blocks:
            evicted = self._evict(self.gpu, blocks - len(slots), self.gpu_blocks)
            if evicted is None:
                break
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
            self._forget_unused(node)
        return slots

    # Host tier

    def on_host(
        self, keys: Sequence[Key], start: int, readable: Callable[[Key], bool] | None = None
    ) -> int:
        """How many blocks after the first ``start`` a prompt need not compute thanks to the host.

        Args:
            keys: The prompt's blocks.
            start: Up to where the GPU has all that the prompt needs.
            readable: Whether a copy may be read, by its block's name in the tier; ``None`` for all.
        """
        slots = self.host.slots

        def there(key: Key) -> bool:
            if slots.get(key, NO_SLOT) == NO_SLOT:
                return False
            return readable is None or readable(key)

        return self.windows.furthest(keys, start, there) - start

    def swap_in(self, keys: Iterable[Key], group: int = 0) -> list[int]:
        """Read blocks of a group back into the GPU: their host slots. The host copies stay."""
        slots = [self.host.hold(self._owners[key], in_group(key, group)) for key in keys]
        self._tally["swap_ins"] += len(slots)
        return slots

    def swap_out(self) -> list[Copy[Slot]]:
        """Take what was evicted from the GPU since the last call into the host tier.

        Where that is too much, the lowest-priority leaves go, newcomers among them.

        To be called once all blocks that this step reads back are swapped in, so that none of
        their slots is given away.
        """
        while (excess := len(self.host) - self.host_blocks) > 0:
            evicted = self._evict(self.host, excess, self.host_blocks)
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
            self._forget_unused(node)
        copies = []
        for key, gpu_slot in self._leaving.items():
            host_slot = self.host.slots[key] = self._free_host_slots.pop()
            copies.append(Copy(gpu_slot, host_slot))
        self._leaving.clear()
        self._tally["swap_outs"] += len(copies)
        return copies

    # All of it

    def clear(self) -> None:
        """Forget every node, block, frequency and pin. The statistics continue.

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
            gpu_blocks=self.gpu_blocks,
            pins=len(self.pins),
            pinned_blocks=self.pins.blocks,
            hints=len(self.hints),
            shares=self._share_stats(),
        )

    def snapshot(self) -> TreeSnapshot:
        """The tree to look at."""
        return TreeSnapshot(
            policy=self.policy,
            block_size=self.block_size,
            gpu_clock=self.gpu.clock,
            host_clock=self.host.clock,
            roots=snapshot_children(self.root, self.windows.size, self.pins.seconds_left()),
            shares=self._share_stats(),
        )

    def nodes(self) -> Iterator[Node]:
        """Every node but the root, parents first."""
        waiting = deque([self.root])
        while waiting:
            for node in waiting.popleft().children.values():
                yield node
                waiting.append(node)

    # Inside

    def _evict(
        self, tier: Tier[AnySlot], at_most: int, capacity: int
    ) -> tuple[Node, list[tuple[Key, AnySlot]]] | None:
        """Free blocks of the share of which the largest multiple is used, as far as it is over."""
        if not self._quotas:
            return tier.evict(at_most, self._shares[""])
        held = {share: self._held(tier, share) for share in self._shares}
        for share in sorted(held, key=lambda share: -share.multiple(held[share], capacity)):
            excess = max(1, held[share] - share.blocks(capacity))
            if (evicted := tier.evict(min(at_most, excess), share)) is not None:
                return evicted
        return None

    def _held(self, tier: Tier[Any], share: Share) -> int:
        return tier.blocks(share) + (share.used if tier is self.gpu else 0)

    def _share_stats(self) -> tuple[ShareStats, ...]:
        if not self._quotas:
            return ()
        return tuple(
            ShareStats(
                share.namespace,
                share.quota,
                self._held(self.gpu, share),
                self.host.blocks(share),
                share.pinned,
            )
            for share in self._shares
        )

    def _spare(self, node: Node) -> None:
        self.gpu.spare(node)
        self.host.spare(node)

    def _void(self, path: Path) -> bool:
        """Whether all was forgotten since the path was entered."""
        return path.nodes[0].under is not self.root

    def _child(
        self, under: Node, name: str, keys: Sequence[Key], begin: int, end: int, *, named: bool
    ) -> Node:
        label = (name, keys[end - 1] if end > begin else None)
        child = under.children.get(label)
        if child is None:
            child = self._new_node(under, label, keys, begin, end)
            if named:
                self._note_version(under, label)
        return child

    def _new_node(
        self,
        under: Node,
        label: tuple[str, Key | None],
        keys: Sequence[Key],
        begin: int,
        end: int,
    ) -> Node:
        name, _ = label
        # Another path may own the first blocks already, such as a conversation's earlier turns.
        parent = under
        while begin < end and (owner := self._owners.get(keys[begin])) is not None:
            parent = owner
            begin += 1
        share = self._shares[name] if under is self.root else under.share
        node = Node(label, parent, under, tuple(keys[begin:end]), share=share)
        under.children[label] = node
        parent.links += 1
        for key in node.keys:
            self._owners[key] = node
        self.windows.enter(node.keys)
        if node.keys and (history := self._history.pop(node.keys[-1], None)) is not None:
            node.history = history
        self._count_nodes += 1
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
        if self.frequency_window is None:
            history.frequency += 1
            return
        times = history.times
        if times is None:
            times = history.times = deque()
        times.append(now)
        while times[0] < now - self.frequency_window:
            times.popleft()
        history.frequency = len(times)

    def _uncount(self, history: History, counted_at: float) -> None:
        times = history.times
        if times is None:
            history.frequency -= 1
        elif counted_at in times:  # otherwise it has left the window meanwhile
            times.remove(counted_at)
            history.frequency = len(times)

    def _forget_unused(self, *nodes: Node) -> None:
        """Drop nodes that hold nothing; their histories are kept in case they come back."""
        candidates = [*reversed(nodes)]
        while candidates:
            node = candidates.pop()
            parent, under = node.parent, node.under
            if (
                parent is None
                or under is None
                or under.children.get(node.label) is not node
                or node.requests
                or node.links
                or node.pins
                or node.hints
                or node.children
                or not (node.gpu.empty and node.host.empty)
            ):
                continue
            del under.children[node.label]
            parent.links -= 1
            for key in node.keys:
                del self._owners[key]
            self.windows.leave(node.keys)
            if node.keys and node.history.frequency:
                self._history[node.keys[-1]] = node.history
            if self._versions.get((under, node.name)) == node.label[1]:
                self._versions.pop((under, node.name), None)
            self._count_nodes -= 1
            candidates.append(parent)
            if under is not parent:
                candidates.append(under)
