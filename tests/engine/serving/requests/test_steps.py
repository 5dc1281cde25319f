"""The fields ``step`` and ``next_steps`` of a request."""

from __future__ import annotations

from typing import Any

import pytest

from ragcache_integrations.core.prompt import NEXT_STEPS, STEP, STEPS_BEFORE
from ragcache_integrations.engine.serving.requests import OwnFields
from ragcache_integrations.engine.serving.wire import RequestRefusedError

FIELDS = OwnFields(None)
BODY: dict[str, Any] = {"prompt": "?", "vllm_xargs": {"rag_starts": [1]}}


def test_they_become_flat_lists_for_the_scheduler() -> None:
    passed = FIELDS.apply({**BODY, "step": "a", "next_steps": {"b": 1, "c": 2}})
    steps = {STEP: "a", NEXT_STEPS: ["b", "c"], STEPS_BEFORE: [1, 2]}
    assert passed == {**BODY, "vllm_xargs": {"rag_starts": [1], **steps}}
    assert FIELDS.apply({"prompt": "?", "step": "a"}) == {
        "prompt": "?",
        "vllm_xargs": {STEP: "a"},
    }


@pytest.mark.parametrize(
    "fields", [{}, {"step": None}, {"step": None, "next_steps": None}, {"next_steps": {}}]
)
def test_without_them_the_request_stays(fields: dict[str, Any]) -> None:
    assert FIELDS.apply({**BODY, **fields}) == BODY


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ({"step": 5}, "step must be a name, got 5"),
        ({"step": ["a"]}, "step must be a name"),
        ({"step": "x" * 100_000}, "characters, got 100000"),
        ({"step": "a", "next_steps": "b"}, "next_steps must be names and numbers of steps"),
        ({"step": "a", "next_steps": {"b": "1"}}, "must be a whole number"),
        ({"step": "a", "next_steps": {"b": 10**40}}, "at most 1000000"),
        ({"next_steps": {"b": 1}}, "next_steps needs step"),
        ({"vllm_xargs": {STEP: "a"}}, "rag_step is not for clients: send step and next_steps"),
        ({"vllm_xargs": {NEXT_STEPS: []}}, "not for clients"),
        ({"vllm_xargs": {STEPS_BEFORE: [1]}}, "not for clients"),
    ],
)
def test_what_is_refused(body: dict[str, Any], words: str) -> None:
    with pytest.raises(RequestRefusedError, match=words) as refusal:
        FIELDS.apply(body)
    assert refusal.value.status == 400
