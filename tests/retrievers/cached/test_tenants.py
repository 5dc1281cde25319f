"""Tenants of one retriever: what one is answered is never another's, in whatever way they ask."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextvars import ContextVar
from dataclasses import replace
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st
from langchain_community.vectorstores import FAISS
from langchain_core.documents import Document
from langchain_core.retrievers import BaseRetriever
from langchain_core.runnables import RunnableConfig, RunnableLambda, RunnableParallel
from llama_index.core.base.base_retriever import BaseRetriever as LlamaIndexBase
from llama_index.core.schema import NodeWithScore, QueryBundle, TextNode
from llama_index.core.vector_stores import (
    MetadataFilter,
    MetadataFilters,
    SimpleVectorStore,
    VectorStoreQuery,
    VectorStoreQueryResult,
)

from ragcache_integrations.retrievers.cached.langchain.retriever import ApproximateCacheRetriever
from ragcache_integrations.retrievers.cached.llama_index.retriever import (
    ApproximateCacheRetriever as LlamaIndexRetriever,
)
from tests.retrievers.cached.langchain.stores import Words
from tests.retrievers.cached.llama_index.indexes import Words as LlamaIndexWords
from tests.retrievers.cached.llama_index.indexes import index_over
from tests.support.sizes import examples

TENANT: ContextVar[str] = ContextVar("tenant_of_the_call", default="nobody")
QUESTION = "what is the salary"
ANYTHING = 1e9
"""A tolerance at which every question is close to every other one."""


# Namespaces

NAMESPACES = ("", "a", "b", "A", "a ", "\0", "['a']")


@examples(50)
@given(asked=st.lists(st.tuples(st.sampled_from(NAMESPACES), st.booleans()), max_size=12))
def test_langchain_answers_from_the_same_namespace_alone(asked: list[tuple[str, bool]]) -> None:
    """Also where the retriever has none, and at a tolerance at which any question would do."""
    retriever = ApproximateCacheRetriever.from_retriever(
        RunnableLambda(lambda query: [Document(f"{TENANT.get()}: {query}")]),
        Words(),
        tolerance=ANYTHING,
        guard=False,
    )
    known: set[str] = set()
    for number, (namespace, asynchronous) in enumerate(asked):
        TENANT.set(namespace)
        question = f"question {number}"
        call: dict[str, Any] = {"namespace": namespace} if namespace else {}
        if asynchronous:
            found = asyncio.run(retriever.ainvoke(question, **call))
        else:
            found = retriever.invoke(question, **call)
        assert found[0].page_content.startswith(f"{namespace}: ")
        known.add(namespace)
        assert retriever.stats().misses == len(known)


# Filters that are plain data, deep within what is wrapped


class Outer(BaseRetriever):
    parts: dict[str, list[Any]]

    def _get_relevant_documents(self, query: str, **_: Any) -> list[Document]:
        return [found for part in self.parts["a"] for found in part.invoke(query)]


def filtering(wanted: Any) -> BaseRetriever:
    texts = [f"the salary of {tenant}" for tenant in ("ann", "bob")]
    metadata = [{"tenant": tenant} for tenant in ("ann", "bob")]
    store = FAISS.from_texts(texts, Words(), metadatas=metadata)
    return cast(
        "BaseRetriever",
        store.as_retriever(search_type="mmr", search_kwargs={"filter": wanted, "k": 1}),
    )


def in_closure(wanted: Any) -> Any:
    inner = filtering(wanted)
    return RunnableLambda(lambda query: inner.invoke(query)[:1])


DEEP: dict[str, Callable[[Any], Any]] = {
    "wrapped": filtering,
    "nested": lambda wanted: Outer(parts={"a": [filtering(wanted)]}),
    "nested twice": lambda wanted: Outer(parts={"a": [Outer(parts={"a": [filtering(wanted)]})]}),
    "parallel": lambda wanted: (
        RunnableParallel(a=filtering(wanted)) | RunnableLambda(lambda found: found["a"])
    ),
    "closure": in_closure,
}


@pytest.mark.parametrize("make", DEEP.values(), ids=DEEP)
async def test_data_changed_within_what_is_wrapped_is_another_filter(
    make: Callable[[Any], Any],
) -> None:
    wanted = {"tenant": "ann"}
    retriever = ApproximateCacheRetriever.from_retriever(
        make(wanted), Words(), tolerance=ANYTHING, guard=False
    )
    for tenant in ("ann", "bob", "ann", "bob"):
        wanted["tenant"] = tenant
        for found in (retriever.invoke(QUESTION), await retriever.ainvoke(f"{QUESTION}~1")):
            assert [one.metadata["tenant"] for one in found] == [tenant]
    assert (retriever.stats().misses, retriever.stats().hits) == (2, 6)


# Filters that are code


class Deciding(MetadataFilters):
    """Decides by who is asking."""

    def __call__(self) -> int:
        return int(TENANT.get())


class DecidingStore(SimpleVectorStore):
    """Asks filters that are code."""

    def query(self, query: VectorStoreQuery, **kwargs: Any) -> VectorStoreQueryResult:
        if isinstance(query.filters, Deciding):
            half = MetadataFilter(key="half", value=query.filters())
            query = replace(query, filters=MetadataFilters(filters=[half]))
        return super().query(query, **kwargs)


@pytest.mark.parametrize("namespace", ["", "company"])
async def test_llama_index_serves_nobody_what_code_let_through_for_another(namespace: str) -> None:
    def over(**knobs: Any) -> LlamaIndexRetriever:
        return LlamaIndexRetriever.from_index(
            index_over(DecidingStore()),
            search_kwargs={"filters": Deciding(filters=[])},
            tolerance=ANYTHING,
            guard=False,
            namespace=namespace,
            **knobs,
        )

    retriever = over()
    for half in ("0", "1", "0", "1"):
        TENANT.set(half)
        for found in (retriever.retrieve(QUESTION), await retriever.aretrieve(QUESTION)):
            assert {str(node.metadata["half"]) for node in found} == {half}
    assert retriever.stats().hits == 0
    named = over(filter_key="the first half")
    TENANT.set("0")
    assert named.retrieve(QUESTION) == named.retrieve(QUESTION)
    assert named.stats().hits == 1


# What a run's configuration says


@pytest.mark.parametrize("chained", [False, True])
async def test_answers_are_kept_for_each_value_of_the_configuration(chained: bool) -> None:
    def reads(query: str, config: RunnableConfig) -> list[Document]:
        return [Document(query, metadata={"tenant": config["configurable"]["user"]})]

    retriever: Any = ApproximateCacheRetriever.from_retriever(
        RunnableLambda(reads), Words(), tolerance=ANYTHING, guard=False
    )
    asked = RunnableLambda(lambda text: text) | retriever if chained else retriever
    for tenant in ("ann", "bob", "ann", "bob"):
        config: Any = {"configurable": {"user": tenant, "thread_id": tenant}}
        for found in (asked.invoke(QUESTION, config), await asked.ainvoke(QUESTION, config)):
            assert [one.metadata["tenant"] for one in found] == [tenant]
    assert (retriever.stats().misses, retriever.stats().hits) == (2, 6)


# Questions that are under way at the same time

TOGETHER = 4


class Meeting:
    """Lets no search end before all have begun: if two shared one, it would wait in vain."""

    def __init__(self) -> None:
        self._threads = threading.Barrier(TOGETHER)
        self._tasks: asyncio.Barrier | None = None

    def wait(self) -> str:
        self._threads.wait(30)
        return TENANT.get()

    async def await_(self) -> str:
        if self._tasks is None:
            self._tasks = asyncio.Barrier(TOGETHER)
        async with asyncio.timeout(30):
            await self._tasks.wait()
        return TENANT.get()


class MeetingRetriever(BaseRetriever):
    predicate: Any
    meeting: Any

    def _get_relevant_documents(self, query: str, **_: Any) -> list[Document]:
        return [Document(query, metadata={"tenant": self.meeting.wait()})]

    async def _aget_relevant_documents(self, query: str, **_: Any) -> list[Document]:
        return [Document(query, metadata={"tenant": await self.meeting.await_()})]


class MeetingLlamaIndexRetriever(LlamaIndexBase):
    def __init__(self) -> None:
        self.predicate = TENANT.get
        self._meeting = Meeting()
        super().__init__()

    def _retrieve(self, query_bundle: QueryBundle) -> list[NodeWithScore]:
        return [NodeWithScore(node=TextNode(text=self._meeting.wait()))]

    async def _aretrieve(self, query_bundle: QueryBundle) -> list[NodeWithScore]:
        return [NodeWithScore(node=TextNode(text=await self._meeting.await_()))]


Asked = tuple[Any, Callable[[], str], Callable[[], Any]]


def over_langchain() -> Asked:
    wrapped = MeetingRetriever(predicate=TENANT.get, meeting=Meeting())
    retriever = ApproximateCacheRetriever.from_retriever(wrapped, Words(), guard=False)

    async def aask() -> str:
        return str((await retriever.ainvoke(QUESTION))[0].metadata["tenant"])

    return retriever, lambda: str(retriever.invoke(QUESTION)[0].metadata["tenant"]), aask


def over_llama_index() -> Asked:
    retriever = LlamaIndexRetriever.from_retriever(
        MeetingLlamaIndexRetriever(), LlamaIndexWords(), guard=False
    )

    async def aask() -> str:
        return (await retriever.aretrieve(QUESTION))[0].text

    return retriever, lambda: retriever.retrieve(QUESTION)[0].text, aask


@pytest.mark.parametrize("make", [over_langchain, over_llama_index])
class TestAtTheSameTime:
    def test_threads_share_no_search(self, make: Callable[[], Asked]) -> None:
        retriever, ask, _ = make()

        def of(tenant: str) -> str:
            TENANT.set(tenant)
            return ask()

        tenants = [f"tenant {number}" for number in range(TOGETHER)]
        with ThreadPoolExecutor(TOGETHER) as pool:
            assert list(pool.map(of, tenants)) == tenants
        assert (retriever.stats().misses, retriever.stats().shared) == (TOGETHER, 0)

    async def test_tasks_share_no_search(self, make: Callable[[], Asked]) -> None:
        retriever, _, aask = make()

        async def of(tenant: str) -> str:
            TENANT.set(tenant)
            return str(await aask())

        tenants = [f"tenant {number}" for number in range(TOGETHER)]
        assert await asyncio.gather(*map(of, tenants)) == tenants
        assert (retriever.stats().misses, retriever.stats().shared) == (TOGETHER, 0)
