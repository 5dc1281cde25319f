"""What the LangChain retriever must do in front of any store."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from blockbuster import blockbuster_ctx
from langchain_core.documents import Document
from langchain_core.embeddings import Embeddings
from langchain_core.vectorstores import VectorStore

from ragcache_integrations.errors import ConfigurationError
from ragcache_integrations.retrievers.cached.langchain.retriever import ApproximateCacheRetriever
from tests.retrievers.cached.langchain.stores import Words

from .catalogue import KNOWN_DIM, catalogue, check_catalogue
from .proofs import Contents, Writer, check_no_breach

COUNT = 60
K = 4


def document(number: int, text: str | None = None) -> Document:
    return Document(
        text or f"text {number}", id=uuid_of(number), metadata={"half": number % 2, "name": "it's"}
    )


def uuid_of(number: int) -> str:
    return str(uuid.UUID(int=number + 1))


def texts(documents: list[Document]) -> list[str]:
    return [document.page_content for document in documents]


class Known(Embeddings):
    """The catalogue's embeddings, which are there already."""

    dim = KNOWN_DIM

    def embed_query(self, text: str) -> list[float]:
        # Some stores embed a text of their own.
        return catalogue().vectors.get(text) or [1.0] + [0.0] * (self.dim - 1)

    def embed_documents(self, texts: list[str]) -> list[list[float]]:
        return [self.embed_query(text) for text in texts]


Model = Words | Known


class LangChainContract:
    """One class per store; each test gets a store of its own, with 60 documents.

    Attributes:
        follows: Whether answers outlive a document that is added, since its vector can be read.
        trips: How many times the store is asked on a miss, vectors included.
        declared: What has to be said for a guarantee, apart from who writes.
        outside: Whether others can write to the store.
    """

    follows = True
    trips = 1
    declared: dict[str, Any] = {}  # noqa: RUF012 - as pytest's classes are
    outside = True

    @pytest.fixture
    def model(self, request: pytest.FixtureRequest) -> Model:
        """Return what the store embeds by."""
        model: Model = getattr(request, "param", Words)()
        return model

    @pytest.fixture
    def empty(self, model: Model) -> VectorStore:
        """Return an empty store."""
        raise NotImplementedError

    @pytest.fixture
    def calls(self, monkeypatch: pytest.MonkeyPatch) -> list[str]:
        """Return a list that gets an item each time a store is asked."""
        raise NotImplementedError

    def half(self, half: int) -> dict[str, Any]:
        """Return the search arguments that let through documents of one half."""
        return {"filter": {"half": half}}

    def add(self, store: VectorStore, *documents: Document) -> None:
        store.add_documents(list(documents), ids=[document.id for document in documents])

    def update(self, store: VectorStore, document: Document) -> None:
        """Replace a document by another of the same id."""
        self.add(store, document)

    def delete(self, store: VectorStore, *numbers: int) -> None:
        store.delete(ids=[uuid_of(number) for number in numbers])

    def why_refused(self, store: VectorStore) -> str:
        """Return why no guarantee can be given; nothing where one can."""
        return ""

    def another(self, store: VectorStore) -> VectorStore:
        """Return another object over the same documents, with a connection of its own."""
        raise NotImplementedError

    @pytest.fixture
    def store(self, empty: VectorStore) -> VectorStore:
        self.add(empty, *map(document, range(COUNT)))
        return empty

    @staticmethod
    def wrap(store: VectorStore, **knobs: Any) -> ApproximateCacheRetriever:
        knobs = {"k": K, "tolerance": 0.4, "rerank_factor": 20, "guard": False} | knobs
        return ApproximateCacheRetriever.from_vectorstore(store, **knobs)

    @staticmethod
    def own(store: VectorStore, question: str, k: int = K, **arguments: Any) -> list[Document]:
        """Return the store's own answer."""
        arguments.pop("filter_key", None)
        return store.as_retriever(search_kwargs={"k": k, **arguments}).invoke(question)

    def test_what_holds_a_document_is_forgotten_by_its_id(self, store: VectorStore) -> None:
        retriever = self.wrap(store)
        first, *_ = retriever.invoke("question")
        retriever.clear(ids=[uuid_of(int(first.page_content.split()[1]))])
        cache = retriever.stats().cache
        assert cache is not None
        assert cache.entries == 0

    def test_a_miss_and_its_repetition_are_the_store_s_own_answer(self, store: VectorStore) -> None:
        retriever = self.wrap(store)
        for number in range(5):
            expected = self.own(store, f"question {number}")
            assert retriever.invoke(f"question {number}") == expected
            assert retriever.invoke(f"question {number}") == expected
        assert (retriever.stats().misses, retriever.stats().hits) == (5, 5)

    def test_a_hit_is_ranked_as_the_store_ranks(self, store: VectorStore) -> None:
        retriever = self.wrap(store)
        retriever.invoke("question")
        for number in range(10):
            question = f"question~{number}"
            assert retriever.invoke(question) == self.own(store, question)
        assert (retriever.stats().hits, retriever.stats().store_calls) == (10, 1)

    def test_by_default_it_is_re_ranked(self, store: VectorStore) -> None:
        retriever = ApproximateCacheRetriever.from_vectorstore(store, guard=False)
        retriever.invoke("question")
        assert retriever.stats().unranked == ""
        explanation = retriever.explain("question~1")
        assert explanation.tolerance == 0.3

    def test_round_trips(self, store: VectorStore, calls: list[str]) -> None:
        retriever = self.wrap(store)
        calls.clear()
        retriever.invoke("question")
        assert len(calls) == self.trips, calls
        calls.clear()
        retriever.invoke("question")
        retriever.invoke("question~1")
        assert calls == []

    def test_a_filter_is_part_of_the_key(self, store: VectorStore) -> None:
        retriever = self.wrap(store)
        for half in (0, 1):
            arguments = self.half(half)
            for question in ("question", "question~1", "question~2"):
                found = retriever.invoke(question, **arguments)
                assert {document.metadata["half"] for document in found} <= {half}
                if question == "question":
                    assert found == self.own(store, question, **arguments)
        assert retriever.invoke("question") == self.own(store, "question")
        assert retriever.stats().misses == 3

    def test_changes_are_followed(self, store: VectorStore) -> None:
        retriever = self.wrap(store)
        retriever.invoke("question")
        self.add(store, document(100, "question"))
        found = retriever.invoke("question~1")
        assert found[0].page_content == "question"
        assert found == self.own(store, "question~1")
        self.update(store, document(100, "something else"))
        assert retriever.invoke("question~2") == self.own(store, "question~2")
        self.delete(store, 100)
        assert retriever.invoke("question~3") == self.own(store, "question~3")

    def test_answers_outlive_changes_elsewhere(self, store: VectorStore) -> None:
        retriever = self.wrap(store, rerank_factor=2)
        retriever.invoke("question")
        self.add(store, document(100, "somewhere else"))
        self.delete(store, 100)
        assert retriever.invoke("question") == self.own(store, "question")
        assert retriever.stats().hits == self.follows

    def test_what_is_cached_is_deleted(self, store: VectorStore) -> None:
        retriever = self.wrap(store)
        before = retriever.invoke("question")
        self.delete(store, *(int(text.split()[1]) for text in texts(before)[:2]))
        after = retriever.invoke("question~1")
        assert not {*texts(before)[:2]} & {*texts(after)}
        assert after == self.own(store, "question~1")

    def test_clear_and_changes_by_others(self, store: VectorStore) -> None:
        retriever = self.wrap(store, follow_changes=False)
        retriever.invoke("question")
        self.add(store, document(100, "question"))
        assert "question" not in texts(retriever.invoke("question"))
        retriever.clear()
        assert retriever.invoke("question") == self.own(store, "question")

    def test_namespaces_are_apart(self, store: VectorStore) -> None:
        retriever = self.wrap(store)
        first = retriever.invoke("question", namespace="a")
        assert retriever.invoke("question", namespace="b") == first
        assert retriever.invoke("question", namespace="a") == first
        assert (retriever.stats().misses, retriever.stats().hits) == (2, 1)

    async def test_nothing_blocks_the_event_loop(self, store: VectorStore) -> None:
        retriever = self.wrap(store)
        expected = [self.own(store, question) for question in ("question", "question~1")]
        with blockbuster_ctx(scanned_modules=["ragcache_integrations"]):
            assert await retriever.ainvoke("question") == expected[0]
            assert await retriever.ainvoke("question~1") == expected[1]
        assert retriever.stats().hits == 1

    def test_questions_and_changes_at_the_same_time(self, store: VectorStore) -> None:
        retriever = self.wrap(store)

        def ask(number: int) -> None:
            for turn in range(5):
                found = retriever.invoke(f"question {number}~{turn}")
                assert len(found) == K

        with ThreadPoolExecutor(4) as pool:
            asked = [pool.submit(ask, number) for number in range(3)]
            for number in range(6):
                near = document(100 + number, f"question {number % 3}~0")
                # Another text than any document has, so that no two of them tie.
                far = document(200 + number, f"question {number % 3}~{10 + number}")
                self.add(store, near, far)
                self.delete(store, 100 + number, number)
            for future in asked:
                future.result()
        for number in range(3):
            question = f"question {number}~9"
            assert retriever.invoke(question) == self.own(store, question)

    def test_an_empty_store_that_is_filled_later(self, empty: VectorStore) -> None:
        retriever = self.wrap(empty)
        assert retriever.invoke("question") == []
        self.add(empty, *map(document, range(COUNT)))
        for question in ("question", "question~1"):
            assert retriever.invoke(question) == self.own(empty, question)
        assert retriever.stats().hits == 1

    def test_more_than_there_are(self, store: VectorStore) -> None:
        retriever = self.wrap(store, k=2 * COUNT)
        assert retriever.invoke("question") == self.own(store, "question", 2 * COUNT)
        assert retriever.invoke("question~1") == self.own(store, "question~1", 2 * COUNT)

    def test_searches_for_diversity_are_the_store_s_own(self, store: VectorStore) -> None:
        self.check_search_type(store, "mmr", {"fetch_k": 10, "lambda_mult": 0.3})

    @pytest.mark.filterwarnings("ignore:Relevance scores must be between:UserWarning")
    @pytest.mark.filterwarnings("ignore:legacy embedding function:DeprecationWarning")  # Chroma's
    def test_searches_with_a_threshold_are_the_store_s_own(self, store: VectorStore) -> None:
        scored = store.similarity_search_with_relevance_scores("question", k=3)
        arguments = {"score_threshold": float(scored[1][1]) - 1e-6}
        assert self.check_search_type(store, "similarity_score_threshold", arguments)

    def check_search_type(
        self, store: VectorStore, search_type: Any, arguments: dict[str, Any]
    ) -> list[Document]:
        retriever = ApproximateCacheRetriever.from_vectorstore(
            store, search_type=search_type, search_kwargs=arguments, k=K, tolerance=0.4
        )
        plain = store.as_retriever(search_type=search_type, search_kwargs={"k": K, **arguments})
        expected = plain.invoke("question")
        for _ in range(2):
            assert retriever.invoke("question") == expected
        assert retriever.stats().hits == 1
        return expected

    @pytest.mark.slow
    @pytest.mark.parametrize("model", [Known], indirect=True)
    def test_near_duplicates_keep_their_documents(self, empty: VectorStore) -> None:
        self.add(empty, *(document(*entry) for entry in enumerate(catalogue().texts)))
        retriever = ApproximateCacheRetriever.from_vectorstore(empty, k=K)
        check_catalogue(
            lambda question: texts(retriever.invoke(question)),
            lambda question: texts(self.own(empty, question)),
            lambda: retriever.stats().hits,
        )

    def test_a_guarantee_is_given_or_refused_on_construction(self, store: VectorStore) -> None:
        knobs = {"guarantee": "exact"} | self.declared
        if refused := self.why_refused(store):
            with pytest.raises(ConfigurationError, match=refused):
                self.wrap(store, **knobs, sole_writer=True)
            return
        if self.outside:
            with pytest.raises(ConfigurationError, match=r"version=.*sole_writer=True"):
                self.wrap(store, **knobs)
        assert self.wrap(store, **knobs, sole_writer=True).invoke("question")

    @pytest.mark.parametrize("guarantee", ["exact", 0.5])
    def test_no_breach_while_the_store_changes(self, store: VectorStore, guarantee: Any) -> None:
        if refused := self.why_refused(store):
            pytest.skip(refused)
        version = [0]

        def written() -> None:
            version[0] += 1

        retriever = self.wrap(
            store, guarantee=guarantee, rerank_factor=5, version=lambda: version[0], **self.declared
        )
        writers = [self.writer(store)]
        if self.outside:
            writers.append(self.writer(self.another(store), written))
        embedding, metric = Words(), retriever._core._source.facts.metric
        check_no_breach(
            lambda question: texts(retriever.invoke(question)),
            embedding.embed_query,
            Contents(
                metric or "", embedding.embed_documents, {n: f"text {n}" for n in range(COUNT)}
            ),
            writers,
            k=K,
            share=1 if guarantee == "exact" else guarantee,
            hits=lambda: retriever.stats().hits,
            name=f"{type(self).__name__} of LangChain, {metric}, guarantee={guarantee!r}",
        )

    def writer(self, store: VectorStore, written: Callable[[], object] = int) -> Writer:
        return Writer(
            lambda number, text: self.add(store, document(number, text)),
            lambda number: self.delete(store, number),
            written,
        )
