"""An engine that dies while its answer is guessed at: the error is clear, and nothing hangs."""

from __future__ import annotations

import asyncio
import os
import signal
import threading
from collections.abc import Iterator

import pytest

from ragcache_integrations.chains.speculative.langchain import SpeculativeRAG
from ragcache_integrations.chains.speculative.llama_index import SpeculativeQueryEngine
from ragcache_integrations.engine import RAGCacheEngine
from ragcache_integrations.errors import EngineDeadError
from ragcache_integrations.llms.langchain.models import ChatRAGCache
from ragcache_integrations.llms.llama_index import RAGCacheLLM
from tests.speculation.doubles import assert_no_threads

from .scripted import Scripted, ScriptedNodes

pytestmark = [pytest.mark.engine, pytest.mark.timeout(300)]


@pytest.fixture(scope="module")
def mortal() -> Iterator[RAGCacheEngine]:
    arguments = {"enforce_eager": True}
    with RAGCacheEngine(
        kv_cache_gib=0.1, dtype="float32", max_restarts=0, vllm_args=arguments
    ) as engine:
        yield engine


async def test_every_kind_of_call_says_so(mortal: RAGCacheEngine) -> None:
    chain = SpeculativeRAG(
        retriever=Scripted(plan=["ab", "cd", "cd", "ef"], wait=0.2),
        llm=ChatRAGCache(engine=mortal, max_tokens=500),
    )
    query_engine = SpeculativeQueryEngine(
        ScriptedNodes(["ab", "cd", "cd", "ef"], wait=0.2),
        llm=RAGCacheLLM(engine=mortal, max_tokens=500),
    )
    killer = threading.Timer(0.5, os.kill, (mortal.pid, signal.SIGKILL))
    killer.start()
    calls = [chain.ainvoke("why"), query_engine.aquery("why")]
    calls += [asyncio.to_thread(chain.invoke, "why"), asyncio.to_thread(query_engine.query, "why")]
    for error in await asyncio.gather(*calls, return_exceptions=True):
        assert isinstance(error, EngineDeadError)
    killer.join()
    with pytest.raises(EngineDeadError):
        chain.invoke("why")
    await asyncio.to_thread(assert_no_threads)
    assert asyncio.all_tasks() == {asyncio.current_task()}
