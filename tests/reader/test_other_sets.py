"""Figures on other data sets: of what was kept out alone, and compared with simple answers."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest
from langchain_core.documents import Document
from langchain_core.runnables import RunnableLambda

from ragcache_workbench.evaluation import evaluate, load_dataset
from reader.teaching import other_sets
from tests.evaluation.world import Echo


def packed(rows: list[dict[str, Any]]) -> bytes:
    return gzip.compress("".join(json.dumps(row) + "\n" for row in rows).encode())


@pytest.fixture
def kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """What is kept out of three articles, three studies and two meetings."""
    data, extra = tmp_path / "data", tmp_path / "extra"
    for folder in (data / "nq", data / "pubmedqa", data / "qmsum", extra):
        folder.mkdir(parents=True)
    passages = [{"id": f"p{n}", "title": "T", "text": f"Passage {n}."} for n in range(4)]
    (data / "nq" / "passages.jsonl.gz").write_bytes(packed(passages))
    rows = [{"question": f"q{n}", "answers": ["x"], "passage_id": f"p{n}"} for n in range(4)]
    (data / "nq" / "questions.jsonl").write_bytes(gzip.decompress(packed(rows)))
    study = {"QUESTION": "Does it?", "CONTEXTS": ["It may."], "LONG_ANSWER": "", "MESHES": []}
    decisions = ("yes", "no", "yes")
    studies = {str(n): study | {"final_decision": one} for n, one in enumerate(decisions)}
    (data / "pubmedqa" / "pubmedqa.json").write_text(json.dumps(studies))
    query = {"query": "What was said?", "answer": "Hello was said."}
    meeting = {"general_query_list": [query], "specific_query_list": []}
    turns = [{"speaker": "A", "content": "Hello there. And more."}]
    meetings = [meeting | {"meeting_transcripts": turns}] * 2
    (data / "qmsum" / "val.jsonl.gz").write_bytes(packed(meetings))
    articles = [
        {
            "title": title,
            "paragraphs": [
                {
                    "context": f"About {title}.",
                    "qas": [
                        {"question": f"{title}?", "answers": [{"text": title}]},
                        {"question": f"no {title}?", "answers": [], "is_impossible": True},
                    ],
                }
            ],
        }
        for title in ("Rome", "Bern", "Oslo")
    ]
    (extra / "squad-pages.json").write_text(json.dumps({"data": articles}))
    monkeypatch.setattr(other_sets, "STUDIES", 2)
    monkeypatch.setattr(other_sets, "MEETINGS", 1)
    other_sets.write_kept_out(data, extra, tmp_path / "kept")
    return tmp_path / "kept"


def rows_of(name: str, kept: Path, document: Document) -> list[dict[str, Any]]:
    run = evaluate(
        name,
        data=str(kept / name),
        retriever=RunnableLambda(lambda _: [document]),
        model=Echo(),
        random_weights=False,
        out=kept / "runs",
    )
    return other_sets.rows_of(load_dataset(name, kept / name), run)


def test_only_what_was_kept_out_is_asked(kept: Path) -> None:
    squad = load_dataset("squad", kept / "squad")
    assert len(squad.questions) == 2  # of one page in three
    assert len(squad.documents) == 3  # all pages are searched
    assert [len(load_dataset(name, kept / name).questions) for name in ("pubmedqa", "qmsum")] == [
        2,
        1,
    ]


def test_squad_by_whether_there_is_an_answer(kept: Path) -> None:
    rows = rows_of("squad", kept, Document("About it.", id="squad-0"))
    assert [(row["read"], row["questions"]) for row in rows] == [
        ("SQuAD 1.1 and 2.0", 2),
        ("SQuAD, that have an answer", 1),
        ("SQuAD, that have none", 1),
    ]
    assert all(set(row["scores"]) == {"F1", "exact"} for row in rows)


def test_pubmedqa_and_its_most_frequent_answer(kept: Path) -> None:
    own, usual = rows_of("pubmedqa", kept, Document("It may.", id="0-0"))
    assert (own["read"], usual["read"]) == ("PubMedQA", "PubMedQA, always yes")
    assert usual["scores"]["accuracy"][0] == 0.5
    difference = own["scores"]["accuracy"][0] - 0.5
    assert own["scores"]["more"][0] == pytest.approx(difference)


def test_qmsum_and_the_first_sentences(kept: Path) -> None:
    own, first = rows_of("qmsum", kept, Document("A: Hello there. And more.", id="meeting-0-0"))
    assert first["read"] == "QMSum, first sentences"
    # "a hello there" has one word in common with the three of the answer.
    assert first["scores"]["ROUGE-L"][0] == pytest.approx(1 / 3, abs=1e-4)
    assert own["scores"]["more"][0] == pytest.approx(own["scores"]["ROUGE-L"][0] - 1 / 3, abs=1e-3)


def test_first_sentences() -> None:
    assert other_sets.first_sentences(["A b. C.", "No end", "Who? I."]) == "A b. No end Who?"
