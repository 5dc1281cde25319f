"""Files of data sets as their authors publish them: found, read within bounds, or refused."""

from __future__ import annotations

import gzip
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ragcache_integrations.core import files
from ragcache_integrations.errors import ConfigurationError
from ragcache_workbench.evaluation.datasets.base import load_dataset
from ragcache_workbench.evaluation.datasets.published import Passages, answering, pieces
from tests.evaluation.datasets.files import (
    HOTPOTQA,
    LONGBENCH,
    MUSIQUE,
    SQUAD,
    write_json,
    write_lines,
)


@pytest.mark.parametrize("name", ["dev-v2.0.json", "dev-v2.0.json.gz", "train-v1.1.json"])
def test_a_path_is_a_folder_or_the_one_above_or_a_file(tmp_path: Path, name: str) -> None:
    file = write_json(tmp_path / "squad" / name, SQUAD)
    for path in (tmp_path, tmp_path / "squad", file):
        dataset = load_dataset("squad", path)
        assert dataset.source == f"squad/{name}"
        assert dataset.title == "SQuAD"
        assert len(dataset.questions) == len(dataset.documents) == 2


def test_the_first_file_is_read(tmp_path: Path) -> None:
    write_json(tmp_path / "train-v2.0.json", SQUAD)
    write_json(tmp_path / "dev-v1.1.json", SQUAD)
    assert load_dataset("squad", tmp_path).source == f"{tmp_path.name}/dev-v1.1.json"


def test_passages_of_your_own(tmp_path: Path) -> None:
    write_json(tmp_path / "dev-v2.0.json", SQUAD)
    mine = write_lines(tmp_path / "mine.jsonl", [{"id": "a", "text": "Only this."}])
    dataset = load_dataset("squad", tmp_path, mine)
    assert [document.text for document in dataset.documents] == ["Only this."]
    # Its gold documents are not there, so a sample is asked over all.
    assert dataset.documents_of(dataset.questions, 0) == dataset.documents


@pytest.mark.parametrize(
    ("name", "write", "words"),
    [
        ("squad", lambda _: None, ["dev-v2.0.json", "it has no files", "SQuAD-explorer"]),
        (
            "hotpotqa",
            lambda folder: (folder / "notes.txt").touch(),
            ["hotpot_dev_distractor_v1.json", "it has notes.txt", "hotpotqa.github.io"],
        ),
        (
            "musique",
            lambda folder: [(folder / f"{number}.csv").touch() for number in range(9)],
            ["it has 0.csv, 1.csv, 2.csv, 3.csv, 4.csv and 4 more"],
        ),
        (
            "squad",
            lambda folder: write_json(folder / "dev-v2.0.json", {"articles": []}),
            ["'data'", "an object with 'articles'", "Expected is entries of the list 'data'"],
        ),
        (
            "squad",
            lambda folder: write_json(folder / "dev-v2.0.json", {"data": 1}),
            ["entries must be a list"],
        ),
        (
            "squad",
            lambda folder: write_json(folder / "dev-v2.0.json", SQUAD["data"]),
            ["must be an object with 'data', got a list of 1"],
        ),
        (
            "hotpotqa",
            lambda folder: write_json(folder / "hotpot_dev_distractor_v1.json", [1]),
            ["entry 0 must be an object, got 1"],
        ),
        (
            "hotpotqa",
            lambda folder: write_json(folder / "hotpot_dev_distractor_v1.json", MUSIQUE),
            ["'context' is missing", "Expected is entries with _id, question, answer"],
        ),
        (
            "musique",
            lambda folder: write_lines(folder / "musique_ans_v1.0_dev.jsonl", HOTPOTQA),
            ["'paragraphs' is missing", "paragraph_text", "StonyBrookNLP/musique"],
        ),
        (
            "musique",
            lambda folder: (folder / "musique_ans_v1.0_dev.jsonl").write_text('{}\n\n{"id'),
            ["it is no JSON at line 3, column 2"],
        ),
        (
            "musique",
            lambda folder: (folder / "musique_ans_v1.0_dev.jsonl").write_text("{}\n[1]"),
            ["a line must be a JSON object, got [1] at line 2"],
        ),
        (
            "squad",
            lambda folder: (folder / "dev-v2.0.json").write_text("[" * 100_000),
            ["nested too deeply"],
        ),
        (
            "squad",
            lambda folder: (folder / "dev-v2.0.json").write_text('{"data": ['),
            ["it is no JSON"],
        ),
    ],
)
def test_what_is_wrong_is_named(
    tmp_path: Path, name: str, write: Callable[[Path], Any], words: list[str]
) -> None:
    write(tmp_path)
    with pytest.raises(ConfigurationError) as raised:
        load_dataset(name, tmp_path)
    for part in words:
        assert part in str(raised.value)


def test_a_path_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="there is no such folder or file"):
        load_dataset("squad", tmp_path / "nothing")
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(ConfigurationError, match="it is neither"):
        load_dataset("squad", tmp_path / "pipe")


@pytest.mark.parametrize("packed", [False, True])
def test_files_have_a_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, packed: bool) -> None:
    monkeypatch.setattr(files.read_text, "__defaults__", (2000,))
    text = b'{"data": []}' + b" " * 3000
    name = "dev-v2.0.json.gz" if packed else "dev-v2.0.json"
    (tmp_path / name).write_bytes(gzip.compress(text) if packed else text)
    with pytest.raises(ConfigurationError, match="must have at most 2000 bytes"):
        load_dataset("squad", tmp_path)


def test_entries_have_a_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ragcache_workbench.evaluation.datasets.published.MOST_ROWS", 1)
    monkeypatch.setattr(files, "MOST_ROWS", 1)
    write_json(tmp_path / "hotpot_dev_distractor_v1.json", HOTPOTQA)
    with pytest.raises(ConfigurationError, match="a list of at most 1, got a list of 2"):
        load_dataset("hotpotqa", tmp_path)
    write_lines(tmp_path / "musique_ans_v1.0_dev.jsonl", MUSIQUE)
    with pytest.raises(ConfigurationError, match="at most 1 lines"):
        load_dataset("musique", tmp_path)


@pytest.mark.parametrize("name", ["triviaqa", "hotpotqa", "2wikimultihopqa", "musique", "finqa"])
def test_no_sample(name: str) -> None:
    with pytest.raises(ConfigurationError, match="comes without a sample: name a folder with"):
        load_dataset(name)


@pytest.mark.parametrize("name", ["2wikimultihopqa", "tatqa", "finqa"])
def test_no_known_copy_on_the_hub(name: str) -> None:
    with pytest.raises(ConfigurationError, match="as hub:NAME"):
        load_dataset(name, "hub")


def test_several_files(tmp_path: Path) -> None:
    for name, rows in LONGBENCH.items():
        write_lines(tmp_path / "data" / f"{name}.jsonl", rows)
    dataset = load_dataset("longbench", tmp_path)
    assert [question.group for question in dataset.questions] == ["hotpotqa", "trec", "samsum"]
    assert dataset.source == "data/hotpotqa.jsonl, data/trec.jsonl, data/samsum.jsonl"


def test_passages_are_kept_once() -> None:
    passages = Passages("x")
    first = passages.add("Rome is old.", "Rome")
    assert passages.add("Bern is old.", "Bern") != first
    assert passages.add("Rome is old.", "Rome") == first == "x-0"
    assert [document.text for document in passages.documents] == [
        "Rome\nRome is old.",
        "Bern\nBern is old.",
    ]
    with pytest.raises(ValueError, match="must be a text that is not empty"):
        passages.add(" \n")


def test_pieces_lose_no_word() -> None:
    text = "A line.\n\nAnother one. " + "Sentence after sentence. " * 50 + "\n" + "x" * 95
    cut = pieces(text, 40)
    assert "".join("".join(cut).split()) == "".join(text.split())
    assert all(piece.strip() and len(piece) <= 80 for piece in cut)
    assert pieces("A line.\nAnother.", 40) == ["A line.\nAnother."]
    assert pieces(" \n") == []


def test_answering() -> None:
    texts = {"a": "It is in Rome.", "b": "It is in Bern.", "c": "ROME again."}
    assert answering(texts, ["rome", ""]) == ("a", "c")
    assert answering(texts, ["Paris"]) == ("a", "b", "c")
