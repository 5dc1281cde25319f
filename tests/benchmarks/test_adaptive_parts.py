"""What the benchmark of per-query configuration measures with."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

import pytest
from parts.adaptive.recorded import RecordedProfiler, save_profiles
from parts.adaptive.serving import CheckedBestFit
from parts.adaptive.workload import CHUNK_CHARACTERS, RECORDED, Corpus, Material, Workload, f1

from ragcache_integrations.adaptive import Choice, ProfileEstimate, QueryProfile
from ragcache_integrations.adaptive.best_fit import (
    BestFit,
    ChunkFacts,
    PromptSizes,
    Situation,
    pruned_space,
)
from ragcache_integrations.errors import ConfigurationError

SPACE = pruned_space(QueryProfile("high", joint_reasoning=True, pieces=3))
SIZES = PromptSizes(stuff=60, mapper=70, reduce=50, rerank=40, answer=30)
CHUNKS = ChunkFacts((100,) * 9)


def test_best_fit_is_found_right() -> None:
    checked = CheckedBestFit()
    for free in range(0, 2000, 50):
        checked.choose(SPACE, CHUNKS, SIZES, Situation(free))
    assert (checked.choices, checked.violations) == (40, 0)


def test_a_wrong_choice_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    right = BestFit.choose

    def smaller(self: BestFit, *arguments: Any) -> Choice:
        choice = right(self, *arguments)
        chunks = max(1, choice.config.num_chunks - 1)
        return replace(choice, config=replace(choice.config, num_chunks=chunks))

    monkeypatch.setattr(BestFit, "choose", smaller)
    checked = CheckedBestFit()
    checked.choose(SPACE, CHUNKS, SIZES, Situation(5000))
    checked.choose(SPACE, CHUNKS, SIZES, Situation(0))  # nothing fits: nothing is violated
    assert (checked.choices, checked.violations) == (2, 1)


def test_the_recorded_questions_are_of_three_kinds() -> None:
    material = Material.bundled(RECORDED)
    estimates = [material.profiler.profile(question) for question in material.answers]
    spaces = [
        pruned_space(estimate.profile) for estimate in estimates if estimate.profile is not None
    ]
    assert len(spaces) == len(estimates)
    assert {space.methods for space in spaces} == {
        ("map_rerank",),
        ("stuff",),
        ("stuff", "map_reduce"),
    }
    assert any(material.answers.values())


def test_chunks_are_found_by_their_rare_words() -> None:
    corpus = Corpus(["the cat purrs. " * 107, "the dog barks. " * 107, "the cow moos"])
    (found,) = corpus.find("which dog barks", 1)
    assert "the dog barks" in found.text


def test_long_texts_are_cut_and_short_ones_joined() -> None:
    texts = ["a" * (CHUNK_CHARACTERS + 100), "b" * 200, "c" * 300]
    cut, joined = [chunk.text for chunk in Corpus(texts).chunks]
    assert cut == "a" * CHUNK_CHARACTERS
    assert joined.split() == ["a" * 100, "b" * 200, "c" * 300]


def test_workloads_are_drawn_alike_by_seed() -> None:
    questions = [f"q{number}" for number in range(10)]
    one, again, other = (Workload.draw(questions, 15, seed) for seed in (0, 0, 1))
    assert one == again != other
    assert set(one.questions) == set(questions)
    arrivals = one.arrivals(2.0)
    assert arrivals == sorted(arrivals)
    assert [2 * late for late in arrivals] == pytest.approx(one.arrivals(1.0))


def test_f1_counts_words() -> None:
    assert f1("It is Rome.", ["rome"]) == pytest.approx(0.5)
    assert f1("Rome", ["bern", "ROME"]) == 1.0
    assert f1("", ["rome"]) == 0.0


def test_recorded_profiles_are_given_again(tmp_path: object) -> None:
    path = f"{tmp_path}/profiles.jsonl"
    profile = QueryProfile("high", joint_reasoning=True, pieces=2)
    estimates = [
        ("why\u2028?", ProfileEstimate(profile, "llm", 0.95)),
        ("who?", ProfileEstimate(profile, "heuristic")),
        ("what?", ProfileEstimate(None, "llm", problem="nonsense")),
    ]
    assert save_profiles(path, estimates) == 2
    recorded = RecordedProfiler.load(path)
    assert len(recorded) == 2
    assert recorded.profile("why\u2028?") == ProfileEstimate(profile, "recorded", 0.95)
    assert asyncio.run(recorded.aprofile("who?")) == ProfileEstimate(profile, "recorded")
    assert recorded.profile("what?").profile is None


@pytest.mark.parametrize("content", ["nonsense", '{"question": "q"}', "[1]"])
def test_other_files_hold_no_profiles(tmp_path: object, content: str) -> None:
    path = f"{tmp_path}/profiles.jsonl"
    with open(path, "w", encoding="utf-8") as file:  # noqa: PTH123 - a string is a path, too
        file.write(content)
    with pytest.raises(ConfigurationError, match="no recorded profiles"):
        RecordedProfiler.load(path)
    with pytest.raises(ConfigurationError, match="no recorded profiles"):
        RecordedProfiler.load(f"{tmp_path}/nowhere")
