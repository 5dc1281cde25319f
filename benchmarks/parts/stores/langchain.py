"""Vector stores of LangChain, filled and asked."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from langchain_core.documents import Document
from langchain_core.embeddings import Embeddings
from langchain_core.runnables import RunnableLambda
from langchain_core.vectorstores import InMemoryVectorStore, VectorStore
from numpy.typing import NDArray

from ragcache_integrations.langchain import ApproximateCacheRetriever

__all__ = ["STORES", "LangChainStore", "Table", "UnknownStore"]

BATCH = 500


class Table(Embeddings):
    """Embeddings that were computed beforehand.

    Args:
        vectors: By text.
    """

    def __init__(self, vectors: Mapping[str, list[float]]) -> None:
        self._vectors = vectors

    def embed_documents(self, texts: list[str]) -> list[list[float]]:
        """Return the vectors of texts."""
        return [self.embed_query(text) for text in texts]

    def embed_query(self, text: str) -> list[float]:
        """Return the vector of a text; some vector for one that stores try out dimensions with."""
        return self._vectors.get(text) or next(iter(self._vectors.values()))


class LangChainStore:
    """A store, and our retriever in front of it.

    Args:
        store: An empty store.
        k: Documents to find.
    """

    def __init__(self, store: VectorStore, k: int) -> None:
        self._store = store
        self._k = k

    def add(self, passages: Mapping[str, str]) -> None:
        """Add texts by id."""
        documents = [Document(text, metadata={"passage": name}) for name, text in passages.items()]
        for begin in range(0, len(documents), BATCH):
            self._store.add_documents(documents[begin : begin + BATCH])

    def search(self, question: str) -> list[str]:
        """Return the ids that the store itself finds."""
        return _names(self._store.similarity_search(question, k=self._k))

    def retriever(self, *, wrapped: bool = False, **knobs: Any) -> ApproximateCacheRetriever:
        """Put our retriever in front of the store.

        Args:
            wrapped: Not of the store but of something that asks it, so that nothing is re-ranked.
            **knobs: Of the retriever.
        """
        if wrapped:

            def search(question: str) -> list[Document]:
                return self._store.similarity_search(question, k=self._k)

            return ApproximateCacheRetriever.from_retriever(
                RunnableLambda(search), self._store.embeddings, k=self._k, **knobs
            )
        return ApproximateCacheRetriever.from_vectorstore(self._store, k=self._k, **knobs)

    def ask(self, retriever: ApproximateCacheRetriever, question: str) -> list[str]:
        """Return the ids that our retriever finds."""
        return _names(retriever.invoke(question))


def _names(documents: list[Document]) -> list[str]:
    return [document.metadata["passage"] for document in documents]


class UnknownStore(VectorStore):
    """A store of which nothing is known: one that remains after all kinds are listed.

    Args:
        embedding: Embeds its documents.
    """

    def __init__(self, embedding: Embeddings) -> None:
        self._embedding = embedding
        self._documents: list[Document] = []
        self._vectors: NDArray[np.float64] = np.empty((0, 0))

    @property
    def embeddings(self) -> Embeddings:
        """Embeds its documents."""
        return self._embedding

    def add_documents(self, documents: list[Document], **_: Any) -> list[str]:
        """Add documents."""
        self._documents += documents
        texts = [document.page_content for document in self._documents]
        self._vectors = np.array(self._embedding.embed_documents(texts))
        return [str(len(self._documents) - place) for place in range(len(documents), 0, -1)]

    def similarity_search(self, query: str, k: int = 4, **_: Any) -> list[Document]:
        """Search for a question."""
        return self.similarity_search_by_vector(self._embedding.embed_query(query), k)

    def similarity_search_by_vector(
        self, embedding: list[float], k: int = 4, **_: Any
    ) -> list[Document]:
        """Search by vector."""
        nearest = np.argsort(-(self._vectors @ np.array(embedding)), kind="stable")
        return [self._documents[place] for place in nearest[:k].tolist()]

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

    # By default, what is added takes the place of everything.
    store: VectorStore = LanceDB(
        connection=lancedb.connect(folder / "lance"), embedding=embedding, mode="append"
    )
    return store


def _faiss(embedding: Embeddings, _: Path, __: str) -> VectorStore:
    import faiss  # noqa: PLC0415 - its package may be missing
    from langchain_community.docstore.in_memory import InMemoryDocstore  # noqa: PLC0415 - it, too
    from langchain_community.vectorstores import FAISS  # noqa: PLC0415 - its package may be missing

    index = faiss.IndexFlatL2(len(embedding.embed_query("dimension")))
    store: VectorStore = FAISS(embedding, index, InMemoryDocstore(), {})
    return store


def _older_pgvector(embedding: Embeddings, _: Path, uri: str) -> VectorStore:
    from langchain_postgres import PGVector  # noqa: PLC0415 - its package may be missing

    store: VectorStore = PGVector(
        embedding, connection=uri, collection_name=f"bench-{uuid.uuid4().hex}"
    )
    return store


def _pgvector(embedding: Embeddings, _: Path, uri: str) -> VectorStore:
    from langchain_postgres import PGEngine, PGVectorStore  # noqa: PLC0415 - its package may be missing

    engine = PGEngine.from_connection_string(uri)
    table = f"bench_{uuid.uuid4().hex}"
    engine.init_vectorstore_table(table, len(embedding.embed_query("dimension")))
    return PGVectorStore.create_sync(engine, embedding, table)


STORES: dict[str, Callable[[Embeddings, Path, str], VectorStore]] = {
    "in memory": lambda embedding, _, __: InMemoryVectorStore(embedding),
    "faiss": _faiss,
    "chroma": _chroma,
    "pgvector": _pgvector,
    "pgvector, older class": _older_pgvector,
    "qdrant": _qdrant,
    "milvus": _milvus,
    "lancedb": _lancedb,
    "unknown": lambda embedding, _, __: UnknownStore(embedding),
}
"""Make an empty store from an embedding model, an empty folder and PostgreSQL's address."""
