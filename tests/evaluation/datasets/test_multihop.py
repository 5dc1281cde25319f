from __future__ import annotations

from pathlib import Path

import pytest

from ragcache_integrations.errors import ConfigurationError
from ragcache_workbench.evaluation.datasets.base import Answer, load_dataset
from tests.evaluation.datasets.files import HOTPOTQA, MUSIQUE, write_json, write_lines


def test_hotpotqa(tmp_path: Path) -> None:
    write_json(tmp_path / "hotpot_dev_distractor_v1.json", HOTPOTQA)
    dataset = load_dataset("hotpotqa", tmp_path)
    bridge, comparison = dataset.questions
    assert [document.text for document in dataset.documents] == [
        "The Film\nThe Film is by The Director. It is long.",
        "The Director\nThe Director is old. She was born in Kansas City.",
        "Other\nSomething else.",
    ]
    assert bridge.gold_documents == ("hotpotqa-0", "hotpotqa-1")
    # The same paragraph of two questions is one document.
    assert comparison.gold_documents == ("hotpotqa-0",)
    assert [question.group for question in dataset.questions] == ["bridge", "comparison"]


@pytest.mark.parametrize(
    ("text", "bridge", "comparison"),
    [
        ("Kansas City", (1, 1), (0, 0)),
        ("in Kansas City", (0, 0.8), (0, 0)),
        ("Yes.", (0, 0), (1, 1)),
        # A yes among other words has no part of the score.
        ("yes they are", (0, 0), (0, 0)),
    ],
)
def test_yes_and_no_equal_only_themselves(
    tmp_path: Path, text: str, bridge: tuple[float, float], comparison: tuple[float, float]
) -> None:
    write_json(tmp_path / "hotpot_dev_distractor_v1.json", HOTPOTQA)
    dataset = load_dataset("hotpotqa", tmp_path)
    for question, (exact, f1) in zip(dataset.questions, (bridge, comparison), strict=True):
        scores = dataset.score(question, Answer(text)).scores
        assert scores == {"exact_match": exact, "f1": pytest.approx(f1)}


def test_other_names_of_2wikimultihopqas_answers(tmp_path: Path) -> None:
    rows = [HOTPOTQA[0] | {"answer_id": "Q1", "evidences": [], "type": "compositional"}]
    write_json(tmp_path / "dev.json", rows)
    (question,) = load_dataset("2wikimultihopqa", tmp_path).questions
    assert question.answers == ("Kansas City",)
    aliases = [{"Q_id": "Q1", "aliases": ["KC"], "demonyms": ["Kansas City"]}]
    write_lines(tmp_path / "id_aliases.json", aliases)
    (question,) = load_dataset("2wikimultihopqa", tmp_path).questions
    assert question.answers == ("Kansas City", "KC")
    (tmp_path / "id_aliases.json").write_text("[]")
    with pytest.raises(ConfigurationError, match=r"id_aliases\.json"):
        load_dataset("2wikimultihopqa", tmp_path)


def test_musique(tmp_path: Path) -> None:
    write_lines(tmp_path / "musique_full_v1.0_dev.jsonl", MUSIQUE)
    dataset = load_dataset("musique", tmp_path)
    (question,) = dataset.questions  # without the unanswerable one of the same id
    assert question.answers == ("Yoko Ono", "Ono Yoko")
    assert question.gold_documents == ("musique-0", "musique-2")
    assert question.group == "2hop"
    assert dataset.score(question, Answer("ono yoko")).scores["exact_match"] == 1


def test_a_split_without_answers(tmp_path: Path) -> None:
    rows = [{name: value for name, value in HOTPOTQA[0].items() if name != "answer"}]
    write_json(tmp_path / "dev.json", rows)
    with pytest.raises(ConfigurationError, match="'answer' must be a text"):
        load_dataset("2wikimultihopqa", tmp_path)
