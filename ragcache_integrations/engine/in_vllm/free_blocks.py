"""vLLM's queue of free blocks, in the knowledge tree's order."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from vllm.v1.core.kv_cache_utils import (
    FreeKVCacheBlockQueue,
    KVCacheBlock,
    get_block_hash,
    get_group_id,
)

from ragcache_integrations.knowledge_tree import KnowledgeTree

__all__ = ["DocumentFreeQueue"]


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
            msg = "No free blocks available"
            raise ValueError(msg)
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
