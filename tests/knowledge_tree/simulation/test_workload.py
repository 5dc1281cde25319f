"""Reading a log of traffic: what is understood, and errors that name the line."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from ragcache_integrations.core.texts import content_id, estimate_tokens
from ragcache_integrations.errors import ConfigurationError
from ragcache_workbench.simulation.workload import (
    Workload,
    load_workload,
)


def write(path: Path, *lines: object) -> Path:
    file = path / "log.jsonl"
    text = "\n".join(line if isinstance(line, str) else json.dumps(line) for line in lines)
    file.write_text(text, encoding="utf-8")
    return file


def load(path: Path, *lines: object) -> Workload:
    return load_workload(write(path, *lines))


def asked(*documents: object, question: str = "what?") -> dict[str, object]:
    return {"question": question, "documents": list(documents), "user": "ignored"}


def documents(workload: Workload) -> list[tuple[tuple[str, int], ...]]:
    return [request.documents for request in workload.trace.requests]


def test_all_ways_to_write_a_document(tmp_path: Path) -> None:
    text = "x" * 41
    found = load(
        tmp_path,
        asked({"id": "a", "text": text}, {"id": "b", "tokens": 7}, {"text": text}, "c"),
        "",
        asked("a", 17, question="why, oh why?"),
        asked({"id": "c", "tokens": 3}, {"id": 17, "tokens": 5}),
    )

    assert documents(found) == [
        (("a", 11), ("b", 7), (content_id(text), 11), ("c", 3)),
        (("a", 11), ("17", 5)),
        (("c", 3), ("17", 5)),
    ]
    assert [request.question for request in found.trace.requests] == [
        "what?",
        "why, oh why?",
        "what?",
    ]
    assert [one.question_tokens for one in found.trace.requests] == [2, 3, 2]
    assert found.changed_documents == found.without_documents == 0


def test_versions_of_a_document_are_documents_of_their_own(tmp_path: Path) -> None:
    found = load(
        tmp_path,
        asked({"id": "a", "text": "first"}),
        asked({"id": "a", "text": "other"}),
        asked("a"),
        asked({"id": "a", "text": "first"}),
        asked("a"),
    )

    names = [name for ((name, _),) in documents(found)]
    assert names[0] == names[3] == names[4]
    assert names[1] == names[2] != names[0]
    assert found.changed_documents == 1


def test_requests_without_documents_are_counted(tmp_path: Path) -> None:
    assert load(tmp_path, asked(), asked("a"), asked({"id": "a", "tokens": 1})).without_documents


def test_each_text_is_counted_once(tmp_path: Path) -> None:
    counted: list[str] = []

    def count(text: str) -> int:
        counted.append(text)
        return 0

    file = write(tmp_path, *[asked({"id": "a", "text": "text"}, "a")] * 3)
    found = load_workload(file, count)

    assert counted == ["text", "what?"]
    assert documents(found)[0] == (("a", 1), ("a", 1))  # no text is without length


def test_characters_that_end_lines_elsewhere_do_not_here(tmp_path: Path) -> None:
    text = "a\u2028b\x85c"
    line = json.dumps(asked({"text": text}), ensure_ascii=False)
    assert documents(load(tmp_path, line))[0][0][1] == estimate_tokens(text)


@pytest.mark.parametrize(
    ("line", "told"),
    [
        ("{", "this is no JSON"),
        ("[" * 100_000, "this is no JSON"),
        ("[1]", r"a request must be an object, got \[1\]"),
        ({"documents": []}, '"question" must be a text that is not empty, got null'),
        ({"question": "", "documents": []}, '"question" must be'),
        ('{"question": "\\ud800", "documents": []}', '"question" must be'),
        ({"question": "q"}, '"documents" must be a list, got null'),
        ({"question": "q", "documents": {"id": "a"}}, '"documents" must be a list'),
        (asked(None), "a document must be an object or an id, got null"),
        (asked(""), 'a document must be an object or an id, got ""'),
        (asked([True]), r"a document must be an object or an id, got \[true\]"),
        (asked({"id": "a"}), 'a document needs a "text"'),
        (asked({"id": "a", "text": ""}), 'a document needs a "text"'),
        (asked({"id": "a", "text": 5}), 'a document needs a "text"'),
        (asked({"id": "a", "tokens": 0}), '"tokens" from 1 to 10,000,000'),
        (asked({"id": "a", "tokens": 1.5}), '"tokens" from 1 to 10,000,000'),
        (asked({"id": "a", "tokens": 10**30}), '"tokens" from 1 to 10,000,000'),
        (asked({"id": "a", "tokens": True}), '"tokens" from 1 to 10,000,000'),
        (asked({"tokens": 5}), 'a document needs a "text"'),
        (asked({"id": [], "text": "a"}), r'a document\'s "id" must be a text'),
        (asked("unknown"), "no line gives the text or the tokens of the document 'unknown'"),
    ],
)
def test_wrong_lines_are_named(tmp_path: Path, line: object, told: str) -> None:
    with pytest.raises(ConfigurationError, match=rf"log\.jsonl, line 3: .*{told}"):
        load(tmp_path, asked({"id": "a", "tokens": 1}), "", line)


def test_long_values_are_cut_short_in_messages(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError) as caught:
        load(tmp_path, asked({"text": ["x" * 10_000]}))
    assert len(str(caught.value)) < 500


def test_files_that_are_no_workload(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=r"cannot read the workload .*none\.jsonl"):
        load_workload(tmp_path / "none.jsonl")
    with pytest.raises(ConfigurationError, match="cannot read the workload"):
        load_workload(tmp_path)
    with pytest.raises(ConfigurationError, match="holds no request"):
        load(tmp_path, "", " ")
    (tmp_path / "log.jsonl").write_bytes(b"\xff\xfe")
    with pytest.raises(ConfigurationError, match="not UTF-8"):
        load_workload(tmp_path / "log.jsonl")


def test_a_session_is_read_where_there_is_one(tmp_path: Path) -> None:
    sessions = ["s1", 7, None]
    found = load(
        tmp_path,
        *(asked({"id": "a", "tokens": 3}) | {"session": session} for session in sessions),
        asked("a"),
    )
    assert [request.session for request in found.trace.requests] == ["s1", "7", "", ""]


@pytest.mark.parametrize("session", ["", 1.5, ["s"], True, "\ud800"])
def test_a_session_that_names_none_is_refused(tmp_path: Path, session: object) -> None:
    line = asked({"id": "a", "tokens": 3}) | {"session": session}
    with pytest.raises(ConfigurationError, match=r'line 1: "session" must be a text'):
        load(tmp_path, line)
