"""Counts that fade: the formula, the limits of its arithmetic, the half-life that tunes itself."""

from __future__ import annotations

import math
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ragcache_integrations.knowledge_tree.node import History
from ragcache_integrations.knowledge_tree.popularity import (
    FIRST,
    HALF_LIVES,
    INTERVAL,
    NEVER,
    Popularity,
)

CAPACITY = 100
ACCESSES = st.lists(st.tuples(st.integers(0, 3), st.integers(1, 60)), min_size=1, max_size=60)
"""Document and size of each access."""


def access(popularity: Popularity, document: History, size: int) -> float:
    when = popularity.advance(size)
    popularity.count(document, size)
    return when


def expected(times: list[float]) -> float:
    """The logarithm of the sum, the first access counting a quarter."""
    last = max(times)
    weights = [2**FIRST, *[1.0] * (len(times) - 1)]
    terms = (weight * 2 ** (when - last) for weight, when in zip(weights, times, strict=True))
    return last + math.log2(math.fsum(terms))


@given(ACCESSES, st.lists(st.sampled_from(HALF_LIVES), min_size=60, max_size=60))
def test_accesses_count_half_as_much_after_each_half_life(
    accesses: list[tuple[int, int]], half_lives: list[float]
) -> None:
    """Also where the half-life changes in the middle: what has aged before stays as it is."""
    popularity = Popularity(CAPACITY)
    documents = [History() for _ in range(4)]
    times: list[list[float]] = [[] for _ in documents]
    now = 0.0
    for (number, size), half_life in zip(accesses, half_lives, strict=False):
        popularity.half_life = half_life
        now += size / CAPACITY / half_life
        assert access(popularity, documents[number], size) == pytest.approx(now)
        times[number].append(now)
        for document, accessed in zip(documents, times, strict=True):
            value = expected(accessed) if accessed else NEVER
            assert document.popularity == pytest.approx(value, abs=1e-9)


@given(ACCESSES, st.data())
def test_a_guess_that_is_taken_back_counts_no_more(
    accesses: list[tuple[int, int]], data: st.DataObject
) -> None:
    guess = data.draw(st.integers(0, len(accesses) - 1))
    popularity = Popularity(CAPACITY)
    documents = [History() for _ in range(4)]
    times: list[list[float]] = [[] for _ in documents]
    for number, size in accesses:
        times[number].append(access(popularity, documents[number], size))
    number = accesses[guess][0]
    place = [other for other, _ in accesses[:guess]].count(number)
    popularity.take_back(documents[number], times[number].pop(place))

    found, left = documents[number].popularity, times[number]
    if not left:
        assert found == NEVER
    elif place:
        assert found == pytest.approx(expected(left), abs=1e-9)
    else:  # the first access counted a quarter; now the next one, which counted in full, is first
        assert expected(left) - 1e-9 <= found <= expected([min(left), *left]) - FIRST


def test_the_order_is_that_of_the_sums_after_a_billion_accesses() -> None:
    """A cache of one document, and the shortest half-life: the most that time can pass."""
    popularity = Popularity(1)
    popularity.half_life = HALF_LIVES[0]
    popularity.now = popularity._caches = 1e9 / HALF_LIVES[0]
    famous, known, old, new = (History() for _ in range(4))
    for document, times in ((old, 3), (famous, 40), (known, 3), (new, 1)):
        for _ in range(times):
            access(popularity, document, 1)

    assert NEVER < old.popularity < famous.popularity < known.popularity < math.inf
    assert new.popularity == popularity.now + FIRST
    # Three accesses, each 1 / 0.3 half-lives after the other.
    ages = [0.0, 1 / HALF_LIVES[0], 2 / HALF_LIVES[0]]
    assert known.popularity - popularity.now + 1 / HALF_LIVES[0] == pytest.approx(
        expected([-age for age in ages[::-1]]), abs=1e-6
    )


def test_a_billion_accesses_of_one_document_still_count() -> None:
    popularity = Popularity(10**9)
    document = History(popularity=30.0)  # as many at once
    access(popularity, document, 1)
    assert document.popularity > 30.0


@given(ACCESSES, st.integers(1, 200))
def test_ghosts_hold_what_is_most_popular_and_fits(
    accesses: list[tuple[int, int]], capacity: int
) -> None:
    popularity = Popularity(capacity)
    documents = [History() for _ in range(4)]
    sizes: dict[int, int] = {}
    for number, size in accesses:
        access(popularity, documents[number], sizes.setdefault(number, size))
        trials = [document.trial for document in documents if document.trial]
        for ghost in popularity._ghosts:
            place = ghost.place
            held = [trial for trial in trials if trial.held[place]]
            assert ghost._room == capacity - sum(trial.size for trial in held) >= 0
            assert {id(trial) for *_, trial in ghost._heap} == set(map(id, held))
            assert len(ghost._heap) == len(held)


def test_the_sample_is_a_part_of_the_documents() -> None:
    popularity = Popularity(CAPACITY, every=4)
    documents = [History() for _ in range(100)]
    for _ in range(2):
        for document in documents:
            access(popularity, document, 1)
    assert sum(document.trial is not None for document in documents) == 25


def fame(number: random.Random) -> int:
    """Few documents are famous and stay so, all others come rarely."""
    return number.randrange(8) if number.random() < 0.5 else number.randrange(10**6)


def fashion(number: random.Random, at: int) -> int:
    """Documents come several times in a short while, and never again."""
    return at // 10 + number.randrange(6)


def tuned(seed: int, kinds: list[str]) -> list[float]:
    """The half-life after each of several kinds of traffic."""
    number = random.Random(seed)
    popularity = Popularity(CAPACITY)
    documents: dict[tuple[str, int], History] = {}
    half_lives = []
    for kind in kinds:
        for at in range(40 * INTERVAL):
            name = fame(number) if kind == "fame" else fashion(number, at)
            access(popularity, documents.setdefault((kind, name), History()), 10)
        half_lives.append(popularity.half_life)
    return half_lives


@pytest.mark.parametrize("seed", range(3))
def test_the_half_life_follows_the_traffic(seed: int) -> None:
    fame, fashion, fame_again = tuned(seed, ["fame", "fashion", "fame"])
    assert fashion < min(fame, fame_again)
    assert fashion <= 1
    assert fame >= 10
