"""Where a history begins: a function of its messages that tears nothing apart."""

from __future__ import annotations

import random
from collections.abc import Sequence
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ragcache_integrations.prompts.history.policy import (
    Entry,
    Truncation,
    kept_entries,
    kept_indices,
    pinned,
)

IDS = ("a", "b")  # few, as models that number the calls of each turn anew give them

entries = st.lists(
    st.one_of(
        st.builds(Entry, st.integers(0, 40), st.just("user")),
        st.builds(Entry, st.integers(0, 40), st.sampled_from(["user", "assistant"]), st.booleans()),
        st.builds(
            Entry,
            st.integers(0, 40),
            st.just("assistant"),
            st.booleans(),
            st.lists(st.sampled_from(IDS), unique=True).map(tuple),
        ),
        st.builds(
            Entry,
            st.integers(0, 40),
            st.just("tool"),
            st.booleans(),
            st.just(()),
            st.sampled_from(IDS).map(lambda name: (name,)),
        ),
    ),
    max_size=40,
)
truncations = st.one_of(
    st.builds(lambda budget: Truncation(budget, budget * 8 // 10), st.integers(10, 200)),
    st.builds(lambda budget: Truncation(budget, budget, half=False), st.integers(10, 200)),
)


def tokens(said: Sequence[Entry], start: int) -> int:
    return sum(entry.tokens for entry in kept_entries(said, start))


def calls_and_answers(said: Sequence[Entry]) -> list[tuple[int, int]]:
    """By the plain definition: an answer belongs to the last call of its id before it."""
    return [
        (max(before), index)
        for index, entry in enumerate(said)
        for name in entry.answers
        if (before := [i for i in range(index) if name in said[i].calls])
    ]


@given(truncations, entries, st.data())
def test_the_beginning_does_not_depend_on_how_messages_were_added(
    policy: Truncation, said: list[Entry], data: st.DataObject
) -> None:
    start, done = 0, 0
    while done < len(said):
        end = data.draw(st.integers(done + 1, len(said)))
        start = policy.advance(said[:end], start, done)
        done = end
    assert start == policy.advance(said)


@given(truncations, entries)
def test_it_moves_forward_alone_and_never_beyond_the_last_message(
    policy: Truncation, said: list[Entry]
) -> None:
    starts = [policy.advance(said[:end]) for end in range(len(said) + 1)]
    assert all(before <= after for before, after in pairwise(starts))
    assert all(start < end for end, start in enumerate(starts) if end)


@given(truncations, entries)
def test_no_answer_stands_without_its_call(policy: Truncation, said: list[Entry]) -> None:
    kept = set(kept_indices(said, policy.advance(said)))
    for call, answer in calls_and_answers(said):
        if answer in kept:
            assert call in kept


@given(truncations, entries)
def test_no_call_stands_without_its_answers(policy: Truncation, said: list[Entry]) -> None:
    kept = set(kept_indices(said, policy.advance(said)))
    for call, answer in calls_and_answers(said):
        if call in kept:
            assert answer in kept


@given(truncations, entries)
def test_what_is_pinned_stays(policy: Truncation, said: list[Entry]) -> None:
    kept = kept_indices(said, policy.advance(said))
    assert pinned(said) <= set(kept)
    assert {index for index, entry in enumerate(said) if entry.pinned} <= pinned(said)
    assert kept == sorted(kept)


@given(truncations, st.lists(st.integers(0, 10), max_size=60))
def test_a_plain_conversation_never_exceeds_its_budget(
    policy: Truncation, lengths: list[int]
) -> None:
    said = [Entry(size, ("user", "assistant")[i % 2]) for i, size in enumerate(lengths)]
    if policy.budget < 20:
        return  # a turn may not fit
    for end in range(len(said) + 1):
        start = policy.advance(said[:end])
        assert tokens(said[:end], start) <= policy.budget
        assert start == 0 or said[start].role == "user"


def test_half_is_dropped_at_once() -> None:
    said = [Entry(10, ("user", "assistant")[i % 2]) for i in range(9)]
    policy = Truncation(100, 80)
    assert policy.advance(said[:8]) == 0
    assert policy.advance(said) == 6  # 60 of 90: the first turn at or behind the half
    assert policy.advance([*said, Entry(10, "assistant")]) == 6


def test_drop_oldest_drops_no_more_than_it_has_to() -> None:
    said = [Entry(10, ("user", "assistant")[i % 2]) for i in range(11)]
    policy = Truncation(100, 100, half=False)
    assert policy.advance(said[:10]) == 0
    assert policy.advance(said) == 2


def test_a_turn_that_exceeds_the_budget_alone_is_cut_between_its_tool_calls() -> None:
    said = [Entry(10, "user")]
    for name in ("a", "b", "c", "d"):
        said += [Entry(5, "assistant", calls=(name,)), Entry(20, "tool", answers=(name,))]
    start = Truncation(100, 80).advance(said)
    assert said[start].calls
    assert tokens(said, start) <= 100


def test_an_answer_that_comes_after_its_call_was_dropped_is_left_out() -> None:
    policy = Truncation(100, 80)
    said = [Entry(10, "user"), Entry(30, "assistant", calls=("late",)), Entry(30, "user")]
    said += [Entry(15, "assistant"), Entry(10, "tool", answers=("late",))]
    start = policy.advance(said)
    assert start == 2
    assert kept_indices(said, start) == [2, 3]


def recomputed(policy: Truncation, lengths: list[tuple[int, int]]) -> tuple[int, float]:
    """Prompt tokens that were computed before and are computed again, and the mean prompt."""
    said: list[Entry] = []
    start, again, prompts = 0, 0, []
    for asked, replied in lengths:
        said.append(Entry(asked, "user"))
        moved = policy.advance(said, start, len(said) - 1)
        prompts.append(tokens(said, moved))
        again += tokens(said[:-1], moved) if moved != start else 0
        # Whoever shortens between two turns computes what is left of what the model has seen.
        said.append(Entry(replied, "assistant"))
        start = policy.advance(said, moved, len(said) - 1)
        again += tokens(said, start) - replied if moved != start else 0
    return again, sum(prompts) / len(prompts)


@pytest.mark.parametrize("seed", [None, 0, 1, 2])
def test_over_200_turns_half_truncation_recomputes_a_twentieth(seed: int | None) -> None:
    """The issue: at most 8 % of drop-oldest's tokens, at a budget of 8,000."""
    rng = random.Random(seed)
    lengths = [(60, 200)] * 200
    if seed is not None:
        lengths = [(rng.randint(30, 90), rng.randint(100, 300)) for _ in range(200)]
    half, kept = recomputed(Truncation(8000, 6400), lengths)
    oldest, kept_by_oldest = recomputed(Truncation(8000, 8000, half=False), lengths)
    assert half <= 0.08 * oldest
    assert 3500 < kept < kept_by_oldest  # the price, to be told beside it


@given(st.lists(st.integers(1, 50), min_size=1, max_size=400))
def test_the_cost_per_token_is_constant(lengths: list[int]) -> None:
    """As of a dynamic array: what a cut computes again was paid for by what came since the last."""
    policy = Truncation(1000, 800)
    said: list[Entry] = []
    start = again = 0
    for size in lengths:
        said.append(Entry(size, "user"))
        moved = policy.advance(said, start, len(said) - 1)
        if moved != start:
            again += tokens(said, moved)
        start = moved
    assert again <= 1.2 * sum(lengths)
