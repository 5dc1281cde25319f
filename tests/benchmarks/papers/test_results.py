from __future__ import annotations

import pytest
from papers.results import Results, interval_of, reduction

from ragcache_integrations.errors import ConfigurationError
from ragcache_workbench.evaluation import Interval, compare

from .made import made_run


def results(**runs: object) -> Results:
    return Results("nq", {name: (run,) for name, run in runs.items()})  # type: ignore[misc]  # made runs stand in


def test_the_mean_is_over_all_answers_of_all_seeds() -> None:
    first = made_run([1.0, 0.0], ttft_seconds=[0.1, 0.3])
    second = made_run([1.0, 1.0], ttft_seconds=[0.5, 0.7])
    both = Results("nq", {"a": (first, second)})
    quality, ttft = both.mean("a", "f1"), both.mean("a", "ttft")
    assert quality is not None
    assert ttft is not None
    assert quality.value == pytest.approx(0.75)
    assert ttft.value == pytest.approx(400)
    assert quality.low <= 0.75 <= quality.high


def test_an_answer_that_comes_again_is_no_new_evidence() -> None:
    once = interval_of([("a", 0.0), ("b", 1.0), ("c", 0.0), ("d", 1.0)])
    often = interval_of(25 * [("a", 0.0), ("b", 1.0), ("c", 0.0), ("d", 1.0)])
    assert once == often
    others = interval_of((str(number), float(number % 2)) for number in range(100))
    assert once is not None
    assert others is not None
    assert others.high - others.low < (once.high - once.low) / 2


def test_without_a_number_there_is_no_interval() -> None:
    assert interval_of([]) is None
    assert results(a=made_run([1.0])).mean("a", "ttft") is None


def test_differences_and_ratios_are_paired() -> None:
    compared = results(
        base=made_run([0.2, 0.9, 0.4], ttft_seconds=[1.0, 2.0, 3.0]),
        other=made_run([0.3, 1.0, 0.5], ttft_seconds=[0.5, 1.0, 1.5]),
    )
    difference = compared.quality_difference("base", "other")
    ratio = compared.times_as_fast("base", "other", "ttft")
    assert difference is not None
    assert ratio is not None
    # Each question is better by the same, so that the interval has no width.
    assert difference.as_list() == pytest.approx([0.1, 0.1, 0.1])
    assert ratio.as_list() == pytest.approx([2.0, 2.0, 2.0])


def test_a_time_that_was_disturbed_in_one_run_counts_in_neither() -> None:
    compared = results(
        base=made_run([0, 0], ttft_seconds=[1.0, 9.0], disturbed=[False, True]),
        other=made_run([0, 0], ttft_seconds=[0.5, 0.1]),
    )
    ratio = compared.times_as_fast("base", "other", "ttft")
    assert ratio is not None
    assert ratio.value == pytest.approx(2.0)


def test_runs_of_other_questions_cannot_be_compared() -> None:
    compared = results(base=made_run([0.0]), other=made_run([0.0], digest="another"))
    with pytest.raises(ConfigurationError, match="do not have the same questions"):
        compared.quality_difference("base", "other")


@pytest.mark.parametrize(
    ("streams", "words"),
    [
        (["ab", "bc"], "once"),
        (["abba", "cdcd"], "twice"),
        (["aaaaabbbbb"], "5 times"),
        (["ab", "abb"], "1 to 2 times"),
    ],
)
def test_how_often_questions_come(streams: list[str], words: str) -> None:
    runs = [made_run([0.5] * len(stream), questions=[*stream]) for stream in streams]
    assert Results("nq", {"one": tuple(runs)}).repeated("one") == words


def test_random_weights_have_no_quality() -> None:
    compared = results(base=made_run([0.0]), other=made_run([1.0], noise=True))
    assert compared.quality("other") is None
    assert compared.quality_difference("base", "other") is None
    assert compared.is_equal("base", "other") is None


@pytest.mark.parametrize(("lost", "equal"), [(0.02, True), (0.04, False)])
def test_equal_quality_is_an_interval_above_three_points(lost: float, equal: bool) -> None:
    compared = results(base=made_run([0.5] * 100), other=made_run([0.5 - lost] * 100))
    assert compared.is_equal("base", "other") is equal


def test_too_few_questions_show_no_equal_quality() -> None:
    """The mean is the same, but the interval is wide."""
    compared = results(base=made_run([1.0, 0.0]), other=made_run([0.0, 1.0]))
    assert compared.is_equal("base", "other") is False


@pytest.mark.parametrize(("seeds", "equal"), [(1, None), (2, True)])
def test_answers_to_few_questions_show_no_equal_quality_even_if_none_differs(
    seeds: int, equal: bool | None
) -> None:
    """Each seed has 60 other questions, each of them twice."""
    runs = tuple(
        made_run([0.5] * 120, questions=2 * [f"q{seed}-{number}" for number in range(60)])
        for seed in range(seeds)
    )
    compared = Results("nq", {"base": runs, "other": runs})
    assert compared.questions("base") == 60 * seeds
    assert compared.is_equal("base", "other") is equal


def test_the_best_answers_as_well() -> None:
    compared = results(
        base=made_run([0.5] * 4),
        slow=made_run([0.5] * 4, hit=[True, False, False, False]),
        fast=made_run([0.5] * 4, hit=[True, True, False, False]),
        wrong=made_run([0.1] * 4, hit=True),
        unknown=made_run([0.5] * 4),
    )
    names = ("slow", "fast", "wrong", "unknown")

    def gain(name: str) -> Interval | None:
        return compared.mean(name, "cache_hit_rate")

    assert compared.best("base", names, gain) == "fast"
    assert compared.best("base", ["wrong", "unknown"], gain) is None


def test_with_random_weights_the_best_is_what_gains_most() -> None:
    compared = results(
        base=made_run([0.0] * 2, noise=True),
        one=made_run([0.0] * 2, noise=True, hit=[True, False]),
        two=made_run([0.0] * 2, noise=True, hit=True),
    )
    best = compared.best("base", ["one", "two"], lambda name: compared.mean(name, "cache_hit_rate"))
    assert best == "two"


def test_half_the_time_is_saved_where_it_is_twice_as_fast() -> None:
    saved = reduction(Interval(2.0, 1.0, 4.0))
    assert saved is not None
    assert saved.as_list() == pytest.approx([0.5, 0.0, 0.75])
    assert reduction(None) is None


def test_the_mean_of_figures_over_seeds() -> None:
    runs = (made_run([0.0], figures={"cost": 1.0}), made_run([0.0], figures={"cost": 2.0}))
    assert Results("nq", {"a": runs}).figure("a", "cost") == 1.5
    assert Results("nq", {"a": runs}).figure("a", "money_saved") is None


def test_a_stream_in_which_questions_come_again_is_not_surer() -> None:
    scores = [0.1 * number for number in range(10)]
    others = [*scores[1:], 0.0]
    once = compare([made_run(scores), made_run(others)], metrics=["f1"])
    questions = [f"q{number}" for number in range(10)] * 4
    again = compare(
        [made_run(four * 4, questions=questions) for four in (scores, others)], metrics=["f1"]
    )
    assert again[0].difference.as_list() == pytest.approx(once[0].difference.as_list())
    assert again[0].pairs == 40
