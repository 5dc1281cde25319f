"""Filters that hide within what is wrapped, or stand behind a name that was given for another."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from typing import Any

import pytest
from langchain_core.documents import Document
from langchain_core.retrievers import BaseRetriever
from langchain_core.runnables import (
    ConfigurableField,
    RunnableBranch,
    RunnableConfig,
    RunnableLambda,
    RunnableParallel,
    RunnablePassthrough,
)
from langchain_core.vectorstores import InMemoryVectorStore
from llama_index.core.base.base_retriever import BaseRetriever as LlamaIndexBase
from llama_index.core.retrievers import RecursiveRetriever
from llama_index.core.schema import NodeWithScore, QueryBundle, TextNode
from llama_index.core.vector_stores import MetadataFilter, MetadataFilters
from pydantic import PrivateAttr

from ragcache_integrations.retrievers.cached.langchain.retriever import ApproximateCacheRetriever
from ragcache_integrations.retrievers.cached.llama_index.retriever import (
    ApproximateCacheRetriever as LlamaIndexRetriever,
)
from ragcache_integrations.retrievers.keys.wrapped_settings import UNREAD, wrapped_settings
from tests.retrievers.cached.langchain.stores import Words
from tests.retrievers.cached.llama_index.indexes import Words as LlamaIndexWords
from tests.retrievers.cached.llama_index.indexes import index_over

TENANT: ContextVar[str] = ContextVar("hidden_tenant", default="nobody")
TENANTS = ("ann", "bob", "ann")
QUESTION = "what is the salary"


@pytest.fixture(autouse=True)
def _tenant() -> Iterator[None]:
    token = TENANT.set("nobody")
    yield
    TENANT.reset(token)


def mine(document: Document) -> bool:
    return bool(document.metadata["tenant"] == TENANT.get())


def store() -> InMemoryVectorStore:
    texts = [f"the salary of {tenant}" for tenant in ("ann", "bob")]
    metadata = [{"tenant": tenant} for tenant in ("ann", "bob")]
    return InMemoryVectorStore.from_texts(texts, Words(), metadatas=metadata)


def plain() -> Any:
    return store().as_retriever(search_kwargs={"filter": mine})


class OfParts(BaseRetriever):
    """Holds retrievers, filters and functions in its own ways."""

    parts: dict[str, Any] = {}  # noqa: RUF012 - pydantic copies it
    predicate: Any = None
    _hidden: Any = PrivateAttr(default=None)

    def _get_relevant_documents(self, query: str, **_: Any) -> list[Document]:
        found = [one for part in self.parts.values() for one in part.invoke(query)]
        if self._hidden is not None:
            found += self._hidden.invoke(query)
        if self.predicate is not None:
            found += [one for one in store().similarity_search(query) if self.predicate(one)]
        return found


def nested(depth: int) -> Any:
    retriever = plain()
    for _ in range(depth):
        retriever = OfParts(parts={"inner": retriever})
    return retriever


def hidden() -> Any:
    retriever = OfParts()
    retriever._hidden = plain()
    return retriever


def around_global() -> Any:
    return RunnableLambda(lambda query: GLOBAL.invoke(query)[:4])


def around_closure() -> Any:
    inner = plain()
    return RunnableLambda(lambda query: inner.invoke(query)[:4])


GLOBAL = plain()
WRAPPED: dict[str, Callable[[], Any]] = {
    "configured": lambda: (
        store()
        .as_retriever()
        .configurable_fields(search_kwargs=ConfigurableField(id="search"))
        .with_config(configurable={"search": {"filter": mine}})
    ),
    "parallel": lambda: RunnableParallel(a=plain()) | RunnableLambda(lambda found: found["a"]),
    "assign": lambda: (
        RunnableLambda(lambda query: {"query": query})
        | RunnablePassthrough.assign(a=RunnableLambda(lambda one: one["query"]) | plain())
        | RunnableLambda(lambda found: found["a"])
    ),
    "branch": lambda: RunnableBranch((lambda _: True, plain()), plain()),
    "bound method": lambda: RunnableLambda(plain().invoke),
    "closure": around_closure,
    "global": around_global,
    "deep": lambda: nested(9),
    "beyond what is read": lambda: nested(60),
    "many": lambda: OfParts(
        parts={f"{i}": RunnableLambda(lambda _: []) for i in range(20)} | {"last": plain()}
    ),
    "dict": lambda: OfParts(parts={"a": plain()}),
    "private": hidden,
    "function": lambda: OfParts(predicate=mine),
    "fallbacks": lambda: plain().with_fallbacks([plain()]),
}


@pytest.mark.parametrize("make", WRAPPED.values(), ids=WRAPPED)
async def test_a_function_is_found_wherever_it_hides(make: Callable[[], Any]) -> None:
    if make is WRAPPED["beyond what is read"]:
        assert UNREAD in wrapped_settings(make()).values()
    retriever = ApproximateCacheRetriever.from_retriever(make(), Words())
    for tenant in TENANTS:
        TENANT.set(tenant)
        for found in (retriever.invoke(QUESTION), await retriever.ainvoke(QUESTION)):
            assert [one.metadata["tenant"] for one in found] == [tenant]
    assert retriever.stats().hits == 0
    for _ in range(2):
        retriever.invoke(QUESTION, filter_key="ann")
    assert retriever.stats().hits == 1


def test_what_is_no_filter_does_not_hinder() -> None:
    class OfTerms(BaseRetriever):
        docs: list[Document]
        weights: dict[str, list[float]]

        def _get_relevant_documents(self, query: str, **_: Any) -> list[Document]:
            return self.docs[:1]

    words = OfTerms(docs=[Document("text")] * 2000, weights={"a": [0.5, 0.5]})
    for wrapped in (words, words | RunnableLambda(list), RunnableLambda(words.invoke)):
        retriever = ApproximateCacheRetriever.from_retriever(wrapped, Words())
        for _ in range(2):
            retriever.invoke(QUESTION)
        assert retriever.stats().hits == 1
        words.weights["a"][0] += 0.25
        retriever.invoke(QUESTION)
        assert retriever.stats().hits == 1


class TestNames:
    """A name stands for what it was given with."""

    def test_the_retriever_s_own_stands_for_its_own_filter_alone(self) -> None:
        def ann(one: Document) -> bool:
            return bool(one.metadata["tenant"] == "ann")

        def bob(one: Document) -> bool:
            return bool(one.metadata["tenant"] == "bob")

        def tenants(retriever: ApproximateCacheRetriever, **call: Any) -> list[str]:
            return [one.metadata["tenant"] for one in retriever.invoke(QUESTION, **call)]

        retriever = ApproximateCacheRetriever.from_vectorstore(
            store(), search_kwargs={"filter": ann}, filter_key="ann"
        )
        assert tenants(retriever) == tenants(retriever) == ["ann"]
        assert retriever.stats().hits == 1
        assert tenants(retriever, filter=bob) == ["bob"]
        assert tenants(retriever, filter=bob, namespace="company") == ["bob"]
        assert tenants(retriever, filter=ann, namespace="company") == ["ann"]
        assert tenants(retriever.model_copy(update={"search_kwargs": {"filter": bob}})) == ["bob"]
        fields = retriever.configurable_fields(search_kwargs=ConfigurableField("search"))
        for wanted, tenant in ((bob, "bob"), (ann, "ann"), (bob, "bob")):
            config: Any = {"configurable": {"search": {"filter": wanted}}}
            for namespace in (None, "company"):
                found = fields.invoke(QUESTION, config=config, namespace=namespace)
                assert [one.metadata["tenant"] for one in found] == [tenant]
        retriever.search_kwargs["filter"] = bob
        assert tenants(retriever) == tenants(retriever, namespace="company") == ["bob"]

    def test_a_wrapped_retriever_s_function_that_is_replaced(self) -> None:
        inner = store().as_retriever(search_type="mmr", search_kwargs={"filter": mine})
        retriever = ApproximateCacheRetriever.from_retriever(inner, filter_key="as it was")
        TENANT.set("ann")
        assert len(retriever.invoke(QUESTION)) == 1
        inner.search_kwargs["filter"] = lambda one: one.metadata["tenant"] == "bob"
        assert [one.metadata["tenant"] for one in retriever.invoke(QUESTION)] == ["bob"]


@pytest.mark.parametrize("chained", [False, True])
async def test_what_a_call_s_configuration_says_reaches_what_is_wrapped(chained: bool) -> None:
    inner = store().as_retriever().configurable_fields(search_kwargs=ConfigurableField(id="search"))

    def reads(query: str, config: RunnableConfig) -> list[Document]:
        return [Document(query, metadata={"tenant": config["configurable"]["user"]})]

    for wrapped in (inner, RunnableLambda(reads)):
        retriever: Any = ApproximateCacheRetriever.from_retriever(wrapped, Words())
        asked = RunnableLambda(lambda text: text) | retriever if chained else retriever
        for tenant in TENANTS:
            config: Any = {
                "configurable": {"search": {"filter": {"tenant": tenant}}, "user": tenant}
            }
            if wrapped is inner:
                function = lambda one, tenant=tenant: one.metadata["tenant"] == tenant  # noqa: E731
                config["configurable"]["search"] = {"filter": function}
            for found in (asked.invoke(QUESTION, config), await asked.ainvoke(QUESTION, config)):
                assert [one.metadata["tenant"] for one in found] == [tenant]
        if not chained:
            stages = list(retriever.stages(QUESTION, config))
            assert [document.metadata["tenant"] for document in stages[-1].documents] == [tenant]


@pytest.mark.parametrize("wraps", [False, True])
def test_arguments_changed_while_a_question_is_embedded(wraps: bool) -> None:
    """They count as they were asked, or the answer is not kept; nobody else is given it."""
    wanted = {"tenant": "ann"}

    class Filtering(InMemoryVectorStore):
        def similarity_search_by_vector(
            self,
            embedding: list[float],
            k: int = 4,
            filter: Any = None,  # noqa: A002 - what LangChain's stores call it
            **_: Any,
        ) -> list[Document]:
            return super().similarity_search_by_vector(
                embedding, k, filter=lambda one: one.metadata["tenant"] == filter["tenant"]
            )

        def max_marginal_relevance_search(
            self,
            query: str,
            k: int = 4,
            fetch_k: int = 20,
            lambda_mult: float = 0.5,
            **kwargs: Any,
        ) -> list[Document]:
            embedding = self.embeddings.embed_query(query)
            return self.similarity_search_by_vector(embedding, k, **kwargs)

    class Changing(Words):
        changes = True

        def embed_query(self, text: str) -> list[float]:
            if Changing.changes:
                wanted["tenant"] = "bob"
            return super().embed_query(text)

    texts = [f"the salary of {tenant}" for tenant in ("ann", "bob")]
    own = Filtering.from_texts(
        texts, Changing(), metadatas=[{"tenant": tenant} for tenant in ("ann", "bob")]
    )
    search: dict[str, Any] = {"filter": wanted}
    if wraps:
        inner = own.as_retriever(search_type="mmr", search_kwargs=search)
        retriever = ApproximateCacheRetriever.from_retriever(inner)
    else:
        retriever = ApproximateCacheRetriever.from_vectorstore(own, search_kwargs=search)
    retriever.invoke(QUESTION)
    Changing.changes = False
    for tenant in TENANTS:
        wanted["tenant"] = tenant
        found = retriever.invoke(QUESTION)
        assert [one.metadata["tenant"] for one in found] == [tenant]


class TestLlamaIndex:
    def test_a_recursive_retriever_s_own(self) -> None:
        wanted = MetadataFilters(filters=[MetadataFilter(key="half", value=0)])
        inner = index_over().as_retriever(filters=wanted, similarity_top_k=4)
        retriever = LlamaIndexRetriever.from_retriever(
            RecursiveRetriever("root", retriever_dict={"root": inner}), LlamaIndexWords()
        )
        for half in (0, 1, 0):
            wanted.filters[0].value = half  # type: ignore[union-attr]
            assert {node.metadata["half"] for node in retriever.retrieve(QUESTION)} == {half}
        assert retriever.stats().hits == 1

    def test_a_function_under_any_name(self) -> None:
        class Own(LlamaIndexBase):
            def __init__(self, predicate: Callable[[], str]) -> None:
                self.predicate = predicate
                super().__init__()

            def _retrieve(self, query_bundle: QueryBundle) -> list[NodeWithScore]:
                return [NodeWithScore(node=TextNode(text=self.predicate()))]

        retriever = LlamaIndexRetriever.from_retriever(Own(TENANT.get), LlamaIndexWords())
        for tenant in TENANTS:
            TENANT.set(tenant)
            assert retriever.retrieve(QUESTION)[0].text == tenant
            assert asyncio.run(retriever.aretrieve(QUESTION))[0].text == tenant
