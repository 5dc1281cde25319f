"""What is given where its neighbour belongs, and what finds no documents, is refused in words."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
from langchain_core.documents import Document
from langchain_core.runnables import RunnableLambda
from llama_index.core import SummaryIndex
from llama_index.core.base.base_retriever import BaseRetriever
from llama_index.core.llms import MockLLM
from llama_index.core.schema import NodeWithScore, TextNode

from ragcache_integrations import langchain, llama_index
from ragcache_integrations.errors import ConfigurationError
from tests.retrievers.cached.langchain.stores import Words, faiss_store
from tests.retrievers.cached.llama_index.indexes import Words as LlamaWords
from tests.retrievers.cached.llama_index.indexes import faiss_index

LANGCHAIN: dict[str, Callable[[Any], Any]] = {
    "from_vectorstore": langchain.ApproximateCacheRetriever.from_vectorstore,
    "from_retriever": lambda given: langchain.ApproximateCacheRetriever.from_retriever(
        given, Words()
    ),
    "staged from_vectorstore": langchain.StagedFaissRetriever.from_vectorstore,
    "staged from_index": lambda given: langchain.StagedFaissRetriever.from_index(
        given, {}, Words()
    ),
    "embeddings": lambda given: langchain.ApproximateCacheRetriever.from_vectorstore(
        faiss_store(), given
    ),
    "AnswerCache": lambda given: langchain.AnswerCache(chain=RunnableLambda(str), retriever=given),
}
LLAMA_INDEX: dict[str, Callable[[Any], Any]] = {
    "from_index": llama_index.ApproximateCacheRetriever.from_index,
    "from_vectorstore": lambda given: llama_index.ApproximateCacheRetriever.from_vectorstore(
        given, LlamaWords()
    ),
    "from_retriever": llama_index.ApproximateCacheRetriever.from_retriever,
    "staged from_index": llama_index.StagedFaissRetriever.from_index,
    "index": llama_index.ApproximateCacheRetriever,
    "retriever": lambda given: llama_index.ApproximateCacheRetriever(retriever=given),
    "embed_model": lambda given: llama_index.ApproximateCacheRetriever.from_index(
        faiss_index(), given
    ),
    "embed_model of a store": lambda given: llama_index.ApproximateCacheRetriever.from_vectorstore(
        faiss_index().vector_store, given
    ),
    "AnswerCache": llama_index.AnswerCache,
    "embed_model of answers": lambda given: llama_index.AnswerCache(engine(), embed_model=given),
}


def engine() -> Any:
    return faiss_index().as_query_engine(llm=MockLLM())


def neighbours() -> dict[str, Any]:
    """Objects of both frameworks, and their classes."""
    store, index = faiss_store(), faiss_index()
    objects: dict[str, Any] = {
        "a store": store,
        "a retriever": store.as_retriever(),
        "a function": RunnableLambda(str),
        "a model": Words(),
        "an index of LlamaIndex": index,
        "an index without vectors": SummaryIndex([]),
        "a store of LlamaIndex": index.vector_store,
        "a retriever of LlamaIndex": index.as_retriever(),
        "a model of LlamaIndex": LlamaWords(),
        "an engine": engine(),
        "FAISS itself": store.index,
    }
    classes = {f"the class of {name}": type(each) for name, each in objects.items()}
    return {**objects, **classes, "None": None, "a text": "x", "a list": [store]}


RIGHT = {
    ("from_vectorstore", "a store"),
    ("from_retriever", "a retriever"),
    ("from_retriever", "a function"),
    ("staged from_vectorstore", "a store"),
    ("embeddings", "a model"),
    ("embeddings", "None"),
    ("AnswerCache", "a retriever"),
    ("AnswerCache", "a function"),
}
RIGHT_LLAMA = {
    ("from_index", "an index of LlamaIndex"),
    ("from_retriever", "a retriever of LlamaIndex"),
    ("staged from_index", "an index of LlamaIndex"),
    ("index", "an index of LlamaIndex"),
    ("retriever", "a retriever of LlamaIndex"),
    ("embed_model", "a model of LlamaIndex"),
    ("embed_model", "None"),
    ("AnswerCache", "an engine"),
    ("embed_model of answers", "a model of LlamaIndex"),
    ("embed_model of answers", "None"),
}


@pytest.mark.parametrize(
    ("makers", "right"), [(LANGCHAIN, RIGHT), (LLAMA_INDEX, RIGHT_LLAMA)], ids=["lc", "llama"]
)
def test_a_neighbour_is_refused(makers: dict[str, Any], right: set[tuple[str, str]]) -> None:
    for maker, make in makers.items():
        for name, given in neighbours().items():
            if (maker, name) in right:
                make(given)
                continue
            with pytest.raises(ConfigurationError) as refused:
                make(given)
            assert (
                " must be " in str(refused.value)
                or ": Input should be" in str(refused.value)
                or (
                    "give either" in str(refused.value)
                    or "keep the nodes' text" in str(refused.value)
                )
            ), (maker, name)


@pytest.mark.parametrize(
    ("make", "given", "said"),
    [
        (LANGCHAIN["from_vectorstore"], "a retriever", r"from_retriever\(\) takes a retriever"),
        (LANGCHAIN["from_retriever"], "a store", r"from_vectorstore\(\) takes a store"),
        (LANGCHAIN["staged from_index"], "a store", r"from_vectorstore\(\) takes a store"),
        (LLAMA_INDEX["from_index"], "an engine", r"AnswerCache takes a query engine"),
        (LLAMA_INDEX["from_index"], "a retriever of LlamaIndex", r"from_retriever\(\) takes a"),
        (LLAMA_INDEX["from_index"], "an index without vectors", r"as_retriever\(\) makes"),
        (LLAMA_INDEX["from_retriever"], "an index of LlamaIndex", r"from_index\(\) takes"),
        (LLAMA_INDEX["from_retriever"], "a store of LlamaIndex", r"from_vectorstore\(\) takes"),
        (LLAMA_INDEX["staged from_index"], "a store of LlamaIndex", "pass the index over it"),
        (LLAMA_INDEX["AnswerCache"], "an index of LlamaIndex", r"as_query_engine\(\) makes one"),
        (LLAMA_INDEX["AnswerCache"], "a retriever of LlamaIndex", "RetrieverQueryEngine"),
        (
            LLAMA_INDEX["from_index"],
            "the class of an index of LlamaIndex",
            "got the class VectorStoreIndex, not an object of it",
        ),
    ],
)
def test_what_was_meant_is_said(make: Any, given: str, said: str) -> None:
    with pytest.raises(ConfigurationError, match=said):
        make(neighbours()[given])


class Finding(BaseRetriever):
    """Finds whatever it was made with."""

    def __init__(self, found: Any) -> None:
        super().__init__()
        self.found = found

    def _retrieve(self, query_bundle: Any) -> Any:
        return self.found


NO_DOCUMENTS: dict[str, tuple[Any, str]] = {
    "nothing": (None, "must return a list of documents, got NoneType"),
    "a number": (3, "must return a list of documents, got int"),
    "a text": ("text", "must return a list of documents, got str"),
    "a dict": ({"a": 1}, "must return a list of documents, got dict"),
    "texts": (["text"], "must return documents, got 'text'"),
}


@pytest.mark.parametrize("later", [False, True])
@pytest.mark.parametrize("what", NO_DOCUMENTS)
def test_what_finds_no_documents(what: str, later: bool) -> None:
    found, said = NO_DOCUMENTS[what]
    wrapped: Any = RunnableLambda(lambda _: found)
    cached = langchain.ApproximateCacheRetriever.from_retriever(wrapped, Words())
    answers = langchain.AnswerCache(chain=RunnableLambda(str), retriever=wrapped)
    for each in (cached, answers):
        for question in ("question", "" if each is cached else "another"):
            with pytest.raises(ConfigurationError, match=said):
                asyncio.run(each.ainvoke(question)) if later else each.invoke(question)


@pytest.mark.parametrize("later", [False, True])
@pytest.mark.parametrize("what", ["a number", "texts"])
def test_what_finds_no_nodes(what: str, later: bool) -> None:
    """LlamaIndex itself goes through what a retriever of its own finds, and so raises first."""
    cached = llama_index.ApproximateCacheRetriever.from_retriever(
        Finding(NO_DOCUMENTS[what][0]), LlamaWords()
    )
    with pytest.raises((ConfigurationError, TypeError, AttributeError)):
        asyncio.run(cached.aretrieve("question")) if later else cached.retrieve("question")


def test_other_collections_of_documents_are_documents() -> None:
    wrapped: Any = RunnableLambda(lambda _: (Document("a", id="1"),))
    cached = langchain.ApproximateCacheRetriever.from_retriever(wrapped, Words())
    assert [each.page_content for each in cached.invoke("question")] == ["a"]
    node = NodeWithScore(node=TextNode(text="a", id_="1"), score=1.0)
    nodes = llama_index.ApproximateCacheRetriever.from_retriever(Finding((node,)), LlamaWords())
    assert [each.text for each in nodes.retrieve("question")] == ["a"]


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (langchain.AnswerCache, "chain is needed; retriever is needed"),
        (langchain.ApproximateCacheRetriever, "give either vectorstore or retriever, got neither"),
        (llama_index.ApproximateCacheRetriever, "give either index or retriever, got neither"),
    ],
)
def test_what_is_missing_is_said(make: Any, said: str) -> None:
    with pytest.raises(ConfigurationError, match=f"^{said}"):
        make()


def test_a_cache_that_is_no_server_is_named() -> None:
    given = neighbours()["a retriever"]
    with pytest.raises(ConfigurationError, match="cache must be a Redis URL or a RedisServer: url"):
        langchain.AnswerCache(chain=given, retriever=given, cache="memory")
