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
