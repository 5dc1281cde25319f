from __future__ import annotations

from itertools import permutations

from hypothesis import given
from hypothesis import strategies as st

from ragcache_integrations.prompts.order.settings import may_follow, within_limit


def displacement(order: tuple[int, ...]) -> int:
    return max((abs(place - number) for place, number in enumerate(order)), default=0)


def allowed(count: int, limit: int) -> list[tuple[int, ...]]:
    return [
        permutation
        for permutation in permutations(range(count))
        if displacement(permutation) <= limit
    ]


@given(st.permutations(range(6)), st.integers(min_value=0, max_value=6))
def test_the_limit_holds_and_a_wish_within_it_is_granted(wanted: list[int], limit: int) -> None:
    order = within_limit(wanted, limit)
    assert sorted(order) == list(range(6))
    assert displacement(order) <= limit
    if displacement(tuple(wanted)) <= limit:
        assert order == tuple(wanted)


@given(st.integers(min_value=1, max_value=5), st.integers(min_value=0, max_value=5), st.data())
def test_what_may_follow_is_exactly_what_can_still_be_completed(
    count: int, limit: int, data: st.DataObject
) -> None:
    every = allowed(count, limit)
    order = data.draw(st.sampled_from(every))
    begun = order[: data.draw(st.integers(min_value=0, max_value=count - 1))]
    beginnings = {one[: len(begun) + 1] for one in every}
    for candidate in set(range(count)) - set(begun):
        assert may_follow(begun, candidate, limit) == ((*begun, candidate) in beginnings)


@given(st.permutations(range(5)), st.integers(min_value=0, max_value=4))
def test_it_goes_on_from_what_is_placed(order: list[int], placed: int) -> None:
    assert within_limit(order[placed:], None, order[:placed]) == tuple(order)
    assert within_limit(order[placed:], 5, order[:placed]) == tuple(order)


def test_no_limit_and_nothing_to_order() -> None:
    assert within_limit((2, 0, 1), None) == (2, 0, 1)
    assert within_limit((), 1) == ()
