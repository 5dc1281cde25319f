from __future__ import annotations

from pathlib import Path

import pytest

from ragcache_integrations.errors import ConfigurationError
from ragcache_workbench.evaluation.datasets.base import Answer, load_dataset
from tests.evaluation.datasets.files import SQUAD, write_json


def test_questions_and_documents(tmp_path: Path) -> None:
    write_json(tmp_path / "dev-v2.0.json", SQUAD)
    dataset = load_dataset("squad", tmp_path)
    answerable, unanswerable = dataset.questions
    assert (answerable.id, answerable.text, answerable.answers) == (
        "56a",
        "Where is Rome?",
        ("Italy", "in Italy"),
    )
    assert (unanswerable.answers, unanswerable.group) == (("",), "unanswerable")
    # Paragraphs without a question are searched, too.
    assert [document.text for document in dataset.documents] == [
        "Roman Empire\nRome is in Italy. It is old.",
        "Roman Empire\nBern is in Switzerland.",
    ]
    assert answerable.gold_documents == unanswerable.gold_documents == (dataset.documents[0].id,)


@pytest.mark.parametrize(
    ("text", "right", "declined"),
    [
        ("Italy.", 1.0, 0.0),
        ("the north of Italy", 0.5, 0.0),
        ("", 0.0, 1.0),
        ("Not in the document.", 0.0, 1.0),
        ("The passages do not say.", 0.0, 1.0),
        ("There is no information about Bern.", 0.0, 1.0),
        ("the", 0.0, 1.0),  # no words in normal form, as the authors' script has it
        ("no", 0.0, 0.0),
    ],
)
def test_scores_are_those_of_evaluate_2(
    tmp_path: Path, text: str, right: float, declined: float
) -> None:
    write_json(tmp_path / "dev-v2.0.json", SQUAD)
    dataset = load_dataset("squad", tmp_path)
    scores = [dataset.score(question, Answer(text)).scores for question in dataset.questions]
    assert scores[0]["f1"] == pytest.approx(right)
    assert scores[0]["exact_match"] == (right == 1)
    assert scores[1] == {"exact_match": declined, "f1": declined}


def test_squad_1_has_no_unanswerable_questions(tmp_path: Path) -> None:
    paragraph = SQUAD["data"][0]["paragraphs"][0]
    qas = [{name: value for name, value in paragraph["qas"][0].items() if name != "is_impossible"}]
    content = {
        "version": "1.1",
        "data": [{"title": "Rome", "paragraphs": [paragraph | {"qas": qas}]}],
    }
    write_json(tmp_path / "dev-v1.1.json", content)
    assert {question.group for question in load_dataset("squad", tmp_path).questions} == {
        "answerable"
    }


def test_a_split_without_answers(tmp_path: Path) -> None:
    content = {"data": [{"title": "", "paragraphs": [{"context": "x", "qas": [{"id": "1"}]}]}]}
    write_json(tmp_path / "dev-v2.0.json", content)
    with pytest.raises(ConfigurationError, match=r"'answers' is missing"):
        load_dataset("squad", tmp_path)


@pytest.mark.parametrize("claimed", [True, "false", None])
def test_a_question_is_answerable_that_has_an_answer(tmp_path: Path, claimed: object) -> None:
    """So says evaluate-v2.0, which does not read ``is_impossible``."""
    row = {"id": "1", "question": "?", "answers": [{"text": "Rome"}], "is_impossible": claimed}
    paragraph = {"context": "It is Rome.", "qas": [row]}
    write_json(tmp_path / "dev-v2.0.json", {"data": [{"title": "", "paragraphs": [paragraph]}]})
    (question,) = load_dataset("squad", tmp_path).questions
    assert (question.answers, question.group) == (("Rome",), "answerable")


@pytest.mark.parametrize(
    ("field", "told"),
    [("id", "the id of"), ("question", "questions of valid"), ("context", "documents of valid")],
)
def test_halves_of_characters_are_refused(tmp_path: Path, field: str, told: str) -> None:
    """JSON can name them, and no file of a run could hold them."""
    row = {"id": "1", "question": "?", "answers": [{"text": "Rome"}], "context": "It is Rome."}
    row[field] = "a\ud800b"
    paragraph = {"context": row.pop("context"), "qas": [row]}
    write_json(tmp_path / "dev-v2.0.json", {"data": [{"title": "", "paragraphs": [paragraph]}]})
    with pytest.raises(ConfigurationError, match=told) as refused:
        load_dataset("squad", tmp_path)
    assert "lone surrogate at character" in str(refused.value)
    assert str(refused.value).isascii()
