from __future__ import annotations

import copy
from pathlib import Path

import pytest

from ragcache_integrations.errors import ConfigurationError
from ragcache_workbench.evaluation.datasets.base import Answer, load_dataset
from ragcache_workbench.evaluation.datasets.metrics import normalise_trivia_answer
from tests.evaluation.datasets.files import TRIVIAQA, write_json


def write(folder: Path, **changes: object) -> Path:
    pages = {
        "wikipedia/Webber.txt": "He composed it.\n" + "A long text. " * 300 + "\nSunset Boulevard.",
        "web/35/35_995.txt": "On SUNSET BLVD. it was shown.",
    }
    for name, text in pages.items():
        path = folder / "evidence" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    return write_json(folder / "qa" / "web-dev.json", TRIVIAQA | changes)


def test_pages_are_cut_and_those_that_answer_are_gold(tmp_path: Path) -> None:
    file = write(tmp_path)
    for path in (tmp_path, file):
        dataset = load_dataset("triviaqa", path)
        first, second = dataset.questions
        texts = {document.id: document.text for document in dataset.documents}
        assert len(texts) > 2
        assert all(
            text.startswith(("Andrew Lloyd Webber\n", "Musicals\n")) for text in texts.values()
        )
        gold = [texts[name] for name in first.gold_documents]
        assert len(gold) == 2
        assert all("sunset b" in text.lower() for text in gold)
        # No page names Rome, so any part of its page may answer.
        assert len(second.gold_documents) == len(texts) - 1


@pytest.mark.parametrize(
    ("text", "exact", "f1"),
    [
        ("Sunset_Blvd", 1, 1),
        ("\u2018Sunset Boulevard\u2019", 1, 1),
        ("boulevard of sunset", 1, 1),  # people's answers count
        ("Sunset", 0, 2 / 3),
        ("Rome", 0, 0),
    ],
)
def test_all_names_count(tmp_path: Path, text: str, exact: float, f1: float) -> None:
    write(tmp_path)
    dataset = load_dataset("triviaqa", tmp_path)
    scores = dataset.score(dataset.questions[0], Answer(text)).scores
    assert scores == {"exact_match": exact, "f1": pytest.approx(f1)}


def test_the_normal_form() -> None:
    assert normalise_trivia_answer("The_Beatles\u2019 (Abbey-Road)") == "beatles abbey road"


def test_verified_questions(tmp_path: Path) -> None:
    data = copy.deepcopy(TRIVIAQA["Data"])
    data[0]["SearchResults"][0]["DocPartOfVerifiedEval"] = True
    data[0]["EntityPages"][0]["DocPartOfVerifiedEval"] = False
    write(tmp_path, VerifiedEval=True, Data=data)
    dataset = load_dataset("triviaqa", tmp_path)
    assert [question.id for question in dataset.questions] == ["tc_33"]


def test_evidence_is_needed(tmp_path: Path) -> None:
    write_json(tmp_path / "qa" / "web-dev.json", TRIVIAQA)
    with pytest.raises(ConfigurationError, match="needs the folder 'evidence'"):
        load_dataset("triviaqa", tmp_path)


@pytest.mark.parametrize("name", ["../../secret.txt", "/etc/passwd", "missing.txt", "."])
def test_only_files_of_the_evidence_are_read(tmp_path: Path, name: str) -> None:
    (tmp_path / "secret.txt").write_text("secret")
    data = copy.deepcopy(TRIVIAQA["Data"])
    data[0]["SearchResults"][0]["Filename"] = name
    write(tmp_path, Data=data)
    with pytest.raises(ConfigurationError, match=r"'Filename' must be|cannot read"):
        load_dataset("triviaqa", tmp_path)
