"""FAISS stores of every kind that can be searched in stages, for both frameworks."""

from __future__ import annotations

from typing import Any

import faiss
import numpy as np
from langchain_community.docstore.in_memory import InMemoryDocstore
from langchain_community.vectorstores import FAISS
from langchain_core.documents import Document
from llama_index.core import StorageContext, VectorStoreIndex
from llama_index.vector_stores.faiss import FaissMapVectorStore, FaissVectorStore

from ragcache_integrations.vector_search import StagedIndex
from tests.retrievers.cached.langchain.stores import DIM, IDS, METADATA, TEXTS, Words
from tests.retrievers.cached.llama_index import indexes as llama_index_world

KINDS = ("flat", "ivf", "hnsw", "ip", "pq")
STAGED = ("ivf", "hnsw", "pq")
"""Those whose searches have several stages."""


def vectors(texts: list[str]) -> Any:
    return np.array(Words().embed_documents(texts), dtype=np.float32)


def faiss_index(kind: str) -> Any:
    """An index without vectors, trained."""
    index: Any
    if kind == "ip":
        return faiss.IndexFlatIP(DIM)
    if kind == "hnsw":
        index = faiss.IndexHNSWFlat(DIM, 8)
        index.hnsw.efSearch = 64
        return index
    if kind == "flat":
        return faiss.IndexFlatL2(DIM)
    coarse: Any = faiss.IndexFlatL2(DIM)
    if kind == "pq":
        index = faiss.IndexIVFPQ(coarse, DIM, 12, 4, 4)
    else:
        index = faiss.IndexIVFFlat(coarse, DIM, 12)
    coarse.this.disown()
    index.own_fields = True
    index.cp.min_points_per_centroid = 1
    index.train(vectors(TEXTS))
    index.nprobe = 9
    return index


def faiss_store(kind: str, **options: Any) -> FAISS:
    store = FAISS(Words(), faiss_index(kind), InMemoryDocstore(), {}, **options)
    store.add_texts(TEXTS, metadatas=METADATA, ids=IDS)
    return store


def documents() -> dict[str, Document]:
    return {
        one: Document(text, id=one, metadata=metadata)
        for one, text, metadata in zip(IDS, TEXTS, METADATA, strict=True)
    }


def staged_index(kind: str) -> StagedIndex:
    index = faiss_index(kind)
    index.add(vectors(TEXTS))
    return StagedIndex(index, IDS, metadata=METADATA)


def llama_index(kind: str, count: int = 200) -> VectorStoreIndex:
    if kind == "map":
        inner = faiss.IndexHNSWFlat(DIM, 8)
        store: FaissVectorStore = FaissMapVectorStore(faiss.IndexIDMap2(inner))
    elif kind == "flat map":
        store = FaissMapVectorStore(faiss.IndexIDMap2(faiss.IndexFlatL2(DIM)))
    else:
        store = FaissVectorStore(faiss_index(kind))
    return VectorStoreIndex(
        llama_index_world.nodes(count),
        storage_context=StorageContext.from_defaults(vector_store=store),
        embed_model=llama_index_world.Words(),
    )
