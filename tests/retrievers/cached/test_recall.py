"""Hits on real questions: MiniLM, bundled passages, an exact FAISS index, brute force as truth."""

from __future__ import annotations

import faiss
import numpy as np
import pytest
from langchain_community.vectorstores import FAISS
from llama_index.core import StorageContext, VectorStoreIndex
from llama_index.core.embeddings import MockEmbedding
from llama_index.core.schema import QueryBundle, TextNode
from llama_index.vector_stores.faiss import FaissVectorStore
from numpy.typing import NDArray

from ragcache_integrations.embeddings.langchain import MiniLMEmbeddings
from ragcache_integrations.resources import load_passages, load_questions
from ragcache_integrations.retrievers.cached.langchain.retriever import ApproximateCacheRetriever
from ragcache_integrations.retrievers.cached.llama_index.retriever import (
    ApproximateCacheRetriever as LlamaIndexRetriever,
)

K = 5
MODEL = MiniLMEmbeddings()


class Corpus:
    def __init__(self) -> None:
        self.texts = [passage.text for passage in load_passages()[:300]]
        self.vectors = np.array(MODEL.embed_documents(self.texts), dtype=np.float64)
        self.questions = [question.text for question in load_questions()[:40]]
        rephrased = [f"{question}?" for question in self.questions]
        rephrased += [f"please tell me {question}" for question in self.questions]
        self.rephrased: dict[str, NDArray[np.float64]] = {
            text: np.array(vector)
            for text, vector in zip(rephrased, MODEL.embed_documents(rephrased), strict=True)
        }

    def truth(self, vector: NDArray[np.float64]) -> set[str]:
        distances = ((self.vectors - vector) ** 2).sum(axis=1)
        return {self.texts[number] for number in np.argsort(distances)[:K]}


@pytest.fixture(scope="module")
def corpus() -> Corpus:
    return Corpus()


@pytest.mark.slow
def test_langchain(corpus: Corpus) -> None:
    pairs = zip(corpus.texts, corpus.vectors.tolist(), strict=True)
    store = FAISS.from_embeddings(list(pairs), MODEL)
    retriever = ApproximateCacheRetriever.from_vectorstore(store, k=K, tolerance=0.5)
    for question in corpus.questions:
        retriever.invoke(question)
    recalls = []
    for text, vector in corpus.rephrased.items():
        hits = retriever.stats().hits
        documents = {document.page_content for document in retriever.invoke(text)}
        if retriever.stats().hits > hits:
            recalls.append(len(documents & corpus.truth(vector)) / K)
    assert len(recalls) > len(corpus.rephrased) / 2
    assert np.mean(recalls) > 0.97


@pytest.mark.slow
def test_llama_index(corpus: Corpus) -> None:
    store = FaissVectorStore(faiss.IndexFlatL2(384))
    nodes = [
        TextNode(text=text, embedding=vector)
        for text, vector in zip(corpus.texts, corpus.vectors.tolist(), strict=True)
    ]
    # The embeddings are at hand: bundles carry them.
    index = VectorStoreIndex(
        nodes,
        storage_context=StorageContext.from_defaults(vector_store=store),
        embed_model=MockEmbedding(embed_dim=384),
    )
    retriever = LlamaIndexRetriever.from_index(index, k=K, tolerance=0.5)

    for question in corpus.questions:
        retriever.retrieve(QueryBundle(question, embedding=MODEL.embed_query(question)))
    recalls = []
    for text, vector in corpus.rephrased.items():
        hits = retriever.stats().hits
        found = retriever.retrieve(QueryBundle(text, embedding=vector.tolist()))
        if retriever.stats().hits > hits:
            recalls.append(len({one.text for one in found} & corpus.truth(vector)) / K)
    assert len(recalls) > len(corpus.rephrased) / 2
    assert np.mean(recalls) > 0.97
