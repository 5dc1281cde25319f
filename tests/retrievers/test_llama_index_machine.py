"""Whatever is changed in whatever order, every answer is the plain retriever's own at that moment.

The cached and the staged retriever for LlamaIndex, compared step by step with LlamaIndex's own.
"""

from __future__ import annotations

import asyncio
import copy
import pickle
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import faiss
import pytest
from hypothesis import assume
from hypothesis import strategies as st
from hypothesis.errors import HypothesisDeprecationWarning
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    rule,
    run_state_machine_as_test,
)
from llama_index.core import Document, StorageContext, VectorStoreIndex
from llama_index.core.base.base_retriever import BaseRetriever
from llama_index.core.schema import NodeWithScore, QueryBundle, TextNode
from llama_index.core.vector_stores import (
    MetadataFilter,
    MetadataFilters,
    SimpleVectorStore,
    VectorStoreQuery,
    VectorStoreQueryResult,
)
from llama_index.vector_stores.faiss import FaissMapVectorStore, FaissVectorStore

from ragcache_integrations.errors import ConfigurationError
from ragcache_integrations.retrievers.cached.llama_index.retriever import ApproximateCacheRetriever
from ragcache_integrations.retrievers.staged.llama_index import StagedFaissRetriever
from tests.retrievers.cached.llama_index.indexes import DIM, Words, ids, scores
from tests.retrievers.tenants import (
    FILTERS,
    QUESTIONS,
    STATE,
    TENANT,
    TENANTS,
    Filters,
    Kind,
    fixed,
    tenant_of,
)
from tests.support.sizes import examples

MMR = {"vector_store_query_mode": "mmr", "vector_store_kwargs": {"mmr_threshold": 0.4}}
COUNT = 12
NAMES = [f"node {number}" for number in range(COUNT + 3)]


def node(number: int, version: int = 0) -> TextNode:
    return TextNode(
        id_=NAMES[number],
        text=f"text {number}, {version}",
        metadata={"tenant": TENANTS[number % 2], "version": version},
    )


class Coded(MetadataFilters):
    """A filter that decides by what it looks at when it is used."""

    kind: Kind

    def __call__(self) -> str:
        return TENANT.get() if self.kind == "context" else STATE.tenant


class DecidingStore(SimpleVectorStore):
    """LlamaIndex's own store, which asks filters that are code."""

    def query(self, query: VectorStoreQuery, **kwargs: Any) -> VectorStoreQueryResult:
        if isinstance(query.filters, Coded):
            query = replace(query, filters=only(query.filters()))
        return super().query(query, **kwargs)


def only(tenant: str) -> MetadataFilters:
    return MetadataFilters(filters=[MetadataFilter(key="tenant", value=tenant)])


class Searching(BaseRetriever):
    """A retriever of an application's own, with a filter of any kind."""

    def __init__(self, index: VectorStoreIndex, filter: Any) -> None:  # noqa: A002 - as the others'
        self.index = index
        self.filter = filter
        super().__init__()

    def _retrieve(self, query_bundle: QueryBundle) -> list[NodeWithScore]:
        found = self.index.as_retriever(similarity_top_k=6).retrieve(query_bundle)
        return let_through(found, tenant_of(self.filter))


class First(BaseRetriever):
    """The first nodes that a retriever brings; of a node that comes twice, LlamaIndex drops one."""

    def __init__(self, retriever: BaseRetriever, k: int | None) -> None:
        self.retriever = retriever
        self.k = k
        super().__init__()

    def _retrieve(self, query_bundle: QueryBundle) -> list[NodeWithScore]:
        return self.retriever._retrieve(query_bundle)[: self.k]


def let_through(found: Sequence[NodeWithScore], tenant: str | None) -> list[NodeWithScore]:
    return [one for one in found if tenant in {None, one.metadata["tenant"]}]


STORES: dict[str, Callable[[], Any]] = {
    "simple": DecidingStore,
    "map": lambda: FaissMapVectorStore(faiss.IndexIDMap2(faiss.IndexFlatL2(DIM))),
    "faiss": lambda: FaissVectorStore(faiss.IndexFlatL2(DIM)),
}
WHATS = ("default", "mmr", "retriever", "own", "staged", "staged alone")
KNOBS: list[dict[str, Any]] = [
    {},
    {"rerank_factor": 1},
    {"capacity": 2},
    {"cache_index": "lsh"},
    {"annotate": True},
    {"pickle_cache": True},
]
COPIES: dict[str, Callable[[Any], Any]] = {
    "copy": copy.copy,
    "deepcopy": copy.deepcopy,
    "pickle": lambda retriever: pickle.loads(pickle.dumps(retriever)),
}
BUNDLES: dict[str, Callable[[str], Any]] = {
    "text": str,
    "bundle": QueryBundle,
    "other texts": lambda query: QueryBundle(query, custom_embedding_strs=[query, "and more"]),
    "embedded": lambda query: QueryBundle(query, embedding=Words().get_query_embedding("else")),
}


class Machine(RuleBasedStateMachine):
    """A retriever and its copies, over an index that changes."""

    kind: str
    retriever: Any
    wrapped: Any = None
    index: VectorStoreIndex

    @initialize(
        what=st.sampled_from(WHATS),
        own=st.sampled_from(FILTERS),
        tolerance=st.sampled_from([0, 1e-9]),
        knobs=st.sampled_from(KNOBS),
        named=st.booleans(),
    )
    def begin(
        self,
        what: str,
        own: Kind,
        tolerance: float,
        knobs: dict[str, Any],
        named: bool,
    ) -> None:
        self.filters, self.version, self.what, self.own = Filters(), 0, what, own
        assume(self.kind == "simple" or what != "mmr")
        assume(self.kind != "simple" or not what.startswith("staged"))
        context = StorageContext.from_defaults(vector_store=STORES[self.kind]())
        nodes = [node(number) for number in range(COUNT)]
        self.index = VectorStoreIndex(nodes, storage_context=context, embed_model=Words())
        knobs = knobs | {"tolerance": tolerance, "guard": False}
        if what in {"own", "staged", "staged alone"}:
            filter_ = fixed if named else self.filters.of(own)
            if named:
                knobs |= {"filter_key": "ann's"}
            make = Searching if what == "own" else partial(StagedFaissRetriever, k=3)
            self.wrapped = make(self.index, filter=filter_)
            self.retriever = self.wrapped
            if what != "staged alone":
                self.retriever = ApproximateCacheRetriever.from_retriever(
                    self.wrapped, Words(), **knobs
                )
                self.attach()
            return
        self.search = self.search_of(own) | (MMR if what == "mmr" else {})
        if what == "retriever":
            self.wrapped = self.index.as_retriever(similarity_top_k=3, **self.search)
            self.retriever = ApproximateCacheRetriever.from_retriever(self.wrapped, **knobs)
        else:
            self.retriever = ApproximateCacheRetriever.from_index(
                self.index, k=2, search_kwargs=self.search, **knobs
            )

    def search_of(self, own: Kind) -> dict[str, Any]:
        if own == "none" or self.kind != "simple":  # FAISS's stores refuse filters
            self.own = "none"
            return {}
        if own in {"context", "state"}:
            return {"filters": Coded(filters=[], kind=own)}
        self.own = "data"
        return {"filters": only("ann")}

    def attach(self) -> None:
        if self.what == "own":
            self.retriever.attach(self.index)

    def tenant(self) -> str | None:
        """Whose nodes may be found now."""
        if self.what in {"own", "staged", "staged alone"}:
            return tenant_of(self.wrapped.filter)
        filters = self.search.get("filters")
        if isinstance(filters, Coded):
            return filters()
        return None if filters is None else str(filters.filters[0].value)

    @rule(kind=st.sampled_from(FILTERS), tenant=st.sampled_from(TENANTS))
    def change_tenant(self, kind: Kind, tenant: str) -> None:
        self.filters.change(kind, tenant)
        if kind == "data" and self.own == "data" and self.what in {"default", "mmr", "retriever"}:
            self.search["filters"].filters[0].value = tenant

    @rule(kind=st.sampled_from(FILTERS))
    def set_filter(self, kind: Kind) -> None:
        if self.what == "own":
            self.wrapped.filter = self.filters.of(kind)

    @rule(k=st.integers(1, 6))
    def set_k(self, k: int) -> None:
        self.retriever.similarity_top_k = k

    @rule(how=st.sampled_from(list(COPIES)))
    def copy(self, how: str) -> None:
        if self.what.startswith("staged") and self.mixed_up():
            return  # no staged retriever is made over such an index
        self.retriever = COPIES[how](self.retriever)
        if self.what == "staged alone":
            self.wrapped = self.retriever
        elif self.wrapped is not None:
            self.wrapped = self.retriever._wrapped
        else:
            self.search = self.retriever._search_kwargs
            self.index = self.retriever._index
        if self.wrapped is not None:
            self.index = getattr(self.wrapped, "_index", None) or self.wrapped.index
        filters = getattr(self.wrapped, "_filters", None)
        if filters is not None:
            self.search = {"filters": filters}
        self.attach()

    @rule(number=st.integers(0, len(NAMES) - 1), way=st.sampled_from(["sync", "async"]))
    def write(self, number: int, way: str) -> None:
        """Add a node, or another one with the same id."""
        self.version += 1
        written = [node(number, self.version)]
        if way == "sync":
            self.index.insert_nodes(written)
        else:
            asyncio.run(self.index.ainsert_nodes(written))

    @rule(
        number=st.integers(0, len(NAMES) - 1),
        way=st.sampled_from(["index", "docstore", "store", "async"]),
    )
    def remove(self, number: int, way: str) -> None:
        held, names = self.held(), [NAMES[number]]
        if self.kind == "faiss" or names[0] not in held or len(held) < 3:
            return
        if way == "store":
            self.index.vector_store.delete_nodes(names)
        elif way == "async":
            asyncio.run(self.index.adelete_nodes(names))
        else:
            in_index = names[0] in self.index.index_struct.nodes_dict
            self.index.delete_nodes(names, delete_from_docstore=way == "docstore" and in_index)

    @rule(number=st.integers(0, 2), way=st.sampled_from(["update", "delete"]))
    def change_document(self, number: int, way: str) -> None:
        """A whole document, which FAISS's stores cannot take out."""
        if self.kind != "simple":
            return
        name, self.version = f"document {number}", self.version + 1
        if way == "delete":
            self.index.delete_ref_doc(name, delete_from_docstore=True)
        else:
            metadata = {"tenant": TENANTS[number % 2]}
            text = f"text of {name}, {self.version}"
            self.index.update_ref_doc(Document(id_=name, text=text, metadata=metadata))

    @rule()
    def clear(self) -> None:
        if self.what != "staged alone":
            self.retriever.clear()

    @rule(
        query=st.sampled_from(QUESTIONS),
        bundle=st.sampled_from(list(BUNDLES)),
        way=st.sampled_from(["retrieve", "aretrieve", "stages", "astages"]),
    )
    def ask(self, query: str, bundle: str, way: str) -> None:
        make = BUNDLES[bundle]
        try:
            expected = self.plain(make(query))
        except KeyError:
            # FaissMapVectorStore.add forgets the number of a node that it has, so that its vector
            # cannot be deleted any more; the index then finds one for which there is no node.
            assert self.mixed_up()
            return
        # A cache looks at more vectors than it returns, and so may meet the one without a node
        # sooner. Staged search says that it is not known which vector is whose.
        refused = (KeyError, ConfigurationError) if self.what.startswith("staged") else (KeyError,)
        try:
            found = ask(self.retriever, way, make(query))
        except refused:
            assert self.mixed_up()
            return
        assert ids(found) == ids(expected)
        assert [one.text for one in found] == [one.text for one in expected]
        assert scores(found) == pytest.approx(scores(expected), rel=1e-4)
        assert let_through(found, self.tenant()) == found

    def plain(self, query: Any) -> list[NodeWithScore]:
        """What LlamaIndex's own retriever says."""
        k = self.retriever.similarity_top_k
        if self.what in {"retriever", "own"}:
            return First(self.wrapped, k).retrieve(query)
        if self.what.startswith("staged"):
            found = self.index.as_retriever(similarity_top_k=100).retrieve(query)
            return let_through(found, self.tenant())[:k]
        return self.index.as_retriever(similarity_top_k=k, **self.search).retrieve(query)

    def held(self) -> list[str]:
        """The ids of the nodes that a search may find, once for each vector."""
        store = self.index.vector_store
        if isinstance(store, FaissMapVectorStore):
            return list(store._faiss_id_to_node_id_map.values())
        if isinstance(store, SimpleVectorStore):
            return list(store.data.embedding_dict)
        return list(self.index.index_struct.nodes_dict.values())

    def mixed_up(self) -> bool:
        """Whether FAISS has a vector that belongs to no node, or a node with several."""
        held, store = self.held(), self.index.vector_store
        if isinstance(store, FaissMapVectorStore):
            # Its next number is how many vectors there are, which another may have after a removal:
            # two vectors have one number then, and go together. So counting them is not enough.
            names, numbers = store._faiss_id_to_node_id_map, store._node_id_to_faiss_id_map
            vectors = sorted(faiss.vector_to_array(store.client.id_map).tolist())
            inverse = {number: name for name, number in numbers.items()}
            return vectors != sorted(names) or names != inverse
        return not len(set(held)) == len(held) == store.client.ntotal


def ask(retriever: Any, way: str, query: Any) -> list[NodeWithScore]:
    """The answer to one question, in one of the ways to ask."""
    if way == "retrieve":
        return list(retriever.retrieve(query))
    if way == "aretrieve":
        return list(asyncio.run(retriever.aretrieve(query)))
    if way == "stages":
        return list(list(retriever.stages(query))[-1].documents)
    return asyncio.run(last_stage(retriever, query))


async def last_stage(retriever: Any, query: Any) -> list[NodeWithScore]:
    return list([stage async for stage in retriever.astages(query)][-1].documents)


class OverSimple(Machine):
    kind = "simple"


class OverFaissMap(Machine):
    kind = "map"


class OverFaiss(Machine):
    kind = "faiss"


def test_a_store_that_is_mixed_up_ends_what_was_cached() -> None:
    """A node that FAISS has two vectors of, and the cached answer knew only one."""
    machine = OverFaissMap()
    with pytest.warns(HypothesisDeprecationWarning):  # for ``assume``
        machine.begin(what="staged", own="none", tolerance=0, knobs={}, named=False)
    for _ in range(2):
        machine.ask(QUESTIONS[0], "text", "retrieve")
        machine.set_k(6)
        machine.write(0, "sync")
    machine.ask(QUESTIONS[0], "text", "retrieve")


@pytest.mark.parametrize("what", ["default", "staged", "staged alone"])
@pytest.mark.parametrize("way", ["retrieve", "aretrieve", "stages", "astages"])
def test_a_number_of_the_map_that_two_nodes_had(what: str, way: str) -> None:
    """LlamaIndex's store gives a number twice, and then knows a name without a node."""
    machine = OverFaissMap()
    with pytest.warns(HypothesisDeprecationWarning):  # for ``assume``
        machine.begin(what=what, own="none", tolerance=0, knobs={}, named=False)
    machine.remove(0, "index")
    assert not machine.mixed_up()
    machine.ask(QUESTIONS[0], "text", way)
    machine.write(8, "sync")
    assert machine.mixed_up()
    machine.remove(8, "docstore")
    assert machine.mixed_up()
    machine.set_k(COUNT)
    with pytest.raises(KeyError, match="node 8"):
        machine.plain(QUESTIONS[0])
    machine.ask(QUESTIONS[0], "text", way)


@pytest.mark.parametrize("machine", [OverSimple, OverFaissMap, OverFaiss])
def test_every_answer_is_the_plain_retriever_s_own(machine: type[Machine]) -> None:
    run_state_machine_as_test(machine, settings=examples(20))
