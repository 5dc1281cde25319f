"""What the knowledge tree costs a request, apart from any model (RAGCache table 4)."""

from __future__ import annotations

import itertools
import statistics
import time
from collections.abc import Iterator

import numpy as np

from ragcache_integrations.knowledge_tree import KnowledgeTree, ReorderingQueue
from ragcache_integrations.knowledge_tree.node import Path

__all__ = ["scheduling_microseconds"]

BLOCK = 32
BLOCKS_PER_DOCUMENT = 16
WAITING = 32
TOP_K = 2


class Scheduling:
    """A tree of so many nodes over two tiers, and a queue of waiting requests, all in use.

    A request is looked up, waits among others, is chosen, finds some of its blocks, makes others
    give way, is counted, and gives its blocks back: what the engine's scheduler has the tree do.
    """

    def __init__(self, nodes: int, seed: int) -> None:
        self._rng = np.random.default_rng(seed)
        self._documents = max(TOP_K, int(nodes**0.5) * 2)
        self._kept = nodes * BLOCKS_PER_DOCUMENT
        self.tree: KnowledgeTree[int] = KnowledgeTree(
            block_size=BLOCK, gpu_blocks=max(1, self._kept // 4), host_blocks=self._kept
        )
        self._queue: ReorderingQueue[int] = ReorderingQueue(self._score, window=WAITING)
        self._numbers = itertools.count()
        self._waiting: dict[int, tuple[Path, list[int]]] = {}
        self._slots = itertools.count()
        self._keys: dict[tuple[int, ...], list[int]] = {}
        self._key_numbers = itertools.count()
        self.seconds: list[float] = []

    def _score(self, request: int) -> float:
        path, keys = self._waiting[request]
        cached = 0
        for end in path.ends:
            if end and not (keys[end - 1] in self.tree.gpu or keys[end - 1] in self.tree.host):
                break
            cached = end
        return cached / (len(keys) - cached + 1)

    def _draw(self) -> tuple[int, ...]:
        ranks = self._rng.zipf(1.2, size=8 * TOP_K) % self._documents
        return tuple(dict.fromkeys(ranks.tolist()))[:TOP_K]

    def _path_keys(self, documents: tuple[int, ...]) -> list[int]:
        keys: list[int] = []
        for end in range(1, len(documents) + 1):
            part = self._keys.get(documents[:end])
            if part is None:
                part = [next(self._key_numbers) for _ in range(BLOCKS_PER_DOCUMENT)]
                self._keys[documents[:end]] = part
            keys += part
        return keys

    def arrive(self) -> None:
        """A request enters the queue; its keys are vLLM's work and not timed."""
        documents = self._draw()
        keys = self._path_keys(documents)
        size = BLOCKS_PER_DOCUMENT * BLOCK
        spans = [(str(name), i * size, (i + 1) * size) for i, name in enumerate(documents)]
        number = next(self._numbers)
        began = time.perf_counter()
        path = self.tree.enter("", spans, keys)
        self._waiting[number] = path, keys
        self._queue.add(number, path.nodes[1:])
        self.seconds.append(time.perf_counter() - began)

    def serve(self) -> None:
        """The next request is chosen, served and done."""
        tree = self.tree
        began = time.perf_counter()
        self._queue.begin_step()
        number = self._queue.pop()
        path, keys = self._waiting.pop(number)
        slots = []
        for key in keys:
            slot = tree.gpu.slots.get(key)
            if slot is None or not tree.reuse(key, slot):
                break
            slots.append(slot)
        in_gpu = len(slots)
        on_host = tree.on_host(keys, in_gpu)
        needed = len(keys) - in_gpu
        room = self._kept // 4 - tree.gpu.idle - in_gpu
        taken = tree.evict(needed - room) if needed > room else []
        taken += itertools.islice(self._slots, needed - len(taken))
        tree.swap_in(keys[in_gpu : in_gpu + on_host])
        tree.access(path, in_gpu * BLOCK, on_host * BLOCK, (len(keys) + 1) * BLOCK)
        tree.swap_out()
        for key, slot in zip(reversed(keys), reversed([*slots, *taken]), strict=True):
            tree.release(key, slot)
        tree.leave(path)
        self.seconds.append(time.perf_counter() - began)


def scheduling_microseconds(nodes: int, requests: int = 400, seed: int = 0) -> float:
    """Median time that the tree and the queue take for one request, in microseconds.

    Args:
        nodes: Documents after paths that the tree holds when it is measured.
        requests: How many to measure.
        seed: Decides the requests.

    Raises:
        RuntimeError: The tree does not reach so many nodes.
    """
    scheduling = Scheduling(nodes, seed)
    for _ in range(WAITING):
        scheduling.arrive()
    for _ in _until_full(scheduling, nodes):
        scheduling.arrive()
        scheduling.serve()
    scheduling.seconds.clear()
    for _ in range(requests):
        scheduling.arrive()
        scheduling.serve()
    pairs = zip(scheduling.seconds[::2], scheduling.seconds[1::2], strict=True)
    return 1e6 * statistics.median(arrive + serve for arrive, serve in pairs)


def _until_full(scheduling: Scheduling, nodes: int) -> Iterator[None]:
    for _ in range(100 * nodes):
        if scheduling.tree.stats().nodes >= nodes:
            return
        yield
    raise RuntimeError(f"the tree has only {scheduling.tree.stats().nodes} nodes of {nodes}")
