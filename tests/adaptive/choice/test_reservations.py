"""Memory of answers in the making, told by nobody else."""

from __future__ import annotations

import pytest

from ragcache_integrations.adaptive import MemoryLoad, QueryProfile
from ragcache_integrations.adaptive.best_fit import (
    BestFit,
    Choice,
    ChunkFacts,
    PromptSizes,
    Situation,
    pruned_space,
)
from ragcache_integrations.adaptive.resources import ARRIVAL_SECONDS, Reservations

SIZES = PromptSizes(stuff=60, mapper=70, reduce=50, rerank=40, answer=30)
SPACE = pruned_space(QueryProfile("low", joint_reasoning=True, pieces=2))
FIT = BestFit()


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


def choose(
    reservations: Reservations, load: MemoryLoad, budget: float | None = None
) -> tuple[Choice, int]:
    def fit(situation: Situation) -> Choice:
        return FIT.choose(SPACE, ChunkFacts((100,) * 9), SIZES, situation)

    return reservations.choose(load, budget, FIT.prefill, fit)


def test_what_is_on_its_way_is_taken_off_until_it_has_arrived() -> None:
    clock = Clock()
    reservations = Reservations(clock)
    load = MemoryLoad(2000, 2000)
    first, ticket = choose(reservations, load)
    assert first.free_tokens == 2000
    second, _ = choose(reservations, load)
    assert second.free_tokens == 2000 - first.plan.footprint
    clock.now += 2 * ARRIVAL_SECONDS
    assert choose(reservations, load)[0].free_tokens == 2000
    assert not reservations.idle
    reservations.leave(ticket)
    reservations.leave(ticket)


def test_an_engine_tells_of_what_had_reached_it_when_it_was_asked() -> None:
    clock = Clock()
    reservations = Reservations(clock)
    load = MemoryLoad(2000, 2000)
    first, _ = choose(reservations, load)
    clock.now += 2 * ARRIVAL_SECONDS  # it was asked before, and answers only now

    def fit(situation: Situation) -> Choice:
        return FIT.choose(SPACE, ChunkFacts((100,) * 9), SIZES, situation)

    late, _ = reservations.choose(load, None, FIT.prefill, fit, as_of=100.0)
    assert late.free_tokens == 2000 - first.plan.footprint


def test_what_was_given_up_is_given_back() -> None:
    reservations = Reservations(Clock())
    load = MemoryLoad(2000, 2000)
    _, ticket = choose(reservations, load)
    reservations.leave(ticket)
    assert reservations.idle
    assert choose(reservations, load)[0].free_tokens == 2000


def test_what_waits_is_taken_off_by_the_usual_need_of_a_call() -> None:
    clock = Clock()
    reservations = Reservations(clock)
    first, _ = choose(reservations, MemoryLoad(4000, 4000, waiting_requests=3))
    assert first.free_tokens == 4000  # nothing is known of what calls need
    clock.now += 1
    second, _ = choose(reservations, MemoryLoad(4000, 4000, waiting_requests=3))
    assert second.free_tokens == 4000 - 3 * first.need


def test_the_pace_follows_what_was_measured() -> None:
    reservations = Reservations(Clock())
    for _ in range(200):
        reservations.note(1.0, 3.0)
    assert reservations.pace == pytest.approx(3.0, rel=1e-3)
    before, _ = choose(reservations, MemoryLoad(10_000, 10_000))
    assert before.seconds == pytest.approx(3 * FIT.seconds(before.plan, Situation(10_000)))
    reservations.note(0.0, 5.0)  # says nothing
    for _ in range(1000):
        reservations.note(1.0, 1e9)
    assert reservations.pace <= 100


def test_no_choice_reserves_nothing() -> None:
    reservations = Reservations(Clock())
    load = MemoryLoad(2000, 2000)
    choice, ticket = reservations.choose(load, None, FIT.prefill, lambda _: None)
    assert (choice, ticket) == (None, 0)
    assert reservations.idle
    _, taken = choose(reservations, load)
    reservations.leave(ticket)
    assert not reservations.idle
    reservations.leave(taken)
    assert reservations.idle
