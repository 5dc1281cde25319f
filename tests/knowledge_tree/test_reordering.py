"""Cache-aware reordering (RAGCache §5.2)."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from ragcache_integrations.errors import ConfigurationError
from ragcache_integrations.knowledge_tree import ReorderingQueue
from tests.support.sizes import examples

TOPICS = ("D1", "D2", "D3")
SCORES = st.integers(0, 4)
ABOUT = st.lists(st.sampled_from(TOPICS), max_size=2, unique=True)


def make_queue(scores: dict[str, float], window: int = 32) -> ReorderingQueue[str]:
    queue = ReorderingQueue(scores.__getitem__, window)
    for request in scores:
        queue.add(request)
    return queue


def drain(queue: ReorderingQueue[str]) -> list[str]:
    order = []
    while queue:
        order.append(queue.pop())
    return order


class TestOrder:
    def test_the_largest_score_comes_first(self) -> None:
        queue = make_queue({"a": 0.5, "b": 2.0, "c": 1.0})
        assert drain(queue) == ["b", "c", "a"]
        assert queue.reorderings == 2
        assert queue.longest_overtaking == 2

    def test_equal_scores_keep_the_order_of_arrival(self) -> None:
        queue = make_queue(dict.fromkeys("abcd", 1.0))
        assert drain(queue) == ["a", "b", "c", "d"]
        assert queue.reorderings == 0

    def test_the_paper_s_example_of_thrashing(self) -> None:
        """Two documents in turns, a cache for one: reordering raises the hit rate (§5.2)."""
        cached = ""

        def score(request: tuple[int, str]) -> float:
            return 1.0 if request[1] == cached else 0.0

        queue = ReorderingQueue(score, window=32)
        for number in range(6):
            queue.add((number, "D2" if number % 2 else "D1"), ("D2" if number % 2 else "D1",))
        served = []
        while queue:
            request = queue.peek()
            cached = request[1]
            served.append(queue.pop())
        assert [number for number, _ in served] == [0, 2, 4, 1, 3, 5]

    def test_nobody_waits(self) -> None:
        queue = make_queue({})
        with pytest.raises(IndexError, match="no request waits"):
            queue.peek()
        with pytest.raises(IndexError, match="no request waits"):
            queue.pop()

    def test_it_knows_who_waits(self) -> None:
        queue = make_queue({"a": 0.0, "b": 1.0})
        queue.push_front("p")
        assert len(queue) == 3
        assert list(queue) == ["p", "a", "b"]
        assert "p" in queue
        assert "b" in queue
        assert "c" not in queue


class TestWindow:
    def test_nobody_is_overtaken_by_more(self) -> None:
        queue = make_queue({"old": 0.0, **{f"new{n}": 1.0 for n in range(9)}}, window=3)
        assert drain(queue).index("old") == 3
        assert queue.longest_overtaking == 3

    def test_none_is_the_order_of_arrival(self) -> None:
        assert drain(make_queue({"a": 0.0, "b": 1.0, "c": 2.0}, window=0)) == ["a", "b", "c"]

    def test_those_who_came_later_are_counted_for_themselves(self) -> None:
        scores = {"a": 0.0, "b": 0.0, "c": 9.0}
        queue = make_queue(scores, window=1)
        assert [queue.pop(), queue.pop()] == ["c", "a"]
        queue.begin_step()
        scores["d"] = 9.0  # c overtook b too, so that d may not
        queue.add("d")
        assert drain(queue) == ["b", "d"]

    def test_bad_window(self) -> None:
        with pytest.raises(ConfigurationError, match="at least 0 requests, got -1"):
            ReorderingQueue[str](lambda _: 0.0, -1)


class TestPeek:
    def test_it_is_what_pop_gives(self) -> None:
        scores = {"a": 1.0, "b": 2.0}
        queue = make_queue(scores)
        assert queue.peek() == "b"
        scores["b"] = 0.0
        scores["c"] = 9.0
        queue.add("c")
        assert queue.pop() == "b"

    def test_removal_ends_it(self) -> None:
        queue = make_queue({"a": 1.0, "b": 2.0})
        assert queue.peek() == "b"
        queue.remove(["b", "unknown"])
        assert drain(queue) == ["a"]

    def test_removal_reaches_the_front(self) -> None:
        queue = make_queue({"a": 1.0})
        queue.push_front("p")
        assert queue.peek() == "p"
        queue.remove(["p"])
        assert drain(queue) == ["a"]


class TestScores:
    def test_falling_ones_are_noticed(self) -> None:
        scores = {"a": 1.0, "b": 2.0, "c": 0.5}
        queue = make_queue(scores)
        scores["b"] = 0.0
        assert drain(queue) == ["a", "c", "b"]

    def test_rising_ones_need_to_be_told(self) -> None:
        scores = {"a": 1.0, "b": 0.0}
        queue = ReorderingQueue(scores.__getitem__, 32)
        queue.add("a")
        queue.add("b", ("D1",))
        scores["b"] = 2.0
        queue.refresh(["D1", "unheard of"])
        assert drain(queue) == ["b", "a"]

    def test_a_request_given_out_raises_those_of_its_kind(self) -> None:
        scores = {"a": 1.0, "b": 0.5, "c": 0.0}
        queue = ReorderingQueue(scores.__getitem__, 32)
        queue.add("a", ("D1",))
        queue.add("b", ("D2",))
        queue.add("c", ("D1",))
        assert queue.peek() == "a"
        scores["c"] = 3.0  # computing a caches D1
        assert drain(queue) == ["a", "c", "b"]

    def test_the_heap_stays_small(self) -> None:
        queue = ReorderingQueue[int](lambda _: 1.0, 32)
        for request in range(10):
            queue.add(request, ("D1",))
        for _ in range(1000):
            queue.refresh(["D1"])
        assert len(queue._heap) <= 4 * 10 + 64


class TestComingBack:
    def test_who_was_served_in_part_goes_before_all(self) -> None:
        queue = make_queue({"a": 9.0})
        queue.push_front("p")
        queue.push_front("q")
        assert drain(queue) == ["q", "p", "a"]
        assert queue.reorderings == 0

    def test_who_could_not_be_served_has_its_place_again(self) -> None:
        queue = make_queue({"a": 0.0, "b": 1.0, "c": 0.0})
        queue.begin_step()
        assert [queue.pop(), queue.pop()] == ["b", "a"]
        queue.put_back(["b", "a"])
        assert list(queue) == ["a", "b", "c"]
        assert queue.reorderings == 0
        assert drain(queue) == ["b", "a", "c"]

    def test_overtaken_in_vain_is_overtaken(self) -> None:
        """The window counts on where a request is given out and put back."""
        scores = {"a": 0.0, "b": 1.0, "c": 1.0}
        queue = make_queue(scores, window=1)
        queue.begin_step()
        assert [queue.pop(), queue.pop(), queue.pop()] == ["b", "a", "c"]
        queue.put_back(["a"])
        scores["d"] = 1.0
        queue.add("d")
        assert drain(queue) == ["a", "d"]

    def test_the_starving_go_before_who_was_looked_at(self) -> None:
        scores = {"a": 0.0, "b": 1.0, "c": 0.0, "d": 1.0}
        queue = make_queue(scores, window=1)
        queue.begin_step()
        assert [queue.pop(), queue.pop()] == ["b", "a"]
        assert queue.peek() == "d"
        queue.put_back(["a"])
        assert queue.pop() == "a"

    def test_after_the_step_it_is_served_in_part(self) -> None:
        queue = make_queue({"a": 0.0, "b": 1.0})
        assert queue.pop() == "b"
        queue.begin_step()
        queue.put_back(["b"])
        assert list(queue) == ["b", "a"]
        assert queue.reorderings == 1


class QueueMachine(RuleBasedStateMachine):
    """The queue against one that looks at everybody every time."""

    @initialize(
        window=st.sampled_from([0, 1, 2, 3, 100]),
        requests=st.lists(st.tuples(SCORES, ABOUT), max_size=8),
    )
    def make(self, window: int, requests: list[tuple[int, list[str]]]) -> None:
        self.window = window
        self.scores: dict[int, float] = {}
        self.topics: dict[int, Sequence[str]] = {}
        self.queue = ReorderingQueue(self.scores.__getitem__, window)
        self.front: list[int] = []
        self.waiting: list[int] = []  # requests are numbered in the order of arrival
        self.given: list[int] = []
        self.running: list[int] = []
        self.overtakers: list[int] = []
        self.overtaken_by: dict[int, set[int]] = {}
        self.reorderings = 0
        self.latched: int | None = None
        for score, topics in requests:
            self.add(score, topics)

    def chosen(self) -> int:
        if self.front:
            return self.front[0]
        if self.latched is None:
            oldest = self.waiting[0]
            if sum(other > oldest for other in self.overtakers) >= self.window:
                self.latched = oldest
            else:
                self.latched = max(self.waiting, key=lambda one: (self.scores[one], -one))
        return self.latched

    @rule(score=SCORES, topics=ABOUT)
    def add(self, score: int, topics: list[str]) -> None:
        request = len(self.scores)
        self.scores[request] = float(score)
        self.topics[request] = topics
        self.overtaken_by[request] = set()
        self.waiting.append(request)
        self.queue.add(request, topics)

    @rule()
    def peek(self) -> None:
        if self.front or self.waiting:
            assert self.queue.peek() == self.chosen()

    @rule(raised=SCORES, fallen=st.lists(st.tuples(st.integers(0, 8), SCORES), max_size=3))
    def pop(self, raised: int, fallen: list[tuple[int, int]]) -> None:
        """What is given out may evict what others need, and cache what those of its kind need."""
        if not (self.front or self.waiting):
            return
        request = self.chosen()
        assert self.queue.peek() == request
        for which, score in fallen:
            self.fall(which, score)
        if self.front:
            assert self.queue.pop() == request
            self.running.append(self.front.pop(0))
            return
        for topic in self.topics[request]:
            self._raise(topic, raised)
        assert self.queue.pop() == request
        if request != self.waiting[0]:
            self.overtakers.append(request)
            self.reorderings += 1
        self.waiting.remove(request)
        self.latched = None
        for other in self.waiting:
            if other < request:
                self.overtaken_by[other].add(request)
        self.given.append(request)

    @rule()
    def begin_step(self) -> None:
        self.running += self.given
        self.given.clear()
        self.queue.begin_step()

    @rule(data=st.data())
    def put_back(self, data: st.DataObject) -> None:
        """Those of this step get their places again, others go to the front."""
        if not self.given + self.running:
            return
        popped = st.sampled_from(self.given + self.running)
        back = data.draw(st.lists(popped, min_size=1, unique=True))
        self.queue.put_back(back)
        for request in back:
            if request in self.running:
                self.running.remove(request)
                self.front.insert(0, request)
                continue
            self.latched = None
            self.given.remove(request)
            self.waiting = sorted([*self.waiting, request])
            if request in self.overtakers:
                self.overtakers.remove(request)
                self.reorderings -= 1
            for others in self.overtaken_by.values():
                others.discard(request)

    @rule(data=st.data())
    def push_front(self, data: st.DataObject) -> None:
        if self.running:
            request = data.draw(st.sampled_from(self.running))
            self.running.remove(request)
            self.queue.push_front(request)
            self.front.insert(0, request)

    @rule(data=st.data())
    def remove(self, data: st.DataObject) -> None:
        here = st.sampled_from([*self.front, *self.waiting, -1])
        which = data.draw(st.lists(here, max_size=2))
        self.queue.remove(which)
        self.front = [one for one in self.front if one not in which]
        self.waiting = [one for one in self.waiting if one not in which]
        if self.latched in which:
            self.latched = None

    @rule(which=st.integers(0, 8), score=SCORES)
    def fall(self, which: int, score: int) -> None:
        if which in self.scores:
            self.scores[which] = min(self.scores[which], float(score))

    @rule(topic=st.sampled_from(TOPICS), score=SCORES)
    def rise(self, topic: str, score: int) -> None:
        self._raise(topic, score)
        self.queue.refresh([topic])

    def _raise(self, topic: str, score: int) -> None:
        for request, topics in self.topics.items():
            if topic in topics:
                self.scores[request] = max(self.scores[request], float(score))

    @invariant()
    def agrees(self) -> None:
        if not hasattr(self, "queue"):
            return
        assert list(self.queue) == [*self.front, *self.waiting]
        assert len(self.queue) == len(self.front) + len(self.waiting)
        assert self.queue.reorderings == self.reorderings
        assert self.queue.longest_overtaking <= self.window
        assert all(len(self.overtaken_by[one]) <= self.window for one in self.waiting)


TestQueueMachine = QueueMachine.TestCase
TestQueueMachine.settings = examples(200)
