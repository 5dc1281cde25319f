"""Whatever is changed in whatever order, every answer is the store's own for that very call."""

from __future__ import annotations

import asyncio
import copy
import pickle
from collections.abc import Callable
from contextvars import ContextVar
from typing import Any

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    precondition,
    rule,
    run_state_machine_as_test,
)
from langchain_community.vectorstores import FAISS
from langchain_core.documents import Document
from langchain_core.runnables import ConfigurableField
from langchain_core.vectorstores import InMemoryVectorStore

from ragcache_integrations.retrievers.cached.langchain.retriever import ApproximateCacheRetriever
from ragcache_integrations.retrievers.staged.langchain import StagedFaissRetriever
from tests.retrievers.cached.langchain.stores import Words
from tests.support.sizes import examples

TENANT: ContextVar[str] = ContextVar("tenant", default="ann")
TENANTS = ("ann", "bob")
TEXTS = [f"text {number}" for number in range(12)]
METADATA = [{"tenant": TENANTS[number % 2], "half": number // 6} for number in range(12)]
QUESTIONS = ("what is it", "what is it~1", "something else")
WAYS = ("copy", "model_copy", "deepcopy", "pickle", "k", "namespace", "search")
CALLS: list[dict[str, Any]] = [
    {},
    {"k": 1},
    {"k": 5},
    {"search_type": "mmr"},
    {"search_type": "mmr", "k": 3, "fetch_k": 6, "lambda_mult": 0.2},
]


class State:
    """What a filter may look at, besides the document."""

    tenant = "ann"


STATE = State()


def by_context(one: Any) -> bool:
    return bool(_metadata(one)["tenant"] == TENANT.get())


def by_state(one: Any) -> bool:
    return bool(_metadata(one)["tenant"] == STATE.tenant)


def _metadata(one: Any) -> Any:
    return one.metadata if isinstance(one, Document) else one


def in_memory() -> InMemoryVectorStore:
    return InMemoryVectorStore.from_texts(TEXTS, Words(), metadatas=METADATA, ids=TEXTS)


def faiss() -> FAISS:
    return FAISS.from_texts(TEXTS, Words(), metadatas=METADATA, ids=TEXTS)


def plain_answer(store: Any, query: str, arguments: dict[str, Any]) -> list[str]:
    """What the store says, asked without any cache."""
    arguments = dict(arguments)
    search_type = arguments.pop("search_type", "similarity")
    plain = store.as_retriever(search_type=search_type)
    return [one.page_content for one in plain.invoke(query, **arguments)]


class Settings(RuleBasedStateMachine):
    """One family of retrievers over a store that changes, with filters that are code or data."""

    make: Callable[[], Any]
    filters: tuple[Any, ...]

    @initialize(tolerance=st.sampled_from([0, 0.0, 1e-9]))
    def begin(self, tolerance: float) -> None:
        TENANT.set("ann")
        STATE.tenant = "ann"
        self.store = self.make()
        self.filter = {"tenant": "ann"}
        self.retriever = ApproximateCacheRetriever.from_vectorstore(
            self.store, k=2, tolerance=tolerance, **self.fetch_all()
        )
        self.search = dict(self.retriever.search_kwargs)

    def fetch_all(self) -> dict[str, Any]:
        fetches = isinstance(self.store, FAISS)
        return {"search_kwargs": {"fetch_k": 100}} if fetches else {}

    @rule(tenant=st.sampled_from(TENANTS), where=st.sampled_from(["context", "state", "data"]))
    def change_tenant(self, tenant: str, where: str) -> None:
        if where == "context":
            TENANT.set(tenant)
        elif where == "state":
            STATE.tenant = tenant
        else:
            self.filter["tenant"] = tenant

    @rule(
        how=st.sampled_from(
            ["copy", "model_copy", "deepcopy", "pickle", "k", "namespace", "search"]
        ),
        number=st.integers(1, 6),
    )
    def replace(self, how: str, number: int) -> None:
        if how == "copy":
            self.retriever = copy.copy(self.retriever)
        elif how == "model_copy":
            self.retriever = self.retriever.model_copy()
        elif how in {"deepcopy", "pickle"}:
            if how == "pickle":
                travelling = self.retriever.model_copy(update={"pickle_cache": number > 3})
                self.retriever = pickle.loads(pickle.dumps(travelling))
            else:
                self.retriever = copy.deepcopy(self.retriever)
            self.store = self.retriever.vectorstore
        elif how == "k":
            self.retriever = self.retriever.model_copy(update={"k": number})
        elif how == "namespace":
            self.retriever = self.retriever.model_copy(update={"namespace": str(number)})
        else:
            self.retriever.search_kwargs["k"] = number

    @rule(text=st.sampled_from(TEXTS))
    def delete(self, text: str) -> None:
        if len(self.store.get_by_ids(TEXTS)) > 2 and self.store.get_by_ids([text]):
            self.store.delete([text])

    @rule(
        query=st.sampled_from(QUESTIONS),
        call=st.sampled_from(CALLS),
        wanted=st.sampled_from(["none", "context", "state", "data"]),
        way=st.sampled_from(["invoke", "ainvoke", "stages", "configured"]),
        named=st.booleans(),
    )
    def ask(self, query: str, call: dict[str, Any], wanted: str, way: str, named: bool) -> None:
        call = call | self.filter_of(wanted)
        k = self.retriever.search_kwargs.get("k", self.retriever.k)
        expected = plain_answer(self.store, query, {"k": k} | self.search | call)
        if named and wanted in {"context", "state"}:
            call["filter_key"] = f"{wanted} {TENANT.get()} {STATE.tenant}"
        if way == "invoke":
            found = self.retriever.invoke(query, **call)
        elif way == "ainvoke":
            found = asyncio.run(self.retriever.ainvoke(query, **call))
        elif way == "stages":
            found = list(list(self.retriever.stages(query, **call))[-1].documents)
        else:
            fields = self.retriever.configurable_fields(annotate=ConfigurableField("annotate"))
            found = fields.invoke(query, config={"configurable": {"annotate": True}}, **call)
        assert [one.page_content for one in found] == expected

    def filter_of(self, wanted: str) -> dict[str, Any]:
        if wanted == "none":
            return {}
        if wanted == "data" and isinstance(self.store, FAISS):
            return {"filter": self.filter}
        return {"filter": by_state if wanted == "state" else by_context}

    @precondition(lambda self: hasattr(self, "retriever"))
    @rule()
    def ask_twice(self) -> None:
        """The same question of two objects of one family is searched once."""
        other = self.retriever.model_copy(update={"annotate": True})
        self.retriever.invoke("a question of its own")
        before = self.retriever.stats().store_calls
        other.invoke("a question of its own")
        assert self.retriever.stats().store_calls == before


class InMemorySettings(Settings):
    make = staticmethod(in_memory)


class FaissSettings(Settings):
    make = staticmethod(faiss)


@pytest.mark.parametrize("machine", [InMemorySettings, FaissSettings])
def test_every_answer_is_the_store_s_own(machine: type[Settings]) -> None:
    run_state_machine_as_test(machine, settings=examples(20))


def test_a_staged_retriever_s_filters() -> None:
    """Staged search in the same way, by all that may change what its filter means."""
    store = faiss()
    staged = StagedFaissRetriever.from_vectorstore(store, filter=by_context, k=3)
    retriever = ApproximateCacheRetriever.from_retriever(staged, tolerance=1e9)
    for tenant in TENANTS * 2:
        TENANT.set(tenant)
        assert {one.metadata["tenant"] for one in retriever.invoke("what is it")} == {tenant}
        copied = retriever.model_copy(update={"retriever": staged.model_copy(update={"k": 1})})
        assert [one.metadata["tenant"] for one in copied.invoke("what is it")] == [tenant]
