"""What an application changes on a store that is in use: read again, never answered from before."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import faiss
import pytest
from langchain_chroma import Chroma
from langchain_classic.retrievers import MultiVectorRetriever
from langchain_community.docstore.in_memory import InMemoryDocstore
from langchain_community.vectorstores import FAISS
from langchain_core.documents import Document
from langchain_core.embeddings import Embeddings
from langchain_core.runnables import Runnable, RunnableLambda
from langchain_core.stores import InMemoryStore
from langchain_core.vectorstores import InMemoryVectorStore, VectorStore
from langchain_qdrant import QdrantVectorStore
from llama_index.core import PropertyGraphIndex, Settings, VectorStoreIndex
from llama_index.core.indices.property_graph import ImplicitPathExtractor
from llama_index.core.llms import MockLLM
from llama_index.core.retrievers import QueryFusionRetriever
from llama_index.core.schema import NodeRelationship, RelatedNodeInfo, TextNode
from llama_index.core.vector_stores import SimpleVectorStore
from llama_index.vector_stores.qdrant import QdrantVectorStore as QdrantForLlamaIndex
from qdrant_client import QdrantClient, models

import ragcache_integrations.llama_index as ours
from ragcache_integrations.errors import ConfigurationError
from ragcache_integrations.langchain import ApproximateCacheRetriever
from ragcache_integrations.retrievers.stores import LiveState
from ragcache_integrations.retrievers.stores import live as stores_live
from tests.answers.traffic import embed, langchain_embeddings, llama_index_embeddings

FEES = {"v1": "the fee is five", "v2": "the fee is nine"}
QUESTION = "what is the fee"
DIM = len(embed(QUESTION))


def qdrant_client() -> QdrantClient:
    client = QdrantClient(":memory:")
    for name, text in FEES.items():
        vectors = models.VectorParams(size=DIM, distance=models.Distance.COSINE)
        client.create_collection(name, vectors_config=vectors)
        QdrantVectorStore(client, name, langchain_embeddings()).add_texts([text])
    return client


def faiss_store() -> FAISS:
    store = FAISS(langchain_embeddings(), faiss.IndexFlatL2(DIM), InMemoryDocstore(), {})
    store.add_texts([FEES["v1"]])
    return store


def in_qdrant() -> tuple[VectorStore, Callable[[], None]]:
    store = QdrantVectorStore(qdrant_client(), "v1", langchain_embeddings())
    return store, lambda: setattr(store, "collection_name", "v2")


def with_another_client() -> tuple[VectorStore, Callable[[], None]]:
    store = QdrantVectorStore(qdrant_client(), "v1", langchain_embeddings())
    other = QdrantClient(":memory:")
    other.create_collection(
        "v1", vectors_config=models.VectorParams(size=DIM, distance=models.Distance.COSINE)
    )
    QdrantVectorStore(other, "v1", langchain_embeddings()).add_texts([FEES["v2"]])
    return store, lambda: setattr(store, "_client", other)


def in_chroma() -> tuple[VectorStore, Callable[[], None]]:
    first, second = (Chroma(f"live-{name}", langchain_embeddings()) for name in FEES)
    for store, text in zip((first, second), FEES.values(), strict=True):
        store.reset_collection()
        store.add_texts([text])
    collection = second._chroma_collection
    return first, lambda: setattr(first, "_chroma_collection", collection)


def in_faiss() -> tuple[VectorStore, Callable[[], None]]:
    store, other = faiss_store(), faiss_store()

    def change() -> None:
        store.index = other.index
        store.docstore = InMemoryDocstore({"2": Document(FEES["v2"])})
        store.index_to_docstore_id = {0: "2"}

    return store, change


@pytest.fixture(params=[in_qdrant, with_another_client, in_chroma, in_faiss])
def swapped(request: pytest.FixtureRequest) -> tuple[VectorStore, Callable[[], None]]:
    made: tuple[VectorStore, Callable[[], None]] = request.param()
    return made


def fee(retriever: Any) -> str:
    return str(retriever.invoke(QUESTION)[0].page_content)


@pytest.mark.parametrize("asked", [False, True], ids=["before any question", "in use"])
def test_another_collection_is_searched_from_then_on(
    swapped: tuple[VectorStore, Callable[[], None]], asked: bool, caplog: pytest.LogCaptureFixture
) -> None:
    store, change = swapped
    retriever = ApproximateCacheRetriever.from_vectorstore(store, k=1)
    copied = retriever.model_copy(update={"annotate": True})
    if asked:
        assert fee(retriever) == fee(retriever) == FEES["v1"]
        assert retriever.stats().hits == 1
    change()
    assert fee(retriever) == FEES["v2"]
    assert fee(copied) == FEES["v2"]
    assert fee(retriever) == FEES["v2"]
    assert retriever.stats().store_calls == 1  # the copy shares what it found
    assert "has changed since the retriever was made" in caplog.text
    caplog.clear()
    fee(retriever)
    assert not caplog.records
    # Documents that come there are followed.
    store.add_texts([QUESTION])
    assert fee(retriever) == QUESTION


async def test_coroutines_clears_and_stages_see_it(
    swapped: tuple[VectorStore, Callable[[], None]],
) -> None:
    store, change = swapped
    retriever = ApproximateCacheRetriever.from_vectorstore(store, k=1)
    assert (await retriever.ainvoke(QUESTION))[0].page_content == FEES["v1"]
    change()
    retriever.clear()
    assert not retriever.explain(QUESTION).hit
    assert (await retriever.ainvoke(QUESTION))[0].page_content == FEES["v2"]
    stages = list(retriever.stages(QUESTION))
    assert stages[-1].documents[0].page_content == FEES["v2"]
    assert retriever.stats().hits == 1


@pytest.mark.parametrize("wrap", [lambda chain: chain, lambda chain: RunnableLambda(chain.invoke)])
def test_a_store_within_a_wrapped_retriever(
    swapped: tuple[VectorStore, Callable[[], None]], wrap: Callable[[Any], Any]
) -> None:
    store, change = swapped
    wrapped = store.as_retriever(search_type="mmr", search_kwargs={"k": 1, "fetch_k": 1})
    retriever = ApproximateCacheRetriever.from_retriever(wrap(wrapped), langchain_embeddings())
    assert fee(retriever) == FEES["v1"]
    change()
    assert fee(retriever) == FEES["v2"]
    store.add_texts([QUESTION])  # and is followed without attach()
    assert fee(retriever) == QUESTION


def test_another_embedding_model() -> None:
    store = InMemoryVectorStore(langchain_embeddings())
    store.add_texts([FEES["v1"]])
    retriever = ApproximateCacheRetriever.from_vectorstore(store, k=1)
    fee(retriever)
    store.embedding = langchain_embeddings()
    assert fee(retriever) == FEES["v1"]
    assert (retriever.stats().hits, retriever.stats().embedding_calls) == (0, 1)


def test_a_search_under_way_meanwhile_is_not_kept() -> None:
    store, change = in_qdrant()
    assert isinstance(store, QdrantVectorStore)
    found = store.client.query_points

    def search(*arguments: Any, **named: Any) -> Any:
        answer = found(*arguments, **named)
        change()
        return answer

    retriever = ApproximateCacheRetriever.from_vectorstore(store, k=1)
    store.client.query_points = search  # type: ignore[method-assign] # the test's own
    assert fee(retriever) == FEES["v1"]
    store.collection_name = "v1"  # as it was when the search began
    store.client.query_points = found  # type: ignore[method-assign] # as it was
    assert fee(retriever) == FEES["v1"]
    assert retriever.stats().hits == 0


def test_answers_that_processes_share_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """Those in Redis are of the collection that the tag names."""
    store, change = in_qdrant()
    retriever = ApproximateCacheRetriever.from_vectorstore(store, k=1)
    monkeypatch.setattr(retriever._core.caches, "shared", True)
    change()
    with pytest.raises(ConfigurationError, match=r"collection_name has changed .* another tag"):
        retriever.invoke(QUESTION)


class TestLlamaIndex:
    @pytest.mark.filterwarnings("ignore:Payload indexes have no effect in the local Qdrant")
    def test_another_collection(self) -> None:
        client = qdrant_client()
        for name, text in FEES.items():
            client.delete_collection(name)
            store = QdrantForLlamaIndex(name, client=client)
            VectorStoreIndex.from_vector_store(store, llama_index_embeddings()).insert_nodes(
                [TextNode(text=text)]
            )
        store = QdrantForLlamaIndex("v1", client=client)
        index = VectorStoreIndex.from_vector_store(store, llama_index_embeddings())
        retriever = ours.ApproximateCacheRetriever.from_index(index, k=1)
        clone = retriever.with_context(list)
        assert retriever.retrieve(QUESTION)[0].text == FEES["v1"]
        store.collection_name = "v2"
        assert retriever.retrieve(QUESTION)[0].text == FEES["v2"]
        assert clone.retrieve(QUESTION)[0].text == FEES["v2"]
        assert clone.stats() == retriever.stats()
        assert retriever.stats().hits == 1

    async def test_another_store_and_model(self) -> None:
        def store_of(text: str) -> SimpleVectorStore:
            store = SimpleVectorStore()
            node = TextNode(text=text, id_=text, embedding=list(map(float, embed(text))))
            store.add([node])
            index.docstore.add_documents([node])
            index.index_struct.add_node(node, node.node_id)
            return store

        index = VectorStoreIndex([], embed_model=llama_index_embeddings())
        index._vector_store = store_of(FEES["v1"])
        retriever = ours.ApproximateCacheRetriever.from_index(index, k=1)
        assert (await retriever.aretrieve(QUESTION))[0].text == FEES["v1"]
        index._vector_store = store_of(FEES["v2"])
        assert (await retriever.aretrieve(QUESTION))[0].text == FEES["v2"]
        index._embed_model = llama_index_embeddings()
        await retriever.aretrieve(QUESTION)
        assert retriever.stats().hits == 0

    def test_what_a_wrapped_retriever_is_made_of(self) -> None:
        index = VectorStoreIndex([TextNode(text=FEES["v1"])], embed_model=llama_index_embeddings())
        fusion = QueryFusionRetriever(
            [index.as_retriever(similarity_top_k=1)],
            llm=MockLLM(),
            num_queries=1,
            similarity_top_k=1,
            use_async=False,
        )
        retriever = ours.ApproximateCacheRetriever.from_retriever(
            fusion, embed_model=llama_index_embeddings()
        )
        assert retriever.retrieve(QUESTION)[0].text == FEES["v1"]
        index.insert_nodes([TextNode(text=QUESTION)])
        retriever.retrieve(QUESTION)
        assert retriever.stats().hits == 0
        other = VectorStoreIndex([TextNode(text=FEES["v2"])], embed_model=llama_index_embeddings())
        fusion._retrievers[0] = other.as_retriever(similarity_top_k=1)
        assert retriever.retrieve(QUESTION)[0].text == FEES["v2"]

    def test_a_property_graph_and_the_model_of_the_settings(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(Settings, "_embed_model", None)
        model = llama_index_embeddings()
        ann, acme = TextNode(text="ann works at acme", id_="1"), TextNode(text="acme", id_="2")
        ann.relationships[NodeRelationship.NEXT] = RelatedNodeInfo(node_id="2")
        index = PropertyGraphIndex(
            nodes=[ann, acme],
            llm=MockLLM(max_tokens=8),
            kg_extractors=[ImplicitPathExtractor()],
            embed_model=model,
            embed_kg_nodes=True,
        )
        plain = index.as_retriever(include_text=True)
        with pytest.raises(ConfigurationError, match=r"nor Settings\.embed_model has one"):
            ours.ApproximateCacheRetriever.from_retriever(plain)
        monkeypatch.setattr(Settings, "_embed_model", model)
        for knobs in ({}, {"embed_model": model}):
            retriever = ours.ApproximateCacheRetriever.from_retriever(plain, **knobs)  # type: ignore[arg-type] # a model
            expected = [node.text for node in plain.retrieve("where does ann work")]
            assert expected
            for _ in range(2):
                found = retriever.retrieve("where does ann work")
                assert [node.text for node in found] == expected
            assert retriever.stats().hits == 1
            index.insert_nodes([TextNode(text="bob works at acme")])
            retriever.retrieve("where does ann work")
            assert retriever.stats().hits == 1


def test_documents_that_a_retriever_or_its_docstore_changes_are_followed() -> None:
    vectors, texts = InMemoryVectorStore(langchain_embeddings()), InMemoryStore()
    parents = MultiVectorRetriever(vectorstore=vectors, docstore=texts, id_key="parent")
    vectors.add_documents([Document("fee", metadata={"parent": "1"})])
    texts.mset([("1", Document(FEES["v1"]))])
    retriever = ApproximateCacheRetriever.from_retriever(parents, langchain_embeddings())
    assert fee(retriever) == FEES["v1"]
    texts.mset([("1", Document(FEES["v2"]))])
    assert fee(retriever) == FEES["v2"]
    texts.mdelete(["1"])
    assert retriever.invoke(QUESTION) == []


@pytest.mark.parametrize("knobs", [{}, {"ttl": 60.0}, {"follow_changes": False}], ids=str)
def test_it_is_said_if_nothing_can_be_followed(
    knobs: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)
    found: Runnable[str, list[Document]] = RunnableLambda(lambda question: [Document(question)])
    ApproximateCacheRetriever.from_retriever(found, langchain_embeddings(), **knobs)
    said = "Changes of the documents that the wrapped function finds cannot be followed"
    assert (said in caplog.text) == (not knobs)


def test_numbers_that_count_are_no_settings() -> None:
    """A model that counts its calls is the same model."""

    class Counting(Embeddings):
        count, ready = 0, False

        def embed_documents(self, texts: list[str]) -> list[list[float]]:
            return list(map(self.embed_query, texts))

        def embed_query(self, text: str) -> list[float]:
            self.count, self.ready = self.count + 1, not self.ready
            return embed(text)

    store = InMemoryVectorStore(Counting())
    store.add_texts([FEES["v1"]])
    retriever = ApproximateCacheRetriever.from_vectorstore(store, k=1)
    assert fee(retriever) == fee(retriever)
    assert retriever.stats().hits == 1


@dataclass
class Limits:
    """A record."""

    of: dict[str, list[int]]
    most: int = 1


class Tenant:
    """An object of the application's own that a store holds."""

    grade = "a"

    def __init__(self, **held: Any) -> None:
        vars(self).update(held)


class Slotted:
    __slots__ = ("name",)

    def __init__(self) -> None:
        self.name = "ann"


class Seen:
    """A store; settings are compared object by object, and read only after a change."""

    def __init__(self) -> None:
        self.collection = "one"
        self.count = 1
        self.documents: list[str] = []
        self.limits = Limits({"ann": [1]})
        self.slotted = Slotted()
        self.tenant = Tenant(
            name="ann", limits={"of": [1]}, calls=1, inner=Tenant(name="inner"), run=str
        )


CHANGES: dict[str, Callable[[Seen], object]] = {
    "a text": lambda store: setattr(store, "collection", "two"),
    "another object": lambda store: setattr(store, "tenant", Tenant()),
    "a text within": lambda store: setattr(store.tenant, "name", "bob"),
    "a text deep within": lambda store: setattr(store.tenant.inner, "name", "bob"),  # type: ignore[attr-defined]
    "an item deep within a record": lambda store: store.limits.of["ann"].append(3),
    "an entry of a record": lambda store: store.limits.of.update(bob=[]),
    "a number of a record": lambda store: setattr(store.limits, "most", 2),
    "the class": lambda store: setattr(Tenant, "grade", "b"),
    "a text in the place of a number": lambda store: setattr(store.tenant, "calls", "many"),
    "its attributes": lambda store: setattr(store.tenant, "__dict__", {"name": "bob"}),
    "a slot": lambda store: setattr(store.slotted, "name", "bob"),
}


@pytest.mark.parametrize("slotted", [False, True])
@pytest.mark.parametrize("name", CHANGES)
def test_a_change_is_seen_each_time(
    name: str, slotted: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Tenant, "grade", "a")
    store = Seen()
    if not slotted and name != "a slot":
        del store.slotted
    live = LiveState(lambda: ([store, None], []))
    assert live.change() is live.change() is None
    CHANGES[name](store)
    first, second = live.change(), live.change()
    if name == "a text in the place of a number":  # which was no setting; from now on it is one
        assert first is second is None
        store.tenant.calls = "few"  # type: ignore[attr-defined]
        first = second = live.change()
    assert first == second
    assert str(first).startswith("Seen.")


def test_counters_documents_and_what_is_made_later_are_no_changes() -> None:
    store = Seen()
    live = LiveState(lambda: ([store], []))
    store.count += 1
    store.documents.append("a")
    store.tenant.calls = 2  # type: ignore[attr-defined]
    vars(store)["client"] = threading.Lock()
    assert live.change() is None
    vars(store)["client"] = threading.Lock()
    assert live.change() == "Seen.client"


def test_settings_are_not_read_again_while_nothing_changes(monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[object] = []
    settings = stores_live.settings_of_store

    def counted(store: object) -> Any:
        read.append(store)
        return settings(store)

    monkeypatch.setattr(stores_live, "settings_of_store", counted)
    store = Seen()
    del store.slotted
    live = LiveState(lambda: ([store], []))
    assert live.change() is live.change() is None
    assert read == [store]
    store.tenant.limits["of"].append(2)  # type: ignore[attr-defined]
    store.tenant.calls += 1  # type: ignore[attr-defined]
    store.count += 1
    assert live.change() is live.change() is None
    assert read == [store]
    vars(store)["client"] = threading.Lock()
    assert live.change() is live.change() is None
    assert read == [store, store]


class OwnClient:
    """A client of the application's own; its rows are no settings."""

    def __init__(self, *rows: str) -> None:
        self._rows = list(rows)


def test_an_own_client_with_equal_data_is_another_one() -> None:
    store = InMemoryVectorStore(langchain_embeddings())
    clients = [OwnClient("the fee is five"), OwnClient("the fee is nine")]
    found = []
    for client in (*clients, clients[0]):
        vars(store)["client"] = client
        found.append(stores_live.settings_of_store(store)["client"])
    assert found[0] == found[2] != found[1]
