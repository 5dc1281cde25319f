"""LLM objects that start an engine of their own: late, once, and not left behind."""

from __future__ import annotations

import asyncio
import pickle
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import psutil
import pytest
from blockbuster import BlockBuster
from llama_index.core.schema import NodeWithScore, TextNode

from ragcache_integrations.engine import RAGCacheEngine
from ragcache_integrations.errors import EngineClosedError
from ragcache_integrations.langchain import StuffSynthesis
from ragcache_integrations.llama_index import StuffSynthesis as LlamaIndexSynthesis
from ragcache_integrations.llms.langchain.models import ChatRAGCache
from ragcache_integrations.llms.llama_index import RAGCacheLLM

pytestmark = pytest.mark.engine

ARGUMENTS: dict[str, Any] = {
    "kv_cache_gib": 0.25,
    "dtype": "float32",
    "max_model_len": 512,
    "vllm_args": {"enforce_eager": True},
    "max_tokens": 4,
}


def engine_of(llm: ChatRAGCache | RAGCacheLLM) -> RAGCacheEngine:
    backend = llm._source.get()
    assert isinstance(backend, RAGCacheEngine)
    return backend


async def test_one_engine_for_all_who_ask_for_it(no_blocking: BlockBuster) -> None:
    """Threads, tasks and both frameworks at once, at first use."""
    before = set(psutil.Process().children())
    chat, llm = ChatRAGCache(**ARGUMENTS), RAGCacheLLM(**ARGUMENTS, temperature=0.5, seed=1)
    assert set(psutil.Process().children()) == before
    with ThreadPoolExecutor(4) as pool:
        loop = asyncio.get_running_loop()
        said = await asyncio.gather(
            *(loop.run_in_executor(pool, chat.invoke, "Hello") for _ in range(4)),
            *(chat.ainvoke("Hello") for _ in range(20)),
        )
        answers = await asyncio.gather(
            *(loop.run_in_executor(pool, llm.complete, "Hello") for _ in range(4)),
            *(llm.acomplete("Hello") for _ in range(20)),
        )
    assert len({message.content for message in said}) == 1
    assert len({answer.text for answer in answers}) == 1
    assert engine_of(chat) is engine_of(llm)
    assert engine_of(chat).max_model_len == llm.metadata.context_window == 512
    engine = engine_of(chat)
    (process,) = set(psutil.Process().children()) - before
    assert process.pid == engine.pid

    await chat.aclose()
    with pytest.raises(EngineClosedError):
        await chat.ainvoke("Hello")
    assert (await llm.acomplete("Hello")).text == answers[0].text
    await llm.aclose()
    assert engine.closed
    assert not process.is_running()


def test_a_pickled_chain_starts_its_engine_again() -> None:
    values = {"context": ["Cats purr."], "question": "Who purrs?"}
    with ChatRAGCache(**ARGUMENTS) as chat:
        chain = StuffSynthesis(llm=chat)
        answer = chain.invoke(values)["output_text"]
        first = engine_of(chat)
        stored = pickle.dumps(chain)
    assert first.closed
    restored = pickle.loads(stored)
    with restored.llm as model:
        assert restored.invoke(values)["output_text"] == answer
        assert engine_of(model) is not first
        # Of the other framework, on the same engine.
        with RAGCacheLLM(**ARGUMENTS) as llm:
            nodes = [NodeWithScore(node=TextNode(text="Cats purr."))]
            synthesis = LlamaIndexSynthesis(llm)
            said = str(synthesis.synthesize("Who purrs?", nodes))
            again = pickle.loads(pickle.dumps(synthesis))
        assert str(again.synthesize("Who purrs?", nodes)) == said


def test_collected_it_ends_its_engine() -> None:
    chat = ChatRAGCache(**ARGUMENTS)
    for _ in range(2):  # another event loop each time
        assert asyncio.run(chat.ainvoke("Hello")).content
    process = psutil.Process(engine_of(chat).pid)
    del chat
    process.wait(30)
    assert not process.is_running()
