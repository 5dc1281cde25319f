"""Logs as they are: with all fields, with one, of other tools, damaged."""

from __future__ import annotations

import gzip
import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from ragcache_integrations.errors import ConfigurationError
from ragcache_workbench.cache_report.questions import (
    MAX_DOCUMENTS,
    MAX_QUESTION,
    LoggedQuestion,
    questions_of,
    read_questions,
)
from ragcache_workbench.logs import Log
from tests.prompts.lint.test_files import FORMS

ENTRY = {"question": "who?", "answer": "The Homer."}
ASKED = [{"role": "user", "content": "Hello"}]


def read(entry: object) -> LoggedQuestion:
    log = Log(questions_of)
    log.add(entry, "line 1")
    assert log.remarks == []
    return log[0]


def written(path: Path, entries: list[Any]) -> Path:
    path.write_text("\n".join(map(json.dumps, entries)), encoding="utf-8")
    return path


def test_all_fields_are_read() -> None:
    question = read(
        {
            "question": "who?",
            "answer": "Homer",
            "documents": ["a", 2, {"id": "b", "text": "x"}, {"text": "y"}],
            "tenant": 7,
            "time": "2026-03-01T09:30:00+02:00",
            "seconds": 1.5,
            "cost": "0.002",
        }
    )
    assert question.documents is not None
    names = [name for name, _ in question.documents]
    assert sorted(map(str, names)) == ["2", "None", "a", "b"]
    assert question.tenant == "7"
    assert question.time == datetime(2026, 3, 1, 7, 30, tzinfo=UTC)
    assert (question.seconds, question.cost) == (1.5, 0.002)


def test_only_the_question_is_needed() -> None:
    assert read({"question": "who?"}) == LoggedQuestion("who?")


def test_answers_that_say_the_same_are_equal() -> None:
    assert read(ENTRY).answer == read({"question": "x", "answer": " the Homer"}).answer
    assert read(ENTRY).answer != read({"question": "x", "answer": "Virgil"}).answer


@pytest.mark.parametrize("time", ["2026-03-01T09:30:00Z", "2026-03-01T09:30:00", 1772357400])
def test_times_are_in_utc(time: object) -> None:
    assert read(ENTRY | {"time": time}).time == datetime(2026, 3, 1, 9, 30, tzinfo=UTC)


@pytest.mark.parametrize(
    ("entry", "reason"),
    [
        ({"question": " "}, "a question must be a text"),
        ({"question": 3}, "a question must be a text"),
        ({"question": "x" * (MAX_QUESTION + 1)}, "a question must have at most 32,000"),
        (ENTRY | {"answer": ["a"]}, "an answer must be a text"),
        (ENTRY | {"documents": "a"}, "documents must be a list of at most 1,000"),
        (ENTRY | {"documents": ["a"] * (MAX_DOCUMENTS + 1)}, "documents must be a list"),
        (ENTRY | {"documents": [1.5]}, "a document must be an id"),
        (ENTRY | {"documents": [{}]}, "a document must be an id"),
        (ENTRY | {"documents": [{"id": "a", "text": 1}]}, "a document must be an id"),
        (ENTRY | {"tenant": {}}, "a tenant must be a name"),
        (ENTRY | {"tenant": "x" * 101}, "a tenant must be a name"),
        (ENTRY | {"time": "yesterday"}, "a time must be in ISO 8601"),
        (ENTRY | {"time": 1e300}, "a time must be in ISO 8601"),
        (ENTRY | {"time": float("nan")}, "a time must be in ISO 8601"),
        (ENTRY | {"seconds": -1}, "seconds must be a number from 0 to 1,000,000,000,000"),
        (ENTRY | {"seconds": 10**400}, "seconds must be a number from 0 to"),
        (ENTRY | {"cost": 1e13}, "cost must be a number from 0 to"),
        (ENTRY | {"seconds": float("nan")}, "seconds must be a number from 0 to"),
        (ENTRY | {"cost": "much"}, "cost must be a number from 0 to"),
        ({"run_type": "tool", "inputs": "x"}, "line 1 is of type 'tool'"),
        ({"prompt": [1, 2, 3]}, "line 1 has no question as text"),
        (17, "line 1 must be a request's body"),
    ],
)
def test_a_bad_line_is_skipped_and_counted(entry: object, reason: str) -> None:
    log = Log(questions_of)
    log.add(entry, "line 1")

    assert list(log) == []
    assert log.skipped == 1
    assert log.remarks[0].startswith("line 1")
    assert log.remarks[0].count("line 1") == 1
    assert reason in log.remarks[0]


@pytest.mark.parametrize("form", [form for form in FORMS if "token" not in form])
def test_forms_that_the_linter_reads_are_questions(form: str, tmp_path: Path) -> None:
    questions = read_questions(written(tmp_path / "log.jsonl", [FORMS[form]] * 40))

    assert questions
    assert all(question.text for question in questions)


@pytest.mark.parametrize(
    "entry",
    [
        {"messages": [*ASKED, {"role": "assistant", "content": "Homer"}]},
        {"input": ASKED, "type": "GENERATION", "output": "Homer"},
        {"input": ASKED, "type": "GENERATION", "output": {"role": "assistant", "content": "Homer"}},
        {
            "inputs": {"messages": ASKED},
            "run_type": "llm",
            "outputs": {"generations": [[{"text": "Homer"}, {"text": "other"}]]},
        },
        {
            "inputs": {"messages": ASKED},
            "run_type": "llm",
            "outputs": {"generations": [[{"message": {"kwargs": {"content": "Homer"}}}]]},
        },
        {
            "request": {"messages": ASKED},
            "response": {"choices": [{"message": {"content": "Homer"}}]},
        },
        {
            "messages": ASKED,
            "response": json.dumps({"choices": [{"message": {"content": "Homer"}}]}),
        },
        {"body": {"messages": ASKED}, "response": {"body": {"choices": [{"text": "Homer"}]}}},
        {
            "request": {"messages": ASKED},
            "response": {"content": [{"type": "text", "text": w} for w in ("Ho", "mer")]},
        },
        {
            "request": {"input": "Hello"},
            "response": {"output": [{"content": [{"type": "output_text", "text": "Homer"}]}]},
        },
        {
            "request": {"contents": [{"role": "user", "parts": [{"text": "Hello"}]}]},
            "response": {"candidates": [{"content": {"parts": [{"text": "Homer"}]}}]},
        },
    ],
)
def test_answers_of_other_tools_are_read(entry: dict[str, Any]) -> None:
    question = read(entry)
    assert question.text == "Hello"
    assert question.answer == read(ENTRY | {"answer": "Homer"}).answer


def test_an_answer_nested_without_end_is_none() -> None:
    nested: object = "Homer"
    for _ in range(500):
        nested = {"message": nested}
    assert read({"input": ASKED, "output": nested}).answer is None


def test_times_and_costs_of_a_run() -> None:
    run = {"run_type": "llm", "inputs": {"messages": ASKED}, "total_cost": "0.5"}
    times = {"start_time": "2026-03-01T09:30:00", "end_time": "2026-03-01T09:30:02.5"}
    question = read(run | times)
    assert (question.seconds, question.cost) == (2.5, 0.5)


def test_what_a_request_holds_before_the_question_is_its_scope() -> None:
    def scope(*before: dict[str, str]) -> str:
        return read({"messages": [*before, *ASKED]}).scope

    assert scope() == scope()
    assert len({scope(), scope({"role": "system", "content": "x"}), scope(*ASKED)}) == 3


def test_questions_are_in_the_order_of_their_times_if_all_have_one(tmp_path: Path) -> None:
    entries = [{"question": f"q{number}", "time": 100 - number} for number in range(40)]
    path = written(tmp_path / "log.jsonl", entries)
    assert read_questions(path)[0].text == "q39"
    path = written(tmp_path / "other.jsonl", [*entries, {"question": "x"}])
    assert read_questions(path)[0].text == "q0"


def test_a_damaged_and_compressed_file_is_read(tmp_path: Path) -> None:
    lines = [json.dumps({"question": f"q{number} \ud800"}) for number in range(40)]
    path = tmp_path / "log.jsonl.gz"
    path.write_bytes(
        gzip.compress("\n".join([*lines, "{", "[[", '"\udcff"']).encode(errors="replace"))
    )
    log = read_questions(path)

    assert len(log) >= 40
    assert log.skipped >= 1
    assert log[0].text == "q0 \ufffd"


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        ("", "holds no request that can be read: it is empty"),
        ("{}\n" * 50, "holds no request that can be read: line 1 has neither"),
        (
            '{"question": "x"}\n' * 29 + "{",
            "has 29 usable questions, and a report needs at least 30",
        ),
    ],
)
def test_too_few_questions_are_refused(content: str, reason: str, tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl"
    path.write_text(content, encoding="utf-8")
    with pytest.raises(ConfigurationError, match=reason):
        read_questions(path)
    with pytest.raises(ConfigurationError, match="cannot read"):
        read_questions(tmp_path / "none.jsonl")
