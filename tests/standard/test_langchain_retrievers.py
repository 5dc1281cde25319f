"""langchain-tests' standard suite for the retriever; nothing overridden or expected to fail."""

from __future__ import annotations

from typing import Any

import pytest
from langchain_community.vectorstores import FAISS
from langchain_core.embeddings import DeterministicFakeEmbedding
from langchain_core.retrievers import BaseRetriever
from langchain_tests.integration_tests import RetrieversIntegrationTests

from ragcache_integrations.retrievers.cached.langchain.retriever import ApproximateCacheRetriever
from ragcache_integrations.retrievers.staged.langchain import StagedFaissRetriever

TEXTS = [f"passage {number}" for number in range(30)]


@pytest.fixture(scope="module")
def store() -> Any:
    return FAISS.from_texts(TEXTS, DeterministicFakeEmbedding(size=32))


class TestOverVectorStore(RetrieversIntegrationTests):  # type: ignore[misc]  # untyped
    store: Any

    @pytest.fixture(autouse=True)
    def _take_store(self, store: Any) -> None:
        type(self).store = store

    @property
    def retriever_constructor(self) -> type[BaseRetriever]:
        return ApproximateCacheRetriever

    @property
    def retriever_constructor_params(self) -> dict[str, Any]:
        return {"vectorstore": self.store, "tolerance": 0.3}

    @property
    def retriever_query_example(self) -> str:
        return "which passage?"


class TestOverRetriever(TestOverVectorStore):
    @property
    def retriever_constructor_params(self) -> dict[str, Any]:
        return {
            "retriever": self.store.as_retriever(search_type="mmr"),
            "embeddings": self.store.embeddings,
        }


class TestStaged(TestOverVectorStore):
    @property
    def retriever_constructor(self) -> type[BaseRetriever]:
        return StagedFaissRetriever

    @property
    def retriever_constructor_params(self) -> dict[str, Any]:
        return {"vectorstore": self.store}


class TestOverStaged(TestOverVectorStore):
    @property
    def retriever_constructor_params(self) -> dict[str, Any]:
        return {"retriever": StagedFaissRetriever.from_vectorstore(self.store)}
