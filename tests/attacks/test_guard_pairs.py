"""Questions that differ in one thing that matters, and questions that mean the same.

The pairs were written and set aside before the guard was changed: what is measured on them was not
used to build it.
"""

from __future__ import annotations

import json
from collections import Counter

import pytest

from tests.attacks.faces import (
    ANSWER_FACES,
    DATA,
    LANGUAGES,
    RETRIEVER_FACES,
    answered_for_another,
    found_for_another,
    minimal_pairs,
    paraphrases,
)

pytestmark = pytest.mark.slow


def test_the_data_is_what_the_figures_are_of() -> None:
    rows = json.loads((DATA / "minimal_pairs.json").read_text(encoding="utf-8"))
    languages = Counter(row["language"] for row in rows)
    assert len({(row["one"], row["other"]) for row in rows}) == len(rows) == 200
    assert languages == {language: 50 if language == "en" else 30 for language in LANGUAGES}
    assert len(set(paraphrases())) == 200


@pytest.mark.parametrize("face", ANSWER_FACES)
def test_answers_of_other_questions(face: str) -> None:
    pairs = minimal_pairs() if face == "langchain invoke" else minimal_pairs()[::8]
    wrong = answered_for_another(ANSWER_FACES[face], pairs, tolerance=0.7)
    assert len(wrong) <= 2, wrong


@pytest.mark.parametrize("face", RETRIEVER_FACES)
def test_documents_of_other_questions(face: str) -> None:
    pairs = minimal_pairs() if face == "langchain invoke" else minimal_pairs()[::8]
    wrong = found_for_another(RETRIEVER_FACES[face], pairs)
    assert len(wrong) <= 2, wrong


@pytest.mark.parametrize("face", ["langchain invoke", "llama_index retrieve"])
def test_documents_of_other_questions_that_are_nearer(face: str) -> None:
    # Who asks "A?" may first have asked all the others: one cache holds the whole set.
    pairs = minimal_pairs()
    ask = RETRIEVER_FACES[face]()
    for pair in pairs:
        ask(pair.one)
    wrong = [pair for pair in pairs if ask(pair.other) != pair.other]
    assert len(wrong) <= 2, wrong


@pytest.mark.parametrize("face", ["llama_index query"])
def test_the_other_way_round(face: str) -> None:
    turned = [pair._replace(one=pair.other, other=pair.one) for pair in minimal_pairs()]
    wrong = answered_for_another(ANSWER_FACES[face], turned, tolerance=0.7)
    assert len(wrong) <= 2, wrong


@pytest.mark.parametrize("face", ["langchain invoke"])
def test_rephrasings_are_still_served(face: str) -> None:
    served = answered_for_another(ANSWER_FACES[face], paraphrases(), tolerance=0.7)
    # 173 when this was written; the aim is 180, which no rule that is safe has reached.
    assert len(served) >= 170, sorted(set(paraphrases()) - set(served))
