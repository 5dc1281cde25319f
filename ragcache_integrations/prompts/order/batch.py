"""Orders the documents of many requests together with the requests themselves."""

from __future__ import annotations

import heapq
from collections import Counter, defaultdict
from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from .settings import within_limit

__all__ = ["ScheduledRequest", "schedule_requests"]


class ScheduledRequest(NamedTuple):
    """A request of a schedule.

    Attributes:
        request: Its index in the batch.
        order: Indices of its documents in the order of relevance, first to last.
    """

    request: int
    order: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class _Repeat:
    """A document that its request has ``number`` times before."""

    document: Hashable
    number: int


@dataclass(slots=True)
class _Cluster:
    """Requests that share their first documents.

    Attributes:
        documents: The documents that all of them have. They come first, after those of the
            clusters around this one.
        parts: The two clusters that it was merged from; none for requests of the same documents.
        requests: The requests of a cluster that was not merged.
        first: The smallest index of all requests in it.
    """

    documents: frozenset[Hashable]
    parts: tuple[_Cluster, ...]
    requests: tuple[int, ...]
    first: int


def schedule_requests(
    requests: Sequence[Sequence[Hashable]],
    tokens: Sequence[Sequence[int]] | None = None,
    *,
    pin_top: int = 0,
    max_displacement: int | None = None,
) -> list[ScheduledRequest]:
    """Order documents within requests, and the requests, so that they share long prefixes.

    The clustering is bottom-up: the two clusters of requests whose documents share the most tokens
    are merged, again and again, and keep the documents that they share. The clusters around a
    request, from the outermost, are the order of its documents. Requests are sent depth first, so
    that a prefix is used while it is in the cache.

    A request takes about ten microseconds, more if many requests have the same documents: the work
    grows with the number of pairs of requests that share a document.

    Args:
        requests: The documents of each request, by relevance. Equal ones keep their order.
        tokens: Lengths of the documents; ``None`` for 1 each.
        pin_top: Number of documents that stay first, in order of relevance.
        max_displacement: The largest distance between a document's index and its index in the order
            of relevance; ``None`` for no limit.

    Returns:
        Every request once, in the order in which to send them.
    """
    requests = [_distinct_keys(documents) for documents in requests]
    lengths: dict[Hashable, int] = {}
    if tokens is not None:
        for documents, sizes in zip(requests, tokens, strict=True):
            lengths.update(zip(documents, sizes, strict=True))
    by_pinned: dict[tuple[Hashable, ...], list[int]] = {}
    for number, documents in enumerate(requests):
        by_pinned.setdefault(tuple(documents[:pin_top]), []).append(number)
    scheduled = []
    for pinned, numbers in by_pinned.items():
        loose = {number: tuple(requests[number][len(pinned) :]) for number in numbers}
        for number, order in _depth_first(_Merging(loose, lengths).run(), loose):
            places = {document: place for place, document in enumerate(requests[number])}
            best = [places[document] for document in order]
            placed = range(len(pinned))
            scheduled.append(ScheduledRequest(number, within_limit(best, max_displacement, placed)))
    return scheduled


class _Merging:
    """Merges clusters until no two of them share a document.

    Args:
        requests: Documents of each request, by the request's index.
        lengths: Tokens of the documents; 1 for others.
    """

    def __init__(
        self, requests: dict[int, tuple[Hashable, ...]], lengths: dict[Hashable, int]
    ) -> None:
        self._lengths = lengths
        self._clusters: list[_Cluster] = []
        self._alive: list[bool] = []
        # Numbers of the clusters, not merged yet, that have a document; in ascending order.
        self._holders: defaultdict[Hashable, dict[int, None]] = defaultdict(dict)
        same: dict[frozenset[Hashable], list[int]] = {}
        for number, documents in requests.items():
            same.setdefault(frozenset(documents), []).append(number)
        for shared, numbers in same.items():
            self._add(_Cluster(shared, (), tuple(numbers), numbers[0]))

    def run(self) -> list[_Cluster]:
        """Merge; return the remaining clusters, by their first requests."""
        # The heap has one entry for each cluster, the pair that shares the most tokens. A merged
        # cluster shares no more with others than one of its parts did, so entries never become too
        # low: the first entry both of whose clusters still exist is the best pair of all.
        entries = map(self._closest, range(len(self._clusters)))
        waiting = [entry for entry in entries if entry is not None]
        heapq.heapify(waiting)
        while waiting:
            _, number, other = heapq.heappop(waiting)
            if not self._alive[number]:
                continue
            if self._alive[other]:
                number = self._join(number, other)
            if (entry := self._closest(number)) is not None:
                heapq.heappush(waiting, entry)
        pairs = zip(self._clusters, self._alive, strict=True)
        return sorted((c for c, alive in pairs if alive), key=lambda cluster: cluster.first)

    def _closest(self, number: int) -> tuple[int, int, int] | None:
        """The best pair of a cluster and an older one: minus their shared tokens, both numbers."""
        common: dict[int, int] = {}
        for document in self._clusters[number].documents:
            length = self._lengths.get(document, 1)
            for other in self._holders[document]:
                if other >= number:
                    break
                common[other] = common.get(other, 0) + length
        if not common:
            return None
        most = max(common.values())
        return -most, number, min(other for other, tokens in common.items() if tokens == most)

    def _join(self, number: int, other: int) -> int:
        for part in (number, other):
            self._alive[part] = False
            for document in self._clusters[part].documents:
                del self._holders[document][part]
        parts = (self._clusters[number], self._clusters[other])
        left, right = sorted(parts, key=lambda cluster: cluster.first)
        shared = left.documents & right.documents
        return self._add(_Cluster(shared, (left, right), (), left.first))

    def _add(self, cluster: _Cluster) -> int:
        number = len(self._clusters)
        self._clusters.append(cluster)
        self._alive.append(True)
        for document in cluster.documents:
            self._holders[document][number] = None
        return number


def _depth_first(
    clusters: Sequence[_Cluster], requests: dict[int, tuple[Hashable, ...]]
) -> Iterator[tuple[int, list[Hashable]]]:
    """Requests with their documents in order; shared ones in the order of the first request."""
    waiting: list[tuple[_Cluster, list[Hashable]]] = [(c, []) for c in reversed(clusters)]
    while waiting:
        cluster, path = waiting.pop()
        if cluster.parts:
            new = cluster.documents.difference(path)
            path = [*path, *(document for document in requests[cluster.first] if document in new)]
            waiting += [(part, path) for part in reversed(cluster.parts)]
        for number in cluster.requests:
            shared = requests[cluster.first]
            yield number, [*path, *(document for document in shared if document not in path)]


def _distinct_keys(documents: Sequence[Hashable]) -> Sequence[Hashable]:
    """Distinct keys of the documents, because clusters are sets.

    The second occurrence of a document has the same key in every request, so that two requests
    that both have it share it. They share the first occurrence, too, which comes before it.
    """
    seen = Counter(documents)
    if len(seen) == len(documents):
        return documents
    seen.clear()
    keys = []
    for document in documents:
        keys.append(_Repeat(document, seen[document]) if seen[document] else document)
        seen[document] += 1
    return keys
