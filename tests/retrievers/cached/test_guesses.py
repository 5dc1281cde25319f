"""Stages in front of any store: a guess from the cache, then the store's own answer."""

from __future__ import annotations

from typing import Any

import pytest
from langchain_core.documents import Document
from langchain_core.vectorstores import InMemoryVectorStore
from llama_index.core import VectorStoreIndex
from llama_index.core.schema import TextNode

from ragcache_integrations import langchain, llama_index
from ragcache_integrations.query_cache import Candidate, Hit
from ragcache_integrations.retrievers.cached.core import Guesses
from tests.retrievers.cached.langchain.stores import Words
from tests.retrievers.cached.llama_index.indexes import Words as LlamaIndexWords

TEXTS = [f"text {number}" for number in range(12)]
K = 3


def of_langchain(**knobs: Any) -> Any:
    store = InMemoryVectorStore(Words())
    store.add_documents([Document(text, id=text) for text in TEXTS])
    return langchain.ApproximateCacheRetriever.from_vectorstore(store, k=K, guard=False, **knobs)


def of_llama_index(**knobs: Any) -> Any:
    nodes = [TextNode(id_=text, text=text) for text in TEXTS]
    index = VectorStoreIndex(nodes, embed_model=LlamaIndexWords())
    return llama_index.ApproximateCacheRetriever.from_index(index, k=K, guard=False, **knobs)


def names(documents: Any) -> list[str]:
    return [getattr(document, "node_id", None) or document.id for document in documents]


def of_store(retriever: Any, question: str) -> list[str]:
    if hasattr(retriever, "invoke"):
        return names(retriever.vectorstore.similarity_search(question, K))
    return names(retriever._index.as_retriever(similarity_top_k=K).retrieve(question))


both = pytest.mark.parametrize("make", [of_langchain, of_llama_index])


@both
class TestStages:
    def test_all_documents_seen_make_every_guess_right(self, make: Any) -> None:
        retriever = make(tolerance=0.01, rerank_factor=4)  # all twelve
        (only,) = retriever.stages("text 1")
        assert (only.number, only.final) == (1, True)
        for number in range(2, 8):
            guess, final = retriever.stages(f"text {number}")
            assert (guess.number, guess.final, guess.trace) == (1, False, None)
            assert (final.number, final.final) == (2, True)
            assert final.trace is not None
            assert not final.trace.hit
            assert names(guess.documents) == names(final.documents)
            assert names(final.documents) == of_store(retriever, f"text {number}")
        stats = retriever.stats()
        assert (stats.requests, stats.misses, stats.store_calls) == (7, 7, 7)

    async def test_as_a_coroutine(self, make: Any) -> None:
        retriever = make(tolerance=0.01, rerank_factor=4)
        assert len([stage async for stage in retriever.astages("text 1")]) == 1
        guess, final = [stage async for stage in retriever.astages("text 2")]
        assert names(guess.documents) == names(final.documents)

    def test_a_hit_is_one_stage(self, make: Any) -> None:
        retriever = make(tolerance=2.0, rerank_factor=4)
        list(retriever.stages("text 1"))
        (only,) = retriever.stages("text 2")
        assert only.final
        assert only.trace.hit

    def test_the_final_documents_are_the_store_s_whatever_was_guessed(self, make: Any) -> None:
        retriever = make(tolerance=0.01, rerank_factor=1)
        list(retriever.stages("text 1"))
        stages = list(retriever.stages("text 9"))
        assert names(stages[-1].documents) == of_store(retriever, "text 9")
        assert names(stages[0].documents) == names(
            retriever._core._source.copy(document, None, None) for document in stages[0].documents
        )

    def test_a_guess_is_the_caller_s_own(self, make: Any) -> None:
        retriever = make(tolerance=0.01, rerank_factor=4)
        list(retriever.stages("text 1"))
        guess, _ = retriever.stages("text 2")
        metadata = getattr(guess.documents[0], "node", guess.documents[0]).metadata
        metadata["changed"] = True
        another, _ = retriever.stages("text 3")
        for document in another.documents:
            assert "changed" not in getattr(document, "node", document).metadata

    def test_closing_after_a_guess_asks_no_store(self, make: Any) -> None:
        retriever = make(tolerance=0.01, rerank_factor=4)
        list(retriever.stages("text 1"))
        stages = retriever.stages("text 2")
        assert not next(stages).final
        stages.close()
        assert retriever.stats().store_calls == 1


def test_guesses_that_go_wrong_are_not_passed_on() -> None:
    retriever = of_langchain(tolerance=0.01, rerank_factor=1)
    store = retriever.vectorstore
    shown = 0
    for number in range(40):
        stages = list(retriever.stages(f"question {number}"))
        shown += len(stages) - 1
        store.delete([f"other {number - 1}"])
        # The next one's nearest document is one that nobody has seen.
        vector = store.embeddings.embed_query(f"question {number + 1}")
        store.store[f"other {number}"] = {
            "id": f"other {number}", "vector": vector, "text": "other", "metadata": {},
        }  # fmt: skip
    assert 0 < shown < 20


def test_no_guess_of_another_tenant_s_documents() -> None:
    retriever = of_langchain(tolerance=0.01, rerank_factor=4)
    list(retriever.stages("text 1", namespace="ann"))
    assert len(list(retriever.stages("text 2", namespace="bob"))) == 1
    assert len(list(retriever.stages("text 2", namespace="ann"))) == 2


def hit(distance: float, *ids: str) -> Hit[None]:
    return Hit(tuple(Candidate(name, None) for name in ids), distance, 0.0)


class TestLearning:
    def test_by_distance(self) -> None:
        guesses = Guesses()
        for _ in range(5):
            guesses.learn(hit(0.45, "a", "b"), hit(0, "a", "b").candidates)
            guesses.learn(hit(0.85, "a", "b"), hit(0, "b", "a").candidates)
        assert guesses.pays(hit(0.41))
        assert not guesses.pays(hit(0.89))
        assert guesses.pays(hit(0.6))  # nothing is known of it
        assert guesses.pays(hit(7.0))

    def test_another_chance(self) -> None:
        guesses = Guesses()
        for _ in range(6):
            guesses.learn(hit(0.3, "a"), hit(0, "b").candidates)
        assert not guesses.pays(hit(0.3))
        for _ in range(6):
            guesses.learn(hit(0.3, "a"), hit(0, "a").candidates)
        assert guesses.pays(hit(0.3))
