"""Whatever is changed in whatever order, every answer is the plain retriever's own for that call.

The cached and the staged retriever for LangChain, compared step by step with LangChain's own.
"""

from __future__ import annotations

import asyncio
import copy
import math
import pickle
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import assume
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
from langchain_core.retrievers import BaseRetriever
from langchain_core.runnables import ConfigurableField
from langchain_core.vectorstores import InMemoryVectorStore, VectorStore

from ragcache_integrations.retrievers.cached.langchain.retriever import ApproximateCacheRetriever
from ragcache_integrations.retrievers.staged.langchain import StagedFaissRetriever
from tests.retrievers.cached.langchain.stores import Words
from tests.retrievers.tenants import (
    FILTERS,
    QUESTIONS,
    TENANT,
    TENANTS,
    Filters,
    Kind,
    by_context,
    fixed,
    tenant_of,
)
from tests.support.sizes import examples

# More than FAISS looks at before it filters, unless a call says otherwise.
COUNT = 24
NAMES = [f"id {number}" for number in range(COUNT + 4)]
THRESHOLD = {"score_threshold": 0.4}
MMR = {"search_type": "mmr", "fetch_k": 6, "lambda_mult": 0.2}


def relevance(distance: float) -> float:
    """From 0 to 1 for every distance, as LangChain wants it; a half of the texts is above 0.4."""
    return math.exp(-distance / 300)


def in_memory() -> VectorStore:
    return filled(InMemoryVectorStore.from_texts([], Words()))


def faiss() -> VectorStore:
    return filled(FAISS.from_texts(["gone"], Words(), ids=["gone"], relevance_score_fn=relevance))


def filled(store: VectorStore) -> VectorStore:
    store.add_documents([document(number, 0) for number in range(COUNT)])
    if isinstance(store, FAISS):
        store.delete(["gone"])
    return store


def document(number: int, version: int) -> Document:
    metadata = {"tenant": TENANTS[number % 2], "version": version}
    return Document(f"text {number}, {version}", id=NAMES[number], metadata=metadata)


class Searching(BaseRetriever):
    """A retriever of an application's own, with a filter of any kind."""

    store: Any
    filter: Any = None

    def _get_relevant_documents(
        self, query: str, *, run_manager: Any, k: int = 3
    ) -> list[Document]:
        del run_manager
        return list(self.store.similarity_search(query, k=k, filter=self.filter))


class Machine(RuleBasedStateMachine):
    """A family of retrievers, each made from the one before, over a store that changes."""

    retriever: Any
    store: Any

    def __init__(self) -> None:
        super().__init__()
        self.filters = Filters()
        self.version = 0

    @rule(kind=st.sampled_from(FILTERS), tenant=st.sampled_from(TENANTS))
    def change_tenant(self, kind: Kind, tenant: str) -> None:
        self.filters.change(kind, tenant)

    @rule(number=st.integers(0, len(NAMES) - 1), way=st.sampled_from(["sync", "async"]))
    def write(self, number: int, way: str) -> None:
        """Add a document, or put another one in its place."""
        self.version += 1
        if isinstance(self.store, FAISS):  # it takes an id only once
            self.remove(number, way)
        added = [document(number, self.version)]
        if way == "sync":
            self.store.add_documents(added)
        else:
            asyncio.run(self.store.aadd_documents(added))

    @rule(number=st.integers(0, len(NAMES) - 1), way=st.sampled_from(["sync", "async"]))
    def remove(self, number: int, way: str) -> None:
        if len(self.store.get_by_ids(NAMES)) > 1 and self.store.get_by_ids([NAMES[number]]):
            if way == "sync":
                self.store.delete([NAMES[number]])
            else:
                asyncio.run(self.store.adelete([NAMES[number]]))

    @rule()
    def clear(self) -> None:
        if isinstance(self.retriever, ApproximateCacheRetriever):
            self.retriever.clear()

    def compare(self, found: list[Document], expected: list[Document], filter_: Any) -> None:
        tenant = tenant_of(filter_)
        assert {one.metadata["tenant"] for one in found} <= set(
            TENANTS if tenant is None else [tenant]
        )
        for one in found:
            one.metadata.pop("query_cache", None)
        assert found == expected


def ask(retriever: Any, way: str, query: str, call: dict[str, Any]) -> list[Document]:
    """The answer to one question, in one of the ways to ask."""
    if way == "invoke":
        return list(retriever.invoke(query, **call))
    if way == "ainvoke":
        return list(asyncio.run(retriever.ainvoke(query, **call)))
    if way == "batch":
        return list(retriever.batch(["another question", query], **call)[1])
    if way == "abatch":
        return list(asyncio.run(retriever.abatch([query, "another question"], **call))[0])
    if way == "stages":
        return list(list(retriever.stages(query, **call))[-1].documents)
    return asyncio.run(last_stage(retriever, query, call))


async def last_stage(retriever: Any, query: str, call: dict[str, Any]) -> list[Document]:
    return list([stage async for stage in retriever.astages(query, **call)][-1].documents)


WAYS = ("invoke", "ainvoke", "batch", "abatch", "stages", "astages")
COPIES: dict[str, Callable[[Any], Any]] = {
    "copy": copy.copy,
    "deepcopy": copy.deepcopy,
    "pickle": lambda retriever: pickle.loads(pickle.dumps(retriever)),
    "model_copy": lambda retriever: retriever.model_copy(),
    "deep model_copy": lambda retriever: retriever.model_copy(deep=True),
}
KNOBS: list[dict[str, Any]] = [
    {},
    {"rerank_factor": 1},
    {"capacity": 2},
    {"cache_index": "lsh"},
    {"annotate": True},
    {"pickle_cache": True},
]


CALLS: tuple[dict[str, Any], ...] = (
    {},
    {"k": 1},
    {"k": 5},
    {"search_type": "mmr"},
    MMR | {"k": 3},
)


class OverStore(Machine):
    """A cache over a store, with the arguments of the store's search."""

    make: Callable[[], VectorStore]
    calls = CALLS
    own: tuple[dict[str, Any], ...] = ({}, MMR)

    @initialize(
        data=st.data(),
        tolerance=st.sampled_from([0, 0.0, 1e-9]),
        knobs=st.sampled_from(KNOBS),
        kind=st.sampled_from(FILTERS),
        named=st.booleans(),
    )
    def make_retriever(
        self, data: st.DataObject, tolerance: float, knobs: dict[str, Any], kind: Kind, named: bool
    ) -> None:
        self.store = type(self).make()
        search = dict(data.draw(st.sampled_from(self.own)))
        search_type = search.pop("search_type", "similarity")
        if kind in self.kinds() and kind != "none":
            search["filter"] = self.filters.of(kind)
        if named:  # truly: its meaning does not change
            search["filter"] = fixed
            knobs = knobs | {"filter_key": "ann's"}
        self.retriever = ApproximateCacheRetriever.from_vectorstore(
            self.store,
            k=2,
            tolerance=tolerance,
            search_type=search_type,
            search_kwargs=dict(search),
            guard=False,
            **knobs,
        )

    def kinds(self) -> tuple[Kind, ...]:
        return FILTERS if isinstance(self.store, FAISS) else tuple(set(FILTERS) - {"data"})

    @rule(how=st.sampled_from(list(COPIES)))
    def copy(self, how: str) -> None:
        self.retriever = COPIES[how](self.retriever)
        self.store = self.retriever.vectorstore

    @rule(data=st.data(), field=st.sampled_from(["k", "namespace", "search_type", "tolerance"]))
    def update(self, data: st.DataObject, field: str) -> None:
        """Another object, made from this one with another setting."""
        values = {
            "k": st.integers(1, 6),
            "namespace": st.sampled_from(["", "1", "2"]),
            "search_type": st.sampled_from(["similarity", "mmr"]),
            "tolerance": st.sampled_from([0, 1e-9]),
        }
        value = data.draw(values[field])
        if field == "search_type":  # the arguments of one kind of search are not another's
            assume(not {"lambda_mult", "score_threshold"} & self.retriever.search_kwargs.keys())
        self.retriever = self.retriever.model_copy(update={field: value})
        assert getattr(self.retriever, field) == value

    @rule(number=st.integers(1, 6))
    def set_k(self, number: int) -> None:
        self.retriever.search_kwargs["k"] = number

    @rule(kind=st.sampled_from(FILTERS), new=st.booleans())
    def set_filter(self, kind: Kind, new: bool) -> None:
        if kind not in self.kinds():
            return
        if new:
            search = dict(self.retriever.search_kwargs)
            self.retriever = self.retriever.model_copy(update={"search_kwargs": search})
        if kind == "none":
            self.retriever.search_kwargs.pop("filter", None)
        else:
            self.retriever.search_kwargs["filter"] = self.filters.of(kind)

    @rule(
        data=st.data(),
        query=st.sampled_from(QUESTIONS),
        kind=st.sampled_from(FILTERS),
        way=st.sampled_from([*WAYS, "fields", "alternatives"]),
        named=st.sampled_from(["", "filter_key", "namespace"]),
    )
    def ask(self, data: st.DataObject, query: str, kind: Kind, way: str, named: str) -> None:
        call = dict(data.draw(st.sampled_from(self.calls)))
        if kind != "none" and kind in self.kinds():
            call["filter"] = self.filters.of(kind)
        search = {"k": self.retriever.k} | self.retriever.search_kwargs
        configured: dict[str, Any] = {}
        retriever = self.retriever
        if way == "fields":
            if "k" not in self.retriever.search_kwargs:  # which would have the last word
                configured = {"k": data.draw(st.integers(1, 6))}
            search |= configured
            fields = {"k": ConfigurableField("k"), "namespace": ConfigurableField("namespace")}
            retriever = retriever.configurable_fields(**fields)
            retriever = retriever.with_config(configurable=configured | {"namespace": "of fields"})
        elif way == "alternatives":
            search["k"] = 1
            other = retriever.model_copy(update={"k": 1, "search_kwargs": dict(search)})
            retriever = retriever.configurable_alternatives(ConfigurableField("which"), other=other)
            retriever = retriever.with_config(configurable={"which": "other"})
        filter_ = call.get("filter", search.get("filter"))
        expected = self.plain(query, {"search_type": self.retriever.search_type} | search | call)
        if named:
            call[named] = f"of {tenant_of(filter_)}"
        way = "invoke" if way in {"fields", "alternatives"} else way
        self.compare(ask(retriever, way, query, call), expected, filter_)

    def plain(self, query: str, arguments: dict[str, Any]) -> list[Document]:
        """What the store says, asked without any cache."""
        search_type = arguments.pop("search_type")
        plain = self.store.as_retriever(search_type=search_type, search_kwargs=arguments)
        return list(plain.invoke(query))

    @precondition(lambda self: self.retriever.search_kwargs.keys() <= {"k", "fetch_k"})
    @rule()
    def ask_twice(self) -> None:
        """The same question of two objects of one family is searched once."""
        other = self.retriever.model_copy(update={"annotate": True})
        self.retriever.invoke("a question of its own")
        before = self.retriever.stats().store_calls
        other.invoke("a question of its own")
        assert self.retriever.stats().store_calls == before


class OverInMemory(OverStore):
    make = staticmethod(in_memory)


class OverFaiss(OverStore):
    make = staticmethod(faiss)
    calls = (
        *CALLS,
        {"k": 5, "fetch_k": 7},
        {"score_threshold": 250.0},
        {"search_type": "similarity_score_threshold", "k": 6, **THRESHOLD},
    )
    own = ({}, MMR, {"fetch_k": 100}, {"search_type": "similarity_score_threshold"} | THRESHOLD)


class OverRetriever(Machine):
    """A cache over a retriever, LangChain's own or the application's, or a staged one."""

    wrapped: Any

    @initialize(
        what=st.sampled_from(["mmr", "threshold", "in memory", "own", "staged", "staged alone"]),
        kind=st.sampled_from(FILTERS),
        knobs=st.sampled_from(KNOBS),
    )
    def make_retriever(self, what: str, kind: Kind, knobs: dict[str, Any]) -> None:
        self.what = what
        self.store = in_memory() if what == "in memory" else faiss()
        if what == "in memory" and kind == "data":
            kind = "none"
        filter_ = self.filters.of(kind)
        search = {"k": 3} if filter_ is None else {"k": 3, "filter": filter_}
        if what in {"mmr", "in memory"}:
            search |= {"fetch_k": 6}
            self.wrapped = self.store.as_retriever(search_type="mmr", search_kwargs=search)
        elif what == "threshold":
            self.wrapped = self.store.as_retriever(
                search_type="similarity_score_threshold", search_kwargs=search | THRESHOLD
            )
        elif what == "own":
            self.wrapped = Searching(store=self.store, filter=filter_)
        else:
            self.wrapped = StagedFaissRetriever.from_vectorstore(self.store, k=3, filter=filter_)
        if what == "staged alone":
            self.retriever = self.wrapped
        else:
            self.retriever = ApproximateCacheRetriever.from_retriever(
                self.wrapped, Words(), tolerance=0, guard=False, **knobs
            )
            self.attach()

    def attach(self) -> None:
        if self.what not in {"staged", "staged alone"}:
            self.retriever.attach(self.store)

    def own_filter(self) -> Any:
        if self.what in {"own", "staged", "staged alone"}:
            return self.wrapped.filter
        return self.wrapped.search_kwargs.get("filter")

    @rule(how=st.sampled_from(list(COPIES)))
    def copy(self, how: str) -> None:
        self.retriever = COPIES[how](self.retriever)
        self.wrapped = self.retriever if self.what == "staged alone" else self.retriever.retriever
        self.store = self.wrapped.store if self.what == "own" else self.wrapped.vectorstore
        self.attach()

    @rule(kind=st.sampled_from(FILTERS))
    def set_filter(self, kind: Kind) -> None:
        """In the very retriever that is wrapped, where it can be changed; else in another."""
        if self.what == "in memory" and kind == "data":
            return
        filter_ = self.filters.of(kind)
        if self.what == "own":
            self.wrapped.filter = filter_
        elif self.what in {"staged", "staged alone"}:
            self.wrapped = self.wrapped.model_copy(update={"filter": filter_})
            if self.what == "staged alone":
                self.retriever = self.wrapped
            else:
                self.retriever = self.retriever.model_copy(update={"retriever": self.wrapped})
        elif filter_ is None:
            self.wrapped.search_kwargs.pop("filter", None)
        else:
            self.wrapped.search_kwargs["filter"] = filter_

    @rule(k=st.integers(1, 6))
    def set_k(self, k: int) -> None:
        if self.what in {"mmr", "threshold", "in memory"}:
            self.wrapped.search_kwargs["k"] = k
        elif self.what == "staged alone":
            self.retriever = self.wrapped = self.wrapped.model_copy(update={"k": k})
        else:
            self.retriever = self.retriever.model_copy(update={"k": k})
            self.attach()

    @rule(namespace=st.sampled_from(["", "1"]))
    def set_namespace(self, namespace: str) -> None:
        if self.what != "staged alone":
            self.retriever = self.retriever.model_copy(update={"namespace": namespace})

    @rule(
        query=st.sampled_from(QUESTIONS),
        kind=st.sampled_from(FILTERS),
        k=st.sampled_from([None, 1, 2, 5]),
        way=st.sampled_from(WAYS),
        named=st.booleans(),
    )
    def ask(self, query: str, kind: Kind, k: int | None, way: str, named: bool) -> None:
        call: dict[str, Any] = {} if k is None else {"k": k}
        if (
            kind != "none"
            and self.what != "own"
            and not (self.what == "in memory" and kind == "data")
        ):
            call["filter"] = self.filters.of(kind)
        if self.what == "staged alone" and way in {"stages", "astages"}:
            way = "invoke"
        filter_ = call.get("filter", self.own_filter())
        expected = self.plain(query, call, filter_)
        if named and self.what != "staged alone":
            call["filter_key"] = f"of {tenant_of(filter_)}"
        self.compare(ask(self.retriever, way, query, call), expected, filter_)

    def plain(self, query: str, call: dict[str, Any], filter_: Any) -> list[Document]:
        if self.what in {"staged", "staged alone"}:
            k = call.get("k") or self.retriever.k or self.wrapped.k
            search = {"k": k, "fetch_k": 100, "filter": filter_}
            return list(self.store.as_retriever(search_kwargs=search).invoke(query))
        found = self.wrapped.invoke(query, **call)
        return list(found if "k" in call else found[: self.retriever.k])


@pytest.mark.parametrize("machine", [OverInMemory, OverFaiss, OverRetriever])
def test_every_answer_is_the_plain_retriever_s_own(machine: type[Machine]) -> None:
    run_state_machine_as_test(machine, settings=examples(20))


def test_a_staged_retriever_s_filters() -> None:
    """Staged search in the same way, by all that may change what its filter means."""
    staged = StagedFaissRetriever.from_vectorstore(faiss(), filter=by_context, k=3)
    retriever = ApproximateCacheRetriever.from_retriever(staged, tolerance=1e9)
    for tenant in TENANTS * 2:
        TENANT.set(tenant)
        assert {one.metadata["tenant"] for one in retriever.invoke("what is it")} == {tenant}
        copied = retriever.model_copy(update={"retriever": staged.model_copy(update={"k": 1})})
        assert [one.metadata["tenant"] for one in copied.invoke("what is it")] == [tenant]
