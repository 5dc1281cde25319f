"""A scheduler's half of the knowledge tree: paged memory with contents, and requests that use it.

A block's content is its key. So a slot that was given away too early, or overwritten before it was
read, is seen as the wrong content, as it would be in a real engine.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Literal

from ragcache_integrations.knowledge_tree import KnowledgeTree
from ragcache_integrations.knowledge_tree.node import Key, Path, Span

Token = tuple[object, ...]
Rule = Literal["unused", "always"]
"""Which freed blocks the tree is told of: those whose key nobody else uses, or all."""


class Hasher:
    """Numbers blocks by their content and all that is before them, as vLLM hashes them.

    With EAGLE and MTP, it also hashes the first tokens behind them (``lookahead``).
    """

    def __init__(self, block_size: int, lookahead: int = 0) -> None:
        self.block_size = block_size
        self.lookahead = lookahead
        self._numbers: dict[tuple[object, tuple[Token, ...]], int] = {}
        self.previous: dict[int, int | None] = {}

    def __call__(self, namespace: str, tokens: Sequence[Token]) -> list[int]:
        keys: list[int] = []
        size = self.block_size + self.lookahead
        for start in range(0, len(tokens) - size + 1, self.block_size):
            before = keys[-1] if keys else None
            block = (
                namespace if before is None else before,
                tuple(tokens[start : start + size]),
            )
            key = self._numbers.setdefault(block, len(self._numbers))
            self.previous[key] = before
            keys.append(key)
        return keys


@dataclass(eq=False)
class Request:
    """A request and the GPU blocks that it uses.

    Attributes:
        tokens: Prompt and answer.
        keys: Their full blocks.
        known: How many tokens there are so far: the prompt and what was generated.
        computed: Tokens whose KV cache is in its slots.
        read_back: Its slots that were filled from the host.
    """

    namespace: str
    spans: tuple[Span, ...]
    tokens: list[Token]
    prompt_tokens: int
    keys: list[int]
    path: Path
    known: int
    computed: int = 0
    slots: list[int] = field(default_factory=list)
    read_back: set[int] = field(default_factory=set)

    @property
    def running(self) -> bool:
        return bool(self.slots)


class Driver:
    """Fake GPU and host memory, and the steps in which requests are served.

    Free memory outside of the tree keeps its contents, and gives hits, until it is overwritten.
    """

    def __init__(
        self,
        tree: KnowledgeTree[int],
        gpu_blocks: int,
        *,
        rule: Rule = "unused",
        access_first: bool = True,
        lookahead: int = 0,
    ) -> None:
        self.tree = tree
        self.size = tree.block_size
        self.keys = Hasher(tree.block_size, lookahead)
        self.rule = rule
        self.access_first = access_first
        self.gpu: list[object] = ["nothing"] * gpu_blocks
        self.host: list[object] = ["nothing"] * tree.host_blocks
        self.users = [0] * gpu_blocks
        self.names: list[int | None] = [None] * gpu_blocks
        self.copies: dict[int, dict[int, None]] = {}
        self.free: OrderedDict[int, None] = OrderedDict.fromkeys(range(gpu_blocks))
        self.waiting: list[Request] = []
        self.running: list[Request] = []
        self.departed: list[Path] = []
        self.scheduled: list[Request] = []
        self._reads: list[tuple[int, int]] = []
        self._accesses: list[Callable[[], None]] = []
        self._taken: set[int] = set()

    # What a scheduler knows

    def in_use(self, key: Key, besides: int | None = None) -> bool:
        slots = self.copies.get(key, {})  # type: ignore[call-overload]  # the tests' keys
        return any(self.users[slot] for slot in slots if slot != besides)

    @property
    def available(self) -> int:
        return len(self.free) + self.tree.gpu.idle

    def find(self, request: Request, pick: int = 0) -> tuple[list[int], int]:
        """Slots of the leading blocks found in the GPU, and how many more are on the host.

        The last token known is always computed.
        """
        keys = request.keys[: (request.known - max(1, self.keys.lookahead)) // self.size]
        slots = []
        for key in keys:
            copies = list(self.copies.get(key, ()))
            if not copies:
                break
            slots.append(copies[pick % len(copies)])
        return slots, self.tree.on_host(keys, len(slots))

    # What a scheduler does

    def arrive(
        self,
        namespace: str,
        spans: tuple[Span, ...],
        tokens: list[Token],
        prompt_tokens: int,
        priority: int = 0,
    ) -> Request:
        keys = self.keys(namespace, tokens)
        path = self.tree.enter(namespace, spans, keys[: prompt_tokens // self.size], priority)
        request = Request(namespace, spans, tokens, prompt_tokens, keys, path, prompt_tokens)
        self.waiting.append(request)
        return request

    def admit(self, request: Request, chunk: int, pick: int = 0) -> bool:
        """Start a waiting request; ``False`` if there is no memory for it now."""
        hits, on_host = self.find(request, pick)
        cached = len(hits) + on_host
        computed = min(request.known, cached * self.size + chunk)
        needed = -(-computed // self.size) - len(hits)
        if needed > self.available - sum(not self.users[slot] for slot in hits):
            return False
        for key, slot in zip(request.keys, hits, strict=False):
            self._use(key, slot, request.namespace)
        request.slots = hits + self._take(needed, request.namespace)
        on_host_keys = request.keys[len(hits) : cached]
        for slot, host_slot in zip(
            request.slots[len(hits) : cached], self.tree.swap_in(on_host_keys), strict=True
        ):
            self._reads.append((slot, host_slot))
            request.read_back.add(slot)
        self._name(request, computed)
        gpu_tokens, host_tokens = len(hits) * self.size, on_host * self.size
        self._accesses.append(
            lambda: self.tree.access(request.path, gpu_tokens, host_tokens, request.prompt_tokens)
        )
        if self.access_first:
            self._accesses.pop()()
        self.waiting.remove(request)
        self.running.append(request)
        self.scheduled.append(request)
        return True

    def advance(self, request: Request, chunk: int) -> bool:
        """Compute more of a running request; ``False`` if there is no memory for it now."""
        known = request.known
        if request.computed == known:
            known = min(len(request.tokens), known + chunk)
        computed = min(known, request.computed + chunk)
        needed = -(-computed // self.size) - len(request.slots)
        if needed > self.available:
            return False
        request.known = known
        request.slots += self._take(needed, request.namespace)
        self._name(request, computed)
        self.scheduled.append(request)
        return True

    def preempt(self, request: Request) -> None:
        """Take a request's memory away; it waits again."""
        self._stop(request)
        self.waiting.insert(0, request)

    def finish(self, request: Request, *, leave: bool = True) -> None:
        """End a running request; the tree may hear of it later."""
        self._stop(request)
        self._depart(request, leave=leave)

    def abort(self, request: Request, *, leave: bool = True) -> None:
        """Give up a waiting request."""
        self.waiting.remove(request)
        self._depart(request, leave=leave)

    def end_step(self) -> None:
        """Copy out, read back and compute, in this order; then all hits must be what they claim."""
        for gpu_slot, host_slot in self.tree.swap_out():
            self.host[host_slot] = self.gpu[gpu_slot]
        for gpu_slot, host_slot in self._reads:
            self.gpu[gpu_slot] = self.host[host_slot]
            self._taken.discard(gpu_slot)
        for slot in self._taken:
            name = self.names[slot]
            self.gpu[slot] = "part" if name is None else name
        for request in self.scheduled:  # blocks that were begun in an earlier step
            for slot in request.slots:
                if self.gpu[slot] == "part" and self.names[slot] is not None:
                    self.gpu[slot] = self.names[slot]
        self._reads.clear()
        self._taken.clear()
        self.scheduled.clear()
        for access in self._accesses:
            access()
        self._accesses.clear()
        for path in self.departed:
            self.tree.leave(path)
        self.departed.clear()
        self.check_contents()

    def clear(self) -> None:
        """Forget what is cached, when no request runs."""
        assert not self.running
        self.free.update(dict.fromkeys(self.tree.gpu.slots.values()))
        self.tree.clear()
        for slot in self.free:
            self._forget(slot)
            self.gpu[slot] = "nothing"

    # Checks

    def check_contents(self) -> None:
        for request in self.running:
            full = request.computed // self.size
            for key, slot in zip(request.keys[:full], request.slots, strict=False):
                assert self.gpu[slot] == key
        assert all(self.gpu[slot] == key for key, slot in self.tree.gpu.slots.items())
        assert all(self.host[slot] == key for key, slot in self.tree.host.slots.items())

    def check_slots(self) -> None:
        """Every GPU block is in use, idle in the tree or free, and the books agree."""
        idle = list(self.tree.gpu.slots.values())
        used = {slot for request in self.running for slot in request.slots}
        assert sorted([*idle, *self.free, *used]) == list(range(len(self.gpu)))
        for slot, users in enumerate(self.users):
            assert users == sum(slot in request.slots for request in self.running)
        assert all(self.names[slot] == key for key, slot in self.tree.gpu.slots.items())

    # Inside

    def _use(self, key: int, slot: int, namespace: str) -> None:
        assert self.names[slot] == key
        if not self.users[slot]:
            kept = self.tree.reuse(key, slot)
            assert kept == (slot not in self.free)
            self.free.pop(slot, None)
            self.tree.charge(namespace, 1)
        self.users[slot] += 1

    def _take(self, blocks: int, namespace: str) -> list[int]:
        self.tree.charge(namespace, blocks)
        taken = [self.free.popitem(last=False)[0] for _ in range(min(blocks, len(self.free)))]
        missing = max(0, blocks - len(taken))
        if missing:
            evicted = self.tree.evict(missing)
            assert len(evicted) == missing
            taken += evicted
        for slot in taken:
            assert not self.users[slot]
            self._forget(slot)
            self.users[slot] = 1
        self._taken.update(taken)
        return taken

    def _name(self, request: Request, computed: int) -> None:
        """From now on others may find the blocks that will be full after this step."""
        request.computed = computed
        full = computed // self.size
        for key, slot in zip(request.keys[:full], request.slots, strict=False):
            if self.names[slot] is None:
                self.names[slot] = key
                self.copies.setdefault(key, {})[slot] = None

    def _forget(self, slot: int) -> None:
        key = self.names[slot]
        if key is not None:
            del self.copies[key][slot]
            self.names[slot] = None

    def _stop(self, request: Request) -> None:
        for slot in reversed(request.slots):
            self.users[slot] -= 1
            if self.users[slot]:
                continue
            self.tree.charge(request.namespace, -1)
            key = self.names[slot]
            if key is None:
                self.free[slot] = None
                self.free.move_to_end(slot, last=False)
            elif (self.rule == "unused" and self.in_use(key, slot)) or not self.tree.release(
                key, slot
            ):
                self.free[slot] = None
        request.slots = []
        request.read_back = set()
        request.computed = 0
        self.running.remove(request)

    def _depart(self, request: Request, *, leave: bool) -> None:
        if leave:
            self.tree.leave(request.path)
        else:
            self.departed.append(request.path)
