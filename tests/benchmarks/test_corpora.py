"""Questions and documents from the data sets' own formats."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest
from parts.traffic.corpora import (
    bundled_documents,
    bundled_questions,
    join_documents,
    lexical_top_k,
    read_documents,
    read_questions,
)

from ragcache_integrations.errors import ConfigurationError
from ragcache_integrations.resources import load_questions

PASSAGE = {"id": "p1", "title": "Title", "text": "Text with a line\u2028separator."}
MEETING = {
    "meeting_transcripts": [
        {"speaker": "A", "content": "Hello."},
        {"speaker": "B", "content": "."},
    ],
    "general_query_list": [{"query": "What was said?"}],
    "specific_query_list": [{"query": "Who spoke?"}],
}
PUBMED = {"7": {"QUESTION": "Does it?", "CONTEXTS": ["It may.", "It may not."]}}


def lines(*rows: object) -> str:
    return "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)


def write(path: Path, text: str) -> Path:
    path.write_bytes(gzip.compress(text.encode()) if path.suffix == ".gz" else text.encode())
    return path


@pytest.mark.parametrize("name", ["passages.jsonl", "passages.jsonl.gz"])
def test_natural_questions(tmp_path: Path, name: str) -> None:
    passages = write(tmp_path / name, lines(PASSAGE))
    questions = write(tmp_path / "q.jsonl", lines({"question": "who"}, {"question": "what"}))

    assert read_documents(passages) == {"p1": f"Title\n{PASSAGE['text']}"}
    assert read_questions(questions) == ["who", "what"]


def test_pubmedqa(tmp_path: Path) -> None:
    path = write(tmp_path / "pubmedqa.json", json.dumps(PUBMED))

    assert read_documents(path) == {"7": "It may.\nIt may not."}
    assert read_questions(path) == ["Does it?"]


def test_qmsum(tmp_path: Path) -> None:
    path = write(tmp_path / "val.jsonl.gz", lines(MEETING))

    assert read_documents(path) == {"meeting-0": "A: Hello.\nB: ."}
    assert read_questions(path) == ["What was said?", "Who spoke?"]


def test_mmlu(tmp_path: Path) -> None:
    row = '"What, really?",one,two,three,four,A\n'
    write(tmp_path / "b_test.csv", row)
    write(tmp_path / "a_test.csv", "First,1,2,3,4,D\n")
    write(tmp_path / "a_dev.csv", row)

    assert read_questions(tmp_path) == ["First\n1\n2\n3\n4", "What, really?\none\ntwo\nthree\nfour"]


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("bad.jsonl", "not JSON\n"),
        ("bad.jsonl", lines({"other": 1})),
        ("bad.jsonl", lines([1])),
        ("bad.json", "[1]"),
        ("bad.json", json.dumps({"7": {}})),
    ],
)
def test_other_files_are_refused_by_name(tmp_path: Path, name: str, content: str) -> None:
    path = write(tmp_path / name, content)

    for read in (read_documents, read_questions):
        with pytest.raises(ConfigurationError, match=rf"{name} holds no"):
            read(path)


def test_unreadable_files_are_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=r"cannot read documents from .*missing\.jsonl"):
        read_documents(tmp_path / "missing.jsonl")
    with pytest.raises(ConfigurationError, match=r"holds no \*_test.csv"):
        read_questions(tmp_path)
    (tmp_path / "cut.jsonl.gz").write_bytes(gzip.compress(b"{}")[:-4])
    with pytest.raises(ConfigurationError, match=r"cut\.jsonl\.gz holds no"):
        read_documents(tmp_path / "cut.jsonl.gz")


def test_joined_documents_are_long_and_keep_every_token() -> None:
    tokens = {f"d{number}": 50 + number % 200 for number in range(500)}
    joined, part_of = join_documents(tokens, low=500, high=4000, seed=0)

    assert sum(joined.values()) == sum(tokens.values())
    assert part_of.keys() == tokens.keys()
    assert all(500 <= length <= 4000 for length in list(joined.values())[:-1])
    for name, length in joined.items():
        assert length == sum(tokens[one] for one, whole in part_of.items() if whole == name)


def test_a_document_longer_than_all_stays_alone() -> None:
    joined, part_of = join_documents({"a": 10, "b": 9000, "c": 10}, low=500, high=4000, seed=0)

    assert joined[part_of["b"]] == 9000
    assert part_of["a"] != part_of["b"] != part_of["c"]


def test_impossible_lengths_are_refused() -> None:
    with pytest.raises(ConfigurationError, match="1 <= low <= high"):
        join_documents({"a": 1}, low=0, seed=0)


def test_keyword_search_finds_the_answering_passages() -> None:
    found = lexical_top_k(bundled_questions(), bundled_documents(), 2)
    gold = [question.passage_id for question in load_questions()]

    assert all(len(set(ids)) == 2 for ids in found)
    # Not a claim about quality: words drawn at random would find next to none.
    assert sum(one in ids for one, ids in zip(gold, found, strict=True)) > len(gold) / 2


def test_keyword_search_puts_the_best_first_and_fills_up() -> None:
    documents = {"a": "grey mouse", "b": "grey cat", "c": "the dog"}

    assert lexical_top_k(["cat", "", "Grey CAT!"], documents, 2) == [
        ["b", "a"],
        ["a", "b"],
        ["b", "a"],
    ]
    assert lexical_top_k(["cat"], documents, 9) == [["b", "a", "c"]]
    assert lexical_top_k(["cat"], {}, 1) == [[]]
    with pytest.raises(ConfigurationError, match="k must be at least 1"):
        lexical_top_k(["cat"], documents, 0)
