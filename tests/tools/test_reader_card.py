"""The figures of the model card are those that evaluations wrote."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from ragcache_reader import building

from ragcache_integrations.core.prompt import PromptDocument
from ragcache_integrations.resources import load_questions
from reader.teaching import tabulate
from reader.teaching.evaluate import FIVE, MISSING, Case, row
from tools import reader_card


@pytest.fixture
def card(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "README.md"
    path.write_text(f"Before.\n{reader_card.BEGIN}\nold\n{reader_card.END}\nAfter.\n")
    monkeypatch.setattr(reader_card, "CARD", path)
    monkeypatch.setattr(reader_card, "FIGURES", tmp_path / "figures")
    monkeypatch.setattr(reader_card, "ROOT", tmp_path)
    monkeypatch.setattr("sys.argv", ["reader_card.py"])
    return path


def test_without_figures_it_has_none(card: Path) -> None:
    assert reader_card.main() == 0
    between = f"{reader_card.BEGIN}\n{reader_card.NONE}\n{reader_card.END}"
    assert card.read_text() == f"Before.\n{between}\nAfter.\n"


def test_each_file_is_a_table(card: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    nothing = PromptDocument("nothing")
    asked = [Case(question, (), nothing, ()) for question in load_questions()[:2]]
    right = [case.question.answers[0] for case in asked]
    found = {
        "title": "Two questions",
        "command": "python -m somewhere",
        "rows": [row(FIVE, asked, right), row(MISSING, asked, ["Not in the document.", "Bern"])],
        "answers": [["who | what", "a *star*", ["one", "two"]]],
    }
    reader_card.FIGURES.mkdir()
    (reader_card.FIGURES / "sample.json").write_text(json.dumps(found))
    monkeypatch.setattr("sys.argv", ["reader_card.py", "--check"])
    assert reader_card.main() == 1
    monkeypatch.setattr("sys.argv", ["reader_card.py"])
    assert reader_card.main() == 0
    lines = card.read_text().splitlines()
    assert "| read | questions | F1 | exact | said to be missing |" in lines
    assert f"| {FIVE} | 2 | 1.000 [1.000, 1.000] | 1.000 [1.000, 1.000] |  |" in lines
    assert f"| {MISSING} | 2 |  |  | 0.500 [0.000, 1.000] |" in lines
    assert r"| who \| what | a \*star\* | one; two |" in lines
    monkeypatch.setattr("sys.argv", ["reader_card.py", "--check"])
    assert reader_card.main() == 0


def test_figures_are_of_the_model_that_is_shipped() -> None:
    for path in reader_card.FIGURES.glob("*.json"):
        assert json.loads(path.read_text())["model"] == f"reader-{building.digest()}", path.name


def test_ways_are_compared_question_by_question() -> None:
    answered = [
        {"source": "nq", "answers": ["Bern"], "five": "Bern", "links 0": "Rome"},
        {"source": "squad-pages", "answers": ["Bern"], "five": "Bern", "links 0": "Bern"},
    ]
    rows = {row["read"]: row for row in tabulate.table(answered, "reader")["rows"]}
    assert rows["Natural Questions, links 0"]["scores"]["F1 less"] == [-1.0, -1.0, -1.0]
    assert rows["SQuAD, links 0"]["scores"]["F1 less"] == [0.0, 0.0, 0.0]
    assert rows["both, links 0"]["questions"] == 2
    assert rows["both, links 0"]["scores"]["F1 less"][0] == -0.5
    assert "F1 less" not in rows["both, five"]["scores"]
