"""The queues that replace vLLM's: free blocks in the tree's order, waiting requests in ours.

Tenants' quotas decide which requests wait for blocks.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from vllm.v1.core.kv_cache_utils import (
    FreeKVCacheBlockQueue,
    KVCacheBlock,
    get_block_hash,
    get_group_id,
)
from vllm.v1.core.sched.request_queue import RequestQueue
from vllm.v1.request import Request, RequestStatus

from ragcache_integrations.knowledge_tree import KnowledgeTree, ReorderingQueue
from ragcache_integrations.knowledge_tree.node import Key, Path

__all__ = ["CacheAwareRequestQueue", "DocumentFreeQueue", "keep_to_quotas", "topics"]


def keep_to_quotas(
    scheduler: Any, tree: KnowledgeTree[Any], free_blocks: DocumentFreeQueue, groups: int
) -> None:
    """Charge blocks to tenants, and keep each tenant's requests out of the others' quotas.

    A request whose tenant has others running waits until its blocks fit. A tenant's only request
    runs in any case, or one that is longer than its quota never would.

    Args:
        scheduler: vLLM's scheduler.
        tree: Whose tenants have quotas.
        free_blocks: Its free blocks.
        groups: Number of groups of layers, each of which has blocks for every token.
    """
    allocate = scheduler.kv_cache_manager.allocate_slots
    most = int(scheduler.max_model_len)

    def blocks(tokens: int) -> int:
        return -(-tokens // tree.block_size) * groups

    def left(request: Request) -> int:
        tokens = request.num_prompt_tokens + (request.max_tokens or most)
        return blocks(min(tokens, most)) - blocks(request.num_computed_tokens)

    def allocate_charged(request: Request, *args: Any, **kwargs: Any) -> Any:
        user = request.cache_salt or ""
        if request.status != RequestStatus.RUNNING:
            payer = tree.payer(user)
            others = [
                other for other in scheduler.running if tree.payer(other.cache_salt or "") == payer
            ]
            if others and not tree.affords(user, sum(map(left, (request, *others)))):
                return None
        free_blocks.user = user
        return allocate(request, *args, **kwargs)

    scheduler.kv_cache_manager.allocate_slots = allocate_charged


class DocumentFreeQueue(FreeKVCacheBlockQueue):
    """Free blocks in the order of eviction: first those of no document, then the tree's.

    The inherited linked list holds the blocks of no document: those without content at its front,
    then the least recently used. The tree holds the idle blocks of documents. ``num_free_blocks``
    counts both, so that vLLM sees one queue. Pinned blocks are not free.

    Attributes:
        user: The tenant to whom blocks are charged that are taken from now on; ``None`` charges
            nobody.
        lends_pinned: Count pinned blocks as free, as is right when everything is to be forgotten.
    """

    def __init__(
        self, blocks: list[KVCacheBlock], tree: KnowledgeTree[KVCacheBlock], pool: Any
    ) -> None:
        self._tree = tree
        self._pool = pool
        self.user: str | None = None
        self.lends_pinned = False
        self._users: dict[int, str] = {}
        super().__init__(blocks)

    @property
    def num_free_blocks(self) -> int:
        """How many blocks are free."""
        kept = self._tree.gpu
        return self._others + (len(kept) if self.lends_pinned else kept.idle)

    @num_free_blocks.setter
    def num_free_blocks(self, number: int) -> None:
        kept = self._tree.gpu
        self._others = number - (len(kept) if self.lends_pinned else kept.idle)

    def append(self, block: KVCacheBlock) -> None:
        """Free a block."""
        self.append_n([block])

    def append_n(self, blocks: list[KVCacheBlock]) -> None:
        """Free blocks whose content is worth keeping; a request's last block comes first."""
        self._end_use(blocks)
        release = self._tree.release
        served = self._pool.cached_block_hash_to_block.get_one_block
        others = []
        for block in blocks:
            hashed = block.block_hash
            # If several blocks hold the same content, the tree keeps one of them. A block with the
            # same hash that is still in use will be released later.
            if (
                hashed is None
                or served(hashed).ref_cnt
                or not release(get_block_hash(hashed), block, get_group_id(hashed))
            ):
                others.append(block)
        super().append_n(others)

    def prepend_n(self, blocks: list[KVCacheBlock]) -> None:
        """Free blocks without content that anybody could reuse."""
        self._end_use(blocks)
        super().prepend_n(blocks)

    def remove(self, block: KVCacheBlock) -> None:
        """Take a free block out because a request reuses its content."""
        hashed = block.block_hash
        if hashed is None or not self._tree.reuse(
            get_block_hash(hashed), block, get_group_id(hashed)
        ):
            super().remove(block)
        self._begin_use([block])

    def popleft(self) -> KVCacheBlock:
        """Take out the first block, to be overwritten."""
        if not self.num_free_blocks:
            raise ValueError("No free blocks available")
        return self.popleft_n(1)[0]

    def popleft_n(self, n: int) -> list[KVCacheBlock]:
        """Take out blocks to be overwritten, evicting documents if there are not enough others."""
        others = min(n, self._others)
        blocks: list[KVCacheBlock] = super().popleft_n(others)
        self._begin_use(blocks)
        if n > others:
            if self.user is not None:
                self._tree.charge(self.user, n - others)
            evicted = self._tree.evict(n - others)
            if self.user is not None:
                self._users |= dict.fromkeys((block.block_id for block in evicted), self.user)
            blocks += evicted
        return blocks

    def get_all_free_blocks(self) -> list[KVCacheBlock]:
        """Every free block."""
        return [*super().get_all_free_blocks(), *self._tree.gpu.slots.values()]

    def iter_blocks_after(self, cursor: KVCacheBlock | None) -> Iterator[KVCacheBlock]:
        """Blocks of no document after ``cursor``, in the order of eviction."""
        return iter(super().iter_blocks_after(cursor))

    def forget_documents(self) -> None:
        """Treat every block as one of no document, because its content was discarded."""
        blocks = list(self._tree.gpu.slots.values())
        self._tree.clear()
        super().append_n(blocks)

    def _begin_use(self, blocks: Iterable[KVCacheBlock]) -> None:
        if self.user is not None:
            for block in blocks:
                self._users[block.block_id] = self.user
                self._tree.charge(self.user, 1)

    def _end_use(self, blocks: Iterable[KVCacheBlock]) -> None:
        if self._users:
            for block in blocks:
                user = self._users.pop(block.block_id, None)
                if user is not None:
                    self._tree.charge(user, -1)


def topics(path: Path) -> list[Key]:
    """The last blocks of a request's documents: its priority rises when they get cached.

    The text before the documents is left out, because all requests share it. Keys are returned, not
    nodes, because keys outlive a reset of the cache.
    """
    return [last for _, last in (node.label for node in path.nodes[1:]) if last is not None]


class CacheAwareRequestQueue(ReorderingQueue[Request], RequestQueue):
    """The waiting queue, in our order, under the names that vLLM has for its operations.

    Args:
        score: A request's priority now.
        window: How many others may overtake a request.
        paths: Of the requests that have documents, by their names.
    """

    def __init__(
        self, score: Callable[[Request], float], window: int, paths: Mapping[str, Path]
    ) -> None:
        super().__init__(score, window)
        self._paths = paths

    def add_request(self, request: Request) -> None:
        """Add a request."""
        path = self._paths.get(request.request_id)
        self.add(request, topics(path) if path else (), urgency=-request.priority)

    def remove_request(self, request: Request) -> None:
        """Take a request out."""
        self.remove((request,))

    def __bool__(self) -> bool:
        return len(self) > 0

    pop_request = ReorderingQueue.pop
    peek_request = ReorderingQueue.peek
    prepend_request = ReorderingQueue.push_front
    prepend_requests = ReorderingQueue.put_back
    remove_requests = ReorderingQueue.remove
