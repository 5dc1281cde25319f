"""What the LlamaIndex retriever must do in front of any store."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
from blockbuster import blockbuster_ctx
from llama_index.core import MockEmbedding, StorageContext, VectorStoreIndex
from llama_index.core.schema import NodeWithScore, TextNode
from llama_index.core.vector_stores import MetadataFilter, MetadataFilters
from llama_index.core.vector_stores.types import BasePydanticVectorStore

from ragcache_integrations.errors import ConfigurationError
from ragcache_integrations.retrievers.cached.llama_index.retriever import ApproximateCacheRetriever
from tests.retrievers.cached.llama_index.indexes import DIM, Words

from .catalogue import KNOWN_DIM, catalogue, check_catalogue
from .proofs import Contents, Writer, check_no_breach

COUNT = 60
K = 4


class UnitWords(Words):
    """Vectors of unit length, for stores whose scores vanish at greater distances."""

    def _get_query_embedding(self, query: str) -> list[float]:
        return _normalised(super()._get_query_embedding(query))

    def _get_text_embedding(self, text: str) -> list[float]:
        return _normalised(super()._get_text_embedding(text))


class Known(MockEmbedding):
    """The catalogue's embeddings, which are there already."""

    def _get_query_embedding(self, query: str) -> list[float]:
        return catalogue().vectors[query]

    def _get_text_embedding(self, text: str) -> list[float]:
        return catalogue().vectors[text]


def _normalised(vector: list[float]) -> list[float]:
    array = np.array(vector)
    normalised: list[float] = (array / np.linalg.norm(array)).tolist()
    return normalised


def uuid_of(number: int) -> str:
    return str(uuid.UUID(int=number + 1))


def node(number: int, text: str | None = None) -> TextNode:
    return TextNode(
        id_=uuid_of(number),
        text=text or f"text {number}",
        metadata={"half": number % 2},
        excluded_embed_metadata_keys=["half"],
    )


def index_over(
    store: BasePydanticVectorStore, words: Words, count: int = COUNT
) -> VectorStoreIndex:
    context = StorageContext.from_defaults(vector_store=store)
    nodes = [node(number) for number in range(count)]
    return VectorStoreIndex(nodes, storage_context=context, embed_model=words)


def half(number: int) -> dict[str, Any]:
    """Return the search arguments that let through nodes of one half."""
    return {"filters": MetadataFilters(filters=[MetadataFilter(key="half", value=number)])}


def wrap(index: VectorStoreIndex, **knobs: Any) -> ApproximateCacheRetriever:
    knobs = {"k": K, "tolerance": 0.4, "rerank_factor": 20, "guard": False} | knobs
    return ApproximateCacheRetriever.from_index(index, **knobs)


def own(
    index: VectorStoreIndex, question: str, k: int = K, **arguments: Any
) -> list[NodeWithScore]:
    """Return the store's own answer."""
    return index.as_retriever(similarity_top_k=k, **arguments).retrieve(question)


def texts(nodes: Sequence[NodeWithScore]) -> list[str]:
    return [node.text for node in nodes]


def check_same(nodes: Sequence[NodeWithScore], expected: Sequence[NodeWithScore]) -> None:
    """Check that nodes are the same in the same order, with the same scores."""
    assert [(node.node_id, node.text) for node in nodes] == [
        (node.node_id, node.text) for node in expected
    ]
    assert [node.score for node in nodes] == pytest.approx(
        [node.score for node in expected], rel=1e-4, abs=1e-5
    )


class LlamaIndexContract:
    """One class per store; each test gets a store of its own, with 60 nodes.

    Attributes:
        trips: How many times the store is asked on a miss, vectors included.
        outside: Whether others can write to the store.
        coroutines: Whether the store, as it is made here, can be asked by coroutines.
        follows: Whether answers outlive changes elsewhere.
        unasked: What it raises before it has any node; ``None``: it returns none.
    """

    words: type[Words] = Words
    trips = 1
    outside = True
    coroutines = True
    follows = True
    unasked: type[Exception] | None = None

    @pytest.fixture
    def dim(self, request: pytest.FixtureRequest) -> int:
        """Return the dimension of the vectors."""
        dim: int = getattr(request, "param", DIM)
        return dim

    @pytest.fixture
    def empty(self, dim: int) -> BasePydanticVectorStore:
        """Return an empty store."""
        raise NotImplementedError

    @pytest.fixture
    def calls(self) -> list[str]:
        """Return a list that gets an item each time a store is asked."""
        raise NotImplementedError

    def why_refused(self, store: BasePydanticVectorStore) -> str:
        """Return why no guarantee can be given; nothing where one can."""
        return ""

    def another(self, store: BasePydanticVectorStore) -> BasePydanticVectorStore:
        """Return another object over the same nodes, with a connection of its own."""
        raise NotImplementedError

    @pytest.fixture
    def index(self, empty: BasePydanticVectorStore) -> VectorStoreIndex:
        return index_over(empty, self.words())

    def delete(self, index: VectorStoreIndex, *numbers: int) -> None:
        index.delete_nodes([uuid_of(number) for number in numbers])

    def test_a_miss_and_its_repetition_are_the_store_s_own_answer(
        self, index: VectorStoreIndex
    ) -> None:
        retriever = wrap(index)
        for number in range(5):
            expected = own(index, f"question {number}")
            assert retriever.retrieve(f"question {number}") == expected
            check_same(retriever.retrieve(f"question {number}"), expected)
        assert (retriever.stats().misses, retriever.stats().hits) == (5, 5)

    def test_a_hit_is_ranked_and_scored_as_by_the_store(self, index: VectorStoreIndex) -> None:
        retriever = wrap(index)
        retriever.retrieve("question")
        for number in range(10):
            check_same(retriever.retrieve(f"question~{number}"), own(index, f"question~{number}"))
        assert (retriever.stats().hits, retriever.stats().store_calls) == (10, 1)

    def test_by_default_it_is_re_ranked(self, index: VectorStoreIndex) -> None:
        retriever = ApproximateCacheRetriever.from_index(index, guard=False)
        retriever.retrieve("question")
        assert retriever.stats().unranked == ""
        assert retriever.explain("question~1").tolerance == 0.3

    @pytest.mark.slow
    @pytest.mark.usefixtures("dim")
    @pytest.mark.parametrize("dim", [KNOWN_DIM], indirect=True)
    def test_near_duplicates_keep_their_nodes(self, empty: BasePydanticVectorStore) -> None:
        context = StorageContext.from_defaults(vector_store=empty)
        nodes = [node(*entry) for entry in enumerate(catalogue().texts)]
        index = VectorStoreIndex(
            nodes, storage_context=context, embed_model=Known(embed_dim=KNOWN_DIM)
        )
        retriever = ApproximateCacheRetriever.from_index(index, k=K)
        check_catalogue(
            lambda question: texts(retriever.retrieve(question)),
            lambda question: texts(own(index, question)),
            lambda: retriever.stats().hits,
        )

    def test_round_trips(self, index: VectorStoreIndex, calls: list[str]) -> None:
        retriever = wrap(index)
        calls.clear()
        retriever.retrieve("question")
        assert len(calls) == self.trips, calls
        calls.clear()
        retriever.retrieve("question")
        retriever.retrieve("question~1")
        assert calls == []

    def test_filtered_answers(self, index: VectorStoreIndex) -> None:
        for number in (0, 1):
            retriever = wrap(index, search_kwargs=half(number))
            for question in ("question", "question~1", "question~2"):
                found = retriever.retrieve(question)
                assert {node.metadata["half"] for node in found} == {number}
                check_same(found, own(index, question, **half(number)))
            assert (retriever.stats().misses, retriever.stats().hits) == (1, 2)

    def test_changes_are_followed(self, index: VectorStoreIndex) -> None:
        retriever = wrap(index)
        retriever.retrieve("question")
        index.insert_nodes([node(100, "question")])
        found = retriever.retrieve("question~1")
        assert found[0].text == "question"
        check_same(found, own(index, "question~1"))
        self.delete(index, 100)
        check_same(retriever.retrieve("question~2"), own(index, "question~2"))

    def test_answers_outlive_changes_elsewhere(self, index: VectorStoreIndex) -> None:
        retriever = wrap(index, rerank_factor=2)
        retriever.retrieve("question")
        index.insert_nodes([node(100, "somewhere else")])
        self.delete(index, 100)
        check_same(retriever.retrieve("question"), own(index, "question"))
        assert retriever.stats().hits == self.follows

    def test_what_is_cached_is_deleted(self, index: VectorStoreIndex) -> None:
        retriever = wrap(index)
        before = retriever.retrieve("question")
        self.delete(index, *(int(text.split()[1]) for text in texts(before)[:2]))
        after = retriever.retrieve("question~1")
        assert not {*texts(before)[:2]} & {*texts(after)}
        check_same(after, own(index, "question~1"))

    def test_clear_and_changes_by_others(self, index: VectorStoreIndex) -> None:
        retriever = wrap(index, follow_changes=False)
        retriever.retrieve("question")
        index.insert_nodes([node(100, "question")])
        assert "question" not in texts(retriever.retrieve("question"))
        retriever.clear()
        check_same(retriever.retrieve("question"), own(index, "question"))

    async def test_nothing_blocks_the_event_loop(self, index: VectorStoreIndex) -> None:
        retriever = wrap(index)
        plain = index.as_retriever(similarity_top_k=K)
        if not self.coroutines:
            with pytest.raises(ValueError):
                await plain.aretrieve("question")
            with pytest.raises(ValueError):
                await retriever.aretrieve("question")
            return
        expected = [await plain.aretrieve(question) for question in ("question", "question~1")]
        with blockbuster_ctx(scanned_modules=["ragcache_integrations"]):
            found = [await retriever.aretrieve(question) for question in ("question", "question~1")]
        for nodes, right in zip(found, expected, strict=True):
            check_same(nodes, right)
        assert retriever.stats().hits == 1

    def test_questions_and_changes_at_the_same_time(self, index: VectorStoreIndex) -> None:
        retriever = wrap(index)

        def ask(number: int) -> None:
            for turn in range(5):
                assert len(retriever.retrieve(f"question {number}~{turn}")) == K

        with ThreadPoolExecutor(4) as pool:
            asked = [pool.submit(ask, number) for number in range(3)]
            for number in range(6):
                near = node(100 + number, f"question {number % 3}~0")
                # Another text than any document has, so that no two of them tie.
                far = node(200 + number, f"question {number % 3}~{10 + number}")
                index.insert_nodes([near, far])
                self.delete(index, 100 + number, number)
            for future in asked:
                future.result()
        for number in range(3):
            question = f"question {number}~9"
            check_same(retriever.retrieve(question), own(index, question))

    def test_an_empty_store_that_is_filled_later(self, empty: BasePydanticVectorStore) -> None:
        index = index_over(empty, self.words(), 0)
        retriever = wrap(index)
        for asked in (index.as_retriever(), retriever):
            if self.unasked is None:
                assert asked.retrieve("question") == []
            else:
                with pytest.raises(self.unasked):
                    asked.retrieve("question")
        index.insert_nodes([node(number) for number in range(COUNT)])
        for question in ("question", "question~1"):
            check_same(retriever.retrieve(question), own(index, question))
        assert retriever.stats().hits == 1

    def test_searches_of_other_modes_are_the_store_s_own(self, index: VectorStoreIndex) -> None:
        arguments: dict[str, Any] = {"vector_store_query_mode": "mmr"}
        try:
            expected = own(index, "question", **arguments)
        except Exception as error:
            with pytest.raises(type(error)):
                wrap(index, rerank_factor=None, search_kwargs=arguments).retrieve("question")
            return
        retriever = wrap(index, rerank_factor=None, search_kwargs=arguments)
        for _ in range(2):
            check_same(retriever.retrieve("question"), expected)
        assert retriever.stats().hits == 1

    def test_a_guarantee_is_given_or_refused_on_construction(self, index: VectorStoreIndex) -> None:
        if refused := self.why_refused(index.vector_store):
            with pytest.raises(ConfigurationError, match=refused):
                wrap(index, guarantee="exact", sole_writer=True)
            return
        if self.outside:
            with pytest.raises(ConfigurationError, match=r"version=.*sole_writer=True"):
                wrap(index, guarantee="exact")
        assert wrap(index, guarantee="exact", sole_writer=True).retrieve("question")

    def test_a_guarantee_with_arguments_of_the_store_s_own(self, index: VectorStoreIndex) -> None:
        with pytest.raises(ConfigurationError, match="guarantee"):
            wrap(
                index,
                guarantee="exact",
                sole_writer=True,
                search_kwargs={"vector_store_kwargs": {"anything": 1}},
            )

    @pytest.mark.parametrize("guarantee", ["exact", 0.5])
    def test_no_breach_while_the_store_changes(
        self, index: VectorStoreIndex, guarantee: Any
    ) -> None:
        if refused := self.why_refused(index.vector_store):
            pytest.skip(refused)
        version = [0]

        def written() -> None:
            version[0] += 1

        retriever = wrap(index, guarantee=guarantee, rerank_factor=5, version=lambda: version[0])
        writers, embedding = [self.writer(index)], self.words()
        if self.outside:
            other = index_over(self.another(index.vector_store), embedding, 0)
            writers.append(self.writer(other, written))
        metric = retriever._core._source.facts.metric
        check_no_breach(
            lambda question: texts(retriever.retrieve(question)),
            embedding.get_query_embedding,
            Contents(
                metric or "",
                embedding.get_text_embedding_batch,
                {number: f"text {number}" for number in range(COUNT)},
            ),
            writers,
            k=K,
            share=1 if guarantee == "exact" else guarantee,
            hits=lambda: retriever.stats().hits,
            name=f"{type(self).__name__} of LlamaIndex, {metric}, guarantee={guarantee!r}",
        )

    def writer(self, index: VectorStoreIndex, written: Callable[[], object] = int) -> Writer:
        return Writer(
            lambda number, text: index.insert_nodes([node(number, text)]),
            lambda number: self.delete(index, number),
            written,
        )
