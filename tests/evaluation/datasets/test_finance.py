from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest

from ragcache_integrations.errors import ConfigurationError
from ragcache_workbench.evaluation.datasets.base import Answer, EvalDataset, load_dataset
from ragcache_workbench.evaluation.datasets.finance import table_text
from tests.evaluation.datasets.files import FINQA, TATQA, write_json


@pytest.fixture
def tatqa(tmp_path: Path) -> EvalDataset:
    write_json(tmp_path / "tatqa_dataset_dev.json", TATQA)
    return load_dataset("tatqa", tmp_path)


@pytest.fixture
def finqa(tmp_path: Path) -> EvalDataset:
    write_json(tmp_path / "dev.json", FINQA)
    return load_dataset("finqa", tmp_path)


def test_tables_are_texts() -> None:
    assert table_text([["", "2019"], ["", " "], ["Other ", "44.1"]]) == " | 2019\nOther | 44.1"


def test_tables_and_paragraphs_are_documents(tatqa: EvalDataset) -> None:
    assert [document.text for document in tatqa.documents] == [
        " | 2019 | 2018\nOther | 44.1 | 56.7",
        "Contracts are fixed-price, cost-plus or both.",
        "The table is in millions.",
    ]
    assert [question.gold_documents for question in tatqa.questions] == [
        ("tatqa-1",),
        ("tatqa-0", "tatqa-2"),
        ("tatqa-0",),
        ("tatqa-0",),
    ]
    assert [question.answers[0] for question in tatqa.questions] == [
        "fixed-price; cost-plus",
        "-12.6 million",
        "-22.22 percent",
        "September 30, 2019",
    ]


@pytest.mark.parametrize(
    ("place", "text", "scores"),
    [
        (0, "cost-plus and fixed-price", (1, 1, 1)),
        (0, "fixed-price", (0, 2 / 3, 0)),
        (1, "-$12.6 million", (1, 1, 1)),
        (1, "(12.60) million", (1, 1, 1)),
        (1, "The change was -12,600 thousand.", (1, 1, 1)),
        (1, "-12.6", (0, 0, 1)),  # without its unit
        (1, "-12.63 million", (0, 0, 0)),
        (1, "12.6 million", (0, 0, 0)),
        (1, "-12.6 billion", (0, 0, 0)),
        (1, "It fell.", (0, 0, 0)),
        (2, "-22.22%", (1, 1, 1)),
        (2, "-0.2222", (1, 1, 1)),
        (2, "-22.22", (0, 0, 1)),
        (3, "September 30, 2019", (1, 1, 1)),
        (3, "September 2019", (0, 0.8, 0)),
        (3, "2019", (0, 0.5, 0)),
    ],
)
def test_scores_of_tatqa(
    tatqa: EvalDataset, place: int, text: str, scores: tuple[float, float, float]
) -> None:
    scored = tatqa.score(tatqa.questions[place], Answer(text)).scores
    assert tuple(scored) == tatqa.metrics
    assert tuple(scored.values()) == pytest.approx(scores)


def test_pages_of_finqa(finqa: EvalDataset) -> None:
    # Two questions share a page, whose documents come once.
    assert [document.text for document in finqa.documents] == [
        " | 2019 | 2018\nrevenue | 114.46 | 100",
        "Revenue grew .\nIt is in millions .",
        "Nothing else .",
    ]
    growth, higher = finqa.questions
    assert growth.gold_documents == ("finqa-0", "finqa-1")
    assert higher.gold_documents == ("finqa-2",)
    assert growth.answers == ("0.1446", "14.5%")


@pytest.mark.parametrize(
    ("text", "right"),
    [
        ("14.46%", 1),
        ("14.5 percent", 1),
        ("0.1446", 1),
        ("0.145", 1),
        ("It grew by 14.5%.", 1),
        ("14%", 0),
        ("-14.5%", 0),
        ("14.5", 0),
        ("it grew", 0),
    ],
)
def test_a_result_is_right_as_far_as_people_rounded_it(
    finqa: EvalDataset, text: str, right: float
) -> None:
    assert finqa.score(finqa.questions[0], Answer(text)).scores == {"accuracy": right}


@pytest.mark.parametrize(("text", "right"), [("Yes.", 1), ("no", 0), ("higher", 0)])
def test_yes_and_no_are_named(finqa: EvalDataset, text: str, right: float) -> None:
    assert finqa.score(finqa.questions[1], Answer(text)).scores == {"accuracy": right}


def test_an_answer_that_contradicts_the_result_does_not_say_how_it_is_rounded(
    tmp_path: Path,
) -> None:
    rows = copy.deepcopy(FINQA[:1])
    rows[0]["qa"] |= {"answer": "20%", "exe_ans": 0.1446}
    dataset = load_dataset("finqa", write_json(tmp_path / "dev.json", rows))
    for text, right in (("14.46%", 1.0), ("14.5%", 0.0), ("20%", 0.0)):
        assert dataset.score(dataset.questions[0], Answer(text)).scores == {"accuracy": right}


@pytest.mark.parametrize("value", [None, True, "maybe", float("nan"), [], 10**400])
def test_a_result_that_is_none(tmp_path: Path, value: Any) -> None:
    rows = copy.deepcopy(FINQA[:1])
    rows[0]["qa"]["exe_ans"] = value
    path = write_json(tmp_path / "dev.json", rows)
    with pytest.raises(ConfigurationError, match="'exe_ans' must be a number, yes or no"):
        load_dataset("finqa", path)


def test_a_question_of_a_paragraph_that_is_not_there(tmp_path: Path) -> None:
    rows = copy.deepcopy(TATQA)
    rows[0]["questions"][0]["rel_paragraphs"] = ["7"]
    path = write_json(tmp_path / "tatqa_dataset_dev.json", rows)
    with pytest.raises(ConfigurationError, match=r"'7' is missing.*answer_from"):
        load_dataset("tatqa", path)
