"""Profiles: their values, how they are said, and how sure a profiler is."""

from __future__ import annotations

import asyncio
import itertools
import json
import math
from dataclasses import asdict

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ragcache_integrations.adaptive import (
    CachedProfiler,
    HeuristicProfiler,
    ProfileEstimate,
    QueryProfile,
)
from ragcache_integrations.adaptive.profile import (
    PROFILE_ANSWERS,
    SUMMARY_RANGES,
    read_profile,
    value_confidence,
)
from ragcache_integrations.core.generation import TokenLogprob
from ragcache_integrations.errors import ConfigurationError
from tests.adaptive.choice.test_mapping import profiles


def tokens(*given_: tuple[str, float]) -> list[TokenLogprob]:
    return [TokenLogprob(text, -1, math.log(chance)) for text, chance in given_]


@given(profiles)
def test_what_is_said_is_read_and_written_again(profile: QueryProfile) -> None:
    assert read_profile(profile.answer)[0] == profile


def test_the_grammar_allows_every_combination_of_values() -> None:
    said = [read_profile(answer)[0] for answer in PROFILE_ANSWERS]
    assert len(set(said)) == len(said) == 2 * 2 * 6 * len(SUMMARY_RANGES)
    assert [one.answer for one in said] == list(PROFILE_ANSWERS)


@pytest.mark.parametrize(
    "text",
    [
        '"high yes 3 medium"',
        "Complexity: High, joint: ... high yes 3 medium",
        "HIGH, YES, 3, Medium",
        "highyes3medium",
        "high yes 3 60-120",
        "high\nyes\n3\n60 to 120",
    ],
)
def test_answers_of_models_without_a_grammar_are_read(text: str) -> None:
    assert read_profile(text)[0] == QueryProfile("high", joint_reasoning=True, pieces=3)


@pytest.mark.parametrize(
    "text",
    [
        *("", "I can't tell.", "yes high 3 short"),
        *("high yes 7 short", "high yes 0 long", "low no 2 10-20", "low no 2 100-50"),
    ],
)
def test_nonsense_and_values_out_of_range_are_refused(text: str) -> None:
    with pytest.raises(ConfigurationError):
        read_profile(text)


def test_the_confidence_is_that_of_the_four_values_alone() -> None:
    said = tokens(
        ('"', 0.1), ("high", 0.9), (" ", 0.2), ("yes", 0.8), (" ", 0.1), ("3", 0.7), (" ", 0.3),
        ("medium", 0.6), ('"', 0.05),
    )  # fmt: skip
    assert value_confidence(said) == pytest.approx((0.9 + 0.8 + 0.7 + 0.6) / 4)


def test_separators_in_a_values_token_do_not_hide_it() -> None:
    said = tokens(('"low', 0.9), (" no", 0.8), (" 1", 0.7), (" short", 0.6), ('"', 0.01))
    assert value_confidence(said) == pytest.approx((0.9 + 0.8 + 0.7 + 0.6) / 4)


def test_tokens_that_a_grammar_forces_are_left_out() -> None:
    # After h only igh can come; after the m of medium, nothing else can.
    said = tokens(
        ("h", 0.9), ("igh", 0.01), (" ", 0.01), ("y", 0.8), ("es", 0.01), (" ", 0.01), ("3", 0.7),
        (" ", 0.01), ("m", 0.6), ("edium", 0.01),
    )  # fmt: skip
    assert value_confidence(said) == pytest.approx((0.9 + 0.8 + 0.7 + 0.6) / 4)


def test_numbers_of_words_count_with_all_their_tokens() -> None:
    said = tokens(("high", 1.0), (" yes", 1.0), (" 3", 1.0), (" 60", 0.5), ("-", 0.5), ("120", 0.5))
    assert value_confidence(said) == pytest.approx((3 + 1.5) / 6)


def test_without_tokens_or_without_a_profile_there_is_no_confidence() -> None:
    assert value_confidence([]) is None
    assert value_confidence(tokens(("no", 1.0), (" idea", 1.0))) is None


@given(st.sampled_from(PROFILE_ANSWERS), st.data())
def test_however_it_is_split_a_sure_answer_is_sure(answer: str, data: st.DataObject) -> None:
    cuts = sorted(data.draw(st.sets(st.integers(1, len(answer) - 1))))
    ends = [0, *cuts, len(answer)]
    parts = [answer[a:b] for a, b in itertools.pairwise(ends)]
    assert value_confidence(tokens(*((part, 1.0) for part in parts))) == pytest.approx(1.0)
    confidence = value_confidence(tokens(*((part, 0.4) for part in parts)))
    assert confidence == pytest.approx(0.4)


@pytest.mark.parametrize(
    ("values", "said"),
    [
        (("middle", True, 3), "complexity"),
        (("low", "yes", 3), "joint_reasoning"),
        (("low", True, 0), "pieces"),
        (("low", True, 7), "pieces"),
        (("low", True, True), "pieces"),
        (("low", True, 3, (20, 50)), "summary_words"),
        (("low", True, 3, (50, 201)), "summary_words"),
        (("low", True, 3, (90, 50)), "summary_words"),
        (("low", True, 3, (90,)), "summary_words"),
        (("low", True, 3, 90), "summary_words"),
    ],
)
def test_values_out_of_range_are_refused(values: tuple[object, ...], said: str) -> None:
    with pytest.raises(ConfigurationError, match=said):
        QueryProfile(*values)  # type: ignore[arg-type] # that is the point


def test_numbers_of_numpy_are_stored_as_pythons() -> None:
    profile = QueryProfile("low", np.bool_(1), np.int64(3))  # type: ignore[arg-type] # accepted
    assert json.dumps(asdict(profile)) == json.dumps(
        asdict(QueryProfile("low", joint_reasoning=True, pieces=3))
    )


# The heuristic one


@pytest.mark.parametrize(
    ("question", "pieces", "complexity"),
    [
        ("who is the current ceo of nvidia", 1, "low"),
        ("In what county was William W. Blair born?", 1, "low"),
        ("Are Alison Skipper and Rachel McAdams from the same country?", 2, "low"),
        ("When and why did the Voyager 1 leave our solar system?", 2, "high"),
        ("Summarise the discussion about the budget.", 2, "high"),
        ("how many people live in Oslo", 1, "low"),
        # One passage tells of two names, and of things that are named by a pair of words.
        ("When did Kublai Khan attack the Song dynasty?", 1, "low"),
        ("who joined the cast of law and order", 1, "low"),
        ("What is the most popular religion in Sweden?", 1, "low"),
        ("where are the winter olympics and when do they start", 2, "low"),
        ("What is Acme's revenue, and in which year was it founded?", 2, "low"),
        ("Which was started first, Life or Time?", 2, "low"),
        ("Are Rome, Bern, and Oslo of the same size?", 3, "low"),
    ],
)
def test_rules_of_thumb(question: str, pieces: int, complexity: str) -> None:
    estimate = HeuristicProfiler().profile(question)
    assert estimate == asyncio.run(HeuristicProfiler().aprofile(question))
    assert estimate.source == "heuristic"
    assert estimate.confidence is None
    assert estimate.profile is not None
    assert (estimate.profile.pieces, estimate.profile.complexity) == (pieces, complexity)
    assert estimate.profile.joint_reasoning == (pieces > 1)


@given(st.text(max_size=300))
def test_any_text_has_a_heuristic_profile(question: str) -> None:
    assert HeuristicProfiler().profile(question).profile is not None


# Cached ones


class Counting:
    """Counts how often it is asked."""

    def __init__(self, estimate: ProfileEstimate) -> None:
        self.estimate = estimate
        self.asked: list[str] = []

    def profile(self, question: str) -> ProfileEstimate:
        self.asked.append(question)
        return self.estimate

    async def aprofile(self, question: str) -> ProfileEstimate:
        return self.profile(question)


SURE = ProfileEstimate(QueryProfile("low", joint_reasoning=False, pieces=1), "llm", 0.95)


def embed(question: str) -> list[float]:
    """Close by for questions that begin alike."""
    angle = {"a": 0.0, "b": 1.0}[question[0]] + 0.001 * len(question)
    return [math.cos(angle), math.sin(angle)]


def test_a_close_question_shares_the_profile() -> None:
    inner = Counting(SURE)
    profiler = CachedProfiler(inner, embed, tolerance=0.1)
    assert profiler.profile("a") == SURE
    assert profiler.profile("aa") == ProfileEstimate(SURE.profile, "cache", 0.95)
    assert asyncio.run(profiler.aprofile("aaa")).source == "cache"
    assert asyncio.run(profiler.aprofile("b")) == SURE
    assert inner.asked == ["a", "b"]
    profiler.clear()
    assert profiler.profile("a") == SURE


@pytest.mark.parametrize(
    "estimate",
    [
        ProfileEstimate(SURE.profile, "llm", 0.5),
        ProfileEstimate(None, "llm", problem="nonsense"),
    ],
)
def test_unsure_profiles_are_not_kept(estimate: ProfileEstimate) -> None:
    inner = Counting(estimate)
    profiler = CachedProfiler(inner, embed)
    assert [profiler.profile("a") for _ in range(3)] == [estimate] * 3
    assert len(inner.asked) == 3


@pytest.mark.parametrize("vectors", [[0.0, 0.0], [math.nan, 1.0], [[1.0]], "no"])
def test_without_usable_embeddings_nothing_is_cached(vectors: object) -> None:
    inner = Counting(SURE)
    profiler = CachedProfiler(inner, lambda question: vectors)  # type: ignore[arg-type, return-value] # that is the point
    assert profiler.profile("a") == SURE
    assert asyncio.run(profiler.aprofile("a")) == SURE
    assert len(inner.asked) == 2


def test_an_embedding_model_that_breaks_costs_no_profile() -> None:
    def broken(question: str) -> np.ndarray:
        raise OSError(question)

    assert CachedProfiler(Counting(SURE), broken).profile("a") == SURE


@pytest.mark.parametrize(
    ("knobs", "said"),
    [({"tolerance": -1}, "tolerance"), ({"capacity": 0}, "capacity"), ({"embed": 3}, "embed")],
)
def test_wrong_arguments_are_refused(knobs: dict[str, object], said: str) -> None:
    with pytest.raises(ConfigurationError, match=said):
        CachedProfiler(Counting(SURE), **{"embed": embed, **knobs})  # type: ignore[arg-type] # that is the point
