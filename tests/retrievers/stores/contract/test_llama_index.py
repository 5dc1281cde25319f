"""Every vector store of LlamaIndex's that can run here, under one contract."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import chromadb
import lancedb
import pytest
from llama_index.core import VectorStoreIndex
from llama_index.core.vector_stores import SimpleVectorStore
from llama_index.core.vector_stores.types import BasePydanticVectorStore
from llama_index.vector_stores.chroma import ChromaVectorStore
from llama_index.vector_stores.lancedb import LanceDBVectorStore
from llama_index.vector_stores.lancedb.base import TableNotFoundError
from llama_index.vector_stores.milvus import MilvusVectorStore
from llama_index.vector_stores.postgres import PGVectorStore
from llama_index.vector_stores.qdrant import QdrantVectorStore
from pymilvus import MilvusClient
from qdrant_client import QdrantClient, models
from sqlalchemy import NullPool

from tests.retrievers.cached.llama_index.indexes import DIM

from .counting import call_one_at_a_time, count_calls, new_name
from .llama_index_suite import LlamaIndexContract, UnitWords, uuid_of


class TestChroma(LlamaIndexContract):
    words = UnitWords

    def why_refused(self, store: BasePydanticVectorStore) -> str:
        return "Chroma walks a graph"

    @pytest.fixture(params=["l2", "cosine", "ip"])
    def empty(self, request: pytest.FixtureRequest) -> BasePydanticVectorStore:
        space: Any = {"hnsw": {"space": request.param}}
        client = chromadb.EphemeralClient()
        collection = client.create_collection(new_name(), configuration=space)
        return ChromaVectorStore(chroma_collection=collection)

    @pytest.fixture
    def calls(self, monkeypatch: pytest.MonkeyPatch) -> list[str]:
        return count_calls(monkeypatch, chromadb.Collection, "query", "get")


@pytest.mark.filterwarnings("ignore:Local mode performs exact:UserWarning")
@pytest.mark.filterwarnings("ignore:Payload indexes have no effect:UserWarning")
class TestQdrant(LlamaIndexContract):
    unasked = ValueError  # there is no collection yet
    coroutines = False  # a client in the process has no asynchronous one that knows its points

    @pytest.fixture(autouse=True)
    def _one_thread_at_a_time(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """The client of a server may be used by any thread, that of points in memory by one."""
        methods = ("query_points", "retrieve", "upload_points", "upsert", "delete")
        call_one_at_a_time(monkeypatch, QdrantClient, *methods)

    @pytest.fixture(params=[models.Distance.COSINE, models.Distance.EUCLID, models.Distance.DOT])
    def empty(self, request: pytest.FixtureRequest, dim: int) -> Iterator[BasePydanticVectorStore]:
        client = QdrantClient(":memory:")
        parameters = models.VectorParams(size=dim, distance=request.param)
        yield QdrantVectorStore("documents", client, dense_config=parameters)
        client.close()

    def why_refused(self, store: BasePydanticVectorStore) -> str:
        vectors = store.client.get_collection("documents").config.params.vectors
        return "longest document vector" if vectors.distance == models.Distance.DOT else ""

    def another(self, store: BasePydanticVectorStore) -> BasePydanticVectorStore:
        """Return another object with the same client: points in memory have no other."""
        return QdrantVectorStore("documents", store.client)

    @pytest.fixture
    def calls(self, monkeypatch: pytest.MonkeyPatch) -> list[str]:
        return count_calls(monkeypatch, QdrantClient, "query_points", "retrieve")


class TestMilvus(LlamaIndexContract):
    @pytest.fixture
    def empty(self, tmp_path: Path, dim: int) -> BasePydanticVectorStore:
        self.uri = str(tmp_path / "milvus.db")
        return MilvusVectorStore(uri=self.uri, dim=dim, similarity_metric="L2")

    def another(self, store: BasePydanticVectorStore) -> BasePydanticVectorStore:
        return MilvusVectorStore(uri=self.uri, dim=DIM, similarity_metric="L2")

    @pytest.fixture
    def calls(self, monkeypatch: pytest.MonkeyPatch) -> list[str]:
        return count_calls(monkeypatch, MilvusClient, "search", "get", "query")


@pytest.mark.filterwarnings("ignore:table_names:DeprecationWarning")  # all of them its own
class TestLanceDB(LlamaIndexContract):
    words = UnitWords
    follows = False
    unasked = TableNotFoundError

    @pytest.fixture
    def empty(self, tmp_path: Path) -> BasePydanticVectorStore:
        self.uri = str(tmp_path)
        return LanceDBVectorStore(uri=self.uri)

    def another(self, store: BasePydanticVectorStore) -> BasePydanticVectorStore:
        return LanceDBVectorStore(uri=self.uri)

    def delete(self, index: VectorStoreIndex, *numbers: int) -> None:
        """Delete nodes in the table: ``delete_nodes`` names ids as if they were columns.

        What fails may have been done in part, so it ends all answers.
        """
        assert isinstance(index.vector_store, LanceDBVectorStore)
        ids = ", ".join(f"'{uuid_of(number)}'" for number in numbers)
        table = index.vector_store.table
        assert table is not None
        table.delete(f"id IN ({ids})")
        with pytest.raises(ValueError, match="No field named"):
            super().delete(index, *numbers)

    @pytest.fixture
    def calls(self, monkeypatch: pytest.MonkeyPatch) -> list[str]:
        return count_calls(monkeypatch, lancedb.table.LanceTable, "search")


class TestPGVectorStore(LlamaIndexContract):
    @pytest.fixture
    def empty(self, postgres: str, dim: int) -> BasePydanticVectorStore:
        self.address, self.name, self.size = postgres, new_name(), dim
        return self.open()

    def another(self, store: BasePydanticVectorStore) -> BasePydanticVectorStore:
        return self.open()

    def open(self) -> BasePydanticVectorStore:
        return PGVectorStore(
            connection_string=self.address,
            async_connection_string=self.address,
            table_name=self.name,
            schema_name="public",
            embed_dim=self.size,
            create_engine_kwargs={"poolclass": NullPool},
        )

    @pytest.fixture
    def calls(self, statements: list[str]) -> list[str]:
        return statements


class TestSimple(LlamaIndexContract):
    outside = False

    @pytest.fixture
    def empty(self) -> BasePydanticVectorStore:
        return SimpleVectorStore()

    @pytest.fixture
    def calls(self, monkeypatch: pytest.MonkeyPatch) -> list[str]:
        return count_calls(monkeypatch, SimpleVectorStore, "query")
