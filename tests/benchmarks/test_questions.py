from __future__ import annotations

import gzip
import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from parts.traffic.near_duplicates import near_duplicates, opposites, polarity_pairs
from parts.traffic.question_streams import uniform_stream, zipf_stream
from parts.traffic.questions import Question, load_corpus

from ragcache_integrations.errors import ConfigurationError
from ragcache_workbench.evaluation.workloads import KINDS, Kind, normal_form, rephrase

BUNDLED = load_corpus().questions["nq"]
REWORDING = [kind for kind in KINDS if kind != "verbatim"]
SEEDS = st.integers(min_value=0, max_value=2**32)


@given(st.sampled_from(BUNDLED), st.sampled_from(REWORDING), SEEDS)
def test_rephrasings_of_a_question_are_all_different(
    question: Question, kind: Kind, seed: int
) -> None:
    rng, taken = np.random.default_rng(seed), set[str]()
    texts = [rephrase(question.text, kind, rng, taken) for _ in range(20)]
    assert len({normal_form(text) for text in texts}) == 20
    assert taken == {normal_form(text) for text in texts}


@pytest.mark.parametrize("kind", REWORDING)
def test_the_most_popular_question_of_a_long_stream_has_enough_rephrasings(kind: Kind) -> None:
    rng, taken = np.random.default_rng(0), set[str]()
    for _ in range(1000):
        rephrase("is visual loss permanent?", kind, rng, taken)
    assert len(taken) == 1000


@given(st.sampled_from(BUNDLED), SEEDS)
def test_a_prefixed_question_ends_as_it_did(question: Question, seed: int) -> None:
    assert rephrase(question.text, "prefixed", np.random.default_rng(seed), set()).endswith(
        question.text
    )


def test_a_verbatim_repetition_repeats() -> None:
    rng, taken = np.random.default_rng(0), set[str]()
    assert {rephrase("why", "verbatim", rng, taken) for _ in range(3)} == {"why"}


def test_a_kind_that_does_not_exist_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="kind must be one of verbatim, prefixed"):
        rephrase("why", "loud", np.random.default_rng(0), set())  # type: ignore[arg-type]  # the point


def test_opposites() -> None:
    assert opposites("how to enable logging with colours") == [
        "how to disable logging with colours",
        "how to enable logging without colours",
    ]
    assert opposites("long-term results") == ["short-term results"]
    assert opposites("who is it") == []


@given(SEEDS, st.integers(min_value=0, max_value=400))
def test_near_duplicates_are_new_and_different(seed: int, count: int) -> None:
    made = near_duplicates(BUNDLED, count, seed)
    assert len(made) <= min(count, len(BUNDLED))
    texts = [question.text.casefold() for question in (*BUNDLED, *made)]
    assert len(set(texts)) == len(texts)


def test_near_duplicates_are_enough_for_the_streams() -> None:
    assert len(near_duplicates(BUNDLED, len(BUNDLED) // 5, seed=0)) == len(BUNDLED) // 5


def test_another_entity_or_number_is_asked_for() -> None:
    questions = [Question("who sang Rome in 1999", "Rome"), Question("who wrote Bern", "Bern")]
    found = {near_duplicates(questions, 2, seed)[0].text for seed in range(40)}
    assert "who sang Bern in 1999" in found
    assert any(text.startswith("who sang Rome in 200") for text in found)


def test_polarity_pairs_are_as_many_as_wanted_and_never_the_same_text_twice() -> None:
    corpus = load_corpus()
    pairs = polarity_pairs(corpus.questions["nq"], corpus.titles, 100, seed=0)
    assert len(pairs) == 100
    assert all(one.casefold() != other.casefold() for one, other in pairs)


@given(st.sampled_from(REWORDING), st.integers(min_value=0, max_value=10), SEEDS)
def test_a_zipf_stream_asks_everything_and_repeats_no_text(
    kind: Kind, twins: int, seed: int
) -> None:
    stream = zipf_stream(BUNDLED[:30], 60, kind, twins=twins, seed=seed)
    assert len(stream) == len(stream.originals) == 60
    assert {question.text for question in BUNDLED[:30]} <= set(stream.originals)
    assert len({normal_form(text) for text in stream.texts}) == 60
    assert stream == zipf_stream(BUNDLED[:30], 60, kind, twins=twins, seed=seed)


def test_a_zipf_stream_is_skewed() -> None:
    stream = zipf_stream(BUNDLED[:100], 10_000, "verbatim", seed=0)
    counts = sorted((stream.originals.count(one.text) for one in BUNDLED[:100]), reverse=True)
    # The first of a hundred by Zipf's law with 0.8 has some 11.5 % of what is drawn.
    share = 1 / sum(rank**-0.8 for rank in range(1, 101))
    assert counts[0] == pytest.approx(1 + share * 9_900, rel=0.1)
    assert counts[-1] >= 1


def test_a_stream_that_is_too_short_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="stream of 29 cannot hold each of 30"):
        zipf_stream(BUNDLED[:30], 29, "light")


def test_a_uniform_stream_asks_everything_equally_often() -> None:
    stream = uniform_stream(BUNDLED[:50], variants=4, seed=1)
    assert {stream.originals.count(question.text) for question in BUNDLED[:50]} == {4}
    assert len({normal_form(text) for text in stream.texts}) == 200


def test_streams_one_after_the_other() -> None:
    one, other = (zipf_stream(BUNDLED[:5], 10, "light", seed=seed) for seed in (0, 1))
    assert (one + other).texts == one.texts + other.texts


def test_the_entity_of_a_bundled_question_stands_in_it() -> None:
    named = [question for question in BUNDLED if question.entity]
    assert len(named) > len(BUNDLED) // 10
    assert all(question.entity in question.text for question in named)


def test_a_folder_of_data_sets(tmp_path: Path) -> None:
    (tmp_path / "nq").mkdir()
    (tmp_path / "pubmedqa").mkdir()
    passage = {"id": "1", "title": "Staind (band)", "text": "A band."}
    question = {"question": "who sings for staind", "answers": ["x"], "passage_id": "1"}
    rows = f"{json.dumps(passage)}\n".encode()
    (tmp_path / "nq" / "passages.jsonl.gz").write_bytes(gzip.compress(rows))
    (tmp_path / "nq" / "questions.jsonl").write_text(json.dumps(question) + "\n")
    entry = {
        "QUESTION": "Is Amblyopia curable?",
        "CONTEXTS": ["a", "b", "a"],
        "MESHES": ["Amblyopia"],
    }
    (tmp_path / "pubmedqa" / "pubmedqa.json").write_text(json.dumps({"7": entry}))
    corpus = load_corpus(tmp_path)
    assert corpus.passages == ("Staind (band)\nA band.", "a", "b")
    assert corpus.questions == {
        "nq": (Question("who sings for staind", "staind", "Staind (band)\nA band."),),
        "pubmedqa": (Question("Is Amblyopia curable?", "Amblyopia", "a"),),
    }


def test_a_folder_without_data_sets_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="must hold nq/ and pubmedqa/"):
        load_corpus(tmp_path)
