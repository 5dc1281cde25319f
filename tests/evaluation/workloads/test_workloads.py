from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import pytest

from ragcache_integrations.errors import ConfigurationError
from ragcache_workbench.evaluation.datasets.base import load_dataset
from ragcache_workbench.evaluation.workloads import make_workload, normal_form

TEXTS = tuple(question.text for question in load_dataset("nq").questions)


def test_as_is() -> None:
    workload = make_workload(TEXTS)
    assert [item.text for item in workload.items] == list(TEXTS)
    assert [item.number for item in workload.items] == list(range(len(TEXTS)))
    assert [item.question for item in workload.items] == list(range(len(TEXTS)))
    assert {item.arrival for item in workload.items} == {0.0}


def test_a_longer_stream_asks_all_before_any_again() -> None:
    workload = make_workload(TEXTS[:5], length=12)
    order = [item.question for item in workload.items]
    assert order[:5] == [0, 1, 2, 3, 4]
    assert sorted(order[5:10]) == [0, 1, 2, 3, 4]
    assert [item.text for item in workload.items] == [TEXTS[question] for question in order]


def test_uniform_is_proximitys() -> None:
    workload = make_workload(TEXTS[:50], "uniform")
    assert len(workload) == 200
    assert set(Counter(item.question for item in workload.items).values()) == {4}
    assert [item.question for item in workload.items] != sorted(
        item.question for item in workload.items
    )
    for item in workload.items:
        assert item.text.endswith(TEXTS[item.question])
        assert item.text != TEXTS[item.question]
    assert len({normal_form(item.text) for item in workload.items}) == 200


def test_zipf_is_proximitys() -> None:
    workload = make_workload(TEXTS, "zipf", length=3000, seed=1)
    counts = Counter(item.question for item in workload.items)
    assert len(workload) == 3000
    assert set(counts) == set(range(len(TEXTS)))  # each at least once
    assert len({normal_form(item.text) for item in workload.items}) == 3000  # and no text twice
    # The counts, less the one that each has for certain, fall with the rank as r ** -0.8.
    ranked = np.array(sorted(counts.values(), reverse=True)) - 1
    chances = np.arange(1, len(TEXTS) + 1) ** -0.8
    expected = (3000 - len(TEXTS)) * chances / chances.sum()
    assert np.abs(ranked[:10] - expected[:10]).max() < 5 * np.sqrt(expected[0])
    assert len(make_workload(TEXTS[:10], "zipf")) == 40


def test_the_kind_of_rephrasing() -> None:
    workload = make_workload(TEXTS[:5], "zipf", length=20, rephrasing="verbatim")
    assert {item.text for item in workload.items} == set(TEXTS[:5])


def test_poisson_arrivals() -> None:
    workload = make_workload(TEXTS, "uniform", rate=4.0)
    arrivals = np.array([item.arrival for item in workload.items])
    gaps = np.diff(arrivals, prepend=0.0)
    assert gaps.min() >= 0
    assert gaps.mean() == pytest.approx(0.25, rel=0.1)
    assert gaps.std() == pytest.approx(gaps.mean(), rel=0.1)  # as of an exponential distribution


def test_the_same_questions_at_every_rate() -> None:
    slow = make_workload(TEXTS, "zipf", rate=0.5, length=600)
    fast = make_workload(TEXTS, "zipf", rate=2.0, length=600)
    assert slow.digest == fast.digest == make_workload(TEXTS, "zipf", length=600).digest
    assert [item.arrival for item in slow.items] == pytest.approx(
        [4 * item.arrival for item in fast.items]
    )


@pytest.mark.parametrize("kind", ["as_is", "uniform", "zipf"])
def test_a_trace_has_the_length_that_was_asked_for(kind: Any) -> None:
    texts = TEXTS[:20]
    workload = make_workload(texts, kind, rate=2.0, minutes=3.0)
    assert len(workload) == pytest.approx(360, rel=0.2)
    assert workload.items[-1].arrival < 180
    shorter = make_workload(texts, kind, rate=2.0, minutes=1.0)
    arrivals = [item.arrival for item in workload.items]
    assert [item.arrival for item in shorter.items] == arrivals[: len(shorter)]


def test_seeds() -> None:
    for kind in ("uniform", "zipf"):
        one, same, other = (make_workload(TEXTS[:9], kind, seed=seed) for seed in (1, 1, 2))
        assert one == same
        assert one.digest != other.digest


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"texts": ()}, "at least one question"),
        ({"kind": "bursty"}, "one of as_is, uniform, zipf or tripclick:PATH, .* got 'bursty'"),
        ({"length": 0}, "length must be a whole number of questions of at least 1"),
        ({"variants": 0}, "variants must be a whole number of at least 1"),
        ({"exponent": -1.0}, "exponent"),
        ({"exponent": float("inf")}, "exponent"),
        ({"rate": 0.0}, "rate must be a number of requests per second above 0"),
        ({"rate": float("nan")}, "rate must be a number of requests per second above 0"),
        ({"minutes": 1.0}, "minutes needs a rate"),
        ({"minutes": 1.0, "rate": 1.0, "length": 3}, "excludes length"),
        ({"minutes": -1.0, "rate": 1.0}, "minutes must be a number above 0"),
        ({"minutes": 0.0001, "rate": 0.001}, "no request arrives"),
        ({"kind": "zipf", "length": 3}, "cannot hold each of 300 questions"),
        ({"kind": "zipf", "rephrasing": "wild"}, "kind must be one of"),
        ({"texts": ("?",), "kind": "uniform", "variants": 5000}, "no new prefixed rephrasing"),
    ],
)
def test_bad_input(arguments: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigurationError, match=words):
        make_workload(**{"texts": TEXTS, **arguments})
