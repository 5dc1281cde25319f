from __future__ import annotations

from typing import Any

import pytest

from ragcache_integrations.engine.serving.requests.documents import (
    check_fields,
    has_grammar,
    with_strict_tools,
)
from ragcache_integrations.engine.serving.requests.reading import refuse_marks
from ragcache_integrations.engine.serving.wire import RequestRefusedError


@pytest.mark.parametrize("value", ["x", 7, [], True, ""])
def test_structured_outputs_that_are_no_object(value: Any) -> None:
    with pytest.raises(RequestRefusedError, match="structured_outputs must be an object"):
        check_fields({"structured_outputs": value})


@pytest.mark.parametrize("name", ["rag_step", "rag_next_steps", "rag_pin", "rag_encode"])
def test_marks_of_ours_that_clients_send_to_other_routes(name: str) -> None:
    for body in ({"vllm_xargs": {name: 1}}, {"sampling_params": {"extra_args": {name: 1}}}):
        with pytest.raises(RequestRefusedError, match=f"{name} is not for clients"):
            refuse_marks(body)
    for fine in ({}, {"vllm_xargs": [name]}, {"sampling_params": {"extra_args": None}}):
        refuse_marks({**fine, "input": name})


@pytest.mark.parametrize(
    ("body", "grammar"),
    [
        ({}, False),
        ({"structured_outputs": None}, False),
        ({"structured_outputs": {}}, False),
        ({"response_format": {"type": "text"}}, False),
        ({"response_format": {"type": "json_object"}}, False),
        ({"response_format": "x"}, False),
        ({"structured_outputs": {"regex": "a"}}, True),
        ({"response_format": {"type": "json_schema"}}, True),
        ({"response_format": {"type": ["x"]}}, True),
        ({"tools": [{"function": {"name": "f"}}]}, True),
    ],
)
def test_grammars(body: dict[str, Any], grammar: bool) -> None:
    check_fields(body)
    assert has_grammar(body) == grammar


def test_forced_calls_follow_the_schema() -> None:
    free, strict = {"function": {"name": "f"}}, {"function": {"name": "g", "strict": False}}
    for choice in (None, "auto", "none"):
        body = {"tools": [free], "tool_choice": choice}
        assert with_strict_tools(body) is body
    for forced in ("required", {"function": {"name": "f"}}):
        changed = with_strict_tools({"tools": [free, strict, 3, {}], "tool_choice": forced})
        held = {"function": {"name": "f", "strict": True}}
        assert changed == {"tools": [held, strict, 3, {}], "tool_choice": forced}
    assert free == {"function": {"name": "f"}}
    assert with_strict_tools({"tools": "x", "tool_choice": "required"})["tools"] == "x"
