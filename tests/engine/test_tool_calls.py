"""Tools on the real engine: forced calls satisfy their schemas, and histories are read again."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import jsonschema
import pytest

from ragcache_integrations.core.generation import GenerationChunk
from ragcache_integrations.core.prompt import NO_TOOLS, Tool, ToolCall, join_calls
from ragcache_integrations.engine import (
    Generation,
    Message,
    Prompt,
    RAGCacheEngine,
    SamplingOptions,
)
from ragcache_integrations.engine.calls import NO_PARSER, Calls
from ragcache_integrations.engine.protocol import CacheSettings
from ragcache_integrations.errors import ConfigurationError

pytestmark = pytest.mark.engine

NUMBER = {"type": "integer", "minimum": 0, "maximum": 999}
ADD = Tool(
    "add",
    "Adds two numbers.",
    {"type": "object", "properties": {"a": NUMBER, "b": NUMBER}, "required": ["a", "b"]},
)
FIND = Tool(
    "find",
    "Finds pages.",
    {
        "type": "object",
        "properties": {
            "query": {"type": "string", "maxLength": 20},
            "kind": {"enum": ["page", "note"]},
            "where": {"$ref": "#/$defs/Place"},
        },
        "required": ["query", "kind", "where"],
        "$defs": {
            "Place": {"type": "object", "properties": {"shelf": NUMBER}, "required": ["shelf"]}
        },
    },
)
NOW = Tool("now")
TOOLS = {tool.name: tool for tool in (ADD, FIND, NOW)}


def prompt(*tools: Tool, question: str = "How many cats?") -> Prompt:
    return Prompt(messages=(Message("user", question),), tools=tools)


def check(calls: tuple[ToolCall, ...]) -> None:
    for call in calls:
        jsonschema.validate(json.loads(call.arguments), dict(TOOLS[call.name].parameters))


def whole(chunks: list[GenerationChunk]) -> tuple[str, list[tuple[str, str]]]:
    calls = join_calls(piece for chunk in chunks for piece in chunk.tool_calls)
    text = "".join(chunk.text for chunk in chunks)
    return text, [(call.name, call.arguments) for call in calls]


@pytest.mark.parametrize("choice", ["required", *TOOLS])
async def test_forced_calls_are_valid_in_every_way(engine: RAGCacheEngine, choice: str) -> None:
    options = SamplingOptions(max_tokens=256, tool_choice=choice)
    ask = prompt(*TOOLS.values())
    answer = await engine.agenerate(ask, options)
    assert answer.text == ""
    assert answer.tool_calls
    assert answer.finish_reason == "tool_calls"
    check(answer.tool_calls)
    if choice != "required":
        assert [call.name for call in answer.tool_calls] == [choice]
    expected = "", [(call.name, call.arguments) for call in answer.tool_calls]
    streamed = [chunk async for chunk in await engine.astream(ask, options)]
    plain = await asyncio.to_thread(lambda: list(engine.stream(ask, options)))
    (batch,) = await engine.agenerate_batch([ask], options)
    assert whole(streamed) == whole(plain) == expected
    assert len([chunk for chunk in streamed if chunk.tool_calls]) >= (1 if choice == "now" else 3)
    assert [call.arguments for call in batch.tool_calls] == [a for _, a in expected[1]]
    ids = [piece.id for chunk in streamed for piece in chunk.tool_calls if piece.name]
    assert all(ids)


def test_calls_of_tools_without_arguments_have_none(engine: RAGCacheEngine) -> None:
    answer = engine.generate(prompt(NOW), SamplingOptions(tool_choice="required"))
    assert {call.arguments for call in answer.tool_calls} == {"{}"}


def test_one_call_at_most(engine: RAGCacheEngine) -> None:
    for seed in range(8):
        options = SamplingOptions(
            tool_choice="required", parallel_tool_calls=False, temperature=1.0, seed=seed
        )
        (call,) = engine.generate(prompt(ADD, NOW), options).tool_calls
        check((call,))


def test_sampled_calls_are_valid(engine: RAGCacheEngine) -> None:
    for seed in range(8):
        options = SamplingOptions(tool_choice="required", temperature=1.0, seed=seed)
        answer = engine.generate(prompt(*TOOLS.values()), options)
        if answer.finish_reason == "tool_calls":
            check(answer.tool_calls)


def test_a_free_answer_of_noise_calls_nothing(engine: RAGCacheEngine) -> None:
    answer = engine.generate(prompt(*TOOLS.values()), SamplingOptions(max_tokens=16))
    assert answer.text
    assert answer.tool_calls == ()
    assert answer.finish_reason == "length"


def test_none_calls_nothing(engine: RAGCacheEngine) -> None:
    ask = prompt(*TOOLS.values())
    answer = engine.generate(ask, SamplingOptions(max_tokens=16, tool_choice="none"))
    free = engine.generate(ask, SamplingOptions(max_tokens=16))
    assert answer.text == free.text


def conversation(turns: int) -> Prompt:
    messages = [Message("system", "You count cats.")]
    for turn in range(turns):
        call = ToolCall(f"call-{turn}", "add", json.dumps({"a": turn, "b": turn}))
        messages += [
            Message("user", f"How many cats are {turn} and {turn} of them, all in all, please?"),
            Message("assistant", "", tool_calls=[call]),
            Message(
                "tool", f"The sum is {2 * turn} cats, says the calculator.", tool_call_id=call.id
            ),
            Message("assistant", f"There are {2 * turn} cats."),
        ]
    return Prompt(messages=(*messages, Message("user", "And now?")), tools=(ADD, FIND, NOW))


def test_cached_tokens_grow_from_turn_to_turn(engine: RAGCacheEngine) -> None:
    options = SamplingOptions(max_tokens=2)
    cached = [
        engine.generate(conversation(turns), options, namespace="turns").usage.cached_tokens
        for turns in range(1, 6)
    ]
    assert cached[0] == 0
    assert cached == sorted(set(cached))


def test_tools_and_calls_are_in_the_prompt(engine: RAGCacheEngine) -> None:
    tokens = engine.render(conversation(1)).token_ids
    from transformers import AutoTokenizer  # noqa: PLC0415

    text = AutoTokenizer.from_pretrained(engine.model).decode(tokens)
    assert '"description": "Adds two numbers."' in text
    assert '<tool_call>{"name": "add", "arguments": {"a": 0, "b": 0}}</tool_call>' in text


@pytest.mark.parametrize(
    ("tools", "options", "match"),
    [
        ((ADD,), SamplingOptions(tool_choice="ad"), r"unknown tool_choice 'ad'.*mean 'add'"),
        ((), SamplingOptions(tool_choice="required"), "needs tools"),
        ((ADD,), SamplingOptions(choice=("a",)), "json_schema and choice exclude tools"),
        ((ADD,), SamplingOptions(json_schema={}), "json_schema and choice exclude tools"),
    ],
)
def test_refused_requests(
    engine: RAGCacheEngine, tools: tuple[Tool, ...], options: SamplingOptions, match: str
) -> None:
    with pytest.raises(ConfigurationError, match=match):
        engine.generate(prompt(*tools), options)


def test_a_schema_without_a_grammar(engine: RAGCacheEngine) -> None:
    odd = Tool("odd", "", {"type": "object", "properties": {"a": {"type": "no such type"}}})
    with pytest.raises(ConfigurationError, match="vLLM refuses the request"):
        engine.generate(prompt(odd), SamplingOptions(tool_choice="odd"))
    assert engine.generate(prompt(ADD), SamplingOptions(max_tokens=2)).text  # it lives on


NO_TOOL_TEMPLATE = "{% for m in messages %}<|{{ m.role }}|>{{ m.content }}{% endfor %}<|assistant|>"
OWN_FORM = NO_TOOL_TEMPLATE.replace(
    "{{ m.content }}",
    "{{ m.content }}{% for c in m.tool_calls or [] %}CALL {{ c.function.name }}{% endfor %}",
).replace("{% for m", "{{ tools | tojson }}{% for m", 1)


def with_template(engine: RAGCacheEngine, template: str, **settings: Any) -> Any:
    """The same engine with another template, which takes no second process."""
    from ragcache_integrations.core.prompt import PromptRenderer  # noqa: PLC0415

    other = object.__new__(RAGCacheEngine)
    other.__dict__.update(engine.__dict__)
    other._renderer = PromptRenderer(engine._renderer.template._tokenizer, template)
    parser = settings.get("tool_parser")
    other._calls = Calls(other._renderer, CacheSettings(), parser, engine.max_model_len)
    return other


def test_models_that_have_learnt_no_tools(engine: RAGCacheEngine) -> None:
    assert engine.supports_tools
    other = with_template(engine, NO_TOOL_TEMPLATE)
    assert not other.supports_tools
    for choice in ("auto", "required", "add"):
        with pytest.raises(ConfigurationError) as caught:
            other.generate(prompt(ADD), SamplingOptions(tool_choice=choice))
        assert str(caught.value) == NO_TOOLS
    with pytest.raises(ConfigurationError) as caught:
        other.generate(Prompt(messages=conversation(1).messages))
    assert str(caught.value) == NO_TOOLS


def test_models_whose_calls_nobody_knows(engine: RAGCacheEngine) -> None:
    other = with_template(engine, OWN_FORM)
    assert other.supports_tools
    with pytest.raises(ConfigurationError) as caught:
        other.generate(prompt(ADD))
    assert str(caught.value) == NO_PARSER
    answer: Generation = other.generate(prompt(ADD), SamplingOptions(tool_choice="add"))
    check(answer.tool_calls)
    named = with_template(engine, OWN_FORM, tool_parser="hermse")
    with pytest.raises(ConfigurationError, match=r"unknown tool_parser 'hermse'.*mean 'hermes'"):
        named.generate(prompt(ADD))
    known = with_template(engine, OWN_FORM, tool_parser="hermes")
    assert known.generate(prompt(ADD), SamplingOptions(max_tokens=2)).tool_calls == ()
