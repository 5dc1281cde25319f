"""A model of a prefix cache: the paths of documents that prompts began with.

It is a prefix tree over document ids for each namespace. The least recently used leaves are evicted
first, as in the caches that it models. It is not thread-safe: its owner holds a lock.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable, Iterable, Sequence
from itertools import islice
from typing import NamedTuple

from ragcache_integrations.knowledge_tree.snapshot import NodeSnapshot, TreeSnapshot

from .settings import may_follow

__all__ = ["CachedDocument", "PathModel", "cached_documents"]

MAX_NODES = 100_000
"""The most nodes of the tree, about 30 MB."""

MAX_VISITS = 512
"""The most nodes that a search for the longest path visits. Real traffic takes a tenth of it; a
tree with the same documents in every order would take the factorial of their number."""

IN_FLIGHT = 64
"""Number of later requests after which a request must have reached the cache."""


class CachedDocument(NamedTuple):
    """A document in a cache's tree, with the documents after it."""

    tokens: int
    children: dict[Hashable, CachedDocument]


def cached_documents(snapshot: TreeSnapshot) -> dict[Hashable, CachedDocument]:
    """The documents of the engine's tree that are in one of its tiers, by namespace.

    A namespace has a tree for each text that its prompts begin with. They are merged, because the
    snapshot doesn't have the texts.
    """
    namespaces: dict[Hashable, CachedDocument] = {}
    for root in snapshot.roots:
        top = namespaces.setdefault(root.name, CachedDocument(0, {}))
        waiting: list[tuple[CachedDocument, Iterable[NodeSnapshot]]] = [(top, root.children)]
        while waiting:
            parent, nodes = waiting.pop()
            for node in nodes:
                if node.place != "none":
                    empty = CachedDocument(node.tokens, {})
                    document = parent.children.setdefault(node.name, empty)
                    waiting.append((document, node.children))
    return namespaces


class _Node:
    """A document after a path.

    ``last`` and ``previous`` are the clock's values at the last access and the one before; 0 for
    none.
    """

    __slots__ = ("children", "document", "last", "parent", "previous", "tokens")

    def __init__(self, document: Hashable, parent: _Node | None, tokens: int) -> None:
        self.document = document
        self.parent = parent
        self.tokens = tokens
        self.children: dict[Hashable, _Node] = {}
        self.last = self.previous = 0


class PathModel:
    """The expected contents of a cache, inferred from the requests that were sent.

    Args:
        cache_tokens: Room of the cache in tokens; ``None`` for no limit.
        max_nodes: The most nodes of the tree.

    Attributes:
        cache_tokens: As above; it may be changed.
        tokens: Tokens that the cache is expected to hold.
        clock: Number of requests entered.
        evicted: Number of documents that were removed because the cache has, or seems to have, no
            room for them.
    """

    def __init__(self, cache_tokens: int | None = None, max_nodes: int = MAX_NODES) -> None:
        self.cache_tokens = cache_tokens
        self._max_nodes = max_nodes
        self.clock = 0
        self.evicted = 0
        self.clear()

    def __len__(self) -> int:
        return len(self._used)

    def clear(self) -> None:
        """Forget all paths."""
        self.tokens = 0
        self._root = _Node(None, None, 0)
        # Least recently used first. A node is touched after its children, so it comes after all of
        # them in this order, and the first node is always a leaf.
        self._used: OrderedDict[_Node, None] = OrderedDict()

    def copy(self) -> PathModel:
        """An independent copy."""
        duplicate = PathModel(self.cache_tokens, self._max_nodes)
        duplicate.clock, duplicate.evicted = self.clock, self.evicted
        duplicate.tokens = self.tokens
        copies = {self._root: duplicate._root}
        # Backwards, so that parents come before their children.
        for node in reversed(self._used):
            assert node.parent is not None  # noqa: S101 - for type checkers; only the root has none
            parent = copies[node.parent]
            twin = copies[node] = _Node(node.document, parent, node.tokens)
            twin.last, twin.previous = node.last, node.previous
            parent.children[node.document] = twin
        duplicate._used = OrderedDict((copies[node], None) for node in self._used)
        return duplicate

    def longest_path(
        self,
        namespace: str,
        documents: Sequence[Hashable],
        pinned: int = 0,
        limit: int | None = None,
    ) -> tuple[tuple[int, ...], int]:
        """The cached path with the most tokens that consists of a request's documents.

        Args:
            namespace: Tenant of the request.
            documents: The request's documents, the most relevant first; some may be equal.
            pinned: Number of documents that come first, in order of relevance.
            limit: The largest distance between a document's place and its index.

        Returns:
            The indices in ``documents`` of the path, beginning with the pinned ones, cached or not;
            and the number of cached tokens. Equal documents keep their order.
        """
        best: tuple[int, ...] = tuple(range(min(pinned, len(documents)))) if pinned else ()
        start, most = self._follow(namespace, documents, len(best))
        if start is None:
            return best, most
        count = len(documents)
        places = _places_of(documents)
        waiting = [(start, most, best)]
        for _ in range(MAX_VISITS):
            if not waiting:
                break
            node, tokens, path = waiting.pop()
            if tokens > most:
                most, best = tokens, path
                if len(path) == count:
                    break  # the path has all documents
            children = node.children
            # The smaller set is walked: roots have thousands of children, other nodes few.
            for document in children if len(children) < count else places:
                child = children.get(document)
                # Of equal documents the first is taken: if it may not follow, none of them may.
                place = next((free for free in places.get(document, ()) if free not in path), None)
                if place is None or child is None:
                    continue
                if limit is None or may_follow(path, place, limit):
                    waiting.append((child, tokens + child.tokens, (*path, place)))
        return best, most

    def _follow(
        self, namespace: str, documents: Iterable[Hashable], count: int
    ) -> tuple[_Node | None, int]:
        """The node after the first ``count`` documents, and the tokens of the cached ones.

        The node is ``None`` if some of them are not cached.
        """
        node, tokens = self._root.children.get(namespace), 0
        for document in islice(documents, count):
            node = node.children.get(document) if node is not None else None
            if node is None:
                break
            tokens += node.tokens
        return node, tokens

    def enter(
        self,
        namespace: str,
        documents: Sequence[Hashable],
        tokens: Sequence[int] | None,
        order: Iterable[int],
    ) -> None:
        """Enter a request that is sent, and so will be cached.

        Args:
            namespace: Tenant of the request.
            documents: The request's documents.
            tokens: Their lengths; ``None`` for 1 each.
            order: Their indices in ``documents``, in the order of the prompt.
        """
        self.clock += 1
        clock, used = self.clock, self._used
        node = self._root.children.get(namespace)
        if node is None:
            node = self._root.children[namespace] = _Node(namespace, self._root, 0)
            used[node] = None
        node.previous, node.last = node.last, clock
        for place in order:
            document = documents[place]
            child = node.children.get(document)
            if child is None:
                length = 1 if tokens is None else tokens[place]
                child = node.children[document] = _Node(document, node, length)
                self.tokens += length
                used[child] = None
            child.previous, child.last = child.last, clock
            node = child
        while node.parent is not None:  # up to the namespace, whose parent is the root
            used.move_to_end(node)
            node = node.parent
        while self.cache_tokens is not None and self.tokens > self.cache_tokens:
            self._drop(next(iter(used)))
            self.evicted += 1
        while len(used) > self._max_nodes:
            self._drop(next(iter(used)))

    def disprove(self, namespace: str, documents: Sequence[Hashable], cached: int) -> None:
        """Correct the model: only the first documents of a request were in the cache.

        If the model has the next document, too, the cache is smaller than the model, and has also
        lost everything that was not used later than that document. A document that was entered
        only recently proves nothing, because its request may still have been in flight.

        Args:
            namespace: Tenant of the request.
            documents: The documents of a request that was entered, in the order of the prompt.
            cached: How many of the first ones were in the cache.
        """
        node, _ = self._follow(namespace, documents, cached + 1)
        if (
            cached == len(documents)
            or node is None
            or not 0 < node.previous <= self.clock - IN_FLIGHT
        ):
            return
        horizon = node.previous
        while self._used and (oldest := next(iter(self._used))).last <= horizon:
            self._drop(oldest)
            self.evicted += 1

    def merge(self, cached: dict[Hashable, CachedDocument], since: int) -> None:
        """Correct the model by the contents of the cache.

        Args:
            cached: All trees of the cache, by namespace.
            since: Value of the clock; requests that were entered later stay, although the cache
                may not have them yet.
        """
        waiting = [(self._root, CachedDocument(0, cached))]
        while waiting:
            node, real = waiting.pop()
            for document, child in list(node.children.items()):
                if document in real.children:
                    continue
                if child.last <= since:
                    self._drop_all(child)
                else:
                    waiting.append((child, CachedDocument(0, {})))
            for document, below in real.children.items():
                known = node.children.get(document) or self._add(document, node, below.tokens)
                waiting.append((known, below))
        while len(self._used) > self._max_nodes:
            self._drop(next(iter(self._used)))

    def _add(self, document: Hashable, parent: _Node, tokens: int) -> _Node:
        """Add a document that no request used: only its children are evicted before it."""
        node = parent.children[document] = _Node(document, parent, tokens)
        self.tokens += tokens
        self._used[node] = None
        self._used.move_to_end(node, last=False)
        return node

    def _drop(self, leaf: _Node) -> None:
        del self._used[leaf]
        self.tokens -= leaf.tokens
        if leaf.parent is not None:
            del leaf.parent.children[leaf.document]
            leaf.parent = None  # without the cycle, the memory is released immediately

    def _drop_all(self, top: _Node) -> None:
        nodes = [top]
        for node in nodes:
            nodes += node.children.values()
        for node in reversed(nodes):
            self._drop(node)


def _places_of(documents: Sequence[Hashable]) -> dict[Hashable, list[int]]:
    places: dict[Hashable, list[int]] = {}
    for place, document in enumerate(documents):
        places.setdefault(document, []).append(place)
    return places
