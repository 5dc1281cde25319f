"""Generated traces: popularity and lengths are those of the arguments."""

from __future__ import annotations

import math
from collections import Counter

import pytest
from parts.traffic.traces import SCAN, document_stream, question_stream, sampled_lengths

from ragcache_integrations.errors import ConfigurationError
from ragcache_workbench.simulation.traces import Trace

TOKENS = {f"d{number}": 100 + number for number in range(50)}
RETRIEVED = [[f"d{number}", f"d{(number + 1) % 50}"] for number in range(50)]


def test_the_same_seed_gives_the_same_stream() -> None:
    def questions(seed: int) -> Trace:
        return question_stream(
            RETRIEVED, TOKENS, requests=100, exponent=1.0, seed=seed, rate=2.0, question_tokens=7
        )

    def documents(seed: int) -> Trace:
        return document_stream(TOKENS, top_k=2, requests=100, exponent=1.0, seed=seed)

    assert questions(1) == questions(1) != questions(2)
    assert documents(1) == documents(1) != documents(2)


@pytest.mark.parametrize("exponent", [0.0, 0.8, 1.2])
def test_popularity_follows_zipf(exponent: float) -> None:
    trace = document_stream(TOKENS, top_k=1, requests=40_000, exponent=exponent, seed=0)
    counts = [
        times for _, times in Counter(one.documents[0] for one in trace.requests).most_common()
    ]
    weights = [rank**-exponent for rank in range(1, 51)]

    # Six standard deviations of a binomial count: this never fails by chance.
    for count, weight in zip(counts[:5], weights[:5], strict=True):
        expected = 40_000 * weight / sum(weights)
        assert abs(count - expected) < 6 * math.sqrt(expected)


def test_each_question_comes_once_before_any_comes_again() -> None:
    trace = question_stream(RETRIEVED, TOKENS, requests=120, exponent=None, seed=0)
    asked = [one.question for one in trace.requests]

    assert len(set(asked[:50])) == len(set(asked[50:100])) == 50
    assert asked[:50] != asked[50:100]
    assert all(
        [name for name, _ in one.documents] == RETRIEVED[int(one.question or -1)]
        for one in trace.requests
    )


def test_questions_have_lengths_of_their_own() -> None:
    trace = question_stream(
        RETRIEVED, TOKENS, requests=50, exponent=None, seed=0, question_tokens=range(1, 51)
    )

    assert all(one.question_tokens == int(one.question or 0) + 1 for one in trace.requests)


def test_no_request_has_a_document_twice() -> None:
    trace = document_stream(TOKENS, top_k=5, requests=500, exponent=1.5, seed=0)

    assert all(len(set(one.documents)) == 5 for one in trace.requests)


def test_requests_arrive_at_the_rate() -> None:
    trace = document_stream(TOKENS, top_k=1, requests=10_000, exponent=0, seed=0, rate=4.0)

    assert trace.requests[-1].arrival == pytest.approx(2500, rel=0.06)


def test_lengths_are_within_bounds() -> None:
    lengths = sampled_lengths(["a", "b", "a", *TOKENS], low=3, high=5, seed=0)

    assert set(lengths) == {"a", "b", *TOKENS}
    assert set(lengths.values()) == {3, 4, 5}


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"retrieved": []}, "questions"),
        ({"requests": 0}, "at least 1 request"),
        ({"exponent": -0.1}, "exponent"),
        ({"exponent": math.nan}, "exponent"),
        ({"exponent": math.inf}, "exponent"),
        ({"rate": 0.0}, "rate"),
        ({"tokens": {}}, "50 documents have no length, 'd0' among them"),
        ({"question_tokens": [1, 2]}, "2 lengths for 50 questions"),
    ],
)
def test_impossible_question_streams_are_refused(change: dict[str, object], told: str) -> None:
    good: dict[str, object] = {
        "retrieved": RETRIEVED,
        "tokens": TOKENS,
        "requests": 3,
        "exponent": 1.0,
        "seed": 0,
    }
    with pytest.raises(ConfigurationError, match=told):
        question_stream(**(good | change))  # type: ignore[arg-type]  # wrong on purpose


@pytest.mark.parametrize("top_k", [0, 51])
def test_impossible_document_streams_are_refused(top_k: int) -> None:
    with pytest.raises(ConfigurationError, match="top_k must be from 1 to the 50 documents"):
        document_stream(TOKENS, top_k=top_k, requests=3, exponent=1.0, seed=0)


def test_impossible_lengths_are_refused() -> None:
    with pytest.raises(ConfigurationError, match="1 <= low <= high"):
        sampled_lengths(["a"], low=5, high=4, seed=0)


def asked_most(trace: Trace, begin: int, end: int) -> str | None:
    counts = Counter(request.question for request in trace.requests[begin:end])
    return counts.most_common(1)[0][0]


def changing(**change: float) -> Trace:
    return question_stream(
        RETRIEVED,
        TOKENS,
        requests=4000,
        exponent=2.0,
        seed=0,
        **change,  # type: ignore[arg-type]  # numbers by name
    )


def test_the_most_popular_question_stays_unless_popularity_changes() -> None:
    still, drifting, upset = changing(), changing(drift=1 / 1000), changing(upheavals=3)
    parts = [(begin, begin + 1000) for begin in range(0, 4000, 1000)]
    assert len({asked_most(still, *part) for part in parts}) == 1
    assert len({asked_most(drifting, *part) for part in parts}) == 4
    assert len({asked_most(upset, *part) for part in parts}) > 2
    first = parts[0]
    assert asked_most(still, *first) == asked_most(drifting, *first) == asked_most(upset, *first)


def test_a_scan_asks_for_documents_that_come_only_once() -> None:
    trace, without = changing(scans=0.3), changing()
    scanned = [request for request in trace.requests if request.question is None]
    counts = Counter(name for request in scanned for name, _ in request.documents)
    assert set(counts.values()) == {1}
    assert len(scanned) % SCAN == 0
    assert 0.1 < len(scanned) / 4000 < 0.5
    assert all(
        request == other or request.question is None
        for request, other in zip(trace.requests, without.requests, strict=True)
    )
