"""Answers that are to be JSON: what is taken of them, and what is said where there is none."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from langchain_core.exceptions import OutputParserException
from llama_index.core import PromptTemplate
from pydantic import BaseModel

from ragcache_integrations.engine.schema_limits import INTEGER_DIGITS
from ragcache_integrations.errors import StructuredOutputError
from ragcache_integrations.llms.langchain.models import ChatRAGCache
from ragcache_integrations.llms.llama_index import RAGCacheLLM
from ragcache_integrations.llms.structured import json_so_far, whole_json

from .doubles import USAGE, Exchange, StubServer


class Joke(BaseModel):
    setup: str
    punchline: str


JOKE = '{"setup": "Why?", "punchline": "Because."}'
EXPECTED = Joke(setup="Why?", punchline="Because.")

WHOLE = {
    "alone": JOKE,
    "with white space": f" \n{JOKE}\n\n \n",
    "in a fence": f"```json\n{JOKE}\n```",
    "in a fence of one line": f"```{JOKE}```",
    "in a fence with words around it": f"Here it is:\n\n```JSON\n{JOKE}\n```\nDo you like it?",
    "after thoughts": f"<think>\nA joke {{...}}\n</think>\n\n{JOKE}",
    "after thoughts that the prompt began": f"A joke, then.\n</think>{JOKE}",
    "after thoughts, in a fence": f"<thinking>Hm.</thinking>\n```json\n{JOKE}\n```",
    "after thoughts that hold JSON": f"<think>```json\n{{}}\n``` or {{}}</think>{JOKE}",
    "after words about thoughts": f"<think>I end with </think>.</think>{JOKE}",
}
CUT = {
    "white space": '{"setup": "Why?",' + " \n" * 40,
    "a string": '{"setup": "Why? Why? Why?',
    "in a fence": f"```json\n{JOKE[:-5]}",
    "thoughts": "<think>\nA joke is needed. " + JOKE,
    "nothing": "",
    "white space alone": " \n" * 40,
}


# The reader itself


@pytest.mark.parametrize("text", WHOLE.values(), ids=WHOLE)
def test_the_json_of_an_answer(text: str) -> None:
    assert whole_json(text) == JOKE
    assert whole_json(text, "length", 48) == JOKE
    assert json_so_far(text) == JOKE or "I end with" in text


@pytest.mark.parametrize(
    "inner",
    ['{"a": "</think>"}', '{"a": "```json\\n{}\\n```"}', '{"a": "<think>"}', "[1]", '"x"', "12"],
)
def test_what_stands_in_json_is_no_markup(inner: str) -> None:
    for text in (inner, f"```json\n{inner}\n```", f"<think>hm</think>{inner}"):
        assert whole_json(text) == inner


@pytest.mark.parametrize("text", CUT.values(), ids=CUT)
def test_what_ran_out_of_length_is_said(text: str) -> None:
    with pytest.raises(
        StructuredOutputError, match=r"length .* ran out at max_tokens=48"
    ) as caught:
        whole_json(text, "length", 48)
    assert (caught.value.text, caught.value.max_tokens) == (text, 48)
    assert caught.value.finish_reason == "length"
    with pytest.raises(StructuredOutputError, match="no complete JSON"):
        whole_json(text, "stop")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("Because.", "no complete JSON"),
        ('{"a": NaN}', "NaN"),
        ("[" * 100_000, "no complete JSON"),
        ("1" * 5000, "no complete JSON"),
        ("```json\n{}\n```\nor\n```json\n[]\n```", "no complete JSON"),
        ('```json\n{}\n```\nor\n```json\n{"a": "', "no complete JSON"),
        ('```json\n{"```": "x", "````": "', "no complete JSON"),
        ("{} {}", "Extra data"),
        ("<think>```json\n{}\n```", "thoughts have not ended"),
        ('</think> ```json\n{}\n``` <think> ```json\n{"a": ', "no complete JSON"),
    ],
)
def test_what_is_no_answer_is_refused(text: str, words: str) -> None:
    with pytest.raises(StructuredOutputError, match=words):
        whole_json(text)


def test_a_number_that_was_cut_off_is_another_number() -> None:
    nines = "9" * INTEGER_DIGITS
    for text in (f'{{"n": {nines}}}', f"[1, [-{nines}]]"):
        assert whole_json(text, "stop") == text
        with pytest.raises(StructuredOutputError, match=r"of 18 digits.* length ran out"):
            whole_json(text, "length", 64)
    assert whole_json(f'["{nines}", {nines}.5]', "length")


def test_a_value_that_may_be_cut_short_is_said(caplog: pytest.LogCaptureFixture) -> None:
    whole_json(JOKE, "stop", 64)
    assert not caplog.records
    whole_json(JOKE, "length", 64)
    assert "max_tokens=64: a value may be cut short" in caplog.text


@given(
    st.recursive(
        st.none() | st.text('a`</think>{}[]"\\\n') | st.integers(),
        lambda inner: st.lists(inner) | st.dictionaries(st.text("a`"), inner),
    ),
    st.sampled_from(["{}", "```json\n{}\n```", "<think>hm</think>{}", "Look:\n```\n{}```\nSo."]),
)
def test_whatever_json_is_wrapped_comes_out_as_it_was(value: Any, wrapping: str) -> None:
    text = json.dumps(value)
    assert json.loads(whole_json(wrapping.replace("{}", text))) == value


@given(st.text('a{}[]",:1 \n`</think>'), st.sampled_from(["stop", "length"]))
def test_there_is_json_or_an_error(text: str, reason: str) -> None:
    with contextlib.suppress(StructuredOutputError):
        json.loads(whole_json(text, reason))
    assert isinstance(json_so_far(text), str)


# In the frameworks, from a server


def replying(text: str, reason: str) -> Callable[[Exchange], None]:
    def reply(exchange: Exchange) -> None:
        if not exchange.body.get("stream"):
            choice = exchange.choice(text, finish_reason=reason)
            exchange.send({"choices": [choice], "usage": USAGE})
            return
        exchange.start_events()
        for begin in range(0, len(text), 5):
            exchange.send_event({"choices": [exchange.choice(text[begin : begin + 5])]})
        exchange.send_event({"choices": [exchange.choice("", finish_reason=reason)]})
        exchange.send_event({"choices": [], "usage": USAGE})
        exchange.send_event("[DONE]")

    return reply


async def last(stream: AsyncIterator[Any]) -> Any:
    *_, end = [piece async for piece in stream]
    return end


def langchain_ways(stub: StubServer) -> list[Callable[[], Any]]:
    model = ChatRAGCache(base_url=stub.base_url, model="m", max_tokens=48)
    chain = model.with_structured_output(Joke)
    return [
        lambda: chain.invoke("Joke?"),
        lambda: list(chain.stream("Joke?"))[-1],
        lambda: asyncio.run(chain.ainvoke("Joke?")),
        lambda: asyncio.run(last(chain.astream("Joke?"))),
    ]


def llama_index_ways(stub: StubServer) -> list[Callable[[], Any]]:
    knobs: dict[str, Any] = {"base_url": stub.base_url, "model": "m", "max_tokens": 48}
    chat, text = (RAGCacheLLM(**knobs, is_chat_model=is_chat) for is_chat in (True, False))
    return [*_llama_index_ways(chat), *_llama_index_ways(text)]


def _llama_index_ways(llm: RAGCacheLLM) -> list[Callable[[], Any]]:
    prompt = PromptTemplate("Joke?")

    async def astream() -> Any:
        return await last(await llm.astream_structured_predict(Joke, prompt))

    return [
        lambda: llm.structured_predict(Joke, prompt),
        lambda: list(llm.stream_structured_predict(Joke, prompt))[-1],
        lambda: asyncio.run(llm.astructured_predict(Joke, prompt)),
        lambda: asyncio.run(astream()),
    ]


FRAMEWORKS = {"langchain": langchain_ways, "llama_index": llama_index_ways}


@pytest.mark.parametrize("ways", FRAMEWORKS.values(), ids=FRAMEWORKS)
@pytest.mark.parametrize("text", WHOLE.values(), ids=WHOLE)
def test_servers_wrap_json_as_they_like(
    stub: StubServer, ways: Callable[[StubServer], list[Callable[[], Any]]], text: str
) -> None:
    stub.reply = replying(text, "stop")
    for way in ways(stub):
        assert Joke.model_validate(way().model_dump()) == EXPECTED


@pytest.mark.parametrize("ways", FRAMEWORKS.values(), ids=FRAMEWORKS)
@pytest.mark.parametrize("text", CUT.values(), ids=CUT)
def test_no_way_of_asking_hides_that_the_length_ran_out(
    stub: StubServer, ways: Callable[[StubServer], list[Callable[[], Any]]], text: str
) -> None:
    stub.reply = replying(text, "length")
    for way in ways(stub):
        with pytest.raises(StructuredOutputError, match="ran out at max_tokens=48") as caught:
            way()
        assert caught.value.text == text


def test_langchain_knows_the_error_and_keeps_the_answer(stub: StubServer) -> None:
    text = CUT["a string"]
    stub.reply = replying(text, "length")
    model = ChatRAGCache(base_url=stub.base_url, model="m")
    with pytest.raises(OutputParserException) as caught:
        model.with_structured_output(Joke, max_tokens=7).invoke("Joke?")
    assert caught.value.llm_output == text
    assert "max_tokens=7" in str(caught.value)
    raw = model.with_structured_output(Joke, include_raw=True).invoke("Joke?")
    assert isinstance(raw, dict)
    assert raw["raw"].content == text
    assert raw["parsed"] is None
    assert isinstance(raw["parsing_error"], StructuredOutputError)


def test_plain_completions_of_llama_index_are_given_as_they_come(stub: StubServer) -> None:
    text = WHOLE["in a fence"]
    stub.reply = replying(text, "length")
    llm = RAGCacheLLM(base_url=stub.base_url, model="m")
    assert llm.complete("Joke?", json_schema=Joke.model_json_schema()).text == text
    assert [piece.text for piece in llm.stream_complete("Joke?")][-1] == text
