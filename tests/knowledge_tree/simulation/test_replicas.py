"""Simulated replicas: the same as one server where there is one, and what routing does to more."""

from __future__ import annotations

import dataclasses
import statistics
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st
from parts.traffic.traces import document_stream, sampled_lengths

from ragcache_integrations.errors import ConfigurationError
from ragcache_integrations.knowledge_tree.prefill_cost import PrefillCostModel
from ragcache_workbench.simulation.replicas import (
    ROUTINGS,
    ReplicasResult,
    simulate_replicas,
)
from ragcache_workbench.simulation.simulator import simulate
from ragcache_workbench.simulation.traces import Trace, TraceRequest

SIZE = 4
COSTS = PrefillCostModel((0, 10_000), (1, 10_000), ((0.001, 10.0), (0.001, 10.0)))
"""A millisecond for each new token."""


def ask(name: str, arrival: float = 0.0, session: str = "") -> TraceRequest:
    return TraceRequest(((name, 8),), 4, arrival=arrival, session=session)


def route(*requests: TraceRequest, replicas: int = 2, **options: object) -> ReplicasResult:
    settings = {
        "gpu_blocks": 50,
        "block_size": SIZE,
        "output_tokens": 1,
        "prefill_seconds": lambda _, new: new / 4,
    } | options
    return simulate_replicas(Trace(requests), replicas=replicas, **settings)  # type: ignore[arg-type]  # settings of several types


def popular_trace(requests: int = 400, rate: float | None = 20.0, seed: int = 0) -> Trace:
    lengths = sampled_lengths(map(str, range(60)), low=20, high=200, seed=seed)
    trace = document_stream(lengths, top_k=2, requests=requests, exponent=1.0, seed=seed, rate=rate)
    return dataclasses.replace(
        trace,
        requests=tuple(
            dataclasses.replace(request, session=f"user {number % 7}")
            for number, request in enumerate(trace.requests)
        ),
    )


@pytest.mark.parametrize("routing", ROUTINGS)
@pytest.mark.parametrize("window", [None, 8])
def test_one_replica_is_the_simulated_queue(routing: str, window: int | None) -> None:
    trace = popular_trace()
    settings = {
        "gpu_blocks": 60,
        "host_blocks": 20,
        "prefill_seconds": COSTS,
        "reorder_window": window,
        "decode_seconds": 0.002,
    }
    alone = simulate(trace, queue=True, **settings)  # type: ignore[arg-type]  # settings of several types
    result = simulate_replicas(trace, replicas=1, routing=routing, **settings)  # type: ignore[arg-type]  # settings of several types

    assert result.replicas == (alone,)
    assert result.ttft == alone.ttft
    assert result.cached_tokens == alone.cached_tokens
    assert result.token_hit_rate == alone.stats.token_hit_rate
    assert result.saved_share == pytest.approx(alone.saved_share)
    assert result.busiest_share == result.busiest_work == 1
    assert alone.stats.reorderings > 0 or window is None


def test_stock_vllm_can_be_replicated_too() -> None:
    trace = popular_trace()
    alone = simulate(trace, queue=True, gpu_blocks=60, policy="vllm")
    assert simulate_replicas(trace, replicas=1, gpu_blocks=60, policy="vllm").replicas == (alone,)


requests = st.builds(
    TraceRequest,
    documents=st.lists(
        st.tuples(st.sampled_from("abcdef"), st.just(8)), max_size=3, unique=True
    ).map(tuple),
    question_tokens=st.integers(1, 9),
    question=st.sampled_from([None, "x", "y"]),
    namespace=st.sampled_from(["", "tenant"]),
    session=st.sampled_from(["s", "t"]),
)


@given(
    asked=st.lists(requests, min_size=1, max_size=40),
    replicas=st.integers(1, 5),
    routing=st.sampled_from(ROUTINGS),
    factor=st.sampled_from([0, 100, 150, 300]),
    rate=st.sampled_from([None, 0.1, 5.0]),
    seed=st.integers(0, 3),
)
def test_every_request_is_served_once(
    asked: list[TraceRequest],
    replicas: int,
    routing: str,
    factor: int,
    rate: float | None,
    seed: int,
) -> None:
    options = {"routing": routing, "balance_factor": factor, "rate": rate, "seed": seed}
    result = route(*asked, replicas=replicas, **options)
    trace = Trace(tuple(asked))
    counts = Counter(result.assigned)
    cached = [list(replica.cached_tokens) for replica in result.replicas]

    assert [counts[number] for number in range(replicas)] == [len(one) for one in cached]
    assert sum(map(sum, cached)) == sum(result.cached_tokens)
    assert result.prompt_tokens == tuple(map(trace.prompt_tokens, asked))
    for number, tokens in zip(result.assigned, result.cached_tokens, strict=True):
        assert cached[number].pop(0) == tokens  # in the order of arrival
    # A prefill takes a quarter of a second for each new token, and waiting only adds to it.
    computed = zip(result.prompt_tokens, result.cached_tokens, strict=True)
    for seconds, (prompt, found) in zip(result.ttft, computed, strict=True):
        assert seconds >= (prompt - found) / 4 - 1e-9
    assert 1 / replicas - 1e-9 <= result.busiest_share <= 1
    assert 1 / replicas - 1e-9 <= result.busiest_work <= 1
    assert result == route(*asked, replicas=replicas, **options)


def test_by_document_each_is_computed_on_one_replica_and_in_turns_on_all() -> None:
    asked = [ask(name, arrival=100.0 * at) for at, name in enumerate("abcd" * 6)]
    by_document = route(*asked)
    in_turns = route(*asked, replicas=3, routing="round_robin")

    assert by_document.token_hit_rate == 20 / 24
    for name in "abcd":
        places = {
            by_document.assigned[at] for at, one in enumerate(asked) if one.documents[0][0] == name
        }
        assert len(places) == 1
    assert in_turns.assigned == tuple(range(3)) * 8
    assert in_turns.token_hit_rate == 12 / 24


def test_by_session_a_user_stays_where_they_are() -> None:
    asked = [ask("abc"[at % 3], arrival=100.0 * at, session=f"user {at % 8}") for at in range(80)]
    result = route(*asked, routing="session")
    places: dict[str, set[int]] = {}
    for request, replica in zip(asked, result.assigned, strict=True):
        places.setdefault(request.session, set()).add(replica)

    assert all(len(of_user) == 1 for of_user in places.values())
    assert len(set().union(*places.values())) == 2


def test_without_session_or_document_the_next_best_decides() -> None:
    def places(*asked: TraceRequest, routing: str) -> list[int]:
        apart = [
            dataclasses.replace(request, arrival=100.0 * at) for at, request in enumerate(asked)
        ]
        return list(route(*apart, replicas=5, routing=routing).assigned)

    anonymous, question = TraceRequest((), 4), TraceRequest((), 4, "what?")
    no_session = [ask("a") for _ in range(4)]
    assert places(*[anonymous] * 6, routing="document") == [0, 1, 2, 3, 4, 0]
    assert len(set(places(*[question] * 6, routing="document"))) == 1
    assert len(set(places(ask("b", session="s"), *no_session, routing="session")[1:])) == 1
    tenants = [dataclasses.replace(ask("a"), namespace=f"tenant {number}") for number in range(20)]
    assert len(set(places(*tenants, routing="document"))) > 1


def test_a_new_replica_gets_its_share_of_the_documents_and_no_other_moves() -> None:
    asked = [ask(f"document {number}", arrival=100.0 * number) for number in range(3000)]
    for replicas in (1, 3, 7):
        before, after = (
            route(*asked, replicas=count, balance_factor=0).assigned
            for count in (replicas, replicas + 1)
        )
        moved = [now for then, now in zip(before, after, strict=True) if now != then]
        assert set(moved) == {replicas}
        # Six standard deviations of a binomial count.
        share = 1 / (replicas + 1)
        spread = 6 * (3000 * share * (1 - share)) ** 0.5
        assert abs(len(moved) - 3000 * share) < spread


def test_a_popular_document_is_bounded() -> None:
    at_once = [ask("a") for _ in range(40)]
    assert len(set(route(*at_once, replicas=4, balance_factor=0).assigned)) == 1
    bounded = route(*at_once, replicas=4, balance_factor=150)
    counts = Counter(bounded.assigned).most_common()

    assert counts[0][1] == 15  # 1.5 of the mean of 10
    assert counts[0][0] == route(ask("a"), replicas=4).assigned[0]
    assert max(bounded.ttft) < max(route(*at_once, replicas=4, balance_factor=0).ttft)


def test_a_request_that_is_done_does_not_count_for_the_bound() -> None:
    # A prefill takes at most 3 s: with 10 s between them no request meets another.
    apart = [ask("a", arrival=10.0 * at) for at in range(20)]
    assert len(set(route(*apart, replicas=4, balance_factor=100).assigned)) == 1


def test_more_replicas_at_the_same_rate_wait_less() -> None:
    trace = popular_trace(rate=None)
    few, many = (
        simulate_replicas(trace, replicas=replicas, gpu_blocks=60, rate=10.0, prefill_seconds=COSTS)
        for replicas in (2, 8)
    )
    assert many.mean_ttft < few.mean_ttft
    assert many.ttft_quantile(0.95) < few.ttft_quantile(0.95)


def test_by_document_more_is_found_than_in_turns() -> None:
    trace = popular_trace(1000, rate=None)
    found = {
        routing: simulate_replicas(
            trace,
            replicas=4,
            gpu_blocks=80,
            routing=routing,
            rate=8.0,
            prefill_seconds=COSTS,
        )
        for routing in ROUTINGS
    }
    assert found["document"].token_hit_rate > 1.2 * found["round_robin"].token_hit_rate
    assert found["document"].mean_ttft < found["round_robin"].mean_ttft
    assert found["round_robin"].busiest_share == 0.25


def test_arrivals_have_the_rate_and_the_seed() -> None:
    trace = popular_trace(4000, rate=None)
    slow = {"replicas": 4, "gpu_blocks": 60, "prefill_seconds": COSTS}
    one, same, other = (
        simulate_replicas(trace, rate=5.0, seed=seed, **slow)  # type: ignore[arg-type]  # settings of several types
        for seed in (0, 0, 1)
    )
    assert one == same
    assert one.ttft != other.ttft
    # With next to no load a request waits for nothing: a prefill's seconds.
    idle = simulate_replicas(trace, rate=1e-4, **slow)  # type: ignore[arg-type]  # settings of several types
    assert sum(idle.ttft) == pytest.approx(sum(one.prefill_seconds for one in idle.replicas))
    assert statistics.fmean(one.ttft) > statistics.fmean(idle.ttft)


@pytest.mark.parametrize(
    ("options", "told"),
    [
        (
            {"replicas": 0},
            "replicas must be a whole number of replicas of at least 1 and at most 1000, got 0",
        ),
        ({"routing": "documents"}, "did you mean 'document'"),
        ({"routing": "session"}, "no request of the trace has one"),
        ({"rate": 0}, "rate must be a number of requests a second above 0"),
        ({"rate": float("inf")}, "rate must be"),
        ({"balance_factor": 50}, "balance_factor must be 0 for no limit, or at least 100"),
        ({"balance_factor": -1}, "balance_factor must be"),
        ({"seed": -1}, "seed must be"),
        ({"gpu_blocks": 2}, "gpu_blocks must be at least 3"),
        ({"policy": "fifo"}, "unknown policy 'fifo'"),
        ({"policy": "vllm", "host_blocks": 1}, "stock vLLM has no host_blocks"),
    ],
)
def test_what_makes_no_sense_is_refused(options: dict[str, object], told: str) -> None:
    with pytest.raises(ConfigurationError, match=told):
        route(ask("a"), **options)  # type: ignore[arg-type]  # wrong on purpose
