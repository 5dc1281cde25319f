"""Plain data that a wrapped retriever or a store holds in objects are settings, wherever it is."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import date
from types import SimpleNamespace
from typing import Any

import pytest
from langchain_classic.retrievers import ContextualCompressionRetriever, MultiVectorRetriever
from langchain_classic.retrievers.document_compressors import DocumentCompressorPipeline
from langchain_core.documents import Document
from langchain_core.documents.compressor import BaseDocumentCompressor
from langchain_core.retrievers import BaseRetriever
from langchain_core.stores import InMemoryStore
from langchain_core.vectorstores import InMemoryVectorStore
from llama_index.core.postprocessor import SimilarityPostprocessor
from llama_index.core.postprocessor.types import BaseNodePostprocessor
from llama_index.core.retrievers import BaseRetriever as LlamaRetriever
from llama_index.core.schema import NodeWithScore, QueryBundle, TextNode
from pydantic import BaseModel, PrivateAttr

from ragcache_integrations.langchain import ApproximateCacheRetriever
from ragcache_integrations.llama_index import ApproximateCacheRetriever as LlamaCacheRetriever
from tests.answers.traffic import langchain_embeddings, llama_index_embeddings

USERS = ("ann", "bob")


class Plain:
    def __init__(self, user: Any = "ann") -> None:
        self.user = user


class Slotted:
    __slots__ = ("user",)

    def __init__(self, user: str = "ann") -> None:
        self.user = user


class Session(Plain):
    """Has methods, too."""

    def current(self) -> Any:
        return self.user


@dataclass
class Data:
    user: str = "ann"


class Model(BaseModel):
    user: str = "ann"


class Private(BaseModel):
    _user: str = PrivateAttr("ann")

    def __setattr__(self, name: str, value: object) -> None:
        super().__setattr__("_user" if name == "user" else name, value)

    @property
    def user(self) -> str:
        return self._user


@dataclass
class Nested:
    inner: Any = field(default_factory=Session)

    @property
    def user(self) -> str:
        return str(self.inner.user)

    @user.setter
    def user(self, user: str) -> None:
        self.inner.user = user


class OfClass:
    user = "ann"


KINDS: list[Callable[[], Any]] = [
    *(Plain, Slotted, Session, Data, Model, Private, Nested),
    lambda: SimpleNamespace(user="ann"),
    lambda: Nested(SimpleNamespace(user="ann")),
]
WRAPS: list[Callable[[Any], Any]] = [
    lambda held: held,
    lambda held: {"a": held},
    lambda held: [held],
    Plain,
]


def user_in(held: Any) -> str:
    while not isinstance(held, str):
        held = next(iter(held.values())) if isinstance(held, dict) else held
        held = held[0] if isinstance(held, list) else held.user
    return held


def documents() -> list[Document]:
    return [Document(f"of {user}", metadata={"user": user}, id=user) for user in USERS]


class Holds(BaseRetriever):
    options: Any

    def _get_relevant_documents(self, query: str, **_: Any) -> list[Document]:
        return [Document(f"of {user_in(self.options)}", id="1")]


class LlamaHolds(LlamaRetriever):
    def __init__(self, options: Any) -> None:
        self._options = options
        super().__init__()

    def _retrieve(self, query_bundle: QueryBundle) -> list[NodeWithScore]:
        node = TextNode(text=f"of {user_in(self._options)}", id_="1")
        return [NodeWithScore(node=node, score=1.0)]


def cached(retriever: Any) -> Callable[[], str]:
    made = ApproximateCacheRetriever.from_retriever(retriever, langchain_embeddings(), tolerance=0)
    return lambda: made.invoke("whose")[0].page_content


def llama_cached(retriever: Any) -> Callable[[], str]:
    made = LlamaCacheRetriever.from_retriever(
        retriever, embed_model=llama_index_embeddings(), tolerance=0
    )
    return lambda: str(made.retrieve("whose")[0].text)


@pytest.mark.parametrize("make", KINDS)
@pytest.mark.parametrize("wrap", WRAPS)
def test_what_an_object_says_is_a_setting(
    make: Callable[[], Any], wrap: Callable[[Any], Any]
) -> None:
    makers: list[Callable[[Any], Callable[[], str]]] = [
        lambda options: cached(Holds(options=options)),
        lambda options: llama_cached(LlamaHolds(options)),
    ]
    for ask_of in makers:
        held = make()
        ask = ask_of(wrap(held))
        for user in (*USERS, "ann"):
            held.user = user
            assert ask() == f"of {user}"


@pytest.mark.parametrize("make", KINDS)
def test_an_object_may_be_replaced(make: Callable[[], Any]) -> None:
    retriever = Holds(options=make())
    ask = cached(retriever)
    for user in USERS:
        retriever.options = make()
        retriever.options.user = user
        assert ask() == f"of {user}"


def test_a_class_s_own_data_count(monkeypatch: pytest.MonkeyPatch) -> None:
    ask = cached(Holds(options=OfClass()))
    for user in USERS:
        monkeypatch.setattr(OfClass, "user", user)
        assert ask() == f"of {user}"


def test_objects_that_stay_the_same_do_not_hinder() -> None:
    client = object()
    held = SimpleNamespace(user="ann", since=date(2024, 1, 1), client=client, inner=Session())
    made = ApproximateCacheRetriever.from_retriever(
        Holds(options=held), langchain_embeddings(), tolerance=0
    )
    for _ in range(3):
        made.invoke("whose")
    assert made.stats().hits == 2
    held.client = object()  # another client may find something else
    made.invoke("whose")
    assert (made.stats().hits, made.stats().store_calls) == (0, 1)  # begun anew
    held.since = date(2025, 1, 1)
    made.invoke("whose")
    assert (made.stats().hits, made.stats().store_calls) == (0, 2)


class OnlyMine(BaseDocumentCompressor):
    user: str = "ann"

    def compress_documents(self, documents: Any, query: str, callbacks: Any = None) -> Any:
        return [found for found in documents if found.metadata["user"] == self.user]


class All(BaseRetriever):
    def _get_relevant_documents(self, query: str, **_: Any) -> list[Document]:
        return documents()


@pytest.mark.parametrize(
    "around", [lambda one: one, lambda one: DocumentCompressorPipeline(transformers=[one])]
)
def test_compressors(around: Callable[[Any], Any]) -> None:
    mine = OnlyMine()
    ask = cached(ContextualCompressionRetriever(base_compressor=around(mine), base_retriever=All()))
    for user in USERS:
        mine.user = user
        assert ask() == f"of {user}"


class LlamaMine(BaseNodePostprocessor):
    user: str = "ann"

    def _postprocess_nodes(self, nodes: Any, query_bundle: Any = None) -> Any:
        return [found for found in nodes if found.node.metadata["user"] == self.user]


class Postprocesses(LlamaRetriever):
    def __init__(self, postprocessor: BaseNodePostprocessor) -> None:
        self._postprocessor = postprocessor
        super().__init__()

    def _retrieve(self, query_bundle: QueryBundle) -> list[NodeWithScore]:
        nodes = [
            NodeWithScore(
                node=TextNode(text=f"of {user}", id_=user, metadata={"user": user}), score=score
            )
            for user, score in zip(USERS, (0.2, 0.6), strict=True)
        ]
        return self._postprocessor.postprocess_nodes(nodes)


def test_postprocessors() -> None:
    mine = LlamaMine()
    ask = llama_cached(Postprocesses(mine))
    for user in USERS:
        mine.user = user
        assert ask() == f"of {user}"


def test_postprocessors_of_the_framework() -> None:
    cutoff = SimilarityPostprocessor(similarity_cutoff=0.1)
    ask = llama_cached(Postprocesses(cutoff))
    assert [ask(), ask()] == ["of ann"] * 2
    cutoff.similarity_cutoff = 0.5
    assert ask() == "of bob"


class OwnStore(InMemoryVectorStore):
    session: Any

    def _similarity_search_with_score_by_vector(self, embedding: Any, *_: Any, **__: Any) -> Any:
        found = documents()
        return [(one, 1.0, [1.0]) for one in found if one.metadata["user"] == self.session.user]


@pytest.mark.parametrize("make", KINDS)
def test_stores_of_the_application_s_own(make: Callable[[], Any]) -> None:
    store = OwnStore.from_documents(documents(), langchain_embeddings())
    held = store.session = make()
    retriever = ApproximateCacheRetriever.from_vectorstore(store, k=1)
    for user in USERS:
        held.user = user
        assert [retriever.invoke("whose")[0].page_content for _ in range(2)] == [f"of {user}"] * 2
    store.session = make()
    assert retriever.invoke("whose")[0].page_content == "of ann"


class OwnDocuments(InMemoryStore):
    user: str
    session: Any

    def mget(self, keys: Any) -> Any:
        return [Document(f"of {self.user} {self.session.user}")]


def test_docstores_of_the_application_s_own() -> None:
    store = OwnDocuments()
    store.user, store.session = "ann", Session()
    vectors = InMemoryVectorStore.from_texts(["c"], langchain_embeddings(), [{"doc_id": "1"}])
    ask = cached(MultiVectorRetriever(vectorstore=vectors, docstore=store))
    assert ask() == "of ann ann"
    store.user = "bob"
    assert ask() == "of bob ann"
    store.session.user = "bob"
    assert ask() == "of bob bob"
