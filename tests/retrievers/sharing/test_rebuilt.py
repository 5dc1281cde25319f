"""Retrievers that are made from one another, and copies of them."""

from __future__ import annotations

import asyncio
import copy
import gc
import pickle
import weakref
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from langchain_core.documents import Document
from langchain_core.retrievers import BaseRetriever
from langchain_core.runnables import ConfigurableField, RunnableLambda
from langchain_core.vectorstores import InMemoryVectorStore, VectorStore
from llama_index.core.base.base_retriever import BaseRetriever as LlamaIndexBase

from ragcache_integrations.errors import ConfigurationError
from ragcache_integrations.retrievers.cached.langchain.retriever import ApproximateCacheRetriever
from ragcache_integrations.retrievers.cached.llama_index.retriever import (
    ApproximateCacheRetriever as LlamaIndexRetriever,
)
from ragcache_integrations.retrievers.sharing import CAPACITY, Identity, SharedState
from ragcache_integrations.retrievers.staged.langchain import StagedFaissRetriever
from ragcache_integrations.retrievers.staged.llama_index import (
    StagedFaissRetriever as StagedLlamaIndexRetriever,
)
from tests.retrievers.cached.langchain.stores import (
    METADATA,
    STORES,
    TEXTS,
    Words,
    faiss_store,
    in_memory_store,
    queries_of,
)
from tests.retrievers.cached.llama_index.indexes import faiss_index, ids, index_over


def searches(retriever: ApproximateCacheRetriever) -> int:
    return retriever.stats().store_calls


def test_an_argument_without_a_name_is_refused_in_the_class_s_own_name() -> None:
    retriever: Any = ApproximateCacheRetriever
    words = "ApproximateCacheRetriever takes arguments by name only, got int without one; see also "
    with pytest.raises(TypeError, match=words + "from_retriever and from_vectorstore"):
        retriever(3)


class TestConfigurableFields:
    @pytest.mark.parametrize("make", STORES.values(), ids=STORES)
    def test_equal_questions_are_searched_once(self, make: Callable[[], VectorStore]) -> None:
        retriever = ApproximateCacheRetriever.from_vectorstore(make(), k=2)
        configurable = retriever.configurable_fields(namespace=ConfigurableField("tenant"))
        for _ in range(5):
            for tenant in ("ann", "bob"):
                configurable.invoke("question", config={"configurable": {"tenant": tenant}})
        assert (searches(retriever), retriever.stats().hits) == (2, 8)
        assert retriever.stats().embedding_calls == 2  # tenants share none

    async def test_the_changed_field_is_part_of_the_key(self) -> None:
        store = in_memory_store()
        retriever = ApproximateCacheRetriever.from_vectorstore(store)
        configurable = retriever.configurable_fields(
            k=ConfigurableField("k"), search_kwargs=ConfigurableField("search")
        )
        found = await configurable.ainvoke("question", {"configurable": {"k": 7}})
        assert len(found) == 7
        for half in (0, 1, 0, 1):
            field = {"filter": lambda one, half=half: one.metadata["half"] == half}
            documents = configurable.with_config(configurable={"search": field}).invoke("question")
            assert {document.metadata["half"] for document in documents} == {half}

    def test_a_changed_tolerance_is_another_cache_that_is_kept(self) -> None:
        retriever = ApproximateCacheRetriever.from_vectorstore(in_memory_store(), guard=False)
        configurable = retriever.configurable_fields(tolerance=ConfigurableField("t"))
        for tolerance in (0.0, 0.5) * 3:
            configurable.invoke("question~1", config={"configurable": {"t": tolerance}})
        strict = retriever.model_copy(update={"tolerance": 0.0})
        loose = retriever.model_copy(update={"tolerance": 0.5})
        assert (searches(strict), searches(loose), searches(retriever)) == (1, 1, 0)
        strict.invoke("question~2")
        loose.invoke("question~2")
        assert (searches(strict), searches(loose)) == (2, 1)

    def test_alternatives(self) -> None:
        first = ApproximateCacheRetriever.from_vectorstore(in_memory_store(), k=1)
        second = ApproximateCacheRetriever.from_vectorstore(in_memory_store(), k=2)
        chain = first.configurable_alternatives(ConfigurableField("which"), other=second)
        for _ in range(3):
            assert len(chain.invoke("question")) == 1
            assert len(chain.with_config(configurable={"which": "other"}).invoke("question")) == 2
        assert (searches(first), searches(second)) == (1, 1)

    def test_objects_that_were_constructed_independently_share_nothing(self) -> None:
        store = in_memory_store()
        retrievers = [ApproximateCacheRetriever.from_vectorstore(store) for _ in range(2)]
        for retriever in retrievers:
            retriever.configurable_fields(k=ConfigurableField("k")).invoke(
                "question", config={"configurable": {"k": 2}}
            )
        assert [searches(retriever) for retriever in retrievers] == [1, 1]

    def test_many_threads_make_one_cache(self) -> None:
        retriever = ApproximateCacheRetriever.from_vectorstore(in_memory_store())
        configurable = retriever.configurable_fields(tolerance=ConfigurableField("t"))

        def ask(_: int) -> int:
            return len(configurable.invoke("question", config={"configurable": {"t": 0.5}}))

        with ThreadPoolExecutor(8) as pool:
            assert set(pool.map(ask, range(64))) == {4}
        assert searches(retriever.model_copy(update={"tolerance": 0.5})) == 1

    def test_changes_and_clear_reach_all_of_them(self) -> None:
        store = in_memory_store()
        retriever = ApproximateCacheRetriever.from_vectorstore(store, k=1)
        configurable = retriever.configurable_fields(namespace=ConfigurableField("tenant"))
        config: Any = {"configurable": {"tenant": "ann"}}
        first = configurable.invoke("question", config=config)[0]
        store.delete([str(first.id)])
        assert configurable.invoke("question", config=config)[0].id != first.id
        retriever.clear()
        configurable.invoke("question", config=config)
        assert searches(retriever) == 2

    def test_the_staged_retriever_embeds_once(self) -> None:
        store = faiss_store()
        staged = StagedFaissRetriever.from_vectorstore(store)
        configurable = staged.configurable_fields(
            k=ConfigurableField("k"), filter=ConfigurableField("filter")
        )
        before = len(queries_of(store))
        for k in (1, 2, 3):
            config: Any = {"configurable": {"k": k, "filter": {"half": k % 2}}}
            found = configurable.invoke("question", config=config)
            assert [one.metadata["half"] for one in found] == [k % 2] * k
        assert len(queries_of(store)) == before + 1

    def test_a_state_that_nobody_has_is_collected(self) -> None:
        retriever = ApproximateCacheRetriever.from_vectorstore(in_memory_store())
        retriever.model_copy(update={"tolerance": 0.0}).invoke("question")
        state = weakref.ref(retriever.shared_state)
        del retriever
        gc.collect()
        assert state() is None

    def test_the_state_is_shown_nowhere(self) -> None:
        retriever = ApproximateCacheRetriever.from_vectorstore(in_memory_store())
        assert "shared_state" not in repr(retriever)
        assert "shared_state" not in retriever.model_dump(exclude={"vectorstore", "retriever"})


class TestSharedState:
    def test_cores_used_longest_ago_are_forgotten(self) -> None:
        state, made = SharedState(), list[int]()

        def core(number: int) -> int:
            return state.core(number, lambda: made.append(number) or number)  # type: ignore[func-returns-value]

        for number in range(CAPACITY + 1):
            core(0)
            core(number)
        assert made == list(range(CAPACITY + 1))
        core(0)
        core(1)
        assert made == [*range(CAPACITY + 1), 1]

    def test_a_failure_leaves_nothing(self) -> None:
        state = SharedState()

        def fail() -> int:
            raise OSError("own")

        with pytest.raises(OSError, match="own"):
            state.core("a", fail)
        assert state.core("a", lambda: 1) == 1

    def test_an_object_is_itself_alone(self) -> None:
        value: list[int] = []
        assert Identity(value) == Identity(value)
        assert hash(Identity(value)) == hash(Identity(value))
        assert Identity(value) != Identity([])
        assert Identity(value) != value


class TestModelCopy:
    def test_an_update_is_honoured_and_checked(self) -> None:
        retriever = ApproximateCacheRetriever.from_vectorstore(in_memory_store(), k=4)
        copied = retriever.model_copy(update={"k": 2})
        assert (copied.k, len(copied.invoke("question"))) == (2, 2)
        assert len(retriever.invoke("question")) == 4
        with pytest.raises(ConfigurationError, match="k must be"):
            retriever.model_copy(update={"k": 0})
        with pytest.raises(ConfigurationError, match="unknown argument 'kk'"):
            retriever.model_copy(update={"kk": 1})

    def test_another_store_has_another_cache(self) -> None:
        retriever = ApproximateCacheRetriever.from_vectorstore(in_memory_store())
        retriever.invoke("question")
        other = InMemoryVectorStore.from_texts(["green pear"], Words())
        copied = retriever.model_copy(update={"vectorstore": other})
        assert copied.invoke("question")[0].page_content == "green pear"
        assert searches(copied) == 1

    def test_other_embeddings_have_another_cache(self) -> None:
        class Turned(Words):
            def embed_query(self, text: str) -> list[float]:
                return [-value for value in super().embed_query(text)]

        store = in_memory_store()
        retriever = ApproximateCacheRetriever.from_vectorstore(store, tolerance=1e9)
        before = retriever.invoke("question")
        copied = retriever.model_copy(update={"embeddings": Turned()})
        assert copied.invoke("question") != before

    def test_search_kwargs_changed_in_place_are_honoured(self) -> None:
        store = faiss_store()
        retriever = ApproximateCacheRetriever.from_vectorstore(store, k=4)
        plain = store.as_retriever()
        for changed in ({"k": 2}, {"k": 3, "filter": {"half": 1}, "fetch_k": 300}, {"k": 4}):
            for one in (retriever, plain):
                one.search_kwargs.clear()
                one.search_kwargs.update(changed)
            for _ in range(2):
                assert retriever.invoke("question") == plain.invoke("question")
        assert retriever.stats().hits == 4
        retriever.search_kwargs["k"] = 2
        assert retriever.model_copy().k == 2
        assert len(retriever.model_copy(update={"k": 3}).invoke("question")) == 3
        assert (retriever.search_kwargs["k"], len(retriever.invoke("question"))) == (2, 2)

    def test_annotations_are_the_copy_s_own(self) -> None:
        retriever = ApproximateCacheRetriever.from_vectorstore(in_memory_store())
        noting = retriever.model_copy(update={"annotate": True})
        assert "query_cache" not in retriever.invoke("question")[0].metadata
        assert noting.invoke("question")[0].metadata["query_cache"]["hit"]
        assert "query_cache" not in retriever.invoke("question")[0].metadata

    def test_assigning_says_how(self) -> None:
        retriever = ApproximateCacheRetriever.from_vectorstore(faiss_store())
        for name in ("k", "vectorstore", "namespace", "search_kwargs", "tags"):
            with pytest.raises(ConfigurationError, match=rf"model_copy\(update=\{{'{name}'"):
                setattr(retriever, name, None)
        staged = StagedFaissRetriever.from_vectorstore(faiss_store())
        with pytest.raises(ConfigurationError, match="model_copy"):
            staged.k = 2  # type: ignore[misc]
        assert len(staged.model_copy(update={"k": 2}).invoke("question")) == 2


LANGCHAIN: dict[str, Callable[[], Any]] = {
    "in memory": lambda: ApproximateCacheRetriever.from_vectorstore(
        in_memory_store(), k=3, guard=False
    ),
    "faiss": lambda: ApproximateCacheRetriever.from_vectorstore(
        faiss_store(), k=3, search_kwargs={"filter": {"half": 1}, "fetch_k": 300}, guard=False
    ),
    "wrapped": lambda: ApproximateCacheRetriever.from_retriever(
        in_memory_store().as_retriever(search_type="mmr"), Words(), k=3, guard=False
    ),
    "staged": lambda: StagedFaissRetriever.from_vectorstore(faiss_store(), k=3),
    "cached staged": lambda: ApproximateCacheRetriever.from_retriever(
        StagedFaissRetriever.from_vectorstore(faiss_store()), k=3, guard=False
    ),
}
COPIES: dict[str, Callable[[Any], Any]] = {
    "deepcopy": copy.deepcopy,
    "pickle": lambda value: pickle.loads(pickle.dumps(value)),
}


@pytest.mark.parametrize("make_copy", COPIES.values(), ids=COPIES)
class TestCopies:
    @pytest.mark.parametrize("make", LANGCHAIN.values(), ids=LANGCHAIN)
    async def test_a_copy_answers_as_the_original_and_shares_nothing(
        self, make: Callable[[], Any], make_copy: Callable[[Any], Any]
    ) -> None:
        retriever = make()
        before = retriever.invoke("question")
        copied = make_copy(retriever)
        assert type(copied) is type(retriever)
        assert copied.invoke("question") == before
        assert await copied.ainvoke("question") == before
        assert copied.k == 3
        assert copied.shared_state is not retriever.shared_state
        store = retriever.vectorstore or retriever.retriever.vectorstore
        own = copied.vectorstore or copied.retriever.vectorstore
        assert own is not store
        gone = str(before[0].id)
        own.delete([gone])
        if isinstance(copied, ApproximateCacheRetriever) and copied.vectorstore is None:
            copied.clear()  # a wrapped retriever's store is not followed
        assert gone not in {one.id for one in copied.invoke("question")}
        assert retriever.invoke("question") == before

    def test_chains_and_alternatives(self, make_copy: Callable[[Any], Any]) -> None:
        retriever = ApproximateCacheRetriever.from_vectorstore(in_memory_store())
        retriever.invoke("question")
        chain = retriever | RunnableLambda(len)
        assert make_copy(chain).invoke("question") == 4
        configurable = retriever.configurable_fields(k=ConfigurableField("k"))
        copied = make_copy(configurable)
        assert len(copied.invoke("question", config={"configurable": {"k": 2}})) == 2
        assert searches(retriever) == 1

    def test_the_cache_travels_only_where_that_is_said(
        self, make_copy: Callable[[Any], Any]
    ) -> None:
        for said in (False, True):
            retriever = ApproximateCacheRetriever.from_vectorstore(
                in_memory_store(), pickle_cache=said, namespace="ann"
            )
            before = retriever.invoke("question")
            copied = make_copy(retriever)
            assert copied.stats().requests == 0
            assert copied.invoke("question") == before
            carried = said and make_copy is COPIES["pickle"]
            assert searches(copied) == (0 if carried else 1)
            assert copied.invoke("question", namespace="bob") == before
            assert searches(copied) == (1 if carried else 2)

    @pytest.mark.parametrize("pickle_cache", [False, True])
    async def test_llama_index(self, make_copy: Callable[[Any], Any], pickle_cache: bool) -> None:
        index = index_over()
        retriever = LlamaIndexRetriever.from_index(index, pickle_cache=pickle_cache)
        retriever.similarity_top_k = 3
        before = retriever.retrieve("question")
        copied = make_copy(retriever)
        assert copied.retrieve("question") == before
        assert await copied.aretrieve("question") == before
        assert copied.similarity_top_k == 3
        carried = pickle_cache and make_copy is COPIES["pickle"]
        assert copied.stats().store_calls == (0 if carried else 1)
        copied.clear()
        copied._index.delete_nodes([before[0].node_id])
        assert before[0].node_id not in ids(copied.retrieve("question"))
        assert retriever.retrieve("question") == before

    def test_llama_index_s_staged_retriever(self, make_copy: Callable[[Any], Any]) -> None:
        retriever = StagedLlamaIndexRetriever.from_index(faiss_index())
        retriever.similarity_top_k = 3
        copied = make_copy(retriever) if make_copy is COPIES["deepcopy"] else copy.copy(retriever)
        assert ids(copied.retrieve("question")) == ids(retriever.retrieve("question"))
        assert len(copied.retrieve("question")) == 3


def test_a_shallow_copy_shares_the_cache() -> None:
    retriever = ApproximateCacheRetriever.from_vectorstore(in_memory_store())
    retriever.invoke("question")
    copy.copy(retriever).invoke("question")
    retriever.model_copy().invoke("question")
    assert (searches(retriever), retriever.stats().hits) == (1, 2)
    own = LlamaIndexRetriever.from_index(index_over())
    own.retrieve("question")
    copy.copy(own).retrieve("question")
    assert own.stats().hits == 1


class TestLlamaIndexSettings:
    @pytest.mark.parametrize(
        "make",
        [
            lambda: LlamaIndexRetriever.from_index(index_over()),
            lambda: LlamaIndexRetriever.from_retriever(index_over().as_retriever()),
            lambda: LlamaIndexRetriever.from_retriever(
                StagedLlamaIndexRetriever.from_index(faiss_index())
            ),
            lambda: StagedLlamaIndexRetriever.from_index(faiss_index()),
        ],
    )
    def test_similarity_top_k_is_honoured(self, make: Callable[[], Any]) -> None:
        retriever = make()
        assert len(retriever.retrieve("question")) == 2
        retriever.similarity_top_k = 1
        assert (retriever.similarity_top_k, len(retriever.retrieve("question"))) == (1, 1)
        with pytest.raises(ConfigurationError, match="similarity_top_k must be"):
            retriever.similarity_top_k = 0
        assert len(retriever.retrieve("question")) == 1

    def test_more_than_was_asked_for_before(self) -> None:
        retriever = LlamaIndexRetriever.from_index(index_over())
        retriever.retrieve("question")
        retriever.similarity_top_k = 20
        assert len(retriever.retrieve("question")) == 20

    def test_other_settings_say_how(self) -> None:
        for retriever in (
            LlamaIndexRetriever.from_index(index_over()),
            StagedLlamaIndexRetriever.from_index(faiss_index()),
        ):
            assert isinstance(retriever, LlamaIndexBase)
            with pytest.raises(ConfigurationError, match=r"k of a finished .*similarity_top_k"):
                retriever.k = 3
            with pytest.raises(ConfigurationError, match=r"Retriever\(embed_model=...\)"):
                retriever.embed_model = None


async def test_arguments_of_a_call_are_those_of_the_plain_retriever() -> None:
    store = faiss_store()
    plain = store.as_retriever()
    retriever = ApproximateCacheRetriever.from_vectorstore(store, tolerance=0.5, guard=False)
    calls: list[dict[str, Any]] = [
        {},
        {"k": 2},
        {"k": 2, "fetch_k": 9},
        {"filter": {"half": 1}, "fetch_k": 300},
        {"score_threshold": 60.0},
        {"k": 9, "score_threshold": 60.0},
    ]
    for call in calls * 2:
        assert retriever.invoke("question", **call) == plain.invoke("question", **call)
        assert await retriever.ainvoke("question", **call) == plain.invoke("question", **call)
    mmr = store.as_retriever(search_type="mmr")
    for call in ({}, {"k": 2}, {"k": 3, "fetch_k": 5, "lambda_mult": 0.1}) * 2:
        expected = mmr.invoke("question", **call)
        assert retriever.invoke("question", search_type="mmr", **call) == expected
        near = retriever.invoke("question~1", search_type="mmr", **call)
        assert near == expected  # as it was cached: not re-ranked by distance
    settled = ApproximateCacheRetriever.from_vectorstore(store, search_type="mmr", k=3, guard=False)
    assert settled.invoke("question") == mmr.invoke("question", k=3)
    assert len(settled.invoke("question", search_type="similarity")) == 3


class Numbered(BaseRetriever):
    """Knows how many are wanted."""

    def _get_relevant_documents(self, query: str, *, run_manager: Any, k: int = 2) -> Any:
        return [Document(f"{query} {number}") for number in range(k)]


@pytest.mark.parametrize(
    "make",
    [
        lambda: faiss_store().as_retriever(search_type="mmr"),
        lambda: in_memory_store().as_retriever(search_type="mmr", search_kwargs={"k": 2}),
        Numbered,
    ],
)
async def test_a_wrapped_retriever_gets_the_call_s_k(make: Callable[[], Any]) -> None:
    """Also more than it finds by itself, of which the first would be too few."""
    plain = make()
    retriever = ApproximateCacheRetriever.from_retriever(plain, Words())
    for k in (None, 1, 7, 3) * 2:
        call: dict[str, Any] = {} if k is None else {"k": k}
        expected = plain.invoke("question", **call)
        assert k in {None, len(expected)}
        assert retriever.invoke("question", **call) == expected
        assert await retriever.ainvoke("question", **call) == expected
        assert list(retriever.stages("question", **call))[-1].documents == tuple(expected)
    assert retriever.stats().misses == 4


async def test_a_wrapped_store_s_arguments_are_those_of_the_call() -> None:
    cases: list[tuple[Callable[[], VectorStore], Any]] = [
        (in_memory_store, lambda document: document.metadata["half"] == 1),
        (faiss_store, {"half": 1}),
    ]
    for make, wanted in cases:
        plain = make().as_retriever(search_type="mmr")
        retriever = ApproximateCacheRetriever.from_retriever(plain)
        calls: list[dict[str, Any]] = [
            {"filter": wanted},
            {},
            {"filter": wanted, "fetch_k": 30, "k": 6},
        ]
        for call in calls * 2:
            expected = plain.invoke("question", **call)
            assert retriever.invoke("question", **call) == expected
            assert await retriever.ainvoke("question", **call) == expected
        with pytest.raises(ConfigurationError, match="did you mean lambda_mult"):
            retriever.invoke("question", lambda_mul=0.1)


def test_a_threshold_of_relevance() -> None:
    store = InMemoryVectorStore.from_texts(TEXTS[:20], Words(), metadatas=METADATA[:20])
    store._select_relevance_score_fn = lambda: lambda score: score  # type: ignore[method-assign]
    plain = store.as_retriever(
        search_type="similarity_score_threshold", search_kwargs={"score_threshold": 0.2, "k": 9}
    )
    retriever = ApproximateCacheRetriever.from_vectorstore(store)
    call: dict[str, Any] = {"search_type": "similarity_score_threshold", "score_threshold": 0.2}
    for _ in range(2):
        assert retriever.invoke("question", k=9, **call) == plain.invoke("question")
    assert asyncio.run(retriever.ainvoke("question", k=9, **call)) == plain.invoke("question")
