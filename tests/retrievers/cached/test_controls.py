"""Warming a cache, and forgetting parts of it, in both frameworks."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import Any

import pytest
from langchain_core.documents import Document
from langchain_core.vectorstores import InMemoryVectorStore
from llama_index.core import VectorStoreIndex
from llama_index.core.schema import QueryBundle, TextNode
from llama_index.core.vector_stores import MetadataFilter, MetadataFilters

from ragcache_integrations import langchain, llama_index
from ragcache_integrations.errors import ConfigurationError
from tests.retrievers.cached.langchain.stores import Words, faiss_store
from tests.retrievers.cached.llama_index.indexes import Words as LlamaIndexWords

TEXTS = [f"text {number}" for number in range(30)]


def of_langchain(**knobs: Any) -> Any:
    store = InMemoryVectorStore(Words())
    store.add_documents([Document(text, id=text) for text in TEXTS])
    return langchain.ApproximateCacheRetriever.from_vectorstore(store, k=3, **knobs, guard=False)


def of_llama_index(**knobs: Any) -> Any:
    nodes = [TextNode(id_=text, text=text) for text in TEXTS]
    index = VectorStoreIndex(nodes, embed_model=LlamaIndexWords())
    return llama_index.ApproximateCacheRetriever.from_index(index, k=3, **knobs, guard=False)


def ids_of(retriever: Any, question: str) -> list[str]:
    if hasattr(retriever, "invoke"):
        return [document.id for document in retriever.invoke(question)]
    return [node.node_id for node in retriever.retrieve(question)]


both = pytest.mark.parametrize("make", [of_langchain, of_llama_index])
Make = Callable[..., Any]


@both
class TestWarming:
    def test_every_question_is_asked_once(self, make: Make) -> None:
        retriever = make(tolerance=0)
        questions = [f"question {number % 20}" for number in range(40)]
        assert retriever.warm(iter(questions), show_progress=False) == 20
        assert retriever.warm(questions[:5], show_progress=False) == 0
        stats = retriever.stats()
        assert (stats.store_calls, stats.hits) == (20, 5)
        ids_of(retriever, "question 7")
        assert retriever.stats().store_calls == 20

    async def test_in_a_coroutine(self, make: Make, capsys: pytest.CaptureFixture[str]) -> None:
        retriever = make(tolerance=0)
        assert await retriever.awarm(["one", "two", "one"], workers=1) == 2
        assert "2/2" in capsys.readouterr().err
        assert await retriever.awarm(["one"], show_progress=False) == 0

    def test_nothing_to_ask(self, make: Make) -> None:
        assert make().warm([], show_progress=False) == 0

    def test_what_cannot_be_asked(self, make: Make) -> None:
        retriever = make()
        with pytest.raises(ConfigurationError, match="several texts, got one: 'question'"):
            retriever.warm("question")
        wrongs: tuple[Any, ...] = (None, 3, asyncio.Queue())
        for wrong in wrongs:
            with pytest.raises(ConfigurationError, match=r"such as a list of them, got"):
                retriever.warm(wrong)
            with pytest.raises(ConfigurationError, match=r"such as a list of them, got"):
                asyncio.run(retriever.awarm(wrong))
        with pytest.raises(ConfigurationError, match="workers must be a whole number"):
            retriever.warm(["question"], workers=0)
        with pytest.raises((ConfigurationError, TypeError), match="nonsense"):
            retriever.warm(["question"], nonsense=1)
        assert retriever.stats().requests == 0

    def test_an_error_comes_last(self, make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
        retriever = make(tolerance=0)
        retrieve, failed = retriever._core.retrieve, threading.Event()

        def retrieve_or_fail(request: Any) -> Any:
            if request.texts == ("second",):
                failed.set()
                msg = "gone"
                raise ConnectionError(msg)
            return retrieve(request)

        monkeypatch.setattr(retriever._core, "retrieve", retrieve_or_fail)
        with pytest.raises(ConnectionError, match="gone"):
            retriever.warm(["first", "second", "third"], workers=1, show_progress=False)
        monkeypatch.undo()
        assert failed.is_set()
        assert retriever.warm(["first", "third"], show_progress=False) == 0


def test_bundles_of_llama_index_are_asked() -> None:
    retriever = of_llama_index(tolerance=0)
    bundles = [QueryBundle("one"), QueryBundle("two")]
    assert retriever.warm(bundles, show_progress=False) == 2


def test_warming_for_a_tenant() -> None:
    retriever = of_langchain(tolerance=0)
    assert retriever.warm(["question"], show_progress=False, namespace="ann") == 1
    retriever.invoke("question", namespace="ann")
    assert retriever.stats().hits == 1
    retriever.invoke("question", namespace="bob")
    assert retriever.stats().hits == 1


@both
class TestForgetting:
    def test_all_that_would_answer_a_question(self, make: Make) -> None:
        retriever = make(tolerance=2.0)
        ids_of(retriever, "question~1")
        assert retriever.forget("question~2") == 1
        assert retriever.forget("question~2") == 0
        ids_of(retriever, "question~3")
        assert retriever.stats().hits == 0

    async def test_in_a_coroutine(self, make: Make) -> None:
        retriever = make(tolerance=0)
        ids_of(retriever, "question")
        assert await retriever.aforget("another") == 0
        assert await retriever.aforget("question") == 1

    def test_what_holds_a_document(self, make: Make) -> None:
        retriever = make(tolerance=0, rerank_factor=1)
        first = ids_of(retriever, "text 1")
        second = ids_of(retriever, "text 22")
        only = next(name for name in first if name not in second)
        retriever.clear(ids=[only])
        assert retriever.stats().cache.entries == 1
        ids_of(retriever, "text 22")
        assert retriever.stats().hits == 1

    async def test_what_is_old(self, make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
        retriever = make(tolerance=0)
        ids_of(retriever, "old")
        cache = retriever._core.caches.current
        clock = cache._clock
        monkeypatch.setattr(cache, "_clock", lambda: clock() + 10_000_000_000)
        ids_of(retriever, "new")
        await retriever.aclear(older_than=9)
        assert retriever.stats().cache.entries == 1
        ids_of(retriever, "new")
        assert retriever.stats().hits == 1

    def test_what_another_version_of_the_store_gave(self, make: Make) -> None:
        retriever = make(tolerance=0)
        ids_of(retriever, "question")
        retriever.clear(version=1, ids=["nobody"])
        assert retriever.stats().cache.entries == 1
        retriever.clear(version=1)  # nobody knows of which version the answer was
        assert retriever.stats().cache.entries == 0
        ids_of(retriever, "question")
        retriever.clear(version=1)
        retriever.clear(version=1, namespace="")
        assert retriever.stats().cache.entries == 1
        retriever.clear(version=2, namespace="another")
        assert retriever.stats().cache.entries == 1
        retriever.clear(version=2, namespace="")
        assert retriever.stats().cache.entries == 0

    def test_news_of_a_version_that_is_asked_for_as_well(self, make: Make) -> None:
        version = [1]
        retriever = make(tolerance=0, version=lambda: version[0])
        ids_of(retriever, "question")
        retriever.clear(version=1)
        assert retriever.stats().cache.entries == 1
        version[0] = 2
        retriever.clear(version=2)
        assert retriever.stats().cache.entries == 0
        ids_of(retriever, "question")
        ids_of(retriever, "question")
        assert retriever.stats().hits == 1

    def test_everything(self, make: Make) -> None:
        retriever = make(tolerance=0)
        retriever.clear(ids=["nobody"])  # before there is a cache
        ids_of(retriever, "question")
        retriever.clear()
        assert retriever.stats().cache.entries == 0

    def test_wrong_arguments_forget_nothing(self, make: Make) -> None:
        retriever = make(tolerance=0)
        ids_of(retriever, "question")
        with pytest.raises(ConfigurationError, match="older_than must be a number"):
            retriever.clear(older_than=-1)
        with pytest.raises(ConfigurationError, match=r"no plain data.*filter_key"):
            retriever.clear(filter=lambda document: True)
        with pytest.raises(ConfigurationError, match="value that does not change"):
            retriever.clear(version=[1])
        with pytest.raises(ConfigurationError, match="several ids, got one text: 'text 1'"):
            retriever.clear(ids="text 1")
        for ids in ([1], 1, b"text 1"):  # that are no document's
            with pytest.raises(ConfigurationError, match="ids must be several strings, got"):
                retriever.clear(ids=ids)
        with pytest.raises(ConfigurationError, match="namespace must be a string, got 1"):
            retriever.clear(namespace=1)
        assert retriever.stats().cache.entries == 1

    def test_a_search_under_way_is_not_cached(
        self, make: Make, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        retriever = make(tolerance=0)
        ids_of(retriever, "before")
        remember = retriever._core._remember

        def forget_meanwhile(*arguments: Any) -> Any:
            retriever.clear(namespace="")
            return remember(*arguments)

        monkeypatch.setattr(retriever._core, "_remember", forget_meanwhile)
        ids_of(retriever, "meanwhile")
        assert retriever.stats().cache.entries == 0


def test_what_a_filter_let_through_in_langchain() -> None:
    retriever: Any = langchain.ApproximateCacheRetriever.from_vectorstore(
        faiss_store(), k=3, tolerance=0
    )
    filters: list[dict[str, Any]] = [{}, {"filter": {"half": 0}}, {"filter": {"half": 1}}]
    for arguments in filters:
        retriever.invoke("question", **arguments)
        retriever.invoke("question", **arguments, search_type="mmr")
    retriever.clear(filter={"half": 0}, older_than=3600)
    assert retriever.stats().cache.entries == 6
    retriever.clear(filter={"half": 0})
    assert retriever.stats().cache.entries == 4
    for arguments in (filters[0], filters[2]):
        retriever.invoke("question", **arguments)
    assert retriever.stats().hits == 2


def test_what_a_named_filter_let_through() -> None:
    retriever = of_langchain(tolerance=0)
    for name in ("a", "b"):
        retriever.invoke("question", filter=lambda document: True, filter_key=name)
    retriever.clear(filter="a")
    assert retriever.stats().cache.entries == 1
    retriever.invoke("question", filter=lambda document: True, filter_key="b")
    assert retriever.stats().hits == 1


def test_what_a_filter_let_through_in_llama_index() -> None:
    filters = [
        MetadataFilters(filters=[MetadataFilter(key="half", value=number)]) for number in (0, 1)
    ]
    nodes = [TextNode(id_=text, text=text, metadata={"half": 0}) for text in TEXTS]
    retriever: Any = llama_index.ApproximateCacheRetriever.from_index(
        VectorStoreIndex(nodes, embed_model=LlamaIndexWords()),
        k=3,
        search_kwargs={"filters": filters[0]},
    )
    retriever.retrieve("question")
    retriever.clear(filter=filters[1])
    assert retriever.stats().cache.entries == 1
    retriever.clear(filter=filters[0].model_copy(deep=True))
    assert retriever.stats().cache.entries == 0


def test_a_tenant_is_forgotten_with_the_embeddings() -> None:
    retriever = of_langchain(tolerance=0)
    for name in ("ann", "bob"):
        retriever.invoke("question", namespace=name)
        retriever.invoke("question", namespace=name, search_type="mmr")
    retriever.clear(namespace="ann")
    assert retriever.stats().cache.entries == 2
    calls = retriever.stats().embedding_calls
    retriever.invoke("question", namespace="bob")
    retriever.invoke("question", namespace="bob", search_type="mmr")
    assert (retriever.stats().embedding_calls, retriever.stats().hits) == (calls, 2)
    retriever.invoke("question", namespace="ann")
    assert (retriever.stats().embedding_calls, retriever.stats().hits) == (calls + 1, 2)
