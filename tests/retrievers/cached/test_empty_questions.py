"""Questions without words, as a model that rephrases questions may write: as without the cache."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, ClassVar

import pytest
from langchain_classic.chains import create_history_aware_retriever
from langchain_community.vectorstores import FAISS
from langchain_core.language_models import FakeListChatModel
from langchain_core.messages import AIMessage, HumanMessage
from langchain_core.prompts import ChatPromptTemplate
from langchain_core.runnables import RunnableLambda
from langchain_core.vectorstores import VectorStore
from llama_index.core.base.base_retriever import BaseRetriever
from llama_index.core.base.llms.types import ChatMessage
from llama_index.core.chat_engine import CondenseQuestionChatEngine
from llama_index.core.llms import MockLLM
from llama_index.core.memory import ChatMemoryBuffer
from llama_index.core.query_engine import RetrieverQueryEngine
from llama_index.core.schema import NodeWithScore, QueryBundle

from ragcache_integrations.errors import ConfigurationError, EmbeddingError
from ragcache_integrations.retrievers.cached.langchain.retriever import ApproximateCacheRetriever
from ragcache_integrations.retrievers.cached.llama_index import retriever as llama_index
from ragcache_integrations.retrievers.staged.langchain import StagedFaissRetriever
from ragcache_integrations.retrievers.staged.llama_index import (
    StagedFaissRetriever as StagedLlamaIndex,
)
from tests.retrievers.cached.langchain.stores import DIM, STORES, TEXTS, Words, faiss_store
from tests.retrievers.cached.llama_index.indexes import Words as LlamaWords
from tests.retrievers.cached.llama_index.indexes import faiss_index, nodes, words_of
from tests.retrievers.staged import stores as staged_world

EMPTY = ("", "  ", "\n\u200b\u00a0")
NO_WORDS = [0.0] * DIM

empty = pytest.mark.parametrize("text", EMPTY)


class Counted(Words):
    """Sees words alone: an empty text has none, and the zero vector."""

    def embed_query(self, text: str) -> list[float]:
        return super().embed_query(text) if text.strip() else NO_WORDS


class LlamaCounted(LlamaWords):
    def _get_query_embedding(self, query: str) -> list[float]:
        return super()._get_query_embedding(query) if query.strip() else NO_WORDS


def counted_stores() -> list[FAISS]:
    return [
        FAISS.from_texts(TEXTS, Counted()),
        FAISS.from_texts(TEXTS, Counted(), normalize_L2=True),
    ]


class TestLangChain:
    @empty
    @pytest.mark.parametrize("make", STORES.values(), ids=STORES)
    async def test_a_store_is_asked_as_for_any_text(
        self, make: Callable[[], VectorStore], text: str
    ) -> None:
        store = make()
        retriever = ApproximateCacheRetriever.from_vectorstore(store, tolerance=0)
        expected = store.as_retriever().invoke(text)
        assert retriever.invoke(text) == expected
        assert await retriever.ainvoke(text) == expected
        assert (retriever.stats().hits, retriever.stats().misses) == (1, 1)
        assert retriever.explain(text).hit

    async def test_an_empty_text_is_another_than_a_blank(self) -> None:
        retriever = ApproximateCacheRetriever.from_vectorstore(faiss_store(), tolerance=0)
        assert len({one[0].page_content for one in map(retriever.invoke, EMPTY)}) == len(EMPTY)
        assert retriever.stats().misses == len(EMPTY)

    @empty
    async def test_an_empty_rephrasing(self, text: str) -> None:
        store = faiss_store()
        prompt = ChatPromptTemplate.from_messages(
            [("placeholder", "{chat_history}"), ("human", "{input}")]
        )
        asked = {"input": "and this", "chat_history": [HumanMessage("hi"), AIMessage("ho")]}

        def chain(retriever: Any) -> Any:
            return create_history_aware_retriever(
                FakeListChatModel(responses=[text]), retriever, prompt
            )

        expected = chain(store.as_retriever()).invoke(asked)
        ours = chain(ApproximateCacheRetriever.from_vectorstore(store))
        assert ours.invoke(asked) == await ours.ainvoke(asked) == expected
        staged = chain(StagedFaissRetriever.from_vectorstore(store))
        assert staged.invoke(asked) == await staged.ainvoke(asked) == expected

    @pytest.mark.parametrize("text", EMPTY[:2])
    async def test_an_embedding_of_zero_is_searched_and_never_cached(self, text: str) -> None:
        for store in counted_stores():
            retriever = ApproximateCacheRetriever.from_vectorstore(store, tolerance=1e9)
            expected = store.as_retriever().invoke(text)
            retriever.invoke("question")
            assert retriever.invoke(text) == retriever.invoke(text) == expected
            assert await retriever.ainvoke(text) == expected
            stats = retriever.stats()
            assert (stats.hits, stats.misses, stats.store_calls) == (0, 4, 4)
            assert stats.cache is not None
            assert stats.cache.entries == 1
            explained = await retriever.aexplain(text)
            assert explained == retriever.explain(text)
            assert not explained.hit
            assert "empty text" in explained.reason

    def test_an_embedding_of_zero_in_stages(self) -> None:
        store = FAISS.from_texts(TEXTS, Counted())
        expected = store.as_retriever().invoke("")
        staged = StagedFaissRetriever.from_vectorstore(store)
        assert staged.invoke("") == expected
        cached = ApproximateCacheRetriever.from_retriever(staged)
        assert [list(stage.documents) for stage in cached.stages("")][-1] == expected

    def test_of_any_other_text_it_is_a_fault(self) -> None:
        class Broken(Words):
            def embed_query(self, text: str) -> list[float]:
                return NO_WORDS

        retriever = ApproximateCacheRetriever.from_vectorstore(faiss_store(), Broken())
        with pytest.raises(EmbeddingError, match="must not be zero"):
            retriever.invoke("question")

    async def test_a_wrapped_retriever_hears_of_it(self) -> None:
        asked: list[str] = []

        def answer(query: str) -> list[Any]:
            asked.append(query)
            return []

        retriever = ApproximateCacheRetriever.from_retriever(RunnableLambda(answer), Words())
        assert retriever.invoke("") == await retriever.ainvoke(" ") == []
        assert asked == ["", " "]


def plainly(retriever: BaseRetriever, text: str) -> Any:
    """What a retriever answers, or the kind of its error."""
    try:
        return retriever.retrieve(text)
    except Exception as error:
        return type(error)


async def aplainly(retriever: BaseRetriever, text: str) -> Any:
    try:
        return await retriever.aretrieve(text)
    except Exception as error:
        return type(error)


class Keywords(BaseRetriever):
    """Needs no embedding."""

    asked: ClassVar[list[QueryBundle]] = []

    def _retrieve(self, query_bundle: QueryBundle) -> list[NodeWithScore]:
        self.asked.append(query_bundle)
        return [NodeWithScore(node=node, score=1.0) for node in nodes(3)]


class AsyncKeywords(Keywords):
    async def _aretrieve(self, query_bundle: QueryBundle) -> list[NodeWithScore]:
        return self._retrieve(query_bundle)


class TestLlamaIndex:
    """Its retrievers embed no empty text, but a blank; what a store makes of that is its own."""

    @empty
    @pytest.mark.parametrize("kind", ["l2", "ip", "map", "simple"])
    async def test_an_index_is_asked_as_without_us(self, kind: str, text: str) -> None:
        index = faiss_index(kind)
        retriever = llama_index.ApproximateCacheRetriever.from_index(index, tolerance=0)
        expected = plainly(index.as_retriever(), text)
        words_of(index).queries.clear()
        assert plainly(retriever, text) == await aplainly(retriever, text) == expected
        if text:
            assert len(expected) == 2
            assert (retriever.stats().hits, retriever.stats().misses) == (1, 1)
        else:
            assert not words_of(index).queries
            assert retriever.stats().failures == 2

    @empty
    async def test_an_empty_rephrasing(self, text: str) -> None:
        index = faiss_index()
        history = [ChatMessage(role="user", content="hi"), ChatMessage(role="user", content="ho")]

        class Rephrasing(MockLLM):
            def complete(self, prompt: str, *args: Any, **kwargs: Any) -> Any:
                answer = super().complete(prompt, *args, **kwargs)
                answer.text = text
                return answer

        def sources(retriever: BaseRetriever) -> Sequence[NodeWithScore]:
            engine = CondenseQuestionChatEngine.from_defaults(
                RetrieverQueryEngine.from_args(retriever, llm=MockLLM()),
                llm=Rephrasing(max_tokens=None),
                memory=ChatMemoryBuffer.from_defaults(history),
            )
            sources: Sequence[NodeWithScore] = engine.chat("and this").source_nodes
            return sources

        def outcome(retriever: BaseRetriever) -> Any:
            try:
                return sources(retriever)
            except Exception as error:
                return type(error)

        ours = llama_index.ApproximateCacheRetriever.from_index(index)
        assert outcome(ours) == outcome(index.as_retriever())
        assert (ours.stats().misses == 1) is bool(text)

    @pytest.mark.parametrize("kind", [Keywords, AsyncKeywords])
    async def test_a_retriever_that_needs_no_embedding_answers(self, kind: type[Keywords]) -> None:
        retriever = llama_index.ApproximateCacheRetriever.from_retriever(
            kind(), LlamaWords(), k=2, annotate=True, tolerance=1e9
        )
        retriever.retrieve("question")
        kind.asked.clear()
        found = [retriever.retrieve(""), await retriever.aretrieve("")]
        found.append(list([*retriever.stages("")][-1].documents))
        found += [list(astage.documents) async for astage in retriever.astages("")]
        assert [[one.node.node_id for one in answer] for answer in found] == [
            ["node 0", "node 1"]
        ] * 4
        assert found[0][0].node.metadata["query_cache"]["hit"] is False
        assert [(bundle.query_str, bundle.embedding) for bundle in kind.asked] == [("", None)] * 4
        stats = retriever.stats()
        assert (stats.requests, stats.hits, stats.misses, stats.failures) == (5, 0, 5, 0)
        assert stats.cache is not None
        assert stats.cache.entries == 1
        assert stats.cache.lookups == 1
        with pytest.raises(ConfigurationError, match="neither a text to embed nor an embedding"):
            retriever.explain("")
        with pytest.raises(ConfigurationError, match="neither a text to embed nor an embedding"):
            await retriever.aexplain(QueryBundle("", custom_embedding_strs=[]))

    async def test_an_embedding_of_zero_is_searched_and_never_cached(self) -> None:
        index = faiss_index()
        plain = index.as_retriever(embed_model=LlamaCounted())
        retriever = llama_index.ApproximateCacheRetriever.from_index(
            index, LlamaCounted(), tolerance=1e9
        )
        retriever.retrieve("question")
        assert retriever.retrieve(" ") == await retriever.aretrieve(" ") == plain.retrieve(" ")
        assert (retriever.stats().hits, retriever.stats().store_calls) == (0, 3)

    async def test_stages_need_a_vector(self) -> None:
        index = staged_world.llama_index("flat")
        staged = StagedLlamaIndex.from_index(index)
        assert staged.retrieve(" ") == index.as_retriever().retrieve(" ")
        for retriever in (staged, llama_index.ApproximateCacheRetriever.from_retriever(staged)):
            with pytest.raises(ConfigurationError, match="neither a text to embed"):
                retriever.retrieve("")
            with pytest.raises(ConfigurationError, match="neither a text to embed"):
                await retriever.aretrieve("")
