"""A store that others write to: its version, and what a guarantee asks for."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
from langchain_core.documents import Document
from langchain_core.vectorstores import InMemoryVectorStore

from ragcache_integrations.errors import ConfigurationError
from ragcache_integrations.langchain import (
    ApproximateCacheRetriever,
    MappedVectors,
    StoreFacts,
    StoreKind,
    register_store,
)
from ragcache_integrations.retrievers.stores import kinds
from tests.retrievers.cached.langchain.stores import Words


class Remote(InMemoryVectorStore):
    """A store that others write to."""


def facts(store: Any) -> StoreFacts:
    def read(ids: Any) -> dict[str, Any]:
        return {name: store.store[name]["vector"] for name in ids if name in store.store}

    return StoreFacts(
        metric="cosine", vectors=MappedVectors(read), exact=True, doubt="", outside=True
    )


@pytest.fixture
def store(monkeypatch: pytest.MonkeyPatch) -> Remote:
    monkeypatch.setattr(kinds, "_registered", [])
    register_store(StoreKind("Remote", (f"{__name__}.Remote",), "nobody", facts))
    made = Remote(Words())
    made.add_documents([Document(f"text {number}", id=str(number)) for number in range(20)])
    return made


def write_as_another(store: Remote, name: str) -> None:
    """Add a document past the methods that are watched, of the same text as one that is there."""
    store.store[name] = store.store["1"] | {"id": name}


Ask = Callable[[Any, str], list[Document]]
ASKS: list[Ask] = [
    lambda retriever, question: retriever.invoke(question),
    lambda retriever, question: asyncio.run(retriever.ainvoke(question)),
]


@pytest.mark.parametrize("ask", ASKS, ids=["sync", "async"])
def test_answers_of_another_version_are_forgotten(store: Remote, ask: Ask) -> None:
    version = [1]
    retriever = ApproximateCacheRetriever.from_vectorstore(
        store, k=3, tolerance=2.0, guarantee=0.1, rerank_factor=7, version=lambda: version[0]
    )
    assert ask(retriever, "text 1") == ask(retriever, "text 1")
    assert retriever.stats().hits == 1
    write_as_another(store, "twin")
    version[0] += 1
    assert ask(retriever, "text 1") == store.similarity_search("text 1", 3)
    assert "twin" in [document.id for document in ask(retriever, "text 1")]
    assert (retriever.stats().hits, retriever.stats().store_calls) == (2, 2)


def test_without_it_they_would_be_served(store: Remote) -> None:
    """Otherwise the test before would show nothing."""
    retriever = ApproximateCacheRetriever.from_vectorstore(
        store, k=3, tolerance=2.0, guarantee=0.1, rerank_factor=7, sole_writer=True
    )
    retriever.invoke("text 1")
    write_as_another(store, "twin")
    assert "twin" not in [document.id for document in retriever.invoke("text 1")]


def test_a_search_that_began_before_is_not_kept(
    store: Remote, monkeypatch: pytest.MonkeyPatch
) -> None:
    version = [1]
    retriever = ApproximateCacheRetriever.from_vectorstore(
        store, k=3, tolerance=0, version=lambda: version[0]
    )
    retriever.invoke("before")
    remember = retriever._core._remember

    def another_asks_meanwhile(*arguments: Any) -> Any:
        monkeypatch.setattr(retriever._core, "_remember", remember)
        version[0] += 1
        retriever.invoke("meanwhile")
        return remember(*arguments)

    monkeypatch.setattr(retriever._core, "_remember", another_asks_meanwhile)
    retriever.invoke("question")
    cache = retriever.stats().cache
    assert cache is not None
    assert cache.entries == 1  # meanwhile's alone


def test_an_error_of_the_version_reaches_the_caller(store: Remote) -> None:
    def fail() -> int:
        msg = "gone"
        raise ConnectionError(msg)

    retriever = ApproximateCacheRetriever.from_vectorstore(store, version=fail)
    with pytest.raises(ConnectionError, match="gone"):
        retriever.invoke("question")
    assert retriever.stats().failures == 1


def test_a_guarantee_has_to_know_of_other_writers(store: Remote) -> None:
    with pytest.raises(ConfigurationError, match=r"version=.*sole_writer=True"):
        ApproximateCacheRetriever.from_vectorstore(store, guarantee="exact")
    knobs: list[dict[str, Any]] = [{"sole_writer": True}, {"version": lambda: 1}]
    for knob in knobs:
        retriever = ApproximateCacheRetriever.from_vectorstore(store, guarantee="exact", **knob)
        assert retriever.invoke("text 1")
    with pytest.raises(ConfigurationError, match="version must be a function"):
        ApproximateCacheRetriever.from_vectorstore(store, version=3)  # type: ignore[arg-type]


async def _version() -> int:
    return 1


def test_what_is_no_version_is_refused(store: Remote) -> None:
    """Each coroutine is another object, and a list that is changed remains equal to itself."""
    unusable: Any = _version
    with pytest.raises(ConfigurationError, match="without arguments, no coroutine"):
        ApproximateCacheRetriever.from_vectorstore(store, version=unusable)
    counter: Any = [1]
    retriever = ApproximateCacheRetriever.from_vectorstore(store, version=lambda: counter)
    with pytest.raises(ConfigurationError, match=r"version= must return a value .* got \[1\]"):
        retriever.invoke("question")
