"""Pins and priorities through the LLM classes of both frameworks."""

from __future__ import annotations

import pytest
from langchain_core.documents import Document
from llama_index.core.schema import TextNode

from ragcache_integrations import langchain, llama_index
from ragcache_integrations.engine import RAGCacheEngine
from ragcache_integrations.errors import ConfigurationError

TEXT = "The moon is 384,400 km away from the earth, and goes around it in 27 days. " * 3


@pytest.mark.engine
async def test_documents_of_the_frameworks_are_pinned(engine: RAGCacheEngine) -> None:
    chat = langchain.ChatRAGCache(engine=engine, namespace="pins", max_tokens=1)
    llm = llama_index.RAGCacheLLM(engine=engine, namespace="pins", max_tokens=1)
    for model, documents in ((chat, [Document(TEXT)]), (llm, [TextNode(text=TEXT)])):
        assert model.pin(documents, ttl=100).prompt_tokens > 32
        tree = await engine.atree()
        assert tree is not None
        assert {root.name for root in tree.roots if root.pinned} == {"pins"}
        assert not await model.aunpin(documents, namespace="another")
        assert await model.aunpin(documents)
        assert (await model.apin(documents)).cached_tokens > 0
        assert model.unpin(documents)
    assert chat.invoke("Hello", priority=-1).response_metadata["finish_reason"]
    with pytest.raises(ConfigurationError, match="priority must be"):
        chat.invoke("Hello", priority="high")


def test_a_server_is_sent_the_field() -> None:
    model = langchain.ChatRAGCache(base_url="http://127.0.0.1:9/v1", model="any")
    with pytest.raises(ConfigurationError, match="got OpenAIServer: send the field `pin`"):
        model.pin([Document(TEXT)])


def test_wrong_quotas() -> None:
    for kind in (langchain.ChatRAGCache, llama_index.RAGCacheLLM):
        with pytest.raises(ConfigurationError, match=r"at most 1 together, got 1\.5"):
            kind(quotas={"a": 0.75, "b": 0.75})
