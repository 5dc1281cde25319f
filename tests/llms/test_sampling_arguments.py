"""What a call may say besides its prompt: limits, penalties and headers, in both frameworks."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from ragcache_integrations.adaptive import EngineAsker
from ragcache_integrations.adaptive.asker import DEFAULT_ANSWER_TOKENS
from ragcache_integrations.chains.asker_langchain import LangChainModel
from ragcache_integrations.chains.asker_llama_index import LlamaIndexAsker
from ragcache_integrations.engine import RAGCacheEngine, SamplingOptions
from ragcache_integrations.errors import ConfigurationError
from ragcache_integrations.llms import llama_index
from ragcache_integrations.llms.langchain import ChatRAGCache, RAGCacheLLM

from .doubles import StubServer

KINDS: dict[str, Callable[..., Any]] = {
    "chat": ChatRAGCache,
    "text": RAGCacheLLM,
    "llama_index": llama_index.RAGCacheLLM,
}
every_kind = pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)


def at(stub: StubServer, kind: Callable[..., Any], **knobs: Any) -> Any:
    return kind(base_url=stub.base_url, model="m", **{"max_retries": 0, **knobs})


def ask_in_every_way(llm: Any, **call: Any) -> None:
    """Ask whole and in pieces, in threads and in a loop."""

    async def in_loop() -> None:
        if isinstance(llm, llama_index.RAGCacheLLM):
            await llm.acomplete("why", **call)
            _ = [chunk async for chunk in await llm.astream_complete("why", **call)]
        else:
            await llm.ainvoke("why", **call)
            _ = [chunk async for chunk in llm.astream("why", **call)]

    if isinstance(llm, llama_index.RAGCacheLLM):
        llm.complete("why", **call)
        list(llm.stream_complete("why", **call))
    else:
        llm.invoke("why", **call)
        list(llm.stream("why", **call))
    asyncio.run(in_loop())


class TestNoLimit:
    @every_kind
    def test_it_is_a_knob_and_an_argument(self, stub: StubServer, kind: Callable[..., Any]) -> None:
        ask_in_every_way(at(stub, kind, max_tokens=None))
        ask_in_every_way(at(stub, kind), max_tokens=None)
        ask_in_every_way(at(stub, kind, max_tokens=None), max_tokens=3)
        said = None if kind is RAGCacheLLM else "left out"
        assert [seen.body.get("max_tokens", "left out") for seen in stub.seen] == [
            *[said] * 8,
            *[3] * 4,
        ]

    def test_frameworks_and_askers_leave_some_room(self, stub: StubServer) -> None:
        llama = at(stub, llama_index.RAGCacheLLM, max_tokens=None, max_model_len=2048)
        assert llama.metadata.num_output == -1
        chat = at(stub, ChatRAGCache, max_tokens=None, max_model_len=2048)
        assert "ls_max_tokens" not in chat._get_ls_params()
        for asker in (LangChainModel(chat), LlamaIndexAsker(llama)):
            limits = asker.limits()
            assert (limits.context_window, limits.answer_tokens) == (2048, DEFAULT_ANSWER_TOKENS)

    @pytest.mark.engine
    def test_on_the_engine(self, engine: RAGCacheEngine) -> None:
        assert EngineAsker(engine, SamplingOptions(max_tokens=None)).limits().answer_tokens == (
            DEFAULT_ANSWER_TOKENS
        )
        said = "an answer of more than three tokens, surely"
        for kind in KINDS.values():
            for many, given in ((3, False), (None, True)):
                llm = kind(engine=engine, max_tokens=many)
                ask = llm.complete if kind is llama_index.RAGCacheLLM else llm.invoke
                answer = ask("why", choice=(said,))
                text = answer if isinstance(answer, str) else answer.text
                assert (text == said) is given


class TestPenalties:
    @every_kind
    def test_they_are_knobs_and_arguments(self, stub: StubServer, kind: Callable[..., Any]) -> None:
        own = {"frequency_penalty": 0.5, "repetition_penalty": 1.1}
        ask_in_every_way(at(stub, kind, **own), presence_penalty=-0.25)
        ask_in_every_way(at(stub, kind, **own), frequency_penalty=0.0, repetition_penalty=1.0)
        said = [
            {name: value for name, value in seen.body.items() if name.endswith("_penalty")}
            for seen in stub.seen
        ]
        assert said == [{**own, "presence_penalty": -0.25}] * 4 + [{}] * 4

    @every_kind
    def test_bad_ones_are_refused(self, stub: StubServer, kind: Callable[..., Any]) -> None:
        with pytest.raises(ConfigurationError, match=r"frequency_penalty must be .*from -2 to 2"):
            at(stub, kind, frequency_penalty=2.5)
        with pytest.raises(ConfigurationError, match="repetition_penalty must be above 0"):
            ask_in_every_way(at(stub, kind), repetition_penalty=0)
        assert not stub.seen

    @pytest.mark.engine
    def test_on_the_engine(self, engine: RAGCacheEngine) -> None:
        for kind in KINDS.values():
            texts = []
            for penalty in (0.0, -2.0):
                llm = kind(engine=engine, max_tokens=40, frequency_penalty=penalty)
                ask = llm.complete if kind is llama_index.RAGCacheLLM else llm.invoke
                answer = ask("a a a a a a a", ignore_eos=True)
                texts.append(answer if isinstance(answer, str) else str(answer.text))
            many, few = (len(set(text.split())) for text in texts)
            assert few < many
