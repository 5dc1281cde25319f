"""What is worth computing again after a restart: the prompts' most common beginnings.

The knowledge tree is lost when the engine's process dies. The application therefore keeps a small
record: a tree of the first documents of answered prompts, with their tokens and counts. These are
the upper nodes that RAGCache replicates for recovery (§6).
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from ragcache_integrations.core.forks import make_lock

__all__ = ["HotPrefixes", "Prefix"]

DOCUMENTS = 3
"""Number of a prompt's first documents that are recorded; further ones hardly ever repeat."""
RECORDED = 4
"""Tokens recorded for each token that may be computed again."""
MOST_PREFIXES = 256
SEEN_OFTEN = 2
"""Requests after which a beginning is worth computing again."""


@dataclass(frozen=True, slots=True)
class Prefix:
    """A prompt's beginning: its tenant, tokens, and spans of documents."""

    namespace: str
    token_ids: list[int]
    documents: tuple[tuple[str, int, int], ...]


@dataclass(slots=True)
class _Node:
    """A document after one path, or the text before the first document.

    Attributes:
        name: The document's id, the namespace at a root.
        tokens: Tokens of the document and of the text between it and the previous one.
        begins: Index of the document's first token among them.
        requests: Number of requests, halved whenever the record is too large.
    """

    name: str
    tokens: array[int]
    begins: int
    requests: int = 0
    children: dict[tuple[str, bytes], _Node] = field(default_factory=dict)


class HotPrefixes:
    """Counts the beginnings of prompts in bounded memory. Thread-safe.

    Args:
        tokens: The most tokens that :meth:`hottest` returns; 0 records nothing.

    Attributes:
        recorded_tokens: Size of the record in tokens.
    """

    def __init__(self, tokens: int) -> None:
        self._tokens = tokens
        self._roots: dict[tuple[str, bytes], _Node] = {}
        self.recorded_tokens = 0
        self._lock = make_lock()

    def note(
        self, namespace: str, token_ids: Sequence[int], documents: Sequence[tuple[str, int, int]]
    ) -> None:
        """Record an answered prompt; prompts without documents are ignored.

        Args:
            namespace: The prompt's tenant.
            token_ids: The prompt's tokens.
            documents: Each document's id, first token, and token after the last.
        """
        if not self._tokens or not documents:
            return
        pieces = [(namespace, 0, documents[0][1]), *documents[:DOCUMENTS]]
        with self._lock:
            nodes, start = self._roots, 0
            for name, begin, end in pieces:
                tokens = array("i", token_ids[start:end])
                key = (name, tokens.tobytes())
                node = nodes.get(key)
                if node is None:
                    node = nodes[key] = _Node(name, tokens, begin - start)
                    self.recorded_tokens += len(tokens) + 1
                node.requests += 1
                nodes, start = node.children, end
            while self.recorded_tokens > RECORDED * self._tokens:
                self.recorded_tokens = _halve(self._roots)

    def hottest(self, limit: int) -> list[Prefix]:
        """The most common beginnings, each after those that it continues.

        Args:
            limit: The most tokens in total; shared beginnings count once.
        """
        left = min(limit, self._tokens)
        with self._lock:
            known = sorted(_paths(self._roots), key=lambda path: (-path[-1].requests, len(path)))
            chosen: set[int] = set()
            prefixes: list[Prefix] = []
            for path in known:
                *above, node = path
                if len(prefixes) == MOST_PREFIXES or node.requests < SEEN_OFTEN:
                    break
                if len(node.tokens) > left or (above and id(above[-1]) not in chosen):
                    continue
                chosen.add(id(node))
                left -= len(node.tokens)
                prefixes.append(_prefix(path))
        return [prefix for prefix in prefixes if prefix.token_ids]

    def clear(self) -> None:
        """Forget everything."""
        with self._lock:
            self._roots.clear()
            self.recorded_tokens = 0


def _halve(nodes: dict[tuple[str, bytes], _Node]) -> int:
    """Halve the counts, drop nodes whose count is 0, and return the tokens that remain.

    No node has more requests than its parent, so that no child outlives its parent.
    """
    tokens = 0
    for key, node in list(nodes.items()):
        node.requests //= 2
        if node.requests:
            tokens += len(node.tokens) + 1 + _halve(node.children)
        else:
            del nodes[key]
    return tokens


def _paths(
    nodes: dict[tuple[str, bytes], _Node], above: tuple[_Node, ...] = ()
) -> Iterator[tuple[_Node, ...]]:
    for node in nodes.values():
        path = (*above, node)
        yield path
        yield from _paths(node.children, path)


def _prefix(path: Sequence[_Node]) -> Prefix:
    token_ids: list[int] = []
    documents = []
    for depth, node in enumerate(path):
        begin = len(token_ids) + node.begins
        token_ids += node.tokens
        if depth:
            documents.append((node.name, begin, len(token_ids)))
    return Prefix(path[0].name, token_ids, tuple(documents))
