"""Tools and their calls: what is refused, and how pieces become calls."""

from __future__ import annotations

import json
import pickle
from types import MappingProxyType
from typing import Any

import pytest

from ragcache_integrations.core.generation import SamplingOptions
from ragcache_integrations.core.prompt import (
    Message,
    Prompt,
    Tool,
    ToolCall,
    ToolCallPiece,
    check_tool_choice,
    choice_name,
    join_calls,
    tools_of,
)
from ragcache_integrations.errors import ConfigurationError

SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}
ADD = Tool("add", "Adds.", SCHEMA)


def test_a_definition_and_back() -> None:
    assert Tool.of(ADD.definition()) == ADD
    assert Tool.of(ADD) is ADD
    bare = Tool.of({"function": {"name": "now"}})
    assert bare.definition() == {
        "type": "function",
        "function": {"name": "now", "parameters": {"type": "object", "properties": {}}},
    }
    strict = Tool("add", "Adds.", SCHEMA, strict=True)
    assert strict.definition()["function"]["strict"] is True


def test_schemas_become_plain_copies() -> None:
    schema: dict[str, Any] = {"type": "object", "properties": MappingProxyType({"a": {}})}
    tool = Tool("f", parameters=MappingProxyType(schema))
    schema["type"] = "array"
    assert tool.parameters == {"type": "object", "properties": {"a": {}}}
    assert pickle.loads(pickle.dumps(tool)) == tool
    assert hash(Prompt(messages=(Message("user", "x"),), tools=(tool,))) is not None


@pytest.mark.parametrize(
    ("definition", "match"),
    [
        ("add", "a tool must be .*got 'add'"),
        ({"name": "add"}, "a tool must be"),
        ({"type": "web_search"}, "a tool must be"),
        ({"type": "function", "function": {"description": "x"}}, "a tool must be"),
        ({"function": {"name": 3}}, "name must be a string, got 3"),
        ({"function": {"name": ""}}, "1 to 128 letters"),
        ({"function": {"name": "a b"}}, "got 'a b'"),
        ({"function": {"name": "<|im_start|>"}}, "1 to 128 letters"),
        ({"function": {"name": "required"}}, "not one of any, auto, none, required"),
        ({"function": {"name": "f", "descripton": "x"}}, "did you mean 'description'"),
        ({"function": {"name": "f", "parameters": [1]}}, "parameters of the tool f must be"),
        ({"function": {"name": "f", "parameters": {"a": {1, 2}}}}, "it contains a set"),
        ({"function": {"name": "f", "strict": "yes"}}, "strict of the tool f"),
        ({"function": {"name": "f", "description": 3}}, "description of the tool f"),
    ],
)
def test_refused_definitions(definition: object, match: str) -> None:
    with pytest.raises(ConfigurationError, match=match):
        tools_of([definition])


def test_refused_lists() -> None:
    with pytest.raises(ConfigurationError, match="'add' occurs twice"):
        Prompt(messages=(Message("user", "x"),), tools=tools_of([ADD, ADD.definition()]))
    with pytest.raises(ConfigurationError, match="tools must be a list"):
        tools_of("add")
    assert tools_of(None) == ()


@pytest.mark.parametrize(
    ("given", "meant"),
    [
        ("any", "required"),
        (True, "required"),
        (False, "none"),
        (None, "auto"),
        ("auto", "auto"),
        ("add", "add"),
        ({"type": "function", "function": {"name": "add"}}, "add"),
    ],
)
def test_tool_choice(given: object, meant: str) -> None:
    assert check_tool_choice(choice_name(given), [ADD]) == meant


@pytest.mark.parametrize("given", [3, {"type": "function"}, {"function": {"name": 3}}, ["add"]])
def test_a_tool_choice_of_another_form(given: object) -> None:
    with pytest.raises(ConfigurationError, match="tool_choice must be any, auto, none"):
        choice_name(given)


def test_a_tool_choice_that_is_not_there() -> None:
    with pytest.raises(ConfigurationError, match=r"unknown tool_choice 'ad'.*did you mean 'add'"):
        check_tool_choice("ad", [ADD])
    with pytest.raises(ConfigurationError, match="needs tools"):
        check_tool_choice("required", [])
    with pytest.raises(ConfigurationError, match="tool_choice must be a string"):
        SamplingOptions(tool_choice=True)  # type: ignore[arg-type]


def test_pieces_become_calls() -> None:
    pieces = [
        ToolCallPiece(0, '{"a"', "1", "add"),
        ToolCallPiece(1, "", "2", "now"),
        ToolCallPiece(0, ": 1}"),
    ]
    assert join_calls(pieces) == (ToolCall("1", "add", '{"a": 1}'), ToolCall("2", "now", "{}"))
    assert json.loads(join_calls(pieces)[0].arguments) == {"a": 1}
    assert join_calls(pieces, "tool_calls") == join_calls(pieces)
    for cut in ("length", "abort"):  # the second call may have had arguments
        assert join_calls(pieces, cut)[1] == ToolCall("2", "now", "")


def test_only_the_assistant_calls_tools() -> None:
    with pytest.raises(ConfigurationError, match="only messages of the assistant"):
        Message("user", "x", tool_calls=[ToolCall("1", "add", "{}")])
    with pytest.raises(ConfigurationError, match="tools are for conversations"):
        Prompt(parts=("x",), tools=(ADD,))
    called = Message("assistant", "x", tool_calls=[ToolCall("1", "add", "{}")])
    assert called.with_parts(["y"]).tool_calls == called.tool_calls
    answered = Message("tool", "x", tool_call_id="1")
    assert answered.with_parts(["y"]).tool_call_id == "1"
