"""What comes of a call in LangChain: structured answers, and errors under both names."""

from __future__ import annotations

import asyncio
import traceback
from typing import Any

import pytest
from langchain_core import exceptions as core
from langchain_core.exceptions import OutputParserException
from pydantic import BaseModel

from ragcache_integrations import errors
from ragcache_integrations.engine import RAGCacheEngine
from ragcache_integrations.llms.langchain.models import ChatRAGCache, RAGCacheLLM
from ragcache_integrations.llms.openai import OpenAIServer
from tests.llms.doubles import Exchange, StubServer, answer


def chat_at(stub: StubServer, **knobs: Any) -> ChatRAGCache:
    return ChatRAGCache(base_url=stub.base_url, model="m", **{"max_retries": 0, **knobs})


class Joke(BaseModel):
    setup: str
    punchline: str


JOKE = '{"setup": "Why?", "punchline": "Because."}'


@pytest.mark.parametrize("schema", [Joke, Joke.model_json_schema(), {"type": "object"}])
def test_structured_output(stub: StubServer, schema: Any) -> None:
    """The grammar itself is tested by the standard suite; here, what a server is told."""
    stub.reply = lambda exchange: answer(exchange, JOKE[:10], JOKE[10:])
    with chat_at(stub) as model:
        chain = model.with_structured_output(schema, max_tokens=99)
        expected = Joke(setup="Why?", punchline="Because.")
        said = chain.invoke("Tell me a joke.")
        assert said == (expected if schema is Joke else expected.model_dump())
        *_, last = chain.stream("Tell me a joke.")
        assert last == said
        raw = model.with_structured_output(schema, include_raw=True).invoke("Tell me a joke.")
        assert isinstance(raw, dict)
        assert raw["parsed"] == said
        assert raw["parsing_error"] is None
    body = stub.seen[0].body
    assert body["max_tokens"] == 99
    assert body["response_format"]["json_schema"]["schema"]["type"] == "object"


@pytest.mark.parametrize("schema", [Joke, Joke.model_json_schema()])
def test_structured_output_that_was_cut_off_is_not_mended(stub: StubServer, schema: Any) -> None:
    stub.reply = lambda exchange: answer(exchange, JOKE[:-3])
    with chat_at(stub) as model:
        with pytest.raises(OutputParserException, match="max_tokens"):
            model.with_structured_output(schema).invoke("Tell me a joke.")
        raw = model.with_structured_output(schema, include_raw=True).invoke("Tell me a joke.")
        assert isinstance(raw, dict)
        assert raw["parsed"] is None
        assert isinstance(raw["parsing_error"], OutputParserException)


@pytest.mark.parametrize(
    "arguments",
    [
        {"schema": Joke, "method": "magic"},
        {"schema": Joke, "typo": 1},
        {"schema": {"no": "schema"}},
    ],
)
def test_structured_output_of_what_is_no_schema(arguments: dict[str, Any]) -> None:
    model = ChatRAGCache(base_url="http://127.0.0.1:1/v1", model="m")
    with pytest.raises(errors.ConfigurationError):
        model.with_structured_output(**arguments)


# What goes wrong


REFUSALS = {
    400: core.ModelInvalidRequestError,
    401: core.ModelAuthenticationError,
    403: core.ModelPermissionDeniedError,
    404: core.ModelNotFoundError,
    422: core.ModelInvalidRequestError,
    429: core.ModelRateLimitError,
    500: core.ModelAPIError,
    503: core.ModelAPIError,
}


async def every_way(llm: ChatRAGCache | RAGCacheLLM, kind: type[Exception]) -> list[Exception]:
    async def astream() -> None:
        async for _ in llm.astream("x"):
            pass

    caught = []
    for call in (lambda: llm.invoke("x"), lambda: list(llm.stream("x"))):
        with pytest.raises(kind) as sync:
            await asyncio.to_thread(call)
        caught.append(sync.value)
    for coroutine in (llm.ainvoke("x"), astream()):
        with pytest.raises(kind) as asynchronous:
            await coroutine
        caught.append(asynchronous.value)
    return caught


@pytest.mark.parametrize("kind", [ChatRAGCache, RAGCacheLLM])
@pytest.mark.parametrize("status", REFUSALS)
async def test_refusals_are_ours_and_langchains(
    stub: StubServer, kind: type[ChatRAGCache | RAGCacheLLM], status: int
) -> None:
    stub.reply = lambda exchange: exchange.send({"error": {"message": "not today"}}, status)
    async with kind(base_url=stub.base_url, model="m", max_retries=0) as llm:
        for error in await every_way(llm, errors.ServerResponseError):
            assert isinstance(error, errors.ServerResponseError)
            assert isinstance(error, REFUSALS[status])
            assert error.status_code == status
            assert "not today" in str(error)
            shown = "".join(traceback.format_exception(error))
            assert "errors._" not in shown, "no name of a private class"
            assert not isinstance(error.__cause__, errors.RAGCacheError), "it is shown once"


@pytest.mark.parametrize("kind", [ChatRAGCache, RAGCacheLLM])
async def test_servers_out_of_reach(
    stub: StubServer, refused_url: str, kind: type[ChatRAGCache | RAGCacheLLM]
) -> None:
    async with kind(base_url=refused_url, model="m", max_retries=0) as llm:
        for error in await every_way(llm, errors.ServerUnreachableError):
            assert isinstance(error, core.ModelConnectionError)
    stub.reply = Exchange.hang
    async with kind(base_url=stub.base_url, model="m", max_retries=0, timeout=0.1) as llm:
        for error in await every_way(llm, errors.ServerTimeoutError):
            assert isinstance(error, core.ModelTimeoutError)
            assert isinstance(error, TimeoutError)


OVERFLOW = {"message": "Your input exceeds the context window.", "code": "context_length_exceeded"}


@pytest.mark.parametrize("kind", [ChatRAGCache, RAGCacheLLM])
@pytest.mark.parametrize("status", [200, 400, 413, 422])
async def test_a_prompt_too_long_for_a_server_is_ours_and_langchains(
    stub: StubServer, kind: type[ChatRAGCache | RAGCacheLLM], status: int
) -> None:
    stub.reply = lambda exchange: exchange.send({"error": OVERFLOW}, status)
    async with kind(base_url=stub.base_url, model="m", max_retries=0) as llm:
        for error in await every_way(llm, core.ContextOverflowError):
            assert isinstance(error, errors.PromptTooLongError)
            assert OVERFLOW["message"] in str(error)
            assert (error.prompt_tokens, error.max_prompt_tokens) == (None, None)


def test_the_profile_has_the_window_if_it_is_known() -> None:
    place: dict[str, Any] = {"base_url": "http://127.0.0.1:1/v1", "model": "m"}
    assert ChatRAGCache(**place).profile is None, "nothing is asked"
    model = ChatRAGCache(**place, max_model_len=4096)
    assert model.profile is not None
    assert model.profile["max_input_tokens"] == 4096
    longer = model.model_copy(update={"max_model_len": 8192})
    assert longer.profile is not None
    assert longer.profile["max_input_tokens"] == 8192
    own = ChatRAGCache(**place, max_model_len=4096, profile={"max_input_tokens": 1000})
    assert own.profile == {"max_input_tokens": 1000}
    copied = own.model_copy(update={"max_model_len": 8192})
    assert copied.profile == {"max_input_tokens": 1000}
    assert ChatRAGCache(max_model_len=2048).profile is not None
    server = OpenAIServer("http://127.0.0.1:1/v1", "m")
    assert ChatRAGCache(engine=server).profile is None, "nothing is asked"


@pytest.mark.engine
def test_the_profile_of_an_engine_that_runs(engine: RAGCacheEngine) -> None:
    model = ChatRAGCache(engine=engine)
    assert model.profile is not None
    assert model.profile["max_input_tokens"] == engine.max_model_len


@pytest.mark.parametrize("trigger", [("fraction", 0.5), ("tokens", 50)])
async def test_langchains_middleware_summarises(stub: StubServer, trigger: Any) -> None:
    agents = pytest.importorskip("langchain.agents")
    middleware = pytest.importorskip("langchain.agents.middleware")
    asked: list[str] = []

    def reply(exchange: Exchange) -> None:
        text = str(exchange.body["messages"])
        asked.append(text)
        if len(text) > 1500:  # the first summary is of too much
            exchange.send({"error": OVERFLOW}, 400)
        else:
            answer(exchange, "A summary." if "xtract" in text else "Fine.")

    stub.reply = reply
    model = chat_at(stub, max_model_len=600)
    summary = middleware.SummarizationMiddleware(
        model, trigger=trigger, keep=("messages", 1), summary_prompt="Extract: {messages}"
    )
    agent = agents.create_agent(model, [], middleware=[summary])
    history = [("user", "word " * 300), ("assistant", "Yes. " * 60), ("user", "And now?")]
    for state in (
        await asyncio.to_thread(agent.invoke, {"messages": history}),
        await agent.ainvoke({"messages": history}),
    ):
        assert state["messages"][-1].content == "Fine."
        assert "A summary." in str(state["messages"][0].content)


@pytest.mark.engine
@pytest.mark.parametrize("kind", [ChatRAGCache, RAGCacheLLM])
async def test_the_engines_errors(
    engine: RAGCacheEngine, kind: type[ChatRAGCache | RAGCacheLLM]
) -> None:
    llm = kind(engine=engine, max_tokens=2)
    with pytest.raises(core.ContextOverflowError) as caught:
        await llm.ainvoke("word " * engine.max_model_len)
    assert isinstance(caught.value, errors.PromptTooLongError)
    assert (caught.value.max_prompt_tokens or 0) < engine.max_model_len
    assert (caught.value.prompt_tokens or 0) >= engine.max_model_len
    with pytest.raises(core.ModelTimeoutError) as late:
        await llm.ainvoke("Hello", timeout=1e-6)
    assert isinstance(late.value, errors.GenerationTimeoutError)


@pytest.mark.engine
def test_a_closed_llm_leaves_a_given_engine_open(engine: RAGCacheEngine) -> None:
    with ChatRAGCache(engine=engine, max_tokens=2) as model:
        model.invoke("Hello")
    with pytest.raises(errors.EngineClosedError):
        model.invoke("Hello")
    assert not engine.closed
