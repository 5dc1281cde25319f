"""What single stores of LangChain's do otherwise than others."""

from __future__ import annotations

import asyncio
import logging
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import lancedb
import pytest
from blockbuster import blockbuster_ctx
from lancedb.index import IvfFlat
from langchain_chroma import Chroma
from langchain_community.vectorstores import LanceDB
from langchain_core.documents import Document
from langchain_core.vectorstores import InMemoryVectorStore, VectorStore
from langchain_milvus import Milvus
from langchain_postgres import PGEngine, PGVector, PGVectorStore
from langchain_postgres.v2.hybrid_search_config import HybridSearchConfig
from langchain_postgres.v2.indexes import HNSWIndex
from langchain_qdrant import QdrantVectorStore, RetrievalMode, SparseEmbeddings, SparseVector
from qdrant_client import QdrantClient, models

from ragcache_integrations.errors import ConfigurationError
from ragcache_integrations.retrievers.cached.langchain.retriever import ApproximateCacheRetriever
from tests.retrievers.cached.langchain.stores import DIM, Words

from .counting import new_name
from .langchain_suite import COUNT, K, LangChainContract, document, texts, uuid_of

wrap, own = LangChainContract.wrap, LangChainContract.own


class SparseWords(SparseEmbeddings):
    """One number for each word."""

    def embed_query(self, text: str) -> SparseVector:
        numbers = sorted({sum(word.encode()) for word in text.split()})
        return SparseVector(indices=numbers, values=[1.0] * len(numbers))

    def embed_documents(self, texts: list[str]) -> list[SparseVector]:
        return [self.embed_query(text) for text in texts]


@pytest.fixture
def qdrant() -> Iterator[QdrantClient]:
    client = QdrantClient(":memory:")
    yield client
    client.close()


def qdrant_store(
    client: QdrantClient,
    distance: models.Distance = models.Distance.COSINE,
    mode: RetrievalMode = RetrievalMode.DENSE,
) -> QdrantVectorStore:
    client.create_collection(
        "documents",
        vectors_config={"dense": models.VectorParams(size=DIM, distance=distance)},
        sparse_vectors_config={"sparse": models.SparseVectorParams()},
    )
    return QdrantVectorStore(
        client,
        "documents",
        Words(),
        distance=distance,
        retrieval_mode=mode,
        sparse_embedding=SparseWords(),
        vector_name="dense",
        sparse_vector_name="sparse",
    )


def filled(store: VectorStore) -> VectorStore:
    documents = [document(number) for number in range(COUNT)]
    store.add_documents(documents, ids=[document.id for document in documents])
    return store


def check_unranked(store: VectorStore, reason: str, **knobs: Any) -> None:
    """Check that a store is asked as its own retriever asks it, and never re-ranked."""
    retriever = ApproximateCacheRetriever.from_vectorstore(store, k=K, **knobs, guard=False)
    for _ in range(2):
        assert retriever.invoke("text 7") == own(store, "text 7")
    assert retriever.stats().hits == 1
    assert reason in retriever.stats().unranked
    assert retriever.explain("text 7~1").tolerance == 0.05
    assert retriever.invoke("text 7~1") == own(store, "text 7~1")
    assert retriever.stats().hits == 1
    with pytest.raises(ConfigurationError, match=reason):
        ApproximateCacheRetriever.from_vectorstore(store, rerank_factor=2, **knobs, guard=False)


class TestQdrant:
    @pytest.mark.parametrize("mode", [RetrievalMode.HYBRID, RetrievalMode.SPARSE])
    def test_hybrid_and_sparse_modes(self, qdrant: QdrantClient, mode: RetrievalMode) -> None:
        store = filled(qdrant_store(qdrant, mode=mode))
        check_unranked(store, f"retrieval mode is {mode.value}")
        with pytest.raises(ConfigurationError, match="vectors='embed' cannot"):
            wrap(store, vectors="embed", rerank_factor=None)

    def test_a_distance_that_no_vectors_tell(self, qdrant: QdrantClient) -> None:
        check_unranked(filled(qdrant_store(qdrant, models.Distance.MANHATTAN)), "Manhattan")

    @pytest.mark.filterwarnings("ignore:Local mode performs exact:UserWarning")
    def test_an_object_that_is_wrong_about_its_collection(self, qdrant: QdrantClient) -> None:
        qdrant_store(qdrant, models.Distance.EUCLID)
        store = QdrantVectorStore(
            qdrant, "documents", Words(), vector_name="dense", validate_collection_config=False
        )
        assert store.distance == models.Distance.COSINE
        filled(store)
        retriever = wrap(store, tolerance=0.6, guarantee="exact", sole_writer=True)
        for number in range(10):
            question = f"question~{number}"
            assert retriever.invoke(question) == own(store, question)
        assert retriever.stats().hits == 9

    @pytest.mark.filterwarnings("ignore:Local mode performs exact:UserWarning")
    @pytest.mark.parametrize(("replicas", "acknowledging"), [(2, 1), (2, None), (2, 2), (1, 1)])
    def test_nothing_is_proven_of_a_collection_whose_replicas_may_be_late(
        self,
        qdrant: QdrantClient,
        monkeypatch: pytest.MonkeyPatch,
        replicas: int,
        acknowledging: int | None,
    ) -> None:
        """A collection in this process has no replicas: here is what a server would say of it."""
        store = filled(qdrant_store(qdrant))
        told = qdrant.get_collection("documents")
        told.config.params.replication_factor = replicas
        told.config.params.write_consistency_factor = acknowledging
        monkeypatch.setattr(qdrant, "get_collection", lambda name: told)
        if replicas == (acknowledging or 1):
            wrap(store, guarantee="exact", sole_writer=True)
            return
        with pytest.raises(ConfigurationError, match="write_consistency_factor"):
            wrap(store, guarantee="exact", sole_writer=True)
        assert wrap(store).invoke("question") == own(store, "question")

    @pytest.mark.parametrize("spell", [int, lambda number: uuid.UUID(uuid_of(number)).hex])
    def test_ids_in_every_spelling(self, qdrant: QdrantClient, spell: Any) -> None:
        store = qdrant_store(qdrant)
        store.add_documents([document(n) for n in range(COUNT)], ids=[*map(spell, range(COUNT))])
        check_changes(store, spell)

    def test_forgotten_by_an_id_in_any_spelling(self, qdrant: QdrantClient) -> None:
        store = qdrant_store(qdrant)
        store.add_documents([document(number) for number in range(COUNT)], ids=[*range(COUNT)])
        retriever = wrap(store)
        first = int(retriever.invoke("question")[0].page_content.split()[1])
        retriever.clear(ids=[COUNT])
        assert entries(retriever) == 1
        retriever.clear(ids=[first])
        assert entries(retriever) == 0
        retriever.invoke("question")
        retriever.clear(ids=[uuid.UUID(uuid_of(first)).hex])  # of another document
        assert entries(retriever) == 1
        retriever.clear(ids=["no id of Qdrant's"])
        assert entries(retriever) == 0

    @pytest.mark.parametrize("datatype", [models.Datatype.FLOAT16, models.Datatype.UINT8])
    def test_nothing_is_proven_of_vectors_that_are_rounded(
        self, qdrant: QdrantClient, monkeypatch: pytest.MonkeyPatch, datatype: models.Datatype
    ) -> None:
        """A collection in this process rounds nothing: here is what a server would say of it."""
        store = filled(qdrant_store(qdrant))
        said = qdrant.get_collection("documents")
        vectors = said.config.params.vectors
        assert isinstance(vectors, dict)
        vectors["dense"].datatype = datatype
        monkeypatch.setattr(qdrant, "get_collection", lambda name: said)
        with pytest.raises(ConfigurationError, match=f"rounds vectors to {datatype.value}"):
            wrap(store, guarantee="exact", sole_writer=True)


def entries(retriever: ApproximateCacheRetriever) -> int:
    cache = retriever.stats().cache
    assert cache is not None
    return cache.entries


def check_changes(store: VectorStore, spell: Any) -> None:
    """Check that changes are followed where ids are spelt otherwise than answers do."""
    retriever = wrap(store)
    first = retriever.invoke("question")
    store.delete(ids=[spell(int(text.split()[1])) for text in texts(first)[:2]])
    assert retriever.invoke("question") == own(store, "question")
    store.add_documents([document(100, "question")], ids=[spell(100)])
    assert retriever.invoke("question")[0].page_content == "question"
    assert retriever.invoke("question") == own(store, "question")
    store.add_documents([document(100, "another")], ids=[spell(100)])
    assert retriever.invoke("question") == own(store, "question")
    store.delete(ids=[spell(100)])
    assert retriever.invoke("question") == own(store, "question")


class TestChroma:
    def test_filters_by_text(self) -> None:
        store = filled(Chroma(new_name(), Words()))
        retriever = wrap(store)
        for word in ("1", "2"):
            arguments: dict[str, Any] = {"where_document": {"$contains": word}}
            expected = own(store, "question", **arguments)
            for question in ("question", "question~1"):
                assert retriever.invoke(question, **arguments) == expected
                assert all(word in text for text in texts(expected))
        assert (retriever.stats().misses, retriever.stats().hits) == (2, 2)

    def test_unusual_ids(self) -> None:
        store = Chroma(new_name(), Words())

        def spell(number: int) -> str:
            return f'it\'s "{number}" ☃'

        store.add_documents([document(n) for n in range(COUNT)], ids=[*map(spell, range(COUNT))])
        check_changes(store, spell)

    def test_updates_by_its_own_method(self) -> None:
        store = Chroma(new_name(), Words())
        filled(store)
        retriever = wrap(store)
        retriever.invoke("question")
        store.update_document(uuid_of(3), document(3, "question"))
        assert retriever.invoke("question") == own(store, "question")
        assert retriever.invoke("question")[0].page_content == "question"
        store.reset_collection()
        assert retriever.invoke("question") == []


def milvus(folder: Path, **options: Any) -> Milvus:
    options = {"index_params": {"index_type": "FLAT", "metric_type": "COSINE"}} | options
    several = isinstance(options.get("vector_field"), list)
    return Milvus(
        [Words(), Words()] if several else Words(),
        collection_name="documents",
        connection_args={"uri": str(folder / "milvus.db")},
        **options,
    )


class TestMilvus:
    @pytest.mark.parametrize(
        ("options", "reason"),
        [
            ({"index_params": None}, "its AUTOINDEX"),
            ({"search_params": {"params": {"radius": 3.0}}}, "radius"),
        ],
    )
    def test_what_may_leave_documents_out(
        self, tmp_path: Path, options: dict[str, Any], reason: str
    ) -> None:
        with pytest.raises(ConfigurationError, match=reason):
            wrap(filled(milvus(tmp_path, **options)), guarantee="exact", sole_writer=True)

    def test_ids_of_its_own(self, tmp_path: Path) -> None:
        store = milvus(tmp_path, auto_id=True)
        ids = store.add_documents([document(number) for number in range(COUNT)])
        retriever = wrap(store)
        first = retriever.invoke("question")
        assert first == own(store, "question")
        store.delete(ids=[ids[int(text.split()[1])] for text in texts(first)[:2]])
        assert retriever.invoke("question~1") == own(store, "question~1")
        store.add_documents([document(100, "question")])
        assert retriever.invoke("question~2") == own(store, "question~2")
        assert retriever.invoke("question~2")[0].page_content == "question"

    def test_another_object_over_the_same_collection(self, tmp_path: Path) -> None:
        """Its index says by what it ranks, not the arguments of the object."""
        filled(milvus(tmp_path))
        store = milvus(tmp_path, index_params=None)
        retriever = wrap(store, tolerance=0.6)
        retriever.invoke("question")
        for number in range(10):
            question = f"question~{number}"
            assert retriever.invoke(question) == own(store, question)
        assert retriever.stats().hits == 10

    def test_metadata_in_a_field_of_its_own(self, tmp_path: Path) -> None:
        store = milvus(tmp_path, metadata_field="meta")
        filled(store)
        retriever = wrap(store)
        first = retriever.invoke("question")
        assert retriever.invoke("question~1") == own(store, "question~1")
        store.delete(ids=[uuid_of(int(first[0].page_content.split()[1]))])
        assert retriever.invoke("question~2") == own(store, "question~2")

    def test_answers_within_a_radius_are_not_re_ranked(self, tmp_path: Path) -> None:
        store = filled(milvus(tmp_path))
        distance = store.similarity_search_with_score("question", k=3)[2][1]
        param = {"metric_type": "COSINE", "params": {"radius": distance - 1e-4}}
        arguments: dict[str, Any] = {"param": param}
        retriever = wrap(store)
        expected = own(store, "question", **arguments)
        assert 0 < len(expected) < K
        for question in ("question", *(f"question~{number}" for number in range(20))):
            assert retriever.invoke(question, None, **arguments) == expected

    @pytest.mark.filterwarnings("ignore:The 'ranker_type':DeprecationWarning")  # its own doing
    def test_several_vectors(self, tmp_path: Path) -> None:
        flat = {"index_type": "FLAT", "metric_type": "COSINE"}
        store = milvus(
            tmp_path, vector_field=["one", "two"], index_params=[flat, flat], search_params=[{}, {}]
        )
        with pytest.raises(ConfigurationError, match="embeddings are needed"):
            wrap(store)
        check_unranked(filled(store), "several vector fields", embeddings=Words())


class TestLanceDB:
    def test_by_default_what_is_added_takes_the_place_of_everything(self, tmp_path: Path) -> None:
        store = LanceDB(connection=lancedb.connect(tmp_path), embedding=Words())
        filled(store)
        retriever = wrap(store)
        retriever.invoke("question")
        filled(store)
        store.add_documents([document(100)], ids=[uuid_of(100)])
        assert retriever.invoke("question") == own(store, "question")
        assert len(retriever.invoke("question")) == 1

    def test_filters_before_the_search(self, tmp_path: Path) -> None:
        store = LanceDB(connection=lancedb.connect(tmp_path), embedding=Words(), mode="append")
        filled(store)
        retriever = wrap(store)
        arguments: dict[str, Any] = {"filter": "metadata.half = 0", "prefilter": True}
        for _ in range(2):
            found = retriever.invoke("question", None, **arguments)
            assert found == own(store, "question", **arguments)
            assert len(found) == K
        with pytest.raises(ConfigurationError, match="did you mean prefilter"):
            retriever.invoke("question", None, prefilters=True)

    def test_an_index_of_another_metric(self, tmp_path: Path) -> None:
        store = LanceDB(connection=lancedb.connect(tmp_path), embedding=Words(), mode="append")
        documents = [document(number) for number in range(300)]
        store.add_documents(documents, ids=[document.id for document in documents])
        index = IvfFlat(distance_type="cosine", num_partitions=1)
        store.get_table().create_index("vector", config=index)
        retriever = wrap(store)
        assert retriever.invoke("question") == own(store, "question")
        assert retriever._core._source.facts.metric == "cosine"

    def test_a_guarantee_bypasses_an_index(self, tmp_path: Path) -> None:
        store = LanceDB(connection=lancedb.connect(tmp_path), embedding=Words(), mode="append")
        documents = [document(number) for number in range(300)]
        store.add_documents(documents, ids=[document.id for document in documents])
        index = IvfFlat(distance_type="cosine", num_partitions=100)
        store.get_table().create_index("vector", config=index)
        check_whole(store, 300)


def check_whole(store: VectorStore, count: int) -> None:
    """Check that a guarantee has everything searched by cosine, unlike the store's own search."""
    exact = InMemoryVectorStore(Words())
    exact.add_documents([document(number) for number in range(count)])
    proven = wrap(store, k=count, guarantee="exact", sole_writer=True, rerank_factor=1)
    assert texts(proven.invoke("question")) == texts(own(exact, "question", count))
    assert texts(own(store, "question", count)) != texts(own(exact, "question", count))


class TestPGVectorStore:
    def test_a_guarantee_uses_no_index(self, postgres: str) -> None:
        unscanned = postgres + "&options=-c%20enable_seqscan%3Doff"
        engine, name = PGEngine.from_connection_string(unscanned), new_name()
        engine.init_vectorstore_table(name, DIM)
        store = PGVectorStore.create_sync(engine, Words(), name)
        filled(store)
        store.apply_vector_index(HNSWIndex(m=2, ef_construction=4))
        check_whole(store, COUNT)
        engine._run_as_sync(engine.close())

    def test_hybrid_searches(self, postgres: str) -> None:
        engine, name = PGEngine.from_connection_string(postgres), new_name()
        config = HybridSearchConfig()
        engine.init_vectorstore_table(name, DIM, hybrid_search_config=config)
        store = PGVectorStore.create_sync(engine, Words(), name, hybrid_search_config=config)
        check_unranked(filled(store), "hybrid search")
        engine._run_as_sync(engine.close())

    def test_ids_without_dashes(self, postgres: str) -> None:
        engine, name = PGEngine.from_connection_string(postgres), new_name()
        engine.init_vectorstore_table(name, DIM)
        store = PGVectorStore.create_sync(engine, Words(), name)
        filled(store)
        check_changes(store, lambda number: uuid.UUID(uuid_of(number)).hex)
        engine._run_as_sync(engine.close())

    async def test_changes_by_coroutines(self, postgres: str) -> None:
        engine, name = PGEngine.from_connection_string(postgres), new_name()
        await engine.ainit_vectorstore_table(name, DIM)
        store = await PGVectorStore.create(engine, Words(), name)
        await check_coroutines(store)
        await engine._run_as_async(engine.close())


class TestPGVector:
    async def test_with_coroutines_alone(
        self, postgres: str, caplog: pytest.LogCaptureFixture
    ) -> None:
        store = PGVector(Words(), connection=postgres, collection_name=new_name(), async_mode=True)
        await check_coroutines(store)
        assert not [record for record in caplog.records if record.levelno >= logging.WARNING]
        await store.adelete_collection()
        assert store._async_engine is not None
        await store._async_engine.dispose()


async def check_coroutines(store: VectorStore) -> None:
    """Check a store by its coroutines: nothing of ours blocks, and changes are followed."""
    documents = [document(number) for number in range(COUNT)]
    ids = [document.id for document in documents]

    async def expected(question: str) -> list[Document]:
        return await store.asimilarity_search(question, k=K)

    await store.aadd_documents(documents, ids=ids)
    retriever = wrap(store)
    with blockbuster_ctx(scanned_modules=["ragcache_integrations"]):
        asked = [retriever.ainvoke("question") for _ in range(4)]
        for found in await asyncio.gather(*asked):
            assert found == await expected("question")
        assert await retriever.ainvoke("question~1") == await expected("question~1")
    assert retriever.stats().store_calls == 1
    await store.aadd_documents([document(100, "question")], ids=[uuid_of(100)])
    assert await retriever.ainvoke("question~2") == await expected("question~2")
    await store.adelete(ids=[uuid_of(100)])
    assert await retriever.ainvoke("question~3") == await expected("question~3")
