"""Finds the retrieved chunks that are in the KV cache, in the engine's knowledge tree."""

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
"""Age at which a snapshot is renewed; taking them more often would slow the engine down."""


class HasTree(Protocol):
    """Has a knowledge tree, as :class:`~ragcache_integrations.engine.RAGCacheEngine`."""

    def tree(self) -> TreeSnapshot | None:
        """Return a snapshot of the tree; ``None`` if there is none."""

    async def atree(self) -> TreeSnapshot | None:
        """Async version of :meth:`tree`."""


class CachedChunks:
    """Reads an engine's tree, at most a few times per second. Thread-safe.

    Args:
        engine: The engine; ``None`` if nothing is known of the cache.
        namespace: Tenant whose cached chunks count.
    """

    def __init__(self, engine: HasTree | None, namespace: str = "") -> None:
        self._engine = engine
        self._namespace = namespace
        self._latest = Latest(self._look, "ragcache-tree", again_after=MAX_AGE_SECONDS)

    def facts(self, ids: Sequence[str], tokens: Sequence[int]) -> ChunkFacts:
        """Find out how much of some chunks is cached.

        Args:
            ids: The chunks' document ids, most relevant first.
            tokens: The chunks' lengths in tokens.
        """
        snapshot = None if self._engine is None else self._latest.get().value
        return chunk_facts(ids, tokens, snapshot, self._namespace)

    async def afacts(self, ids: Sequence[str], tokens: Sequence[int]) -> ChunkFacts:
        """Async version of :meth:`facts`."""
        snapshot = None if self._engine is None else (await self._latest.aget()).value
        return await asyncio.to_thread(chunk_facts, ids, tokens, snapshot, self._namespace)

    def _look(self) -> TreeSnapshot | None:
        try:
            return None if self._engine is None else self._engine.tree()
        except Exception as error:  # noqa: BLE001 - answers do not depend on it
            level = logging.INFO if isinstance(error, RAGCacheError) else logging.WARNING
            logger.log(level, "it is not known what is cached: %s", error)
            return None


def chunk_facts(
    ids: Sequence[str],
    tokens: Sequence[int],
    snapshot: TreeSnapshot | None,
    namespace: str = "",
) -> ChunkFacts:
    """Find chunks in a tree.

    A tenant has one root for each system text. The prompts of all methods have the same one, which
    is taken to be that of the root with the most of the chunks.

    Args:
        ids: The chunks' document ids, most relevant first.
        tokens: The chunks' lengths in tokens.
        snapshot: The tree; ``None`` if there is none.
        namespace: Tenant whose cached chunks count.
    """
    facts = [
        _facts_below(ids, tokens, root)
        for root in (snapshot.roots if snapshot else ())
        if root.name == namespace
    ]
    return max(facts, key=_total_cached, default=ChunkFacts(tuple(tokens)))


def _total_cached(facts: ChunkFacts) -> int:
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
