"""Answers follow what changes in LangChain stores, whoever asks meanwhile."""

from __future__ import annotations

import asyncio
import copy
import gc
import logging
import random
import threading
from abc import ABCMeta
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import faiss
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from langchain_community.docstore.in_memory import InMemoryDocstore
from langchain_community.vectorstores import FAISS
from langchain_core.documents import Document
from langchain_core.embeddings import Embeddings
from langchain_core.runnables import RunnableLambda
from langchain_core.vectorstores import InMemoryVectorStore, VectorStore

from ragcache_integrations.errors import ConfigurationError
from ragcache_integrations.retrievers.cached.langchain.retriever import ApproximateCacheRetriever
from tests.support.embeddings import LangChainEmbeddings
from tests.support.sizes import examples

from .stores import STORES, Words, faiss_store, in_memory_store

# So long that it is near under the inner product, too.
NEW = max(
    (f"text {number}" for number in range(300, 500)),
    key=lambda text: np.linalg.norm(Words().embed_query(text)),
)


def ids(found: list[Document]) -> list[str | None]:
    return [one.id for one in found]


@pytest.mark.parametrize("make", STORES.values(), ids=STORES)
class TestChanges:
    def test_a_new_document_appears_in_answers_that_it_belongs_to(
        self, make: Callable[[], VectorStore]
    ) -> None:
        store = make()
        retriever = ApproximateCacheRetriever.from_vectorstore(store, k=2, tolerance=1, guard=False)
        for question in (NEW, f"{NEW}~1", "something else"):
            assert "new" not in ids(retriever.invoke(question))
        store.add_texts([NEW], ids=["new"])
        for question in (NEW, f"{NEW}~1", f"{NEW}~2"):
            assert "new" in ids(retriever.invoke(question))
        assert retriever.invoke("something else")
        stats = retriever.stats()
        assert stats.misses == 3  # the two questions, and again the one that changed

    def test_a_deleted_document_vanishes(self, make: Callable[[], VectorStore]) -> None:
        store = make()
        retriever = ApproximateCacheRetriever.from_vectorstore(store, k=2, tolerance=1, guard=False)
        first = ids(retriever.invoke("question"))
        store.delete([str(first[0])])
        for question in ("question", "question~1"):
            plain = store.as_retriever(search_kwargs={"k": 2})
            assert ids(retriever.invoke(question))[0] == first[1]
            assert first[0] not in ids(retriever.invoke(question))
            assert len(ids(retriever.invoke(question))) == len(plain.invoke(question))
        assert retriever.stats().misses == 1  # the next ones were fetched, too

    async def test_coroutines_are_followed(self, make: Callable[[], VectorStore]) -> None:
        store = make()
        retriever = ApproximateCacheRetriever.from_vectorstore(store, k=2, tolerance=1)
        await retriever.ainvoke(NEW)
        await store.aadd_documents([Document(NEW, id="new")])
        assert "new" in ids(await retriever.ainvoke(NEW))
        await store.adelete(["new"])
        assert "new" not in ids(await retriever.ainvoke(NEW))

    def test_an_update_is_one(self, make: Callable[[], VectorStore]) -> None:
        store = make()
        retriever = ApproximateCacheRetriever.from_vectorstore(store, k=1, tolerance=1)
        old = retriever.invoke("text 7")[0]
        retriever.invoke("text other")
        if isinstance(store, FAISS):  # it takes an id only once
            store.delete(["id 7"])
        store.add_documents([Document("text other", id="id 7")])
        assert retriever.invoke("text 7")[0] != old
        assert retriever.invoke("text other")[0].page_content == "text other"


class TestOtherWays:
    def test_without_following_clear_brings_the_new_answer(self) -> None:
        store = faiss_store()
        retriever = ApproximateCacheRetriever.from_vectorstore(
            store, k=1, tolerance=1, follow_changes=False, guard=False
        )
        assert type(store) is FAISS
        assert retriever.invoke("text 7")[0].id == "id 7"
        store.delete(["id 7"])
        store.add_texts(["text 7"], ids=["new"])
        assert retriever.invoke("text 7")[0].id == "id 7"
        retriever.clear()
        assert retriever.invoke("text 7")[0].id == "new"
        assert retriever.invoke("text 7~1")[0].id == "new"

    def test_a_store_behind_a_wrapped_retriever_is_attached(self) -> None:
        store = faiss_store()
        retriever = ApproximateCacheRetriever.from_retriever(
            store.as_retriever(search_type="mmr", search_kwargs={"k": 2}), tolerance=1
        )
        retriever.attach(store)
        retriever.attach(store)
        retriever.invoke("text new")
        store.add_texts(["text new"], ids=["new"])
        assert "new" in ids(retriever.invoke("text new"))
        retriever.detach(store)
        assert type(store) is FAISS
        store.delete(["new"])
        assert "new" in ids(retriever.invoke("text new"))

    def test_several_retrievers_over_one_store(self) -> None:
        store = in_memory_store()
        both = [ApproximateCacheRetriever.from_vectorstore(store, k=1) for _ in range(2)]
        for one in both:
            one.invoke("text new")
        store.add_texts(["text new"], ids=["new"])
        assert [ids(one.invoke("text new")) for one in both] == [["new"], ["new"]]

    def test_a_store_outlives_its_retriever(self) -> None:
        store = in_memory_store()
        retriever = ApproximateCacheRetriever.from_vectorstore(store)
        retriever.invoke("text new")
        del retriever
        gc.collect()
        assert store.add_texts(["text new"], ids=["new"]) == ["new"]

    def test_what_is_not_known_ends_every_answer(self) -> None:
        store = in_memory_store()
        retriever = ApproximateCacheRetriever.from_vectorstore(store)
        retriever.invoke("question")
        with pytest.raises(ValueError, match="same length"):
            store.add_documents([Document("one")], ids=["a", "b"])
        retriever.invoke("question")
        assert retriever.stats().misses == 2

    def test_documents_without_ids_end_every_answer(self) -> None:
        class Anonymous(InMemoryVectorStore):
            def similarity_search_by_vector(
                self, embedding: list[float], k: int = 4, **kwargs: Any
            ) -> list[Document]:
                found = super().similarity_search_by_vector(embedding, k, **kwargs)
                return [Document(one.page_content) for one in found]

        store = Anonymous.from_texts(["one", "two", "three"], Words(), ids=["1", "2", "3"])
        retriever = ApproximateCacheRetriever.from_vectorstore(store, k=1, tolerance=1)
        assert retriever.invoke("two")[0].page_content == "two"
        store.delete(["2"])
        assert retriever.invoke("two")[0].page_content != "two"

    def test_a_copy_is_another_store(self) -> None:
        store = in_memory_store()
        retriever = ApproximateCacheRetriever.from_vectorstore(store, k=1)
        twin = copy.deepcopy(store)
        retriever.invoke("text 7")
        twin.delete(["id 7"])
        assert ids(retriever.invoke("text 7")) == ["id 7"]
        assert retriever.stats().hits == 1

    def test_what_cannot_be_attached(self) -> None:
        retriever = ApproximateCacheRetriever.from_vectorstore(in_memory_store())
        with pytest.raises(ConfigurationError, match="must be a VectorStore, got 'store'"):
            retriever.attach("store")  # type: ignore[arg-type]  # the point

    def test_a_store_that_cannot_be_watched_is_told(self, caplog: pytest.LogCaptureFixture) -> None:
        class Sealed(ABCMeta):
            def __setattr__(cls, name: str, value: object) -> None:
                if name == "add_texts":
                    raise TypeError("sealed")
                super().__setattr__(name, value)

        class Stubborn(InMemoryVectorStore, metaclass=Sealed):
            def add_texts(self, *args: Any, **kwargs: Any) -> list[str]:
                return super().add_texts(*args, **kwargs)

        store = Stubborn.from_texts(["one"], Words())
        with caplog.at_level(logging.WARNING, "ragcache_integrations"):
            retriever = ApproximateCacheRetriever.from_vectorstore(store)
        assert "changes of a Stubborn cannot be noticed: sealed" in caplog.text
        assert "Call clear()" in caplog.text
        assert retriever.invoke("one")
        with pytest.raises(ConfigurationError, match="sealed"):
            retriever.attach(store)
        wrap = ApproximateCacheRetriever.from_vectorstore
        proofs: dict[str, Any] = {
            "guarantee": "exact", "exact_search": True, "vectors": lambda ids: [[1.0]] * len(ids),
        }  # fmt: skip
        with pytest.raises(ConfigurationError, match="sealed; a guarantee needs version="):
            wrap(store, **proofs)
        assert wrap(store, **proofs, version=lambda: 0).stats().requests == 0


class TestFaissOddities:
    def test_a_document_that_makes_vectors_of_other_lengths(self) -> None:
        class Units(Words):
            def embed_query(self, text: str) -> list[float]:
                return self._unit(super().embed_query(text))

            def embed_documents(self, texts: list[str]) -> list[list[float]]:
                return [
                    document if text.startswith("long") else self._unit(document)
                    for text, document in zip(texts, super().embed_documents(texts), strict=True)
                ]

            @staticmethod
            def _unit(vector: list[float]) -> list[float]:
                return [float(x) for x in np.array(vector) / np.linalg.norm(vector)]

        store = FAISS.from_texts([f"text {number}" for number in range(300)], Units())
        retriever = ApproximateCacheRetriever.from_vectorstore(
            store, k=1, tolerance=1, guarantee="exact", rerank_factor=50, guard=False
        )
        plain = store.as_retriever(search_kwargs={"k": 1})
        questions = [f"text {number}~1" for number in range(20)]

        def ask() -> int:
            before = retriever.stats().hits
            for question in questions:
                assert retriever.invoke(question) == plain.invoke(question)
            return retriever.stats().hits - before

        first = ask()
        assert ask() == 20
        store.add_texts(["long one"])
        assert ask() <= first  # they are asked anew, and no unit length is relied upon now
        assert ask() == 20

    def test_a_failed_addition_leaves_the_index_with_a_vector_of_nobody(self) -> None:
        store = faiss_store()
        retriever = ApproximateCacheRetriever.from_vectorstore(
            store, tolerance=1, annotate=True, guard=False
        )
        retriever.invoke("question")
        with pytest.raises(ValueError, match="already exist"):
            store.add_texts(["text 7"], ids=["id 7"])
        found = retriever.invoke("question")
        assert not found[0].metadata["query_cache"]["hit"]
        near = retriever.invoke("question~1")
        assert near[0].metadata["query_cache"]["hit"]
        assert near[0].metadata["query_cache"]["recall_bound"] is None


class Plane(Embeddings):
    """A text is where it lies: ``name@x,y``."""

    def embed_query(self, text: str) -> list[float]:
        return [float(one) for one in text.partition("@")[2].split(",")]

    def embed_documents(self, texts: list[str]) -> list[list[float]]:
        return [self.embed_query(text) for text in texts]


PLACES = st.tuples(st.integers(-4, 4), st.integers(-4, 4)).filter(any)
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("ask"), PLACES, st.integers(1, 3)),
        st.tuples(st.just("add"), PLACES, st.integers(0, 9)),
        st.tuples(st.just("delete"), PLACES, st.integers(0, 9)),
    ),
    max_size=30,
)


def distances(store: VectorStore, found: list[Document], place: tuple[int, int]) -> list[float]:
    """How far they are, as the store measures: ties may come in any order."""
    places = np.array([Plane().embed_query(one.page_content) for one in found]).reshape(-1, 2)
    query = np.array(place)
    if isinstance(store, FAISS):
        return sorted(np.linalg.norm(places - query, axis=1).round(6).tolist())
    lengths = np.linalg.norm(places, axis=1) * np.linalg.norm(query)
    return sorted((-(places @ query) / lengths).round(6).tolist())


@pytest.mark.parametrize("kind", ["faiss", "in memory"])
@given(steps=STEPS, tolerance=st.sampled_from([0.0, 3.0]))
@examples(40)
def test_proven_answers_are_the_store_s_own_whatever_happens(
    kind: str, steps: list[tuple[str, tuple[int, int], int]], tolerance: float
) -> None:
    store: VectorStore = InMemoryVectorStore(Plane())
    if kind == "faiss":
        store = FAISS(Plane(), faiss.IndexFlatL2(2), InMemoryDocstore(), {})
    retriever = ApproximateCacheRetriever.from_vectorstore(
        store, tolerance=tolerance, guarantee="exact", rerank_factor=2
    )
    present: set[str] = set()
    for step, (x, y), number in steps:
        name, text = f"id {number}", f"{number}@{x},{y}"
        if step == "ask":
            expected = store.similarity_search(text, k=number)
            found = retriever.invoke(f"question@{x},{y}", k=number)
            assert distances(store, found, (x, y)) == distances(store, expected, (x, y))
            assert set(ids(found)) <= present
            continue
        if name in present:
            store.delete([name])
            present.remove(name)
        if step == "add":
            store.add_texts([text], ids=[name])
            present.add(name)


class Guarded(FAISS):  # type: ignore[misc]  # langchain-community is untyped
    """A FAISS store that may be searched while it is changed, which FAISS itself may not."""

    lock: threading.RLock

    @classmethod
    def over_the_plane(cls) -> Guarded:
        lock = threading.RLock()

        class Index(faiss.IndexFlatL2):
            def reconstruct_batch(self, keys: Any, x: Any = None) -> Any:
                with lock:
                    return super().reconstruct_batch(keys, x)

        store = cls(Plane(), Index(2), InMemoryDocstore(), {})
        store.lock = lock
        return store

    def add_texts(self, *args: Any, **kwargs: Any) -> list[str]:
        with self.lock:
            return super().add_texts(*args, **kwargs)  # type: ignore[no-any-return]  # untyped

    def delete(self, *args: Any, **kwargs: Any) -> bool | None:
        with self.lock:
            return super().delete(*args, **kwargs)  # type: ignore[no-any-return]  # untyped

    def similarity_search_with_score_by_vector(self, *args: Any, **kwargs: Any) -> Any:
        with self.lock:
            return super().similarity_search_with_score_by_vector(*args, **kwargs)


@pytest.fixture(params=["faiss", "in memory"])
def changing(request: pytest.FixtureRequest) -> Iterator[VectorStore]:
    if request.param == "faiss":
        yield Guarded.over_the_plane()
    else:
        yield InMemoryVectorStore(Plane())


@pytest.mark.parametrize("guarantee", [None, "exact"])
def test_threads_that_change_and_ask(changing: VectorStore, guarantee: Any) -> None:
    """Each of some writers owns a direction, where it moves a document nearer and away again.

    Once ``add`` returned, the nearest document of that direction is the new one; once ``delete``
    returned, it is found no more.
    """
    store = changing
    texts = [
        f"far@{10 * np.cos(angle)},{10 * np.sin(angle)}" for angle in np.linspace(0.05, 6.05, 40)
    ]
    store.add_texts(texts, ids=[f"far {number}" for number in range(40)])
    retriever = ApproximateCacheRetriever.from_vectorstore(
        store,
        k=1,
        tolerance=0.0 if guarantee is None else 0.5,
        guarantee=guarantee,
        exact_search=True,
        capacity=50,
    )
    stop = threading.Event()
    current: dict[int, list[str]] = {0: ["q@2,0"]}  # so that readers ask what writers ask

    def write(owner: int) -> None:
        chance = random.Random(owner)
        angle = owner * 1.5
        point = np.array([np.cos(angle), np.sin(angle)])
        for number in range(25):
            x, y = (2 + chance.random()) * point  # a new name each time: FAISS takes one once
            name = f"near {owner} {number}"
            asked = [f"q@{x * shrink},{y * shrink}" for shrink in (1.0, 0.9)]
            current[owner] = asked
            for question in asked:
                assert not ids(retriever.invoke(question))[0].startswith(f"near {owner}")  # type: ignore[union-attr]  # they have ids
            store.add_texts([f"near@{x},{y}"], ids=[name])
            for question in asked:
                assert ids(retriever.invoke(question)) == [name]
            store.delete([name])
            for question in asked:
                assert ids(retriever.invoke(question)) != [name]

    def read(seed: int) -> int:
        chance, asked = random.Random(seed), 0
        while not stop.is_set():
            retriever.invoke(chance.choice(current[chance.choice(list(current))]))
            asked += 1
        return asked

    with ThreadPoolExecutor(6) as pool:
        readers = [pool.submit(read, seed) for seed in range(3)]
        writers = [pool.submit(write, owner) for owner in range(3)]
        try:
            for writer in writers:
                writer.result(120)
        finally:
            stop.set()
        assert all(reader.result(20) for reader in readers)
    stats = retriever.stats()
    assert stats.hits > 0 < stats.misses


async def test_tasks_that_change_and_ask() -> None:
    store = InMemoryVectorStore(Plane())
    store.add_texts([f"far@10,{number}" for number in range(10)])
    retriever = ApproximateCacheRetriever.from_vectorstore(store, k=1, tolerance=0)

    async def write(owner: int) -> None:
        for number in range(10):
            x, y = owner + 1, 0.1 * number - 5
            await retriever.ainvoke(f"q@{x},{y}")
            await store.aadd_texts([f"near@{x},{y}"], ids=[f"near {owner}"])
            assert ids(await retriever.ainvoke(f"q@{x},{y}")) == [f"near {owner}"]
            await store.adelete([f"near {owner}"])
            assert ids(await retriever.ainvoke(f"q@{x},{y}")) != [f"near {owner}"]

    await asyncio.gather(*[write(owner) for owner in range(5)])


def test_a_search_that_began_before_a_change_leaves_nothing_stale() -> None:
    class Slow(InMemoryVectorStore):
        begun, go_on = threading.Event(), threading.Event()

        def similarity_search_by_vector(
            self, embedding: list[float], k: int = 4, **kwargs: Any
        ) -> list[Document]:
            found = super().similarity_search_by_vector(embedding, k, **kwargs)
            self.begun.set()
            assert self.go_on.wait(20)
            return found

    store = Slow(Plane())
    store.add_texts(["a@1,1", "b@1,-1"], ids=["a", "b"])
    retriever = ApproximateCacheRetriever.from_vectorstore(store, k=1, rerank_factor=1)
    with ThreadPoolExecutor(1) as pool:
        before = pool.submit(retriever.invoke, "q@1,0.5")
        assert store.begun.wait(20)
        store.delete(["a"])
        store.add_texts(["c@1,0.4"], ids=["c"])
        store.go_on.set()
        assert ids(before.result(20)) == ["a"]  # it began before, and may say so
    assert ids(retriever.invoke("q@1,0.5")) == ["c"]


def test_an_embedding_model_that_ends_says_so_in_its_own_words() -> None:
    """Python would make another error of it within our generators."""
    vectors = iter([[1.0, 0.0]])
    retriever = ApproximateCacheRetriever.from_retriever(
        RunnableLambda(lambda _: [Document("a")]), LangChainEmbeddings(lambda _: next(vectors))
    )
    assert retriever.invoke("what is it") == [Document("a")]
    with pytest.raises(StopIteration):
        retriever.invoke("where is it")
