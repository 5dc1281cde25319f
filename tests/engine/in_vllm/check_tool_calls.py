"""Tool calls in the forms of several model families, read by vLLM's parsers piece by piece."""

from __future__ import annotations

import json
from argparse import Namespace
from pathlib import Path
from typing import Any

import pytest
from tokenizers import AddedToken
from transformers import AutoTokenizer
from vllm.tool_parsers import ToolParserManager

from ragcache_integrations.core.prompt import ToolCall, ToolCallPiece, join_calls
from ragcache_integrations.engine.arguments import _FAMILIES
from ragcache_integrations.engine.in_vllm.driver import CallReader
from ragcache_integrations.engine.protocol import ToolUse
from ragcache_integrations.engine.serving import _vllm
from ragcache_integrations.engine.tiny_model import default_model_path

ADD = {
    "type": "function",
    "function": {
        "name": "add",
        "parameters": {
            "type": "object",
            "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}},
            "required": ["a", "b"],
        },
    },
}
NOW = {
    "type": "function",
    "function": {"name": "now", "parameters": {"type": "object", "properties": {}}},
}
MARKUP = ("<tool_call>", "</tool_call>", "<|python_tag|>")


@pytest.fixture(scope="module")
def tokenizer() -> Any:
    loaded = AutoTokenizer.from_pretrained(default_model_path())
    loaded.add_tokens([AddedToken(text, normalized=False) for text in MARKUP])
    return loaded


def use(choice: str = "auto", parser: str = "hermes", *, parallel: bool = True) -> ToolUse:
    return ToolUse((ADD, NOW), choice, parallel, parser)


def read(
    reader: CallReader, tokenizer: Any, answer: str, size: int
) -> tuple[str, tuple[ToolCall, ...]]:
    """What the reader makes of an answer that comes some tokens at a time."""
    tokens = tokenizer.encode(answer, add_special_tokens=False)
    texts: list[str] = []
    pieces: list[ToolCallPiece] = []
    for start in range(0, len(tokens), size):
        part = tokens[start : start + size]
        before, after = (tokenizer.decode(tokens[:end]) for end in (start, start + size))
        finished = start + size >= len(tokens)
        text, new = reader.read(after[len(before) :], part, finished=finished)
        texts.append(text)
        pieces += new
    return "".join(texts), join_calls(pieces)


FAMILIES = {
    "hermes": 'Well.<tool_call>{"name": "add", "arguments": {"a": 2, "b": 40}}</tool_call>'
    '<tool_call>{"name": "now", "arguments": {}}</tool_call>',
    "llama3_json": '{"name": "add", "parameters": {"a": 2, "b": 40}}; '
    '{"name": "now", "parameters": {}}',
    "pythonic": "[add(a=2, b=40), now()]",
    "qwen3_coder": "Well.<tool_call>\n<function=add>\n<parameter=a>\n2\n</parameter>\n"
    "<parameter=b>\n40\n</parameter>\n</function>\n</tool_call>"
    "<tool_call>\n<function=now>\n</function>\n</tool_call>",
}


@pytest.mark.parametrize("size", [1, 3])  # a step gives a token, or a few with vLLM's speculation
@pytest.mark.parametrize("parser", FAMILIES)
def test_calls_of_a_family(tokenizer: Any, parser: str, size: int) -> None:
    reader = CallReader(use(parser=parser), tokenizer, [1, 2, 3])
    assert reader.schema is None
    text, calls = read(reader, tokenizer, FAMILIES[parser], size)
    assert text.strip() in {"", "Well."}
    assert [(call.name, json.loads(call.arguments)) for call in calls] == [
        ("add", {"a": 2, "b": 40}),
        ("now", {}),
    ]
    assert len({call.id for call in calls}) == len(calls)
    assert all(call.id for call in calls)
    assert reader.called


@pytest.mark.parametrize("size", [1, 1000])
def test_one_call_at_most(tokenizer: Any, size: int) -> None:
    reader = CallReader(use(parallel=False), tokenizer, [1])
    _, calls = read(reader, tokenizer, FAMILIES["hermes"], size)
    assert [call.name for call in calls] == ["add"]


@pytest.mark.parametrize("size", [1, 3, 1000])
def test_an_answer_without_calls(tokenizer: Any, size: int) -> None:
    reader = CallReader(use(), tokenizer, [1])
    said = "It is <b>noon</b>, 2 < 40 and {that} is all."
    assert read(reader, tokenizer, said, size) == (said, ())
    assert not reader.called


def test_a_call_that_breaks_off_is_incomplete(tokenizer: Any) -> None:
    reader = CallReader(use(), tokenizer, [1])
    _, calls = read(reader, tokenizer, '<tool_call>{"name": "add", "arguments": {"a": 2, "', 1)
    (call,) = calls
    with pytest.raises(ValueError, match=r"Unterminated|Expecting|delimiter"):
        json.loads(call.arguments)


@pytest.mark.parametrize("size", [1, 4])
def test_forced_calls(tokenizer: Any, size: int) -> None:
    required = CallReader(use("required", parser=""), tokenizer, [1])
    assert required.schema["type"] == "array"
    assert "maxItems" not in required.schema
    answer = json.dumps(
        [{"name": "add", "parameters": {"a": 2, "b": 40}}, {"name": "now", "parameters": {}}]
    )
    text, calls = read(required, tokenizer, answer, size)
    assert text == ""
    assert [(call.name, json.loads(call.arguments)) for call in calls] == [
        ("add", {"a": 2, "b": 40}),
        ("now", {}),
    ]
    named = CallReader(use("add", parser=""), tokenizer, [1])
    assert named.schema == {**ADD["function"]["parameters"], "additionalProperties": False}  # type: ignore[index]
    text, (call,) = read(named, tokenizer, '{"a": 2, "b": 40}', size)
    assert (text, call.name, json.loads(call.arguments)) == ("", "add", {"a": 2, "b": 40})
    assert CallReader(use("required", parallel=False), tokenizer, [1]).schema["maxItems"] == 1


def test_what_a_parser_stumbles_over_is_text(
    tokenizer: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    reader = CallReader(use(), tokenizer, [1])

    def stumble(*_: Any, **__: Any) -> None:
        raise IndexError

    monkeypatch.setattr(reader._parser, "parse_delta", stumble)
    assert read(reader, tokenizer, "Hello, it is noon.", 2) == ("Hello, it is noon.", ())


def test_a_parser_that_is_not_there(tokenizer: Any) -> None:
    with pytest.raises(ValueError, match=r"unknown tool_parser 'hermse'.*did you mean 'hermes'"):
        CallReader(use(parser="hermse"), tokenizer, [1])


def test_a_parser_that_does_not_suit(tokenizer: Any) -> None:
    with pytest.raises(ValueError, match="tool_parser 'jamba' does not suit"):
        CallReader(use(parser="jamba"), tokenizer, [1])


def test_parsers_of_families_are_there() -> None:
    assert set(_FAMILIES) <= set(ToolParserManager.list_registered())


def arguments(model: str, template: str | None = None) -> Namespace:
    return Namespace(
        model=model,
        tokenizer=None,
        tokenizer_revision=None,
        revision=None,
        trust_remote_code=False,
        chat_template=template,
    )


def test_the_parser_is_found(tmp_path: Path) -> None:
    tiny = str(default_model_path())
    assert _vllm.tool_parser_of(arguments(tiny)) == "hermes"
    assert _vllm.tool_parser_of(arguments(tiny, "{{ messages }}")) == ""
    file = tmp_path / "template.jinja"
    file.write_text("<tool_call><function=f></tool_call> {{ messages }}")
    assert _vllm.tool_parser_of(arguments(tiny, str(file))) == "qwen3_coder"
    # A parser whose tokens the vocabulary lacks would keep the server from starting.
    assert _vllm.tool_parser_of(arguments(tiny, "[TOOL_CALLS]")) == ""
    assert _vllm.tool_parser_of(arguments(str(tmp_path))) == ""
