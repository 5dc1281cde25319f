"""A tree that is asked about documents by their names."""

from __future__ import annotations

from typing import Any, NamedTuple

from ragcache_integrations.knowledge_tree import KnowledgeTree
from ragcache_integrations.knowledge_tree.node import Node, Span

from .driver import Driver, Request, Token

__all__ = ["Found", "Library"]


class Found(NamedTuple):
    """Leading tokens of a prompt that were found, by tier."""

    gpu: int
    host: int


class Library:
    """Asks about documents, one request after the other. Blocks of one token, unless said."""

    def __init__(
        self,
        gpu_blocks: int = 100,
        *,
        block_size: int = 1,
        lookahead: int = 0,
        lengths: dict[str, int] | None = None,
        **settings: Any,
    ) -> None:
        self.tree: KnowledgeTree[int] = KnowledgeTree(
            block_size=block_size, gpu_blocks=gpu_blocks, lookahead=lookahead, **settings
        )
        self.driver = Driver(self.tree, gpu_blocks, lookahead=lookahead)
        self.lengths = lengths or {}
        self.questions = 0

    def arrive(
        self, *documents: str, system: str = "S", tenant: str = "", priority: int = 0
    ) -> Request:
        tokens: list[Token] = [(system, place) for place in range(self.lengths.get(system, 1))]
        spans: list[Span] = []
        for name in documents:
            start = len(tokens)
            tokens += [(name, place) for place in range(self.lengths.get(name, 2))]
            spans.append((name.partition("'")[0], start, len(tokens)))
        self.questions += 1
        tokens.append(("question", self.questions))
        return self.driver.arrive(tenant, tuple(spans), tokens, len(tokens), priority)

    def begin(self, *documents: str, system: str = "S", tenant: str = "") -> Request:
        """A request is admitted and computed, and goes on running."""
        request = self.arrive(*documents, system=system, tenant=tenant)
        assert self.driver.admit(request, request.prompt_tokens)
        self.driver.end_step()
        return request

    def ask(self, *documents: str, system: str = "S", tenant: str = "") -> Found:
        """A request comes, is served and ends."""
        request = self.arrive(*documents, system=system, tenant=tenant)
        hits, on_host = self.driver.find(request)
        assert self.driver.admit(request, request.prompt_tokens)
        self.driver.end_step()
        self.driver.finish(request)
        return Found(len(hits) * self.tree.block_size, on_host * self.tree.block_size)

    def node(self, *path: str, tenant: str = "") -> Node:
        node = next(child for child in self.tree.root.children.values() if child.name == tenant)
        for name in path:
            node = next(one for one in node.children.values() if one.name == name)
        return node

    def evict(self, blocks: int) -> None:
        """Take memory from the tree, as something else that needs it would."""
        for slot in self.tree.evict(blocks):
            self.driver._forget(slot)
            self.driver.free[slot] = None
        self.driver.end_step()

    def in_gpu(self) -> list[str]:
        """Names of what is idle there, in order."""
        return sorted({n.name for n in self.tree.nodes() if not n.gpu.empty and n.name})

    def on_host(self) -> list[str]:
        return sorted({n.name for n in self.tree.nodes() if not n.host.empty and n.name})
