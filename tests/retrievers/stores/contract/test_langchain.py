"""Every vector store of LangChain's that can run here, under one contract."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import faiss
import lancedb
import pytest
from chromadb import Collection
from langchain_chroma import Chroma
from langchain_community.docstore.in_memory import InMemoryDocstore
from langchain_community.vectorstores import FAISS, LanceDB
from langchain_core.documents import Document
from langchain_core.vectorstores import InMemoryVectorStore, VectorStore
from langchain_milvus import Milvus
from langchain_postgres import Column, PGEngine, PGVector, PGVectorStore
from langchain_qdrant import QdrantVectorStore
from pymilvus import MilvusClient
from qdrant_client import QdrantClient, models
from sqlalchemy import NullPool, create_engine

from tests.retrievers.cached.langchain.stores import Words

from .counting import call_one_at_a_time, count_calls, new_name
from .langchain_suite import LangChainContract, Model, document


class TestChroma(LangChainContract):
    def why_refused(self, store: VectorStore) -> str:
        return "Chroma walks a graph"

    @pytest.fixture(params=["l2", "cosine", "ip"])
    def empty(self, request: pytest.FixtureRequest, model: Model) -> VectorStore:
        space: Any = request.param
        return Chroma(new_name(), model, collection_configuration={"hnsw": {"space": space}})

    @pytest.fixture
    def calls(self, monkeypatch: pytest.MonkeyPatch) -> list[str]:
        return count_calls(monkeypatch, Collection, "query", "get")


@pytest.mark.filterwarnings("ignore:Local mode performs exact:UserWarning")
class TestQdrant(LangChainContract):
    @pytest.fixture(autouse=True)
    def _one_thread_at_a_time(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """The client of a server may be used by any thread, that of points in memory by one."""
        call_one_at_a_time(
            monkeypatch, QdrantClient, "query_points", "retrieve", "upsert", "delete"
        )

    @pytest.fixture(
        params=[models.Distance.COSINE, models.Distance.EUCLID, models.Distance.DOT],
        ids=lambda distance: str(distance.value),
    )
    def empty(self, request: pytest.FixtureRequest, model: Model) -> Iterator[VectorStore]:
        client = QdrantClient(":memory:")
        parameters = models.VectorParams(size=model.dim, distance=request.param)
        client.create_collection("documents", parameters)
        yield QdrantVectorStore(client, "documents", model, distance=request.param)
        client.close()

    def why_refused(self, store: VectorStore) -> str:
        assert isinstance(store, QdrantVectorStore)
        return "longest document vector" if store.distance == models.Distance.DOT else ""

    def another(self, store: VectorStore) -> VectorStore:
        """Return another object with the same client: points in memory have no other."""
        assert isinstance(store, QdrantVectorStore)
        return QdrantVectorStore(store.client, "documents", Words(), distance=store.distance)

    @pytest.fixture
    def calls(self, monkeypatch: pytest.MonkeyPatch) -> list[str]:
        return count_calls(monkeypatch, QdrantClient, "query_points", "retrieve")

    def half(self, half: int) -> dict[str, Any]:
        condition = models.FieldCondition(key="metadata.half", match=models.MatchValue(value=half))
        return {"filter": models.Filter(must=[condition])}


class TestMilvus(LangChainContract):
    @pytest.fixture
    def empty(self, tmp_path: Path, model: Model) -> VectorStore:
        return self.open(new_name(), tmp_path, model)

    @staticmethod
    def open(name: str, folder: Path, model: Model) -> Milvus:
        return Milvus(
            model,
            collection_name=name,
            connection_args={"uri": str(folder / "milvus.db")},
            index_params={"index_type": "FLAT", "metric_type": "L2"},
        )

    def another(self, store: VectorStore) -> VectorStore:
        assert isinstance(store, Milvus)
        return self.open(store.collection_name, Path(store._connection_args["uri"]).parent, Words())

    @pytest.fixture
    def calls(self, monkeypatch: pytest.MonkeyPatch) -> list[str]:
        return count_calls(monkeypatch, MilvusClient, "search", "get", "query")

    def half(self, half: int) -> dict[str, Any]:
        return {"expr": f"half == {half}"}

    def update(self, store: VectorStore, document: Document) -> None:
        assert isinstance(store, Milvus)
        store.upsert(ids=[document.id or ""], documents=[document])


class TestLanceDB(LangChainContract):
    follows = False  # its documents come back without ids

    @pytest.fixture
    def empty(self, tmp_path: Path, model: Model) -> VectorStore:
        store: VectorStore = LanceDB(
            connection=lancedb.connect(tmp_path), embedding=model, mode="append"
        )
        return store

    @pytest.fixture
    def calls(self, monkeypatch: pytest.MonkeyPatch) -> list[str]:
        return count_calls(monkeypatch, lancedb.table.LanceTable, "search")

    def half(self, half: int) -> dict[str, Any]:
        return {"filter": f"metadata.half = {half}"}

    def test_an_empty_store_that_is_filled_later(self, empty: VectorStore) -> None:
        with pytest.raises(AttributeError):  # there is no table yet
            self.own(empty, "question")
        retriever = self.wrap(empty)
        with pytest.raises(AttributeError):
            retriever.invoke("question")
        self.add(empty, *map(document, range(60)))
        assert retriever.invoke("question") == self.own(empty, "question")

    def another(self, store: VectorStore) -> VectorStore:
        assert isinstance(store, LanceDB)
        connection = lancedb.connect(store._connection.uri)
        other: VectorStore = LanceDB(connection=connection, embedding=Words(), mode="append")
        return other

    def update(self, store: VectorStore, document: Document) -> None:
        store.delete(ids=[document.id or ""])  # to add one of the same id keeps both
        self.add(store, document)


class TestPGVectorStore(LangChainContract):
    @pytest.fixture
    def calls(self, statements: list[str]) -> list[str]:
        return statements

    @pytest.fixture
    def empty(self, postgres: str, model: Model) -> Iterator[VectorStore]:
        engines = [PGEngine.from_connection_string(postgres) for _ in range(2)]
        name = new_name()
        engines[0].init_vectorstore_table(
            name, model.dim, metadata_columns=[Column("half", "INTEGER")]
        )
        stores = [
            PGVectorStore.create_sync(engine, model, name, metadata_columns=["half"])
            for engine in engines
        ]
        self.other = stores[1]
        yield stores[0]
        for engine in engines:
            engine._run_as_sync(engine.close())

    def another(self, store: VectorStore) -> VectorStore:
        return self.other


class TestPGVector(LangChainContract):
    declared = {"exact_search": True}  # noqa: RUF012

    @pytest.fixture
    def calls(self, statements: list[str]) -> list[str]:
        return statements

    @pytest.fixture
    def empty(self, postgres: str, model: Model) -> Iterator[VectorStore]:
        engine = create_engine(postgres)
        store = PGVector(model, connection=engine, collection_name=new_name())
        self.address = postgres
        yield store
        store.delete_collection()  # ids are those of all collections together
        engine.dispose()

    def another(self, store: VectorStore) -> VectorStore:
        assert isinstance(store, PGVector)
        engine = create_engine(self.address, poolclass=NullPool)
        return PGVector(Words(), connection=engine, collection_name=store.collection_name)


class TestFaiss(LangChainContract):
    outside = False

    @pytest.fixture
    def empty(self, model: Model) -> VectorStore:
        store: VectorStore = FAISS(model, faiss.IndexFlatL2(model.dim), InMemoryDocstore(), {})
        return store

    @pytest.fixture
    def calls(self, monkeypatch: pytest.MonkeyPatch) -> list[str]:
        return count_calls(monkeypatch, FAISS, "similarity_search_by_vector")

    def update(self, store: VectorStore, document: Document) -> None:
        store.delete([document.id or ""])  # it refuses an id that it has
        self.add(store, document)

    def test_questions_and_changes_at_the_same_time(self, store: VectorStore) -> None:
        pytest.skip("FAISS must not be searched while it changes")


class TestInMemory(LangChainContract):
    outside = False

    @pytest.fixture
    def empty(self, model: Model) -> VectorStore:
        return InMemoryVectorStore(model)

    @pytest.fixture
    def calls(self, monkeypatch: pytest.MonkeyPatch) -> list[str]:
        return count_calls(monkeypatch, InMemoryVectorStore, "similarity_search_by_vector")

    def half(self, half: int) -> dict[str, Any]:
        def lets_through(document: Document) -> bool:
            return bool(document.metadata["half"] == half)

        return {"filter": lets_through, "filter_key": f"half {half}"}

    def test_searches_with_a_threshold_are_the_store_s_own(self, store: VectorStore) -> None:
        pytest.skip("it has no relevance scores")
