"""Cache-aware reordering (RAGCache §5.2): who waits least for what is cached already.

The waiting request with the largest ``CachedLength / ComputationLength`` comes first, ties in the
order of arrival. No request is overtaken by more than a window of others.
"""

from __future__ import annotations

import bisect
import heapq
import itertools
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from ragcache_integrations.errors import ConfigurationError

__all__ = ["ReorderingQueue"]

Request = TypeVar("Request", bound=Hashable)


@dataclass(slots=True, eq=False)
class _Place(Generic[Request]):
    """A request's place in the queue: its number in the order of arrival, and its topics."""

    request: Request
    order: int
    topics: Sequence[Hashable]
    urgency: int


class ReorderingQueue(Generic[Request]):
    """A waiting queue that knows what is cached. Not thread-safe: its owner is a scheduler.

    Scores are kept in a heap and looked at again when they come up, which is right as long as they
    only fall, as evictions make them. When something new is cached, call :meth:`refresh`;
    :meth:`pop` does so for the topics of the request that it gives out.

    Args:
        score: A request's priority now, the higher the sooner, among those of one urgency.
        window: How many others may overtake a request; 0 for the order of arrival.

    Raises:
        ConfigurationError: ``window`` is negative.
    """

    def __init__(self, score: Callable[[Request], float], window: int) -> None:
        if window < 0:
            raise ConfigurationError(f"the window must be at least 0 requests, got {window}")
        self._score = score
        self._window = window
        self._front: list[Request] = []
        self._places: dict[Request, _Place[Request]] = {}  # in the order of arrival
        self._about: dict[Hashable, dict[Request, None]] = {}
        self._heap: list[tuple[int, float, int, int, _Place[Request]]] = []
        self._orders = itertools.count()
        self._stamps = itertools.count()  # keeps places from being compared
        self._overtook: list[int] = []  # who, by order, went before somebody older
        self._latched: _Place[Request] | None = None
        self._given: dict[Request, _Place[Request]] = {}
        self.reorderings = 0
        self.longest_overtaking = 0

    def __len__(self) -> int:
        return len(self._front) + len(self._places)

    def __iter__(self) -> Iterator[Request]:
        yield from self._front
        yield from self._places

    def __contains__(self, request: Request) -> bool:
        return request in self._places or request in self._front

    def add(self, request: Request, topics: Sequence[Hashable] = (), *, urgency: int = 0) -> None:
        """Let a request wait.

        Args:
            request: The request.
            topics: Name what would raise its score by being cached.
            urgency: The most urgent requests go first, up to the window.
        """
        place = self._places[request] = _Place(request, next(self._orders), topics, urgency)
        self._index(place)

    def peek(self) -> Request:
        """The next request. It stays that until it is popped or removed, or others are put back.

        Raises:
            IndexError: Nobody waits.
        """
        if self._front:
            return self._front[0]
        if self._latched is None:
            self._latched = self._choose()
        return self._latched.request

    def pop(self) -> Request:
        """Give out the next request.

        Raises:
            IndexError: Nobody waits.
        """
        request = self.peek()
        if self._front:
            return self._front.pop(0)
        place = self._places[request]
        oldest = self._oldest()
        if place is not oldest:
            bisect.insort(self._overtook, place.order)
            self.reorderings += 1
            self.longest_overtaking = max(self.longest_overtaking, self._overtakings(oldest))
        self._delete(place)
        self._given[request] = place
        self.refresh(place.topics)
        return request

    def begin_step(self) -> None:
        """What was popped before now can't be put back any more."""
        self._given.clear()
        # Nobody who may ever wait again is older than the oldest now.
        keep = self._overtakings(self._oldest()) if self._places else 0
        del self._overtook[: len(self._overtook) - keep]

    def put_back(self, requests: Iterable[Request]) -> None:
        """Requests popped in this step could not be served: they get their old places again."""
        returned = []
        for request in requests:
            place = self._given.pop(request, None)
            if place is None:
                self.push_front(request)
                continue
            returned.append(place)
            at = bisect.bisect_left(self._overtook, place.order)
            if at < len(self._overtook) and self._overtook[at] == place.order:
                del self._overtook[at]
                self.reorderings -= 1
        if returned:
            self._latched = None  # one of them may have waited too long
            waiting = sorted([*self._places.values(), *returned], key=lambda place: place.order)
            self._places = {place.request: place for place in waiting}
            for place in returned:
                self._index(place)

    def push_front(self, request: Request) -> None:
        """A request that was served in part goes before all others."""
        self._front.insert(0, request)

    def remove(self, requests: Iterable[Request]) -> None:
        """Take requests out, at any position; unknown ones are ignored."""
        gone = set(requests)
        self._front = [request for request in self._front if request not in gone]
        for request in gone:
            place = self._places.get(request)
            if place is not None:
                self._delete(place)

    def refresh(self, topics: Iterable[Hashable]) -> None:
        """Something about these topics was cached: score again who waits for it."""
        concerned = {request: None for topic in topics for request in self._about.get(topic, ())}
        for request in concerned:
            self._push(self._places[request])

    def _oldest(self) -> _Place[Request]:
        return next(iter(self._places.values()))

    def _overtakings(self, place: _Place[Request]) -> int:
        return len(self._overtook) - bisect.bisect_right(self._overtook, place.order)

    def _choose(self) -> _Place[Request]:
        if not self._places:
            raise IndexError("no request waits")
        oldest = self._oldest()
        if self._overtakings(oldest) >= self._window:
            return oldest
        while True:
            _, negative, _, _, place = self._heap[0]
            if self._places.get(place.request) is not place:
                heapq.heappop(self._heap)
                continue
            score = self._score(place.request)
            if score >= -negative:
                return place
            heapq.heapreplace(self._heap, self._entry(place, score))

    def _index(self, place: _Place[Request]) -> None:
        for topic in place.topics:
            self._about.setdefault(topic, {})[place.request] = None
        self._push(place)

    def _push(self, place: _Place[Request]) -> None:
        if not self._window:
            return
        heapq.heappush(self._heap, self._entry(place, self._score(place.request)))
        if len(self._heap) > 4 * len(self._places) + 64:
            self._heap = [self._entry(p, self._score(p.request)) for p in self._places.values()]
            heapq.heapify(self._heap)

    def _entry(
        self, place: _Place[Request], score: float
    ) -> tuple[int, float, int, int, _Place[Request]]:
        return -place.urgency, -score, place.order, next(self._stamps), place

    def _delete(self, place: _Place[Request]) -> None:
        del self._places[place.request]
        for topic in place.topics:
            about = self._about.get(topic)
            if about is not None:
                about.pop(place.request, None)
                if not about:
                    del self._about[topic]
        if self._latched is place:
            self._latched = None
