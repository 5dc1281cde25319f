"""Which of the retrieved chunks the KV cache holds, by the engine's knowledge tree."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable, Sequence
from typing import Protocol

from ragcache_integrations.errors import RAGCacheError
from ragcache_integrations.knowledge_tree.snapshot import NodeSnapshot, TreeSnapshot

from .best_fit import ChunkFacts
from .polling import Latest

__all__ = ["CachedChunks", "HasTree", "chunk_facts"]

logger = logging.getLogger(__name__)

MAX_AGE_SECONDS = 0.25
"""What requests hold changes by the second; asking more often would keep the engine from work."""


class HasTree(Protocol):
    """What shows its tree, as :class:`~ragcache_integrations.engine.RAGCacheEngine` does."""

    def tree(self) -> TreeSnapshot | None:
        """Show the tree."""

    async def atree(self) -> TreeSnapshot | None:
        """Show the tree without blocking the event loop."""


class CachedChunks:
    """Looks at an engine's tree, at most some times a second. Thread-safe.

    Args:
        engine: What has a tree; ``None`` where nothing is known of the cache.
        namespace: Tenant.
    """

    def __init__(self, engine: HasTree | None, namespace: str = "") -> None:
        self._engine = engine
        self._namespace = namespace
        self._latest = Latest(self._look, "ragcache-tree", again_after=MAX_AGE_SECONDS)

    def facts(self, ids: Sequence[str], tokens: Sequence[int]) -> ChunkFacts:
        """What is known of some chunks.

        Args:
            ids: Theirs, the most relevant first.
            tokens: Their lengths in tokens.
        """
        snapshot = None if self._engine is None else self._latest.get().value
        return chunk_facts(ids, tokens, snapshot, self._namespace)

    async def afacts(self, ids: Sequence[str], tokens: Sequence[int]) -> ChunkFacts:
        """The async twin of :meth:`facts`."""
        snapshot = None if self._engine is None else (await self._latest.aget()).value
        return await asyncio.to_thread(chunk_facts, ids, tokens, snapshot, self._namespace)

    def _look(self) -> TreeSnapshot | None:
        try:
            return None if self._engine is None else self._engine.tree()
        except Exception as error:  # noqa: BLE001 - whatever it is, answers do not depend on it
            level = logging.INFO if isinstance(error, RAGCacheError) else logging.WARNING
            logger.log(level, "nothing is known of what is cached: %s", error)
            return None


def chunk_facts(
    ids: Sequence[str],
    tokens: Sequence[int],
    snapshot: TreeSnapshot | None,
    namespace: str = "",
) -> ChunkFacts:
    """Find chunks in a tree.

    A tenant has one root for each text that prompts begin with. The methods all begin alike, so
    that the root which holds most is taken for theirs.

    Args:
        ids: Of the chunks, the most relevant first.
        tokens: Their lengths in tokens.
        snapshot: The tree; ``None`` where there is none.
        namespace: Tenant.
    """
    facts = [
        _facts_below(ids, tokens, root)
        for root in (snapshot.roots if snapshot else ())
        if root.name == namespace
    ]
    return max(facts, key=_held, default=ChunkFacts(tuple(tokens)))


def _held(facts: ChunkFacts) -> int:
    return facts.path_cached[-1] + sum(facts.alone_cached)


def _facts_below(ids: Sequence[str], tokens: Sequence[int], root: NodeSnapshot) -> ChunkFacts:
    first = _cached(root.children)
    beginning = root.tokens if root.place != "none" else 0
    beginning_in_use = root.tokens if root.place == "in use" else 0
    alone_cached, alone_in_use = [], []
    for name in ids:
        node = first.get(name)
        alone_cached.append(beginning + (node.tokens if node else 0))
        alone_in_use.append(beginning_in_use + (node.tokens if node and _used(node) else 0))
    path_cached, path_in_use = [beginning], [beginning_in_use]
    children = first
    held = True
    for name in ids:
        node = children.get(name)
        children = _cached(node.children) if node else {}
        held = held and _used(node)
        path_cached.append(path_cached[-1] + (node.tokens if node else 0))
        path_in_use.append(path_in_use[-1] + (node.tokens if node and held else 0))
    return ChunkFacts(
        tuple(tokens),
        tuple(path_cached),
        tuple(path_in_use),
        tuple(alone_cached),
        tuple(alone_in_use),
    )


def _cached(nodes: Iterable[NodeSnapshot]) -> dict[str, NodeSnapshot]:
    return {node.name: node for node in nodes if node.place != "none"}


def _used(node: NodeSnapshot | None) -> bool:
    return node is not None and node.place == "in use"
