"""A model of what a prefix cache holds: the paths of documents that prompts began with.

A prefix tree over document ids, one beneath each namespace. Least recently used leaves go first, as
in the caches that it stands for. Not thread-safe: its owner holds a lock.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable, Iterable, Sequence
from itertools import islice
from typing import NamedTuple

from ragcache_integrations.knowledge_tree.snapshot import NodeSnapshot, TreeSnapshot
from ragcache_integrations.prompts.order.limits import may_follow

__all__ = ["CachedDocument", "PathModel", "cached_documents"]

MAX_NODES = 100_000
"""Documents after paths that are remembered: some 30 MB."""

MAX_VISITS = 512
"""Nodes that one search for the longest path looks at. Real traffic takes a tenth of it; a tree
that holds the same documents in every order would take the factorial of their number."""

IN_FLIGHT = 64
"""Requests after which what a prompt began with must have reached the cache."""


class CachedDocument(NamedTuple):
    """A document in a cache's tree, with what comes behind it."""

    tokens: int
    children: dict[Hashable, CachedDocument]


def cached_documents(snapshot: TreeSnapshot) -> dict[Hashable, CachedDocument]:
    """What of the engine's tree is in one of its tiers, by namespace.

    A namespace has one tree for each text that its prompts begin with. They are taken together:
    the snapshot does not tell the texts.
    """
    found: dict[Hashable, CachedDocument] = {}
    for root in snapshot.roots:
        top = found.setdefault(root.name, CachedDocument(0, {}))
        waiting: list[tuple[CachedDocument, Iterable[NodeSnapshot]]] = [(top, root.children)]
        while waiting:
            parent, nodes = waiting.pop()
            for node in nodes:
                if node.place != "none":
                    empty = CachedDocument(node.tokens, {})
                    document = parent.children.setdefault(node.name, empty)
                    waiting.append((document, node.children))
    return found


class _Node:
    """A document after a path; ``previous`` is the access before the last one, 0 for none."""

    __slots__ = ("children", "document", "last", "parent", "previous", "tokens")

    def __init__(self, document: Hashable, parent: _Node | None, tokens: int) -> None:
        self.document = document
        self.parent = parent
        self.tokens = tokens
        self.children: dict[Hashable, _Node] = {}
        self.last = self.previous = 0


class PathModel:
    """What a cache holds, as far as can be told from what was sent to it.

    Args:
        cache_tokens: Room of the cache in tokens; ``None`` for more than will ever be sent.
        max_nodes: The most nodes to remember.

    Attributes:
        cache_tokens: As above; may be changed.
        tokens: Tokens that it holds.
        clock: Number of requests entered.
        evicted: Documents that went because the cache has, or seems to have, no room for them.
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
        # Least recently used first. A node is touched after those behind it on its path, so that
        # every node stands behind all of its children, and the first one is a leaf.
        self._used: OrderedDict[_Node, None] = OrderedDict()

    def copy(self) -> PathModel:
        """The same paths, which go on by themselves."""
        again = PathModel(self.cache_tokens, self._max_nodes)
        again.clock, again.evicted, again.tokens = self.clock, self.evicted, self.tokens
        copies = {self._root: again._root}
        # Parents stand behind their children.
        for node in reversed(self._used):
            assert node.parent is not None  # noqa: S101 - said to type checkers; not the root
            parent = copies[node.parent]
            twin = copies[node] = _Node(node.document, parent, node.tokens)
            twin.last, twin.previous = node.last, node.previous
            parent.children[node.document] = twin
        again._used = OrderedDict((copies[node], None) for node in self._used)
        return again

    def longest_path(
        self,
        namespace: str,
        documents: Sequence[Hashable],
        pinned: int = 0,
        limit: int | None = None,
    ) -> tuple[tuple[int, ...], int]:
        """The path of most tokens that is cached and consists of some of a request's documents.

        Args:
            namespace: Tenant.
            documents: The request's documents, the most relevant first; some may be equal.
            pinned: So many documents come first, in order of relevance.
            limit: The largest allowed distance between a document's place and its number.

        Returns:
            The places in ``documents`` of those on the path, pinned ones first whether cached or
            not, and the cached tokens. Equal documents keep their order.
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
                    break  # no path has more than all of them
            children = node.children
            # Whichever are fewer: a root has thousands of children, other nodes few.
            for document in children if len(children) < count else places:
                child = children.get(document)
                # Of equal documents the first: if it may not follow here, no later one may.
                place = next((free for free in places.get(document, ()) if free not in path), None)
                if place is None or child is None:
                    continue
                if limit is None or may_follow(path, place, limit):
                    waiting.append((child, tokens + child.tokens, (*path, place)))
        return best, most

    def _follow(
        self, namespace: str, documents: Iterable[Hashable], count: int
    ) -> tuple[_Node | None, int]:
        """Where the first documents lead, if all are cached, and the tokens of those that are."""
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
        """A request is sent with its documents in this order, and will be cached.

        Args:
            namespace: Tenant.
            documents: The request's documents.
            tokens: Their lengths; 1 each where ``None``.
            order: Their places in ``documents``, first to last.
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

    def disprove(self, namespace: str, documents: Sequence[Hashable], found: int) -> None:
        """Of a request that was entered, only so many leading documents were in the cache.

        Where the model had one more, the cache is smaller than the model: what was used no later
        than that one is gone as well. One that was entered only lately proves nothing, since its
        request may have been in the making.
        """
        node, _ = self._follow(namespace, documents, found + 1)
        if (
            found == len(documents)
            or node is None
            or not 0 < node.previous <= self.clock - IN_FLIGHT
        ):
            return
        horizon = node.previous
        while self._used and (oldest := next(iter(self._used))).last <= horizon:
            self._drop(oldest)
            self.evicted += 1

    def merge(self, cached: dict[Hashable, CachedDocument], since: int) -> None:
        """Take over what a cache really holds.

        Args:
            cached: Its trees by namespace, all of them.
            since: What was entered after this value of the clock stays, although the cache may
                not have it yet.
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
        """Add what was never asked for here: used before everything else, its children before."""
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
            leaf.parent = None  # no cycles: memory is given back at once

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
