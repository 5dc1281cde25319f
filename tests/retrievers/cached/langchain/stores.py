"""Stores and embeddings for the tests of the LangChain retriever."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
from langchain_community.vectorstores import FAISS
from langchain_community.vectorstores.utils import DistanceStrategy
from langchain_core.embeddings import Embeddings
from langchain_core.vectorstores import InMemoryVectorStore, VectorStore

DIM = 16


class Words(Embeddings):
    """A point per text, far from all others; ``text~1`` lies close to ``text``.

    No language model: the tests need questions at known distances.
    """

    dim = DIM

    def __init__(self) -> None:
        self.queries: list[str] = []

    def embed_query(self, text: str) -> list[float]:
        self.queries.append(text)
        base, _, shift = text.partition("~")
        point = self._noise(base) * 3
        if shift:
            point += self._noise(text) * 0.05
        return [float(x) for x in point]

    def embed_documents(self, texts: list[str]) -> list[list[float]]:
        return [[float(x) for x in self._noise(text) * 3] for text in texts]

    @staticmethod
    def _noise(text: str) -> Any:
        seed = int.from_bytes(hashlib.sha256(text.encode()).digest()[:8])
        return np.random.default_rng(seed).normal(size=DIM)


TEXTS = [f"text {number}" for number in range(300)]
METADATA = [{"number": number, "half": number % 2, "tags": ["a"]} for number in range(300)]
IDS = [f"id {number}" for number in range(300)]


def faiss_store(**options: Any) -> FAISS:
    return FAISS.from_texts(TEXTS, Words(), metadatas=METADATA, ids=IDS, **options)


def in_memory_store() -> InMemoryVectorStore:
    return InMemoryVectorStore.from_texts(TEXTS, Words(), metadatas=METADATA, ids=IDS)


STORES: dict[str, Callable[[], VectorStore]] = {
    "l2": faiss_store,
    "ip": partial(faiss_store, distance_strategy=DistanceStrategy.MAX_INNER_PRODUCT),
    "normalised": partial(faiss_store, normalize_L2=True),
    "cosine": partial(faiss_store, distance_strategy=DistanceStrategy.COSINE),
    "in memory": in_memory_store,
}


def queries_of(store: VectorStore) -> list[str]:
    assert isinstance(store.embeddings, Words)
    return store.embeddings.queries
