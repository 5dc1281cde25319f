"""What could not be read back from the host or the disk, and all that was computed from it.

vLLM ends the requests that use such blocks. That does not suffice: what a second request has
computed from a shared one would stay cached. So every block of a running request from the first
wrong one on is evicted here. Where layers have windows, vLLM can't find these requests: its look-up
knows one group of layers, and who comes after a window has none of the blocks that were not read.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from vllm.v1.core.kv_cache_utils import BlockHash, make_block_hash_with_group_id
from vllm.v1.request import Request

from ragcache_integrations.knowledge_tree import KnowledgeTree
from ragcache_integrations.knowledge_tree.node import in_group

from .connector import DocumentConnector

__all__ = ["RequestsLeftError", "UnreadBlocks", "submitted_name"]

UNREAD = 4096
"""Most names of requests that ended because their blocks could not be read back. The engine's
process takes each name out; a server never does, so that the number needs a limit."""


class RequestsLeftError(RuntimeError):
    """Nobody knows which requests used blocks that could not be read back from the host.

    Wrong blocks of theirs may still be cached. This ends the engine, and with it the whole cache.

    Args:
        reason: Why nobody knows.
    """

    def __init__(self, reason: str) -> None:
        super().__init__(f"documents could not be read back from the host, and {reason}")


def submitted_name(request_id: str) -> str:
    """A request's name as it was submitted, without the suffix that vLLM adds."""
    return request_id.partition("-")[0]


@dataclass(eq=False)
class UnreadBlocks:
    """Finds wrong blocks and their requests.

    Attributes:
        scheduler: vLLM's scheduler, right after its ``__init__``.
        tree: The knowledge tree.
        host_tier: The host tier, if there is one.
        in_flight: Steps that are planned before the output of the first of them is known.
        requests: Names of the requests to be ended because of the latest step.
    """

    scheduler: Any
    tree: KnowledgeTree[Any]
    host_tier: DocumentConnector | None
    in_flight: int

    def __post_init__(self) -> None:
        self._pool = self.scheduler.kv_cache_manager.block_pool
        self._no_block: int = self._pool.null_block.block_id
        self._block_ids: Callable[[str], Sequence[list[int]]] = (
            self.scheduler.kv_cache_manager.get_block_ids
        )
        # Requests admitted in the plans whose outputs have not arrived: in flight and current.
        self._admitted: deque[Collection[str]] = deque(maxlen=self.in_flight + 1)
        self._names: deque[str] = deque(maxlen=UNREAD)
        self.requests: frozenset[str] = frozenset()

    def after_step(self, plan: Any) -> None:
        """Note whom a planned step admits."""
        new = (admitted.req_id for admitted in plan.scheduled_new_reqs)
        self._admitted.append([*new, *plan.scheduled_cached_reqs.resumed_req_ids])

    def forget(self, running: Sequence[Request], blocks: Collection[int]) -> list[BlockHash]:
        """Forget blocks that could not be read back, and all blocks computed from them.

        Only running requests can be searched. A request that was admitted in a step whose output
        has not arrived, and that has left since, may have used the blocks, too, and what it
        computed can't be found any more.

        Args:
            running: vLLM's running requests.
            blocks: Numbers of the blocks that could not be read.

        Returns:
            Hashes of all wrong blocks.

        Raises:
            RequestsLeftError: A request that may have used the blocks has left, or what it
                computed from them.
        """
        known = {request.request_id for request in running}
        if not all(known.issuperset(names) for names in self._admitted):
            raise RequestsLeftError("requests have left")
        firsts, wrong_blocks = self._spread(known, blocks)
        wrong: list[BlockHash] = []
        for request in running:
            first = firsts.get(request.request_id)
            if first is not None:
                self._names.append(submitted_name(request.request_id))
                wrong += request.block_hashes[first:]
        self.requests = frozenset(firsts)
        self._pool.evict_blocks(wrong_blocks)
        self._check_free(wrong)
        if self.host_tier is not None:
            copies = self.tree.host.slots
            names = (in_group(key, group) for key in wrong for group in self._groups)
            self.host_tier.distrust(copies[name] for name in names if name in copies)
        return wrong

    def release_copies(self, keys: Iterable[BlockHash]) -> None:
        """Free the host's copies of forgotten blocks, once vLLM has ended their requests.

        A block that was computed again meanwhile is in the GPU's cache, and keeps its copy.
        """
        for key in keys:
            owner = self.tree.owner(key)
            if owner is None:
                continue
            for group in self._groups:
                name = in_group(key, group)
                if name in self.tree.host and self._cached(key, group) is None:
                    self.tree.host.release(owner, name)

    def take(self, name: str) -> bool:
        """Whether a request was ended because its documents could not be read back."""
        if name not in self._names:
            return False
        self._names.remove(name)
        return True

    @property
    def _groups(self) -> range:
        return range(len(self.tree.windows))

    def _cached(self, key: BlockHash, group: int) -> Any:
        name = make_block_hash_with_group_id(key, group)
        return self._pool.cached_block_hash_to_block.get_one_block(name)

    def _spread(
        self, requests: Collection[str], blocks: Collection[int]
    ) -> tuple[dict[str, int], set[int]]:
        """For each request with wrong blocks the place of its first, and all wrong blocks.

        A request that shares a block which was computed from a wrong one has wrong blocks, too.
        """
        wrong, firsts = set(blocks), dict[str, int]()
        tables = {name: self._block_ids(name) for name in requests}
        spreads = True
        while spreads:
            spreads = False
            for name, groups in tables.items():
                places = (
                    place
                    for numbers in groups
                    for place, number in enumerate(numbers)
                    if number in wrong
                )
                first = min(places, default=math.inf)
                if first < firsts.get(name, math.inf):
                    firsts[name], spreads = int(first), True
                    wrong.update(*(numbers[int(first) :] for numbers in groups))
                    wrong.discard(self._no_block)
        return firsts, wrong

    def _check_free(self, wrong: Iterable[BlockHash]) -> None:
        """See that nothing wrong was freed, as blocks are that leave a window."""
        if self.tree.windows.whole:
            return
        for key in wrong:
            if any(self._cached(key, group) is not None for group in self._groups):
                msg = "a block that was computed from them is not in use any more"
                raise RequestsLeftError(msg)
