"""Requests against a driven tree, every promise of the tree checked as they go."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import pytest

from ragcache_integrations.errors import ConfigurationError
from ragcache_integrations.knowledge_tree import KnowledgeTree
from ragcache_integrations.knowledge_tree.node import Key, Node, Path, Span
from ragcache_integrations.knowledge_tree.shares import Share
from ragcache_integrations.knowledge_tree.tier import Tier

from . import recount
from .driver import Driver, Request, Rule, Token

LENGTHS = {"a": 1, "b": 2, "c": 3, "d": 5, "e": 8}
"""Tokens of the documents: shorter than a block, and longer."""


def seconds(cached: int, new: int) -> float:
    """T(alpha, beta), so that the cost per token differs from request to request."""
    return 0.5 + 0.25 * new + 0.0625 * new * (2 * cached + new)


@dataclass(frozen=True)
class Setting:
    policy: str = "pgdsf"
    block_size: int = 2
    gpu_blocks: int = 12
    host_blocks: int = 8
    cache_depth: int | None = None
    frequency_window: float | None = None
    rule: Rule = "unused"
    access_first: bool = True
    gap: int = 0
    quotas: tuple[tuple[str, float], ...] = ()
    longest: int = 0


@dataclass(frozen=True)
class Asked:
    """A request: text, documents by name and version, text; and the length of its answer.

    With ``earlier`` it goes on with the conversation of an earlier request.
    """

    namespace: str
    system: int
    documents: list[tuple[str, int]]
    question: int
    answer: int
    earlier: int | None = None
    priority: int = 0


class World:
    """A tree, its driver, and what they must agree upon."""

    def __init__(self, setting: Setting) -> None:
        self.setting = setting
        self.time = 0.0
        self.tree: KnowledgeTree[int] = KnowledgeTree(
            block_size=setting.block_size,
            gpu_blocks=setting.gpu_blocks,
            host_blocks=setting.host_blocks,
            policy=setting.policy,
            prefill_seconds=seconds,
            cache_depth=setting.cache_depth,
            frequency_window=setting.frequency_window,
            quotas=dict(setting.quotas),
            longest_request=setting.longest,
            now=lambda: self.time,
        )
        self.driver = Driver(
            self.tree, setting.gpu_blocks, rule=setting.rule, access_first=setting.access_first
        )
        self.ledger = recount.Ledger(
            setting.policy, setting.block_size, seconds, setting.frequency_window
        )
        self.counts = dict.fromkeys(
            ("gpu_evicted_blocks", "host_evicted_blocks", "dropped", "swap_ins", "swap_outs"), 0
        )
        self.written: set[Key] = set()
        self.clocks = (0.0, 0.0)
        self.most_candidates = [0, 0]
        self.past: list[Request] = []
        self.pins: dict[Node, float] = {}
        self.kept: set[Key] = set()
        self.answers = 0
        self._watch_tier("gpu", self.tree.gpu, recount.gpu)
        self._watch_tier("host", self.tree.host, recount.host)
        self._watch_tree()

    # What may happen

    def arrive(self, asked: Asked) -> Request:
        """A request comes."""
        namespace = asked.namespace
        tokens: list[Token] = [("system", place) for place in range(asked.system)]
        if asked.earlier is not None and self.past:
            before = self.past[asked.earlier % len(self.past)]
            namespace, tokens = before.namespace, list(before.tokens)
        spans: list[Span] = []
        for name, version in asked.documents:
            tokens += [("document",)] * self.setting.gap
            start = len(tokens)
            tokens += [(name, version, place) for place in range(LENGTHS[name])]
            spans.append((name, start, len(tokens)))
        self.answers += 1
        tokens += [("question", asked.question, place) for place in range(asked.question)]
        prompt = len(tokens)
        tokens += [("answer", self.answers, place) for place in range(asked.answer)]
        request = self.driver.arrive(namespace, tuple(spans), tokens, prompt, asked.priority)
        self._check_path(request)
        self.past = [*self.past[-7:], request]
        return request

    def begin(self, asked: Asked, chunk: int) -> bool:
        """A request comes and is admitted at once if there is memory."""
        request = self.arrive(asked)
        return self.driver.admit(request, chunk)

    def serve(self, asked: Asked) -> None:
        """A request comes, is served in one step if there is memory, and ends."""
        request = self.arrive(asked)
        if self.driver.admit(request, request.prompt_tokens):
            self.end_step()
            self.driver.finish(request)

    def admit(self, which: int, chunk: int, pick: int) -> None:
        waiting = self.driver.waiting
        if waiting:
            self.driver.admit(waiting[which % len(waiting)], chunk, pick)

    def advance(self, which: int, chunk: int) -> None:
        resting = self.resting
        if resting:
            self.driver.advance(resting[which % len(resting)], chunk)

    def preempt(self, which: int) -> None:
        resting = self.resting
        if resting:
            self.driver.preempt(resting[which % len(resting)])

    def finish(self, which: int, *, leave: bool) -> None:
        resting = self.resting
        if resting:
            self.driver.finish(resting[which % len(resting)], leave=leave)

    def abort(self, which: int, *, leave: bool) -> None:
        waiting = self.driver.waiting
        if waiting:
            self.driver.abort(waiting[which % len(waiting)], leave=leave)

    def pin(self, which: int, ttl: float | None) -> None:
        """Pin the documents of a request that has not left; refused where there is no room."""
        live = self.driver.waiting + self.driver.running
        if not live:
            return
        path = live[which % len(live)].path
        self.tree.expire_pins()
        self.expire_pins()
        above = {node for node in path.nodes for node in [node, *_above(node)]}
        new = sum(len(node.keys) for node in above if not node.pins)
        pinned = self.tree.stats().pinned_blocks
        fits = pinned + new <= self.setting.gpu_blocks - self.setting.longest
        if self.setting.quotas:
            share = path.nodes[0].share
            assert share is not None
            own = sum(len(n.keys) for n in self.tree.nodes() if n.pins and n.share is share)
            fits &= own + new <= share.quota * self.setting.gpu_blocks + 1e-6
        share = path.nodes[0].share
        assert share is not None
        others = sum(node.share is share for node in self.pins)
        again = path.nodes[-1] in self.pins
        room = again or others < share.blocks(self.setting.gpu_blocks)
        if path.nodes[0] not in self.tree.root.children.values():
            self.tree.pin(path, ttl)  # void
        elif (fits or not new) and room:
            self.tree.pin(path, ttl)
            self.pins[path.nodes[-1]] = math.inf if ttl is None else self.time + ttl
        else:
            with pytest.raises(ConfigurationError, match=r"cannot be pinned|pins already"):
                self.tree.pin(path, ttl)

    def unpin(self, which: int) -> None:
        if self.past:
            last = self.past[which % len(self.past)].path
            assert self.tree.unpin(last) == (self.pins.pop(last.nodes[-1], None) is not None)

    def expire_pins(self) -> None:
        self.pins = {node: until for node, until in self.pins.items() if until > self.time}

    def end_step(self) -> None:
        self.driver.end_step()
        self.tree.expire_pins()
        self.expire_pins()
        self.check_after_step()

    def sleep(self, duration: float) -> None:
        self.time += duration

    def clear(self, *, enter_again: bool) -> None:
        """Forget everything. Requests that wait enter again, or their paths are void."""
        self.end_step()
        for request in list(self.driver.running):
            self.driver.preempt(request)
        void = [request.path for request in self.driver.waiting]
        self.driver.clear()
        self.ledger.forget()
        self.written.clear()
        self.clocks = (0.0, 0.0)
        self.pins.clear()
        self.check()
        assert not list(self.tree.nodes())
        for request, path in zip(self.driver.waiting, void, strict=True):
            if enter_again:
                keys = request.keys[: request.prompt_tokens // self.setting.block_size]
                request.path = self.tree.enter(request.namespace, request.spans, keys)
                self.tree.leave(path)
        self.check()

    @property
    def resting(self) -> list[Request]:
        """Running requests of which this step computes nothing."""
        return [r for r in self.driver.running if r not in self.driver.scheduled]

    # What must hold

    def check(self) -> None:
        tree, driver = self.tree, self.driver
        recount.check_structure(tree, driver.keys.previous)
        roots = set(tree.root.children.values())
        live = [
            path
            for path in [*(r.path for r in driver.running + driver.waiting), *driver.departed]
            if path.nodes[0] in roots
        ]
        recount.check_requests(tree, live, driver.in_use)
        recount.check_tier(tree, tree.gpu, recount.gpu, driver.in_use)
        recount.check_tier(tree, tree.host, recount.host, driver.in_use)
        driver.check_slots()
        self._check_promises()
        self.ledger.check(tree)
        self._check_chains()
        self._check_clocks_and_heaps()
        stats = tree.stats()
        for name, count in self.counts.items():
            assert getattr(stats, name) == count, name
        assert stats.gpu_idle_blocks == len(tree.gpu.slots)
        assert 0 <= stats.host_used_blocks <= stats.host_blocks == self.setting.host_blocks

    def check_after_step(self) -> None:
        """What holds once the copies of a step are made."""
        tree = self.tree
        slots = [*tree.host.slots.values(), *tree._free_host_slots]
        assert sorted(slots) == list(range(self.setting.host_blocks))
        assert tree.stats().host_used_blocks == len(tree.host.slots)
        self.check()

    def _check_path(self, request: Request) -> None:
        """A block belongs to the part of the prompt in which its last token falls."""
        size, kept = self.setting.block_size, request.spans[: self.setting.cache_depth]
        stops = [kept[0][1], *(stop for _, _, stop in kept)]
        path = request.path
        assert [node.name for node in path.nodes[1:]] == [name for name, _, _ in kept]
        assert path.ends == tuple(stop // size for stop in stops)
        start = 0
        for node, end in zip(path.nodes, path.ends, strict=True):
            own = [key for key in request.keys[start:end] if self.tree.owner(key) is node]
            assert tuple(own) == node.keys == tuple(request.keys[start:end][-len(own) or end :])
            start = end
        assert all(self.tree.owner(key) for key in request.keys[: path.ends[-1]])

    def _check_promises(self) -> None:
        """What is pinned stays once it is there; what a tenant uses is charged to it."""
        tree, driver = self.tree, self.driver
        recount.check_pins(tree)
        assert set(tree.pins._pins) == set(self.pins)
        pinned = {node for last in self.pins for node in [last, *_above(last)]}
        assert pinned <= {node for node in tree.nodes() if node.pins}
        keys = {key for node in tree.nodes() if node.pins for key in node.keys}
        there = {key for key in keys if key in tree.gpu.slots or driver.in_use(key)}
        assert self.kept & keys <= there, "a pinned block has gone"
        self.kept = there
        users = {slot: r.namespace for r in driver.running for slot in r.slots}
        for share in tree._shares:
            used = sum(tree._shares[namespace] is share for namespace in users.values())
            assert share.used == used

    def _check_chains(self) -> None:
        tree, driver = self.tree, self.driver
        before = driver.keys.previous
        in_gpu, on_host = tree.gpu.slots, tree.host.slots
        for key in in_gpu:
            above = before[key]  # type: ignore[index]  # the tests' keys
            assert above is None or above in in_gpu or driver.in_use(above)
        for key in on_host:
            above = before[key]  # type: ignore[index]  # the tests' keys
            assert above is None or above in in_gpu or driver.in_use(above) or above in on_host
        busy = {key for node in tree.nodes() for key in node.host.busy}
        for key in busy:
            assert key in in_gpu or driver.in_use(key)
        assert in_gpu.keys() & on_host.keys() <= busy, "a copy on the host stays"
        if self.setting.rule == "unused":
            assert self._read_back() <= busy

    def _read_back(self) -> set[Key]:
        """Blocks that were read from the host and are in use since."""
        return {
            key
            for request in self.driver.running
            for key, slot in zip(request.keys, request.slots, strict=False)
            if slot in request.read_back
        }

    def _check_clocks_and_heaps(self) -> None:
        clocks = (self.tree.gpu.clock, self.tree.host.clock)
        assert clocks[0] >= self.clocks[0]
        assert clocks[1] >= self.clocks[1]
        self.clocks = clocks
        for index, tier in enumerate((self.tree.gpu, self.tree.host)):
            self.most_candidates[index] = max(
                self.most_candidates[index], sum(part.candidates for part in tier._parts.values())
            )
            for part in tier._parts.values():
                assert len(part.heap) <= recount.heap_bound(self.most_candidates[index])

    # What is seen of the tree's own calls

    def _watch_tier(self, name: str, tier: Tier[int], shelf: recount.GetShelf) -> None:
        evict = tier.evict

        def watched(
            at_most: int, share: Share | None = None
        ) -> tuple[Node, list[tuple[Key, int]]] | None:
            leaves = recount.leaves(self.tree, shelf)
            candidates = [node for node in leaves if node.share is share]
            first = min((recount.rank(node, shelf) for node in candidates), default=None)
            idle = {node: list(shelf(node).idle) for node in candidates}
            clock = tier._parts[share].clock
            multiples = self._multiples(name, leaves)
            evicted = evict(at_most, share)
            if evicted is None:
                assert not candidates
                return None
            node, gone = evicted
            assert node in candidates
            assert multiples[share] == max(multiples.values()), "another share uses more of its own"
            assert recount.rank(node, shelf) == first, "not the leaf that goes first"
            assert tier._parts[share].clock == max(clock, shelf(node).priority)
            assert len(gone) == min(at_most, len(idle[node]))
            last_first = sorted(idle[node], key=node.keys.index, reverse=True)
            if not any(map(self.driver.in_use, idle[node])):
                assert [key for key, _ in gone] == last_first[:at_most], "not the last block first"
            self._note_evicted(name, gone)
            return evicted

        tier.evict = watched  # type: ignore[method-assign]  # to look at every call

    def _multiples(self, name: str, leaves: list[Node]) -> dict[Share | None, float]:
        """By how many times each share is used that has anything to give."""
        gpu = name == "gpu"
        held = {share: share.used if gpu else 0 for share in self.tree._shares}
        for node in self.tree.nodes():
            place = node.gpu if gpu else node.host
            assert node.share is not None
            held[node.share] += len(place.idle) + len(place.busy)
        capacity = self.setting.gpu_blocks if gpu else self.setting.host_blocks
        return {
            share: count / (share.quota * capacity) if share.quota else math.inf
            for share, count in held.items()
            if any(node.share is share for node in leaves)
        }

    def _note_evicted(self, name: str, gone: list[tuple[Key, int]]) -> None:
        if name == "gpu":
            self.counts["gpu_evicted_blocks"] += len(gone)
            assert not any(self.driver.users[slot] for _, slot in gone)
            return
        for key, slot in gone:
            assert key not in self.tree.gpu.slots
            if self.setting.rule == "unused":
                assert key not in self._read_back()
            on_host = slot >= 0
            self.counts["host_evicted_blocks" if on_host else "dropped"] += 1
            assert on_host == (key in self.written)
            self.written.discard(key)

    def _watch_tree(self) -> None:
        tree = self.tree
        evict, swap_out, swap_in, access = tree.evict, tree.swap_out, tree.swap_in, tree.access

        def watched_evict(blocks: int) -> list[int]:
            bare = [node for node in tree.nodes() if node.host.empty]
            slots = evict(blocks)
            for node in bare:
                if not node.host.empty:
                    self.ledger.price("host", node, tree.host._parts[node.share].clock)
            return slots

        def watched_swap_out() -> list[object]:
            copies = swap_out()
            keys = {slot: key for key, slot in tree.host.slots.items()}
            assert len({copy.host for copy in copies}) == len(copies)
            for copy in copies:
                key = keys[copy.host]
                assert self.driver.gpu[copy.gpu] == key
                assert key not in self.written, "swapped out twice"
                self.written.add(key)
            self.counts["swap_outs"] += len(copies)
            return list(copies)

        def watched_swap_in(keys: Sequence[Key]) -> list[int]:
            slots = swap_in(keys)
            self.counts["swap_ins"] += len(slots)
            return slots

        def watched_access(path: Path, gpu: int, host: int, prompt: int) -> None:
            if not path.accessed and path.nodes[0] in tree.root.children.values():
                self.ledger.access(tree, path, gpu + host, prompt, self.time)
            access(path, gpu, host, prompt)

        watched: dict[str, Callable[..., object]] = {
            "evict": watched_evict,
            "swap_out": watched_swap_out,
            "swap_in": watched_swap_in,
            "access": watched_access,
        }
        for name, method in watched.items():
            setattr(tree, name, method)


def _above(node: Node) -> Iterator[Node]:
    """The owners of the blocks before a node's, the root of the tree aside."""
    while node.parent is not None and node.parent.parent is not None:
        node = node.parent
        yield node
