from __future__ import annotations

import asyncio
import random
import sys
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ragcache_integrations.engine import EngineStats
from ragcache_integrations.errors import ConfigurationError, EngineClosedError
from ragcache_integrations.knowledge_tree import NodeSnapshot, TreeSnapshot, TreeStats
from ragcache_integrations.prompts.order import order as order_module
from ragcache_integrations.prompts.order.knobs import OrderKnobs
from ragcache_integrations.prompts.order.order import DocumentOrder, SharedOrders
from ragcache_integrations.prompts.order.settings import Order, Uncached
from tests.support.waiting import wait_until

REQUEST = st.lists(st.sampled_from("abcdefgh"), max_size=5).map("".join).map(tuple)


def text(documents: Sequence[str], order: Sequence[int]) -> str:
    return "".join(documents[place] for place in order)


def arrange(order: DocumentOrder, documents: str, **knobs: Any) -> str:
    return text(documents, order.arrange(tuple(documents), **knobs))


# The orders


def test_relevance_is_the_default_and_changes_nothing() -> None:
    order = DocumentOrder()
    assert [arrange(order, one) for one in ("abc", "cab", "")] == ["abc", "cab", ""]
    assert order.stats().requests == 0


def test_reverse_puts_the_most_relevant_last() -> None:
    assert arrange(DocumentOrder("reverse"), "abc") == "cba"


def test_cached_first_follows_the_longest_cached_path_then_relevance() -> None:
    order = DocumentOrder("cached_first")
    assert arrange(order, "abcd") == "abcd"
    assert arrange(order, "xbya") == "abxy"
    assert arrange(order, "dcab") == "abcd"
    assert arrange(order, "cd") == "cd"


def test_lengths_decide_between_paths() -> None:
    order = DocumentOrder("cached_first")
    order.arrange(("a", "b"), [10, 10])
    order.arrange(("c",), [30])
    assert text("bac", order.arrange(tuple("bac"), [10, 10, 30])) == "cba"


def test_namespaces_share_nothing() -> None:
    order = DocumentOrder("cached_first")
    arrange(order, "abc", namespace="one")
    assert arrange(order, "cba", namespace="two") == "cba"
    assert arrange(order, "cba", namespace="one") == "abc"
    popular = DocumentOrder("cached_first", uncached="popularity")
    arrange(popular, "ab", namespace="one")
    assert arrange(popular, "xb", namespace="two") == "xb"


@given(st.lists(REQUEST, max_size=10), st.integers(0, 3), st.integers(0, 3))
def test_relevance_is_disturbed_no_more_than_allowed(
    requests: list[tuple[str, ...]], pinned: int, limit: int
) -> None:
    order = DocumentOrder("cached_first", pin_top=pinned, max_displacement=limit, cache_tokens=6)
    found = [order.arrange(request) for request in requests]
    found += order.arrange_all(requests)
    found += [one.order for one in order.schedule(requests)]
    for one in found:
        assert one[:pinned] == tuple(range(min(pinned, len(one))))
        assert all(abs(place - number) <= limit for place, number in enumerate(one))


@given(
    st.lists(REQUEST, max_size=10),
    st.sampled_from(["relevance", "reverse", "cached_first", "auto"]),
)
def test_no_document_is_lost(requests: list[tuple[str, ...]], name: Order) -> None:
    order = DocumentOrder(name, cache_tokens=6)
    for one, arranged in zip(requests, map(order.arrange, requests), strict=True):
        assert sorted(arranged) == list(range(len(one)))
    for one, arranged in zip(requests, order.arrange_all(requests), strict=True):
        assert sorted(arranged) == list(range(len(one)))
    scheduled = order.schedule(requests)
    assert sorted(one.request for one in scheduled) == list(range(len(requests)))
    for number, arranged in scheduled:
        assert sorted(arranged) == list(range(len(requests[number])))


@given(
    st.lists(st.tuples(REQUEST, st.lists(st.integers(1, 50), min_size=5, max_size=5)), max_size=10),
    st.sampled_from(["auto", "relevance", "popularity"]),
    st.one_of(st.none(), st.integers(0, 3)),
    st.integers(0, 3),
    st.one_of(st.none(), st.integers(1, 200)),
)
def test_equal_documents_keep_their_order(
    requests: list[tuple[tuple[str, ...], list[int]]],
    uncached: Uncached,
    limit: int | None,
    pinned: int,
    cache_tokens: int | None,
) -> None:
    order = DocumentOrder(
        "cached_first",
        uncached=uncached,
        max_displacement=limit,
        pin_top=pinned,
        cache_tokens=cache_tokens,
    )
    sent = [documents for documents, _ in requests]
    lengths = [sizes[: len(documents)] for documents, sizes in requests]
    found = list(zip(sent, map(order.arrange, sent, lengths), strict=True))
    found += zip(sent, order.arrange_all(sent, lengths), strict=True)
    found += [(sent[number], arranged) for number, arranged in order.schedule(sent, lengths)]
    for documents, arranged in found:
        assert sorted(arranged) == list(range(len(documents)))
        for document in set(documents):
            places = [place for place in arranged if documents[place] == document]
            assert places == sorted(places)


def test_a_document_that_stands_twice_is_found_twice() -> None:
    order = DocumentOrder("cached_first")
    order.arrange(tuple("aba"), [10, 10, 10])
    assert order.arrange(tuple("xaab"), [10] * 4) == (1, 3, 2, 0)
    assert order.stats().expected_cached_tokens == 30
    assert order.stats().path_tokens == 40
    order.report(tuple("aba"), 3)


def test_a_document_that_stands_twice_is_as_popular_as_one() -> None:
    order = DocumentOrder("cached_first", uncached="popularity")
    order.arrange(tuple("aab"))
    order.clear()
    assert arrange(order, "ba") == "ba"
    assert [one.order for one in order.schedule([tuple("aab"), tuple("ba")])] == [(0, 2, 1), (1, 0)]


@pytest.mark.parametrize(
    ("uncached", "cache_tokens", "expected"),
    [
        ("auto", 4, "axy"),
        ("auto", None, "xya"),
        ("popularity", None, "axy"),
        ("relevance", 4, "xya"),
    ],
)
def test_where_the_cache_is_small_popular_documents_come_first(
    uncached: Uncached, cache_tokens: int | None, expected: str
) -> None:
    order = DocumentOrder("cached_first", uncached=uncached, cache_tokens=cache_tokens)
    for one in ("abc", "ade", "afg", "ahi"):
        arrange(order, one)
    order.clear()  # nothing is cached; how popular documents are is still known
    assert arrange(order, "xya") == expected


def test_what_saves_most_is_what_is_popular_and_long() -> None:
    order = DocumentOrder("cached_first", uncached="popularity")
    order.arrange(("a", "b"), [10, 10])
    order.clear()
    assert text("xyab", order.arrange(tuple("xyab"), [10, 50, 15, 10])) == "yabx"


def test_what_is_known_of_popularity_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(order_module, "MAX_COUNTED", 100)
    order = DocumentOrder("cached_first", cache_tokens=10)
    for number in range(2000):
        order.arrange(("popular", number, number + 1))
        assert len(order._cache.counts) <= 100
    assert order._cache.counts["", "popular"] > 10


def test_a_batch_looks_ahead() -> None:
    order = DocumentOrder("cached_first")
    requests = ["xa", "ya", "za"]
    arranged = order.arrange_all([tuple(request) for request in requests])
    assert [text(*one) for one in zip(requests, arranged, strict=True)] == ["ax", "ay", "az"]
    alone = DocumentOrder("cached_first")
    assert [arrange(alone, one) for one in requests] == requests


def test_a_schedule_is_what_is_cached_afterwards() -> None:
    order = DocumentOrder("cached_first")
    requests = ["xab", "cde", "yab"]
    scheduled = order.schedule([tuple(request) for request in requests])
    assert [text(requests[number], one) for number, one in scheduled] == ["abx", "aby", "cde"]
    assert arrange(order, "yba") == "aby"


@pytest.mark.parametrize(
    ("name", "expected"), [("relevance", ["ab", "ac", "cd"]), ("reverse", ["ba", "ca", "dc"])]
)
def test_a_schedule_of_fixed_orders_puts_equal_beginnings_together(
    name: Order, expected: list[str]
) -> None:
    requests = ["ab", "cd", "ac"]
    scheduled = DocumentOrder(name).schedule([tuple(request) for request in requests])
    assert sorted(text(requests[number], one) for number, one in scheduled) == sorted(expected)
    if name == "relevance":
        assert [one.request for one in scheduled] == [0, 2, 1]


def test_a_schedule_of_auto_is_its_tenants_and_counts_tokens() -> None:
    order = DocumentOrder("auto")
    order.arrange(tuple("abc"), [50, 50, 1], namespace="one")
    sent = [tuple("cab")]
    assert order.schedule(sent, [[1, 50, 50]], namespace="two") == [(0, (0, 1, 2))]
    assert order.schedule(sent, [[1, 50, 50]], namespace="one") == [(0, (1, 2, 0))]
    assert order.stats().tokens == 3 * 101


def test_statistics() -> None:
    order = DocumentOrder("cached_first")
    assert order.stats().expected_cached_share == 0
    order.arrange(("a", "b"), [30, 10])
    order.arrange(("b", "a", "c"), [10, 30, 20])
    stats = order.stats()
    assert (stats.requests, stats.tokens, stats.expected_cached_tokens) == (2, 100, 40)
    assert stats.expected_cached_share == 0.4
    assert stats.path_tokens == 60


def test_a_report_of_less_than_expected_is_believed() -> None:
    order = DocumentOrder("cached_first")
    for one in ("cd", "ab", *["xy"] * 100):
        arrange(order, one)
    assert arrange(order, "ba") == "ab"
    order.report(("a", "b"), 0)  # so cd, which was used before, is gone, too
    assert arrange(order, "dc") == "dc"
    assert arrange(order, "yx") == "xy"


# Moving documents only where it saves enough


def test_auto_moves_documents_where_that_saves_enough() -> None:
    order = DocumentOrder("auto", min_saved_share=0.3)
    assert arrange(order, "abcd") == "abcd"
    assert arrange(order, "bacd") == "abcd"
    assert arrange(order, "xaby") == "abxy"
    # One document of four is too little.
    assert arrange(order, "xyza") == "xyza"
    # In the order of relevance it is cached as well.
    assert arrange(order, "abxz") == "abxz"
    stats = order.stats()
    assert (stats.requests, stats.moved) == (5, 2)
    assert stats.expected_cached_tokens == 0 + 4 + 2 + 0 + 3


def test_auto_weighs_documents_by_their_tokens() -> None:
    order = DocumentOrder("auto", min_saved_share=0.5)
    order.arrange(["a", "b"], [9, 1])
    assert order.arrange(["x", "a"], [1, 9]) == (1, 0)
    assert order.arrange(["y", "a"], [90, 9]) == (0, 1)


@given(st.lists(REQUEST, max_size=10))
def test_auto_with_no_least_saving_is_cached_first(requests: list[tuple[str, ...]]) -> None:
    auto = DocumentOrder("auto", min_saved_share=0.0, uncached="relevance")
    always = DocumentOrder("cached_first", uncached="relevance")
    for request in requests:
        assert auto.arrange(request) == always.arrange(request)


@given(st.lists(REQUEST, max_size=10))
def test_auto_moves_only_where_all_is_cached_if_all_has_to_be_saved(
    requests: list[tuple[str, ...]],
) -> None:
    order, before = DocumentOrder("auto", min_saved_share=1.0), 0
    for request in requests:
        moved = order.arrange(request) != tuple(range(len(request)))
        expected = order.stats().expected_cached_tokens
        assert not moved or expected - before == len(request)
        before = expected


# Bad input


@pytest.mark.parametrize(
    ("knobs", "message"),
    [
        ({"order": "best"}, "order: .*'reverse', 'cached_first' or 'auto', got 'best'"),
        ({"min_saved_share": 1.5}, "min_saved_share must be a number of at least 0 and at most 1"),
        ({"uncached": "last"}, "uncached: .*'relevance' or 'popularity', got 'last'"),
        ({"max_displacement": -1}, "max_displacement must be a whole number of at least 0"),
        (
            {"max_displacement": 1.5},
            "max_displacement must be a whole number of at least 0, or None for no limit, got 1.5",
        ),
        ({"pin_top": -1}, "pin_top must be a whole number of at least 0, got -1"),
        ({"pin_top": True}, "pin_top must be a whole number of at least 0, got True"),
        ({"order": "reverse", "pin_top": 1}, "reverse turns it round"),
        ({"order": "reverse", "max_displacement": 1}, "reverse turns it round"),
        ({"cache_tokens": 0}, "cache_tokens must be a whole number of at least 1"),
        ({"refresh_seconds": 0}, "refresh_seconds must be a number of seconds above 0"),
        ({"engine": object()}, "engine must be a RAGCacheEngine, got object"),
    ],
)
def test_a_wrong_knob_is_refused(knobs: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        DocumentOrder(**knobs)


@pytest.mark.parametrize("found", [-1, 3, 0.5])
def test_a_report_that_cannot_be_is_refused(found: Any) -> None:
    with pytest.raises(ConfigurationError, match="at least 0 and at most 2"):
        DocumentOrder("cached_first").report(("a", "b"), found)


# The engine's tree


class FakeEngine:
    """An engine whose tree is what the test says."""

    total_kv_tokens = 64
    block_size = 16

    def __init__(self, *paths: str) -> None:
        self.paths = paths
        self.asked = 0
        self.asking = threading.Event()
        self.error: Exception | None = None
        self.on_tree: Callable[[], object] = lambda: None

    def tree(self) -> TreeSnapshot | None:
        self.asked += 1
        self.on_tree()
        self.asking.set()
        if self.error is not None:
            raise self.error
        return TreeSnapshot("pgdsf", 16, 0.0, 0.0, (self._root(self.paths),))

    def stats(self) -> EngineStats:
        return EngineStats(tree=TreeStats(host_blocks=2))

    def _root(self, paths: Sequence[str], name: str = "") -> NodeSnapshot:
        heads = dict.fromkeys(path[0] for path in paths if path)
        children = tuple(
            self._root([path[1:] for path in paths if path[:1] == head], head) for head in heads
        )
        return NodeSnapshot(name, 1, "gpu", 1, 1, 0, 1, 0.0, 0.0, 0.0, children=children)


def test_the_engines_tree_is_what_counts() -> None:
    engine = FakeEngine("abc")
    order = DocumentOrder("cached_first", engine=engine, refresh_seconds=1e6)
    assert order.refresh()
    assert arrange(order, "cxba") == "abcx"


def test_what_was_ordered_since_the_last_look_stays() -> None:
    engine = FakeEngine()
    order = DocumentOrder("cached_first", engine=engine, refresh_seconds=1e6)
    order._cache.next_refresh = float("inf")
    engine.on_tree = lambda: arrange(order, "cd")
    arrange(order, "ab")
    order.refresh()
    assert arrange(order, "dc") == "cd"  # may be on its way
    assert arrange(order, "ba") == "ab"
    engine.on_tree = lambda: None
    order.refresh()
    order.refresh()  # has had all the time there is
    assert arrange(order, "dc") == "dc"


def test_the_room_is_the_engines_unless_said_otherwise() -> None:
    engine = FakeEngine()
    assert DocumentOrder("cached_first", engine=engine)._cache.model.cache_tokens == 64 + 2 * 16
    order = DocumentOrder("cached_first", engine=engine, cache_tokens=7)
    order.refresh()
    assert order._cache.model.cache_tokens == 7


def test_the_tree_is_looked_at_in_the_background_now_and_then() -> None:
    engine = FakeEngine("ab")
    order = DocumentOrder("cached_first", engine=engine, refresh_seconds=0.01)
    arrange(order, "xy")
    assert engine.asking.wait(10)
    wait_until(lambda: order.stats().paths >= 5)
    before = engine.asked
    time.sleep(0.02)
    order.arrange_all([("x", "y")])
    wait_until(lambda: engine.asked > before)


def test_a_request_does_not_wait_for_the_engine() -> None:
    engine = FakeEngine()
    release = threading.Event()
    engine.on_tree = release.wait
    order = DocumentOrder("cached_first", engine=engine, refresh_seconds=1e-6)
    try:
        for _ in range(20):
            assert arrange(order, "ab") == "ab"  # would hang
            looking = [one for one in threading.enumerate() if one.name == "ragcache-order-refresh"]
            assert len(looking) <= 1  # nor do threads pile up
    finally:
        release.set()
    wait_until(lambda: not order._cache.is_refreshing)
    arrange(order, "ab")
    wait_until(lambda: engine.asked >= 2)


def test_an_engine_that_fails_leaves_the_model_to_itself(
    caplog: pytest.LogCaptureFixture,
) -> None:
    engine = FakeEngine()
    engine.error = EngineClosedError("it is closed")
    order = DocumentOrder("cached_first", engine=engine, refresh_seconds=1e6)
    with caplog.at_level("INFO", logger=order_module.__name__):
        arrange(order, "ab")
        wait_until(lambda: "it is closed" in caplog.text)
    assert arrange(order, "ba") == "ab"
    with pytest.raises(EngineClosedError):
        order.refresh()


async def test_without_a_tree_there_is_nothing_to_look_at() -> None:
    assert not DocumentOrder("cached_first").refresh()
    assert not await OrderKnobs(order="cached_first").arefresh()


async def test_the_async_twin_of_refresh_blocks_nothing() -> None:
    engine = FakeEngine("ab")
    release = threading.Event()
    engine.on_tree = release.wait
    order = OrderKnobs(order="cached_first", engine=engine, refresh_seconds=1e6)
    refreshing = asyncio.create_task(order.arefresh())
    await asyncio.sleep(0.01)
    assert not refreshing.done()
    release.set()
    assert await refreshing


# Threads and copies


def test_many_threads_keep_the_books_right() -> None:
    engine = FakeEngine("ab", "cd", "fg")
    order = DocumentOrder("cached_first", engine=engine, cache_tokens=30, refresh_seconds=1e-3)
    failures: list[BaseException] = []

    calls: list[Callable[[tuple[str, ...]], object]] = [
        *[order.arrange] * 12,
        lambda documents: order.arrange_all([documents, documents[:2]]),
        lambda documents: order.schedule([documents, documents[1:]]),
        lambda documents: order.report(documents, 2),
        lambda documents: order.refresh(),
        lambda documents: order.stats(),
    ]

    def work(seed: int) -> None:
        rng = random.Random(seed)
        try:
            for _ in range(300):
                rng.choice(calls)(tuple(rng.sample("abcdefghijkl", 4)))
        except BaseException as error:
            failures.append(error)

    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        threads = [threading.Thread(target=work, args=(seed,)) for seed in range(6)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    finally:
        sys.setswitchinterval(interval)
    with order._cache.refreshing:  # the last background look is over
        pass
    assert not failures
    model = order._cache.model
    assert model.tokens == sum(node.tokens for node in model._used)
    for node in model._used:
        assert node.parent is not None
        assert node.parent.children[node.document] is node


def test_orders_of_the_same_cache_share_what_is_known_of_it() -> None:
    shared = SharedOrders()
    first = DocumentOrder("cached_first", shared=shared)
    arrange(first, "abc")
    assert arrange(DocumentOrder("cached_first", pin_top=1, shared=shared), "xcba") == "xcba"
    assert arrange(DocumentOrder("cached_first", shared=shared), "cba") == "abc"
    assert first.stats().requests == 3
    assert arrange(DocumentOrder("cached_first", cache_tokens=9, shared=shared), "cba") == "cba"
    for room in range(1, 40):
        DocumentOrder("cached_first", cache_tokens=room, shared=shared)
    assert len(shared._caches) == order_module.MAX_CACHES
    assert DocumentOrder("cached_first").stats().requests == 0
