"""The fields that hosted models' prompt caching is steered by."""

from __future__ import annotations

from typing import Any

import pytest
from anthropic.types import MessageParam, TextBlockParam
from openai.types.chat import ChatCompletionMessageParam
from pydantic import TypeAdapter

from ragcache_integrations.core.prompt import Message, PromptDocument
from ragcache_integrations.errors import ConfigurationError
from ragcache_integrations.prompts.layout.layout import LaidOutPrompt, PromptLayout
from ragcache_integrations.prompts.layout.providers import anthropic_request, openai_request

LAYOUT = PromptLayout(
    [
        ("system", "You are a librarian."),
        ("history", "{history}"),
        ("documents", "{context}"),
        ("query", "{question}"),
    ]
)


def laid_out(*history: object, question: str = "What is Rome?") -> LaidOutPrompt:
    document = PromptDocument("Rome is the capital of Italy.")
    return LAYOUT.render({"history": history, "context": [document], "question": question})


TURNS = ({"role": "user", "content": "Hello"}, {"role": "assistant", "content": "Hi"})


def texts(messages: list[dict[str, Any]]) -> list[str]:
    return [
        m["content"] if isinstance(m["content"], str) else "".join(b["text"] for b in m["content"])
        for m in messages
    ]


def marks(blocks: Any, field: str) -> list[bool]:
    return [field in block for block in blocks] if isinstance(blocks, list) else [False]


def test_openai_gets_messages_and_a_key_for_the_fixed_parts() -> None:
    first, second = (openai_request(laid_out(*TURNS, question=q)) for q in ("One?", "Two?"))
    TypeAdapter(list[ChatCompletionMessageParam]).validate_python(first["messages"])
    assert first["prompt_cache_key"] == second["prompt_cache_key"]
    assert len(first["prompt_cache_key"]) <= 64
    assert [m["role"] for m in first["messages"]] == ["system", "user", "assistant", "user"]
    assert texts(first["messages"])[-1] == "Rome is the capital of Italy.\n\nOne?"
    other = openai_request(laid_out(*TURNS), tenant="a")["prompt_cache_key"]
    assert other != first["prompt_cache_key"]


def test_openai_breakpoints_stand_behind_what_is_shared() -> None:
    request = openai_request(laid_out(*TURNS), breakpoints=True)
    assert texts(request["messages"]) == texts(openai_request(laid_out(*TURNS))["messages"])
    marked = [any(marks(m["content"], "prompt_cache_breakpoint")) for m in request["messages"]]
    assert marked == [True, False, True, False]
    assert request["messages"][0]["content"][0]["prompt_cache_breakpoint"] == {"mode": "explicit"}


@pytest.mark.parametrize("history", [TURNS, (Message("user", "Hello"), Message("assistant", "Hi"))])
def test_anthropic_marks_stand_behind_what_is_shared(history: tuple[object, ...]) -> None:
    request = anthropic_request(laid_out(*history), lifetime="1h")
    TypeAdapter(list[TextBlockParam]).validate_python(request["system"])
    TypeAdapter(list[MessageParam]).validate_python(request["messages"])
    assert request["system"] == [
        {
            "type": "text",
            "text": "You are a librarian.",
            "cache_control": {"type": "ephemeral", "ttl": "1h"},
        }
    ]
    marked = [any(marks(m["content"], "cache_control")) for m in request["messages"]]
    assert marked == [False, True, False]
    assert texts(request["messages"])[1:] == [
        "Hi",
        "Rome is the capital of Italy.\n\nWhat is Rome?",
    ]


def test_a_mark_goes_on_the_last_block_of_a_message_of_blocks() -> None:
    blocks = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    request = anthropic_request(laid_out({"role": "user", "content": blocks}))
    assert marks(request["messages"][0]["content"], "cache_control") == [False, True]
    assert blocks == [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]  # as they were
    empty = anthropic_request(laid_out({"role": "assistant", "content": None}))
    assert empty["messages"][0] == {"role": "assistant", "content": None}


def test_no_marks_where_none_are_wanted_and_no_system_where_there_is_none() -> None:
    request = anthropic_request(laid_out(*TURNS), lifetime=None)
    assert not any(
        marks(m["content"], "cache_control")
        for m in request["messages"]
        if isinstance(m["content"], list)
    )
    bare = PromptLayout([("query", "{q}")]).render({"q": "Hello?"})
    assert anthropic_request(bare) == {"messages": [{"role": "user", "content": "Hello?"}]}


def test_wrong_arguments() -> None:
    with pytest.raises(ConfigurationError, match="one of 5m, 1h or None, got '1d'"):
        anthropic_request(laid_out(), lifetime="1d")  # type: ignore[arg-type] # that is the point
    with pytest.raises(ConfigurationError, match="mappings with a role, got a str"):
        openai_request(laid_out("Hello"))
