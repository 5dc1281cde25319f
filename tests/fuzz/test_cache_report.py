"""Logs for the report on a cache: their questions are read, or they are refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ragcache_integrations.errors import ConfigurationError
from ragcache_workbench.cache_report.questions import questions_of, read_questions
from ragcache_workbench.logs import Log
from tests.support.sizes import examples

from .bounds import bounded
from .hostile import damaged
from .test_lint import PIECES, VALUES

FIELDS = ("answer", "documents", "tenant", "time", "seconds", "cost", "output", "response")
ENTRY = {
    "question": "who?",
    "answer": "Homer",
    "documents": ["a", {"id": 1, "text": "x"}],
    "tenant": "b",
    "time": "2026-03-01T09:30:00Z",
    "seconds": 1.5,
    "cost": 0.1,
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("log")


@given(VALUES, st.sampled_from(FIELDS))
@examples(300)
def test_any_json_is_a_question_or_skipped(value: Any, name: str) -> None:
    for entry in (value, ENTRY | {name: value}, {"question": value}, {"input": "x", name: value}):
        log = Log(questions_of)
        log.add(entry, "line 1")
        assert log or log.skipped
        for question in log:
            assert question.text.encode()
            assert question.tenant.encode() is not None
            hash(question)


@given(damaged("\n".join([json.dumps(ENTRY)] * 40).encode(), PIECES))
@examples(100)
def test_a_damaged_log_is_read_or_refused(folder: Path, data: bytes) -> None:
    path = folder / "log.jsonl"
    path.write_bytes(data)
    with bounded():
        try:
            log = read_questions(path)
        except ConfigurationError:
            return
    assert len(log) >= 30
