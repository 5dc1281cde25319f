from __future__ import annotations

from pathlib import Path

import pytest

from ragcache_integrations.errors import ConfigurationError
from ragcache_workbench.evaluation.datasets.base import Answer, load_dataset
from ragcache_workbench.evaluation.datasets.free_answers import SUBSETS, class_score
from tests.evaluation.datasets.files import LONGBENCH, write_lines


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name, rows in LONGBENCH.items():
        write_lines(tmp_path / f"{name}.jsonl", rows)
    return tmp_path


def test_contexts_are_cut_into_their_passages_or_examples(folder: Path) -> None:
    dataset = load_dataset("longbench", folder)
    assert [document.text for document in dataset.documents] == [
        "Passage 1:\nBern\nBern is old.",
        "Passage 2:\nRome\nRome is in Italy.",
        "Question: Where ?\nType: Other location",
        "Question: Who ?\nType: Individual",
        "Dialogue: B: Bye.\nSummary: B leaves.",
    ]
    assert dataset.questions[0].gold_documents == ("longbench-1",)


def test_prompts(folder: Path) -> None:
    questions, classes, _ = (dataset := load_dataset("longbench", folder)).questions
    assert dataset.prompt(questions, "Rome?").after == "Question: Rome?\nAnswer:"
    # Laid out as the examples are.
    assert dataset.prompt(classes, classes.text).after == "Question: Who is it ?\nType:"


def test_each_subset_has_its_own_metric(folder: Path) -> None:
    dataset = load_dataset("longbench", folder)
    question, classes, summary = dataset.questions
    assert dataset.score(question, Answer("in Italy")).scores == {"score": pytest.approx(2 / 3)}
    assert dataset.score(classes, Answer("Individual\nQuestion: What")).scores == {"score": 1}
    assert dataset.score(classes, Answer("Other location")).scores == {"score": 0}
    # ROUGE-L of the first line.
    said = Answer("A says hello\nto all")
    assert dataset.score(summary, said).scores == {"score": pytest.approx(0.75)}


def test_a_class_within_another_is_not_named_with_it() -> None:
    classes = ("Other location", "location", "Individual")
    assert class_score("Other location", "Other location", classes) == 1
    assert class_score("Other location or Individual", "Other location", classes) == 0.5
    assert class_score("location", "Other location", classes) == 0
    assert class_score("nothing", "Individual", classes) == 0


def test_an_answer_may_be_as_long_as_the_longest_subset_needs(folder: Path) -> None:
    assert load_dataset("longbench", folder).max_tokens == 128
    assert load_dataset("longbench", folder / "hotpotqa.jsonl").max_tokens == 32


def test_a_subset_that_needs_the_whole_text_is_refused(tmp_path: Path) -> None:
    rows = [LONGBENCH["hotpotqa"][0] | {"dataset": "gov_report"}]
    path = write_lines(tmp_path / "gov_report.jsonl", rows)
    with pytest.raises(ConfigurationError, match=r"one of narrativeqa, .*, got 'gov_report'"):
        load_dataset("longbench", path)
    with pytest.raises(ConfigurationError, match=r"narrativeqa\.jsonl, .* but it has gov_report"):
        load_dataset("longbench", tmp_path)


def test_classes_are_needed_where_they_are_chosen(tmp_path: Path) -> None:
    path = write_lines(tmp_path / "trec.jsonl", [LONGBENCH["trec"][0] | {"all_classes": None}])
    with pytest.raises(ConfigurationError, match="'all_classes' must be a list of texts"):
        load_dataset("longbench", path)
    assert SUBSETS["trec"].score is None
