"""Stores, indexes and embedding models of the application's own class find each user's rows."""

from __future__ import annotations

import asyncio
import contextvars
from collections.abc import Callable
from typing import Any

import pytest
from langchain_core.documents import Document
from langchain_core.embeddings import Embeddings
from langchain_core.runnables import RunnableLambda
from langchain_core.runnables.config import ensure_config
from langchain_core.vectorstores import InMemoryVectorStore
from langgraph.config import get_config
from llama_index.core import StorageContext, VectorStoreIndex
from llama_index.core.base.embeddings.base import BaseEmbedding
from llama_index.core.query_engine import RetrieverQueryEngine
from llama_index.core.retrievers import BaseRetriever as LlamaRetriever
from llama_index.core.schema import TextNode
from llama_index.core.storage.docstore import SimpleDocumentStore
from llama_index.core.vector_stores import SimpleVectorStore
from llama_index.core.vector_stores.types import VectorStoreQuery, VectorStoreQueryResult

from ragcache_integrations import llama_index as llama
from ragcache_integrations.langchain import (
    AnswerCache,
    ApproximateCacheRetriever,
    MiniLMEmbeddings,
)
from tests.answers.traffic import langchain_embeddings
from tests.attacks.context.steps import (
    QUESTION,
    WHO,
    LlamaFound,
    Says,
    configurable,
    one_node,
    variable,
)

ROWS = {"ann": "balance of ann", "bob": "balance of bob"}


def who() -> str:
    """Who asks, by a variable or by the run."""
    config = ensure_config()
    return str(WHO.get(None) or config["configurable"].get("user") or config["metadata"]["user"])


class OwnStore(InMemoryVectorStore):
    """Has row-level security, as databases do by a setting of the session."""

    def similarity_search_by_vector(
        self, embedding: list[float], k: int = 4, **kwargs: Any
    ) -> list[Document]:
        return [Document(ROWS[who()], id=who())]

    async def asimilarity_search_by_vector(
        self, embedding: list[float], k: int = 4, **kwargs: Any
    ) -> list[Document]:
        return self.similarity_search_by_vector(embedding, k)


class OwnModel(Embeddings):
    """Embeds for one user, whose rows have vectors near to it."""

    def __init__(self) -> None:
        self.calls = 0

    def embed_documents(self, texts: list[str]) -> list[list[float]]:
        return [[1.0, 0.0] if "ann" in text else [0.0, 1.0] for text in texts]

    def embed_query(self, text: str) -> list[float]:
        self.calls += 1
        return self.embed_documents([who()])[0]


class OwnFlatModel(OwnModel):
    """Reads nothing; its class alone is the application's."""

    def embed_query(self, text: str) -> list[float]:
        self.calls += 1
        return [0.5, 0.5]


class OwnRows(dict[str, Any]):
    """The place that a library's store reads from."""

    def values(self) -> Any:
        return [row for row in super().values() if row["id"] == who()]


def stores() -> dict[str, Any]:
    own_rows: Any = InMemoryVectorStore(OwnFlatModel())
    own_rows.add_texts(list(ROWS.values()), ids=list(ROWS))
    own_rows.store = OwnRows(own_rows.store)
    own_model: Any = InMemoryVectorStore(OwnModel())
    own_model.add_texts(list(ROWS.values()), ids=list(ROWS))
    own_method: Any = InMemoryVectorStore(langchain_embeddings())
    own_method.similarity_search_by_vector = lambda *_, **__: [Document(ROWS[who()], id=who())]
    return {
        "store": OwnStore(langchain_embeddings()),
        "rows": own_rows,
        "model": own_model,
        "method": own_method,
    }


def documents_of(store: Any, how: str) -> Callable[..., str]:
    cached = ApproximateCacheRetriever.from_vectorstore(store, k=1, tolerance=0)
    if how in ("answer", "answer stream"):
        chain = RunnableLambda(lambda inputs: inputs["context"][0].page_content)
        answers = AnswerCache(chain=chain, retriever=cached, documents_key="context", tolerance=0)
        if how == "answer":
            return lambda: str(answers.invoke(QUESTION))
        return lambda: "".join(answers.stream(QUESTION))
    if how == "stages":
        return lambda: str(list(cached.stages(QUESTION))[-1].documents[0].page_content)
    if how == "ainvoke":
        return lambda: str(asyncio.run(cached.ainvoke(QUESTION))[0].page_content)
    return lambda: str(cached.invoke(QUESTION)[0].page_content)


@pytest.mark.parametrize("by", ["variable", "context of a graph", "metadata"])
@pytest.mark.parametrize("how", ["invoke", "ainvoke", "stages", "answer", "answer stream"])
@pytest.mark.parametrize("kind", stores())
def test_a_store_of_the_application_finds_each_user_s_documents(
    kind: str, how: str, by: str
) -> None:
    find = documents_of(stores()[kind], how)
    graph = one_node(RunnableLambda(lambda _: {"found": find()}))

    def ask(user: str) -> str:
        if by == "variable":
            WHO.set(user)
            return find()
        place = "configurable" if by == "context of a graph" else "metadata"
        config: Any = {place: {"user": user}}
        return str(graph.invoke({"question": QUESTION}, config)["found"])

    for user in ("ann", "bob", "ann"):
        assert contextvars.copy_context().run(ask, user) == ROWS[user]


def test_a_store_of_the_application_is_asked_once_by_each_user() -> None:
    model = OwnModel()
    store = InMemoryVectorStore(model)
    store.add_texts(list(ROWS.values()), ids=list(ROWS))
    cached = ApproximateCacheRetriever.from_vectorstore(store, k=1)

    def ask(user: str) -> None:
        WHO.set(user)
        assert cached.invoke(QUESTION)[0].page_content == ROWS[user]

    for user in ("ann", "bob") * 3:
        contextvars.copy_context().run(ask, user)
    assert (cached.stats().misses, cached.stats().hits, model.calls) == (2, 4, 2)


def test_a_store_of_the_application_that_reads_its_thread_is_asked_each_time() -> None:
    class ByThread(InMemoryVectorStore):
        def similarity_search_by_vector(
            self, embedding: list[float], k: int = 4, **kwargs: Any
        ) -> list[Document]:
            return [Document(get_config()["configurable"]["thread_id"], id="1")]

    cached = ApproximateCacheRetriever.from_vectorstore(ByThread(langchain_embeddings()), k=1)
    graph = one_node(lambda _: {"found": cached.invoke(QUESTION)[0].page_content})
    for user in ("ann", "bob", "ann"):
        state = graph.invoke({"question": QUESTION}, configurable(user, "thread_id"))
        assert state["found"] == user
    assert cached.stats().misses == 3


def test_a_store_of_a_library_is_shared_by_requests() -> None:
    store = InMemoryVectorStore(MiniLMEmbeddings())
    store.add_texts(list(ROWS.values()))
    cached = ApproximateCacheRetriever.from_vectorstore(store, k=1)

    def ask(request: int) -> None:
        WHO.set(f"request {request}")
        cached.invoke(QUESTION)

    for request in range(3):
        contextvars.copy_context().run(ask, request)
    assert cached.stats().hits == 2


class OwnNodes(SimpleVectorStore):
    """Finds the rows of who asks."""

    def query(self, query: VectorStoreQuery, **kwargs: Any) -> VectorStoreQueryResult:
        return VectorStoreQueryResult(similarities=[1.0], ids=[who()])


class OwnNodeModel(BaseEmbedding):
    """Embeds for one user."""

    def _get_text_embedding(self, text: str) -> list[float]:
        return [1.0, 0.0] if "ann" in text else [0.0, 1.0]

    def _get_query_embedding(self, query: str) -> list[float]:
        return self._get_text_embedding(who())

    async def _aget_query_embedding(self, query: str) -> list[float]:
        return self._get_query_embedding(query)


class OwnDocuments(SimpleDocumentStore):
    """Has another text for each user."""

    def get_document(self, doc_id: str, raise_error: bool = True) -> Any:
        return TextNode(id_=doc_id, text=ROWS[who()])

    def get_nodes(self, node_ids: list[str], raise_error: bool = True) -> Any:
        return [self.get_document(node_id) for node_id in node_ids]


class OwnIndex(VectorStoreIndex):
    """Has a retriever of the application's."""

    def as_retriever(self, **kwargs: Any) -> LlamaRetriever:
        return LlamaFound(lambda _: ROWS[who()])


def indexes() -> dict[str, Callable[[], VectorStoreIndex]]:
    nodes: list[Any] = [TextNode(id_=user, text=text) for user, text in ROWS.items()]
    model = llama.MiniLMEmbeddings()

    def of(**parts: Any) -> VectorStoreIndex:
        context = StorageContext.from_defaults(**parts)
        return VectorStoreIndex(nodes, storage_context=context, embed_model=model)

    return {
        "store": lambda: of(vector_store=OwnNodes()),
        "documents": lambda: of(docstore=OwnDocuments()),
        "model": lambda: VectorStoreIndex(nodes, embed_model=OwnNodeModel()),
        "index": lambda: OwnIndex(nodes, embed_model=model),
    }


def nodes_of(index: VectorStoreIndex, how: str) -> Callable[[], str]:
    own = isinstance(index, OwnIndex)  # whose retriever has no model
    model = llama.MiniLMEmbeddings() if own else None
    if how in ("answer", "answer later"):
        cached = llama.ApproximateCacheRetriever.from_index(index, model, k=1, tolerance=0)
        engine = RetrieverQueryEngine(cached, response_synthesizer=SaysAll())
        answers = llama.AnswerCache(engine, tolerance=0)
        if how == "answer":
            return lambda: str(answers.query(QUESTION))
        return lambda: str(asyncio.run(answers.aquery(QUESTION)))
    cached = llama.ApproximateCacheRetriever.from_index(index, model, k=1)
    if how == "stages":
        return lambda: list(cached.stages(QUESTION))[-1].documents[0].text
    if how == "aretrieve":
        return lambda: asyncio.run(cached.aretrieve(QUESTION))[0].text
    return lambda: cached.retrieve(QUESTION)[0].text


class SaysAll(Says):
    """Answers with the nodes' text."""

    def __init__(self) -> None:
        super().__init__(lambda _: "")

    def get_response(self, query_str: str, text_chunks: Any, **_: Any) -> str:
        return str(text_chunks[0])

    async def aget_response(self, query_str: str, text_chunks: Any, **_: Any) -> str:
        return str(text_chunks[0])


@pytest.mark.parametrize("how", ["retrieve", "aretrieve", "stages", "answer", "answer later"])
@pytest.mark.parametrize("kind", indexes())
def test_an_index_of_the_application_finds_each_user_s_nodes(kind: str, how: str) -> None:
    with variable("ann"):
        find = nodes_of(indexes()[kind](), how)
    for user in ("ann", "bob", "ann"):
        with variable(user):
            assert find() == ROWS[user]


def test_an_index_of_a_library_is_shared_by_requests() -> None:
    cached = llama.ApproximateCacheRetriever.from_index(
        VectorStoreIndex([TextNode(text="a")], embed_model=llama.MiniLMEmbeddings()), k=1
    )
    for request in range(3):
        with variable(f"request {request}"):
            cached.retrieve(QUESTION)
    assert cached.stats().hits == 2
