"""Answers found under a filter that is code are never another request's."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextvars import ContextVar
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from langchain_community.vectorstores import FAISS
from langchain_core.documents import Document
from langchain_core.retrievers import BaseRetriever
from langchain_core.runnables import ConfigurableField, RunnableConfig, RunnableLambda
from langchain_core.vectorstores import InMemoryVectorStore
from llama_index.core import VectorStoreIndex
from llama_index.core.base.base_retriever import BaseRetriever as LlamaIndexBase
from llama_index.core.schema import NodeWithScore, QueryBundle, TextNode
from llama_index.core.vector_stores import MetadataFilter, MetadataFilters

from ragcache_integrations.errors import ConfigurationError
from ragcache_integrations.retrievers.cached.langchain.retriever import ApproximateCacheRetriever
from ragcache_integrations.retrievers.cached.llama_index.retriever import (
    ApproximateCacheRetriever as LlamaIndexRetriever,
)
from ragcache_integrations.retrievers.staged.langchain import StagedFaissRetriever
from ragcache_integrations.retrievers.staged.llama_index import (
    StagedFaissRetriever as StagedLlamaIndexRetriever,
)
from tests.retrievers.cached.langchain.stores import Words
from tests.retrievers.cached.llama_index.indexes import Words as LlamaIndexWords
from tests.retrievers.cached.llama_index.indexes import faiss_index, index_over
from tests.support.sizes import examples

TENANT: ContextVar[str] = ContextVar("tenant", default="nobody")
TENANTS = ("ann", "bob", "cat")
TEXTS = [f"the salary of {tenant} is {number}" for tenant in TENANTS for number in range(4)]
METADATA = [{"tenant": tenant} for tenant in TENANTS for _ in range(4)]


@pytest.fixture(autouse=True)
def _tenant() -> Iterator[None]:
    token = TENANT.set("nobody")
    yield
    TENANT.reset(token)


def is_mine(document: Document) -> bool:
    return bool(document.metadata["tenant"] == TENANT.get())


def is_my_metadata(metadata: Mapping[str, Any]) -> bool:
    return bool(metadata["tenant"] == TENANT.get())


class Mine:
    """A filter with a state that changes."""

    tenant = "nobody"

    def __call__(self, metadata: dict[str, Any]) -> bool:
        return bool(metadata["tenant"] == self.tenant)


def in_memory() -> InMemoryVectorStore:
    return InMemoryVectorStore.from_texts(TEXTS, Words(), metadatas=METADATA)


def faiss() -> FAISS:
    return FAISS.from_texts(TEXTS, Words(), metadatas=METADATA)


def over_in_memory(**knobs: Any) -> ApproximateCacheRetriever:
    return ApproximateCacheRetriever.from_vectorstore(
        in_memory(), search_kwargs={"filter": is_mine}, **knobs
    )


def over_faiss(**knobs: Any) -> ApproximateCacheRetriever:
    return ApproximateCacheRetriever.from_vectorstore(
        faiss(), search_kwargs={"filter": is_my_metadata, "fetch_k": 12}, **knobs
    )


def over_wrapped(**knobs: Any) -> ApproximateCacheRetriever:
    plain = in_memory().as_retriever(search_type="mmr", search_kwargs={"filter": is_mine})
    return ApproximateCacheRetriever.from_retriever(plain, **knobs)


def over_bound(**knobs: Any) -> ApproximateCacheRetriever:
    bound = in_memory().as_retriever().bind(filter=is_mine)
    return ApproximateCacheRetriever.from_retriever(bound, Words(), **knobs)


def over_staged(**knobs: Any) -> ApproximateCacheRetriever:
    staged = StagedFaissRetriever.from_vectorstore(faiss(), filter=is_my_metadata)
    return ApproximateCacheRetriever.from_retriever(staged, **knobs)


RETRIEVERS = [over_in_memory, over_faiss, over_wrapped, over_bound, over_staged]


def tenants_of(documents: list[Document]) -> set[str]:
    return {document.metadata["tenant"] for document in documents}


async def test_a_staged_retriever_s_filter_runs_in_the_context_of_the_call() -> None:
    staged = StagedFaissRetriever.from_vectorstore(faiss(), filter=is_my_metadata)

    async def ask(tenant: str) -> list[set[str]]:
        TENANT.set(tenant)
        return [
            tenants_of(await staged.ainvoke("what is the salary")),
            *[tenants_of(list(stage.documents)) async for stage in staged.astages("what")][-1:],
        ]

    answers = await asyncio.gather(*map(ask, TENANTS * 3))
    assert answers == [[{tenant}] * 2 for tenant in TENANTS * 3]


@pytest.mark.parametrize("make", RETRIEVERS)
class TestLangChain:
    @examples(15)
    @given(asked=st.lists(st.sampled_from(TENANTS), min_size=2, max_size=6), use=st.data())
    def test_nobody_is_given_another_s_documents(
        self, make: Callable[..., ApproximateCacheRetriever], asked: list[str], use: st.DataObject
    ) -> None:
        retriever = make(tolerance=use.draw(st.sampled_from([0, 0.5, 1e9])))
        for tenant in asked:
            TENANT.set(tenant)
            ways: list[Callable[[], list[Document]]] = [
                lambda: retriever.invoke("what is the salary"),
                lambda: asyncio.run(retriever.ainvoke("what is the salary")),
                lambda: list(list(retriever.stages("what is the salary"))[-1].documents),
            ]
            assert tenants_of(use.draw(st.sampled_from(ways))()) == {tenant}
        assert retriever.stats().hits == 0

    def test_concurrent_questions_are_not_answered_together(
        self, make: Callable[..., ApproximateCacheRetriever]
    ) -> None:
        retriever = make()
        start = threading.Barrier(6)

        def ask(tenant: str) -> set[str]:
            TENANT.set(tenant)
            start.wait()
            return tenants_of(retriever.invoke("what is the salary"))

        with ThreadPoolExecutor(6) as pool:
            assert list(pool.map(ask, TENANTS * 2)) == [{tenant} for tenant in TENANTS * 2]

    async def test_tasks_are_not_answered_together(
        self, make: Callable[..., ApproximateCacheRetriever]
    ) -> None:
        retriever = make()

        async def ask(tenant: str) -> set[str]:
            TENANT.set(tenant)
            return tenants_of(await retriever.ainvoke("what is the salary"))

        found = await asyncio.gather(*(ask(tenant) for tenant in TENANTS * 2))
        assert found == [{tenant} for tenant in TENANTS * 2]

    def test_what_is_named_is_shared(self, make: Callable[..., ApproximateCacheRetriever]) -> None:
        retriever = make()
        for _ in range(2):
            for tenant in TENANTS:
                TENANT.set(tenant)
                found = retriever.invoke("what is the salary", filter_key=tenant)
                assert tenants_of(found) == {tenant}
        for _ in range(2):
            for tenant in TENANTS:
                TENANT.set(tenant)
                found = retriever.invoke("what is the salary", namespace=tenant)
                assert tenants_of(found) == {tenant}
        assert (retriever.stats().misses, retriever.stats().hits) == (6, 6)
        TENANT.set("ann")
        named = make(filter_key="fixed")
        for _ in range(2):
            named.invoke("what is the salary")
        assert named.stats().hits == 1

    def test_a_namespace_of_the_retriever_names_no_filter(
        self, make: Callable[..., ApproximateCacheRetriever]
    ) -> None:
        retriever = make(namespace="company")
        for tenant in TENANTS:
            TENANT.set(tenant)
            assert tenants_of(retriever.invoke("what is the salary")) == {tenant}

    def test_it_is_said(
        self,
        make: Callable[..., ApproximateCacheRetriever],
        caplog: pytest.LogCaptureFixture,
    ) -> None:
        retriever = make()
        for _ in range(2):
            retriever.invoke("what is the salary")
        said = [
            record.getMessage() for record in caplog.records if "filter_key=" in record.getMessage()
        ]
        assert len(said) == 1
        assert "filter" in said[0]
        explained = retriever.explain("what is the salary")
        assert not explained.hit
        assert "filter_key=" in explained.reason


def test_a_filter_whose_state_changes() -> None:
    mine = Mine()
    retriever = ApproximateCacheRetriever.from_vectorstore(
        faiss(), search_kwargs={"filter": mine, "fetch_k": 12}
    )
    for tenant in ("ann", "bob"):
        mine.tenant = tenant
        assert tenants_of(retriever.invoke("what is the salary")) == {tenant}


def test_a_filter_of_plain_data_that_is_changed_is_another_filter() -> None:
    wanted = {"tenant": "ann"}
    retriever = ApproximateCacheRetriever.from_vectorstore(
        faiss(), search_kwargs={"filter": wanted, "fetch_k": 12}
    )
    for tenant in ("ann", "bob", "ann"):
        wanted["tenant"] = tenant
        assert tenants_of(retriever.invoke("what is the salary")) == {tenant}
    assert retriever.stats().hits == 1


class TestWrappedRetrievers:
    def test_a_setting_changed_afterwards_is_honoured(self) -> None:
        class OfTerms(BaseRetriever):
            k: int = 4

            def _get_relevant_documents(self, query: str, **_: Any) -> list[Document]:
                return [Document(query)] * self.k

        words = OfTerms()
        retriever = ApproximateCacheRetriever.from_retriever(words, Words())
        assert len(retriever.invoke("salary")) == 4
        words.k = 2
        assert len(retriever.invoke("salary")) == 2
        plain = in_memory().as_retriever(search_type="mmr", search_kwargs={"k": 4})
        retriever = ApproximateCacheRetriever.from_retriever(plain)
        assert len(retriever.invoke("salary")) == 4
        plain.search_kwargs["k"] = 2
        assert len(retriever.invoke("salary")) == 2

    def test_a_retriever_within_a_retriever(self) -> None:
        class Outer(BaseRetriever):
            parts: list[BaseRetriever]

            def _get_relevant_documents(self, query: str, **_: Any) -> list[Document]:
                return [document for part in self.parts for document in part.invoke(query)]

        inner = in_memory().as_retriever(search_kwargs={"filter": is_mine})
        retriever = ApproximateCacheRetriever.from_retriever(Outer(parts=[inner]), Words())
        for tenant in TENANTS:
            TENANT.set(tenant)
            assert tenants_of(retriever.invoke("what is the salary")) == {tenant}
        inner.search_kwargs["filter"] = None
        for _ in range(2):
            retriever.invoke("what is the salary")
        assert retriever.stats().hits == 1

    @pytest.mark.parametrize("asynchronous", [False, True])
    def test_what_the_configuration_of_the_run_says(self, asynchronous: bool) -> None:
        """A chain's ``configurable`` reaches what is wrapped, and so has to reach the key."""
        plain = in_memory().as_retriever().configurable_fields(search_kwargs=ConfigurableField("f"))

        def own(query: str, config: RunnableConfig) -> list[Document]:
            tenant = config["configurable"]["f"]["filter"]
            return [Document(f"{tenant} asked {query}", metadata={"tenant": tenant})]

        def field(tenant: str) -> Any:
            return tenant

        for wrapped, wrap in (
            (plain, lambda tenant: lambda one: one.metadata["tenant"] == tenant),
            (RunnableLambda(own), field),
        ):
            retriever = ApproximateCacheRetriever.from_retriever(wrapped, Words())
            chain = RunnableLambda(lambda text: text) | retriever
            for tenant in TENANTS:
                config: RunnableConfig = {"configurable": {"f": {"filter": wrap(tenant)}}}
                question = "what is the salary"
                if asynchronous:
                    found = asyncio.run(chain.ainvoke(question, config))
                else:
                    found = chain.invoke(question, config)
                assert tenants_of(found) == {tenant}

    def test_the_thread_of_a_conversation_is_not_part_of_the_key(self) -> None:
        retriever = ApproximateCacheRetriever.from_retriever(
            RunnableLambda(lambda query: [Document(query)]), Words()
        )
        chain = RunnableLambda(lambda text: text) | retriever
        for number in range(3):
            chain.invoke("question", {"configurable": {"thread_id": str(number)}})
        assert retriever.stats().hits == 2


class TestLlamaIndex:
    def test_a_function_in_the_arguments_of_the_search(self) -> None:
        class Deciding(MetadataFilters):
            def __call__(self) -> str:
                return TENANT.get()

        retriever = LlamaIndexRetriever.from_index(
            index_over(), search_kwargs={"filters": Deciding(filters=[])}
        )
        for _ in range(2):
            retriever.retrieve("question")
        assert retriever.stats().hits == 0
        named = LlamaIndexRetriever.from_index(
            index_over(), search_kwargs={"filters": Deciding(filters=[])}, filter_key="all"
        )
        for _ in range(2):
            named.retrieve("question")
        assert named.stats().hits == 1

    def test_filters_that_are_changed_are_other_filters(self) -> None:
        wanted = MetadataFilters(filters=[MetadataFilter(key="half", value=0)])
        retriever = LlamaIndexRetriever.from_index(
            index_over(), search_kwargs={"filters": wanted}, tolerance=1e9
        )
        for half in (0, 1, 0):
            wanted.filters[0].value = half  # type: ignore[union-attr]
            found = retriever.retrieve("question")
            assert {node.metadata["half"] for node in found} == {half}
        assert retriever.stats().hits == 1

    async def test_the_staged_retriever(self) -> None:
        def is_my_half(metadata: Any) -> bool:
            return bool(str(metadata["half"]) == TENANT.get())

        staged = StagedLlamaIndexRetriever.from_index(faiss_index(), filter=is_my_half)
        retriever = LlamaIndexRetriever.from_retriever(staged, tolerance=1e9)
        for half in ("0", "1"):
            TENANT.set(half)
            for found in (
                retriever.retrieve("question"),
                await retriever.aretrieve("question"),
                list(list(retriever.stages("question"))[-1].documents),
                staged.retrieve("question"),
                await staged.aretrieve("question"),
                await asyncio.create_task(staged.aretrieve("question")),
            ):
                assert {str(node.metadata["half"]) for node in found} == {half}

    @pytest.mark.parametrize("question", ["question", ""])
    async def test_what_is_wrapped_runs_in_the_context_of_the_call(self, question: str) -> None:
        """Also if it blocks, and a worker thread asks it for the coroutine."""

        class Telling(LlamaIndexBase):
            def _retrieve(self, query_bundle: QueryBundle) -> list[NodeWithScore]:
                return [NodeWithScore(node=TextNode(text=TENANT.get()))]

        retriever = LlamaIndexRetriever.from_retriever(Telling(), LlamaIndexWords())
        for tenant in TENANTS:
            TENANT.set(tenant)
            retriever.clear()
            found = await retriever.aretrieve(question)
            assert [node.text for node in found] == [tenant]

    def test_a_wrapped_retriever_s_filters_and_settings(self) -> None:
        index: VectorStoreIndex = index_over()
        wanted = MetadataFilters(filters=[MetadataFilter(key="half", value=0)])
        plain = index.as_retriever(filters=wanted, similarity_top_k=4)
        retriever = LlamaIndexRetriever.from_retriever(plain, tolerance=1e9)
        assert len(retriever.retrieve("question")) == 4
        plain.similarity_top_k = 2  # type: ignore[attr-defined]
        assert len(retriever.retrieve("question")) == 2
        wanted.filters[0].value = 1  # type: ignore[union-attr]
        assert {node.metadata["half"] for node in retriever.retrieve("question")} == {1}

    def test_a_retriever_that_decides_by_its_own_state(self) -> None:
        class Own(LlamaIndexBase):
            def __init__(self) -> None:
                self.tenant = "nobody"
                super().__init__()

            def _retrieve(self, query_bundle: QueryBundle) -> list[NodeWithScore]:
                return [NodeWithScore(node=TextNode(text=self.tenant))]

        own = Own()
        retriever = LlamaIndexRetriever.from_retriever(own, index_over()._embed_model)
        for tenant in TENANTS:
            own.tenant = tenant
            assert retriever.retrieve("question")[0].text == tenant


def test_a_filter_key_must_be_a_string() -> None:
    with pytest.raises(ConfigurationError, match="filter_key"):
        over_in_memory(filter_key=3)
    with pytest.raises(ConfigurationError, match="filter_key must be a string, got 3"):
        over_in_memory().invoke("question", filter_key=3)
