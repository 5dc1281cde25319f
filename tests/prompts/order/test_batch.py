from __future__ import annotations

import os
import random
import subprocess
import sys
from collections.abc import Sequence
from itertools import combinations, permutations, product

from hypothesis import given
from hypothesis import strategies as st

from ragcache_integrations.prompts.order.batch import ScheduledRequest, schedule_requests
from tests.support.sizes import examples

REQUEST = st.lists(st.sampled_from("abcdefgh"), max_size=5).map("".join)


def orders(requests: Sequence[str], scheduled: list[ScheduledRequest]) -> list[str]:
    return ["".join(requests[number][place] for place in order) for number, order in scheduled]


def in_order(documents: str, order: Sequence[int]) -> bool:
    """Whether equal documents keep their order."""
    return all(
        documents[one] != documents[other] or one < other for one, other in combinations(order, 2)
    )


def computed(sent: Sequence[str]) -> int:
    """Documents that a cache without limits has to compute: distinct beginnings."""
    return len({one[: end + 1] for one in sent for end in range(len(one))})


@given(st.lists(REQUEST, max_size=12))
def test_every_request_comes_once_with_all_of_its_documents(requests: list[str]) -> None:
    scheduled = schedule_requests(requests)
    assert sorted(one.request for one in scheduled) == list(range(len(requests)))
    for number, order in scheduled:
        assert sorted(order) == list(range(len(requests[number])))
        assert in_order(requests[number], order)


@given(st.lists(REQUEST, max_size=12))
def test_serving_depth_first_needs_no_cache_but_the_last_path(requests: list[str]) -> None:
    """What a request shares with any before it, it shares with the one just before it."""
    sent = orders(requests, schedule_requests(requests))
    last, alone = "", 0
    for one in sent:
        shared = 0
        while shared < min(len(one), len(last)) and one[shared] == last[shared]:
            shared += 1
        alone += len(one) - shared
        last = one
    assert alone == computed(sent)


@examples(30)
@given(st.lists(st.lists(st.sampled_from("abcd"), min_size=1, max_size=3), max_size=3))
def test_two_requests_share_all_they_can(requests: list[list[str]]) -> None:
    texts = ["".join(request) for request in requests[:2]]
    sent = orders(texts, schedule_requests(texts))
    best = min(
        (computed(["".join(one) for one in choice]) for choice in product(*map(_all, texts))),
        default=0,
    )
    assert computed(sent) == best


def _all(text: str) -> list[tuple[str, ...]]:
    return list(permutations(text))


def test_more_in_common_is_merged_first() -> None:
    requests = ["xab", "yab", "xcd"]
    sent = orders(requests, schedule_requests(requests))
    assert sent == ["abx", "aby", "xcd"]
    tokens = [[100 if one == "x" else 1 for one in request] for request in requests]
    sent = orders(requests, schedule_requests(requests, tokens))
    assert sent == ["xab", "xcd", "yab"]


def test_what_is_shared_stands_by_the_relevance_of_the_first_request() -> None:
    assert orders(["bac", "cab"], schedule_requests(["bac", "cab"])) == ["bac", "bac"]


@given(st.lists(REQUEST, max_size=10), st.integers(0, 3), st.integers(0, 3))
def test_pins_and_limits_hold(requests: list[str], pinned: int, limit: int) -> None:
    for number, order in schedule_requests(requests, pin_top=pinned):
        assert order[:pinned] == tuple(range(min(pinned, len(requests[number]))))
    for _, order in schedule_requests(requests, pin_top=pinned, max_displacement=limit):
        assert order[:pinned] == tuple(range(min(pinned, len(order))))
        assert all(abs(place - number) <= limit for place, number in enumerate(order))
    for number, order in schedule_requests(requests, pin_top=pinned, max_displacement=limit):
        assert in_order(requests[number], order)


def test_requests_that_have_a_document_twice_share_both() -> None:
    sent = orders(["xaa", "yaa", "za"], schedule_requests(["xaa", "yaa", "za"]))
    assert sent == ["aax", "aay", "az"]


def test_a_limit_of_nothing_is_relevance() -> None:
    requests = ["abc", "cba", "bca"]
    assert orders(requests, schedule_requests(requests, max_displacement=0)) != []
    assert {request.order for request in schedule_requests(requests, max_displacement=0)} == {
        (0, 1, 2)
    }


def test_it_beats_relevance_on_requests_about_the_same_topics() -> None:
    rng = random.Random(0)
    requests = [
        rng.sample([f"{topic} {number}" for number in range(8)], 5)
        for topic in rng.choices(range(20), k=200)
    ]
    flat = [tuple(request) for request in requests]
    ordered = [
        tuple(requests[number][place] for place in order)
        for number, order in schedule_requests(requests)
    ]

    def distinct(sent: list[tuple[str, ...]]) -> int:
        return len({one[: end + 1] for one in sent for end in range(len(one))})

    assert distinct(ordered) < 0.6 * distinct(flat)


def test_the_order_does_not_depend_on_how_strings_are_hashed() -> None:
    script = (
        "import random; from ragcache_integrations.prompts.order.batch import schedule_requests;"
        "rng = random.Random(1);"
        "print(schedule_requests([rng.sample('abcdefghij', 5) for _ in range(60)]))"
    )
    printed = {
        subprocess.run(
            [sys.executable, "-c", script],
            check=True,
            capture_output=True,
            env={**os.environ, "PYTHONHASHSEED": seed},
        ).stdout
        for seed in ("1", "2")
    }
    assert len(printed) == 1
