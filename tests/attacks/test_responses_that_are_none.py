"""Responses of LlamaIndex that are none are not kept: the next who asks gets an answer."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest
from llama_index.core.base.response.schema import (
    PydanticResponse,
    Response,
)
from llama_index.core.llms import CompletionResponse, CustomLLM, LLMMetadata
from llama_index.core.llms.callbacks import llm_completion_callback
from llama_index.core.query_engine import RetrieverQueryEngine
from llama_index.core.response_synthesizers import get_response_synthesizer
from llama_index.core.tools import FunctionTool, ToolOutput

from ragcache_integrations import llama_index as llama
from tests.attacks.scripted import (
    GOOD,
    HALF,
    QUESTION,
    SCRIPTS,
    Page,
    Script,
    ask_llama,
    llama_cached,
    scripted,
    stream_of,
)

LLAMA_NONE: dict[str, Any] = {
    "empty": "",
    "white space": " \n",
    "None": None,
    "Empty Response": "Empty Response",
    "Empty Response, with a full stop": " Empty Response\n",
    "no object": lambda: PydanticResponse(response=None),
    "empty stream": stream_of(),
    "stream of nothing": stream_of("", " ", ""),
    "stream of Empty Response": stream_of("Empty Response"),
    "stream of Empty Response, in pieces": stream_of("Empty ", "Response"),
}


@pytest.mark.parametrize("later", [False, True])
@pytest.mark.parametrize("bad", LLAMA_NONE)
def test_a_response_that_is_none_is_not_served(bad: str, later: bool) -> None:
    cached, script = scripted(LLAMA_NONE[bad], GOOD)
    ask_llama(cached, later)
    assert ask_llama(cached, later) == GOOD
    assert ask_llama(cached, later) == GOOD
    assert script.count == 2


@pytest.mark.parametrize("later", [False, True])
@pytest.mark.parametrize(
    "good",
    [GOOD, "no", "0", "An Empty Response is what the server sends.", stream_of("The fee ", "is 5")],
    ids=["text", "no", "0", "what speaks of it", "stream"],
)
def test_a_response_that_is_one_is_kept(good: Any, later: bool) -> None:
    cached, script = scripted(good, "another answer")
    first = ask_llama(cached, later)
    assert ask_llama(cached, later) == first != "another answer"
    assert script.count == 1


@pytest.mark.parametrize("later", [False, True])
def test_a_stream_of_llama_index_that_breaks_midway(later: bool) -> None:
    cached, script = scripted(stream_of("The fee ", ConnectionError("reset")), GOOD)
    with pytest.raises(ConnectionError):
        ask_llama(cached, later)
    assert ask_llama(cached, later) == GOOD
    assert ask_llama(cached, later) == GOOD
    assert script.count == 2


def test_a_stream_of_llama_index_that_its_reader_leaves() -> None:
    cached, _ = scripted(stream_of("The fee ", "is 5 euro."), GOOD)
    response: Any = cached.query(QUESTION)
    next(iter(response.response_gen))
    response.response_gen.close()
    assert ask_llama(cached, later=False) == GOOD


@pytest.mark.parametrize("later", [False, True])
def test_an_error_of_llama_index_is_not_kept(later: bool) -> None:
    cached, _ = scripted(RuntimeError("down"), GOOD)
    with pytest.raises(RuntimeError):
        ask_llama(cached, later)
    assert ask_llama(cached, later) == GOOD


class Untold(CustomLLM):
    """Answers as its script has it, a text and how it ended, of which LlamaIndex hears nothing."""

    number: int

    @property
    def metadata(self) -> LLMMetadata:
        return LLMMetadata()

    def _fields(self, end: str) -> dict[str, Any]:
        choice = {"index": 0, "finish_reason": end, "message": {"role": "assistant"}}
        return {"raw": {"choices": [choice]}, "additional_kwargs": {"finish_reason": end}}

    def complete(self, prompt: str, formatted: bool = False, **_: Any) -> CompletionResponse:
        text, end = SCRIPTS[self.number].next()
        return CompletionResponse(text=text, **self._fields(end))

    def stream_complete(self, prompt: str, formatted: bool = False, **_: Any) -> Any:
        (text, end), given = SCRIPTS[self.number].next(), ""
        for word in text.split(" "):
            given += f"{word} "
            yield CompletionResponse(text=given, delta=f"{word} ", **self._fields(""))
        yield CompletionResponse(text=given, delta="", **self._fields(end))


class LlamaModel(Untold):
    """Says how it ended as servers' classes do: by LlamaIndex's events, as docs/answers.md asks."""

    @llm_completion_callback()
    def complete(self, prompt: str, formatted: bool = False, **more: Any) -> CompletionResponse:
        return super().complete(prompt, formatted, **more)

    @llm_completion_callback()
    def stream_complete(self, prompt: str, formatted: bool = False, **more: Any) -> Any:
        return super().stream_complete(prompt, formatted, **more)

    @llm_completion_callback()
    async def astream_complete(self, prompt: str, formatted: bool = False, **more: Any) -> Any:
        async def later() -> AsyncIterator[CompletionResponse]:
            for piece in Untold.stream_complete(self, prompt, formatted, **more):
                yield piece

        return later()


@pytest.mark.parametrize("later", [False, True])
@pytest.mark.parametrize("streaming", [False, True])
@pytest.mark.parametrize(
    ("text", "end"), [(HALF, "length"), (HALF, "content_filter"), ("", "stop")]
)
def test_a_model_of_llama_index_that_was_stopped_short(
    text: str, end: str, streaming: bool, later: bool
) -> None:
    SCRIPTS.append(Script((text, end), (GOOD, "stop")))
    script = SCRIPTS[-1]
    model = LlamaModel(number=len(SCRIPTS) - 1)
    synthesizer = get_response_synthesizer(llm=model, streaming=streaming)
    cached = llama_cached(RetrieverQueryEngine(Page(), response_synthesizer=synthesizer))
    ask_llama(cached, later)
    assert ask_llama(cached, later).strip() == GOOD
    assert ask_llama(cached, later).strip() == GOOD
    assert script.count == 2


@pytest.mark.parametrize("later", [False, True])
def test_what_a_model_does_not_report_is_for_keep_to_see(later: bool) -> None:
    """A class without LlamaIndex's decorators reports nothing, which docs/answers.md says."""
    SCRIPTS.append(Script((HALF, "length"), (GOOD, "stop")))
    model = Untold(number=len(SCRIPTS) - 1)
    engine = RetrieverQueryEngine(Page(), response_synthesizer=get_response_synthesizer(llm=model))
    cached = llama_cached(engine, keep=lambda response: not str(response).endswith(","))
    ask_llama(cached, later)
    assert ask_llama(cached, later) == GOOD
    assert ask_llama(cached, later) == GOOD
    assert SCRIPTS[-1].count == 2


@pytest.mark.parametrize("later", [False, True])
@pytest.mark.parametrize("streaming", [False, True])
def test_nothing_was_found_and_then_something(streaming: bool, later: bool) -> None:
    """LlamaIndex's own words for no nodes are not looked up as an answer."""
    SCRIPTS.append(Script((GOOD, "stop")))
    model = LlamaModel(number=len(SCRIPTS) - 1)
    synthesizer = get_response_synthesizer(llm=model, streaming=streaming and not later)
    nothing = Page(found=0)
    cached = llama_cached(RetrieverQueryEngine(nothing, response_synthesizer=synthesizer))
    assert ask_llama(cached, later).strip() == "Empty Response"
    ask_llama(cached, later)
    assert cached.stats().hits == 0


@pytest.mark.parametrize("later", [False, True])
@pytest.mark.parametrize(
    "bad",
    [
        lambda: ToolOutput(
            tool_name="look_up", content="down", raw_input={}, raw_output="down", is_error=True
        ),
        lambda: "",
        lambda: None,
        list,
        lambda: " \n",
        lambda: Response("Empty Response"),
        lambda: Response(None),
        lambda: Response(""),
        lambda: CompletionResponse(text=""),
    ],
    ids=[
        *("error", "empty", "None", "empty list", "white space", "Empty Response"),
        *("response of None", "empty response", "empty completion"),
    ],
)
def test_a_tool_of_llama_index_that_found_nothing(bad: Any, later: bool) -> None:
    script = Script(bad, lambda: GOOD)
    plain = FunctionTool.from_defaults(
        lambda query: script.next()(), name="look_up", description="d"
    )
    tool = llama.cached_tool(plain)

    def ask() -> Any:
        return asyncio.run(tool.acall(query=QUESTION)) if later else tool.call(query=QUESTION)

    ask()
    assert ask().raw_output == GOOD
    assert ask().raw_output == GOOD
    assert script.count == 2
