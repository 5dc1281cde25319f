"""The staged LlamaIndex retriever over real FAISS stores."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Generator
from contextlib import aclosing, closing
from typing import Any

import pytest
from blockbuster import blockbuster_ctx
from llama_index.core.callbacks import CallbackManager, CBEventType, EventPayload, LlamaDebugHandler
from llama_index.core.schema import IndexNode, MetadataMode, QueryBundle, TextNode
from llama_index.core.vector_stores import SimpleVectorStore
from llama_index.vector_stores.faiss import FaissVectorStore

from ragcache_integrations.errors import ConfigurationError
from ragcache_integrations.retrievers.retrieval import DocumentStage
from ragcache_integrations.retrievers.staged.llama_index import StagedFaissRetriever
from ragcache_integrations.vector_search import StagedIndex, StagePlan
from tests.retrievers.cached.llama_index.indexes import (
    Words,
    ids,
    index_over,
    nodes,
    scores,
    words_of,
)

from .stores import KINDS, STAGED, faiss_index, llama_index, vectors

QUESTIONS = [f"question {number}" for number in range(12)]


def read(stages: Generator[DocumentStage[Any]]) -> list[DocumentStage[Any]]:
    with closing(stages):
        return list(stages)


async def aread(stages: AsyncGenerator[DocumentStage[Any]]) -> list[DocumentStage[Any]]:
    async with aclosing(stages):
        return [stage async for stage in stages]


@pytest.mark.parametrize("kind", [*KINDS, "map", "flat map"])
async def test_the_final_stage_is_the_index_s_own_answer(kind: str) -> None:
    index = llama_index(kind)
    plain = index.as_retriever(similarity_top_k=5)
    retriever = StagedFaissRetriever.from_index(index, k=5)
    for question in QUESTIONS:
        expected = plain.retrieve(question)
        for stages in (
            read(retriever.stages(question)),
            await aread(retriever.astages(QueryBundle(question))),
        ):
            assert [stage.final for stage in stages] == [False] * (len(stages) - 1) + [True]
            assert len(stages) > 1 or kind not in (*STAGED, "map")
            assert ids(list(stages[-1].documents)) == ids(expected)
            assert scores(list(stages[-1].documents)) == pytest.approx(scores(expected), rel=1e-5)
        assert ids(retriever.retrieve(question)) == ids(expected)
        assert ids(await retriever.aretrieve(question)) == ids(expected)


def test_without_k_it_gives_as_many_as_llama_index() -> None:
    index = llama_index("hnsw")
    expected = index.as_retriever().retrieve("question")
    assert ids(StagedFaissRetriever.from_index(index).retrieve("question")) == ids(expected)


def test_a_bundle_s_embedding_is_used_and_a_repeated_question_embedded_once() -> None:
    index = llama_index("ivf")
    retriever = StagedFaissRetriever.from_index(index, k=4)
    other = Words().get_query_embedding("other")
    found = retriever.retrieve(QueryBundle("question", embedding=other))
    assert ids(found) == ids(retriever.retrieve("other"))
    read(retriever.stages("other"))
    assert words_of(index).queries == ["other"]


def test_arguments_of_the_call_come_before_the_knobs() -> None:
    retriever = StagedFaissRetriever.from_index(llama_index("ivf"), k=6, filter={"half": 0})
    assert {one.metadata["half"] for one in retriever.retrieve("question")} == {0}
    (*_, last) = read(retriever.stages("question", k=2, filter={"half": 1}))
    assert [document.metadata["half"] for document in last.documents] == [1, 1]


def test_an_index_of_ours_with_nodes() -> None:
    texts = nodes()
    inner = faiss_index("ivf")
    inner.add(vectors([one.get_content(MetadataMode.EMBED) for one in texts]))
    index = StagedIndex(inner, [one.node_id for one in texts])
    by_id = {text.node_id: text for text in texts}
    retriever = StagedFaissRetriever.from_index(index, by_id, Words(), k=3)
    expected = StagedFaissRetriever.from_index(llama_index("ivf"), k=3)
    for question in QUESTIONS:
        assert ids(retriever.retrieve(question)) == ids(expected.retrieve(question))
    del by_id[retriever.retrieve("question")[0].node_id]
    with pytest.raises(ConfigurationError, match="but there is no such document"):
        retriever.retrieve("question")


@pytest.mark.parametrize(
    ("knobs", "message"),
    [
        ({"k": 0}, "k must be a whole number of at least 1, or None, got 0"),
        ({"plan": "8"}, "plan must be a StagePlan, such as .*, got '8'"),
        ({"filter": 1}, "filter must be a mapping of metadata or a function"),
        ({"embedding_memo": 1.5}, "embedding_memo must be a whole number"),
        ({"stages": 8}, "unknown argument 'stages': allowed are .*plan"),
    ],
)
def test_wrong_knobs_are_refused(knobs: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        StagedFaissRetriever.from_index(llama_index("flat", 3), **knobs)


def test_what_cannot_be_searched_is_refused() -> None:
    simple = index_over(SimpleVectorStore(), 3)
    with pytest.raises(ConfigurationError, match="over FAISS or a StagedIndex, got SimpleVector"):
        StagedFaissRetriever.from_index(simple)
    with pytest.raises(ConfigurationError, match="embed_model must be a BaseEmbedding, got None"):
        StagedFaissRetriever(StagedIndex(faiss_index("flat"), []), nodes={})
    with pytest.raises(ConfigurationError, match="a StagedIndex needs nodes"):
        StagedFaissRetriever(StagedIndex(faiss_index("flat"), []), embed_model=Words())
    with pytest.raises(ConfigurationError, match="nodes are for a StagedIndex"):
        StagedFaissRetriever(llama_index("flat", 3), nodes={})


@pytest.mark.parametrize("kind", ["flat", "ivf", "hnsw", "map"])
def test_what_is_inserted_is_found_and_a_search_under_way_begins_again(kind: str) -> None:
    index = llama_index(kind)
    retriever = StagedFaissRetriever.from_index(index, k=3)
    search = retriever.stages("question")
    first = next(search)
    index.insert_nodes([TextNode(id_="new", text="question")])
    expected = ids(index.as_retriever(similarity_top_k=3).retrieve("question"))
    assert expected[0] == "new"
    if not first.final:
        assert ids(list(read(search)[-1].documents)) == expected
    assert ids(retriever.retrieve("question")) == expected


def test_what_is_deleted_is_gone() -> None:
    index = llama_index("flat map")
    retriever = StagedFaissRetriever.from_index(index, k=3)
    before = ids(retriever.retrieve("question"))
    index.delete_nodes([before[0]])
    assert ids(retriever.retrieve("question"))[:2] == before[1:]


def test_nodes_that_stand_for_objects_are_followed_in_every_stage() -> None:
    index = llama_index("ivf", 40)
    inner = TextNode(id_="inner", text="inner")
    index.insert_nodes([IndexNode(id_="outer", text="question", index_id="outer", obj=inner)])
    retriever = StagedFaissRetriever(index, k=2, object_map={"outer": inner})
    stages = read(retriever.stages("question"))
    assert ids(list(stages[-1].documents)) == ids(retriever.retrieve("question"))
    assert ids(list(stages[-1].documents))[0] == "inner"


async def test_callbacks_see_one_retrieval() -> None:
    debug = LlamaDebugHandler(print_trace_on_end=False)
    retriever = StagedFaissRetriever(
        llama_index("ivf"), k=3, callback_manager=CallbackManager([debug])
    )
    found = [read(retriever.stages("question")), await aread(retriever.astages("question"))]
    pairs = debug.get_event_pairs(CBEventType.RETRIEVE)
    assert len(pairs) == 2
    for (start, end), stages in zip(pairs, found, strict=True):
        assert start.payload is not None
        assert start.payload[EventPayload.QUERY_STR] == "question"
        assert end.payload is not None
        assert end.payload[EventPayload.NODES] == list(stages[-1].documents)
    debug.flush_event_logs()
    with pytest.raises(ConfigurationError):
        read(retriever.stages(""))
    ((_, end),) = debug.get_event_pairs(CBEventType.RETRIEVE)
    assert end.payload is not None
    assert isinstance(end.payload[EventPayload.EXCEPTION], ConfigurationError)


async def test_nothing_blocks_the_event_loop() -> None:
    retriever = StagedFaissRetriever.from_index(llama_index("ivf"), plan=StagePlan(number=3))
    with blockbuster_ctx(scanned_modules=["ragcache_integrations"]):
        assert len(await retriever.aretrieve("question")) == 2
        assert len(await aread(retriever.astages("question"))) == 3


async def test_many_at_once() -> None:
    retriever = StagedFaissRetriever.from_index(llama_index("hnsw"), k=4)
    expected = [ids(retriever.retrieve(question)) for question in QUESTIONS]
    found = await asyncio.gather(*[aread(retriever.astages(question)) for question in QUESTIONS])
    assert [ids(list(stages[-1].documents)) for stages in found] == expected


@pytest.mark.parametrize("kind", KINDS)
async def test_an_index_of_a_staged_one(kind: str) -> None:
    held = {node.node_id: node for node in nodes(200)}
    inner = faiss_index(kind)
    inner.add(vectors([one.get_content() for one in held.values()]))
    staged = StagedIndex(inner, list(held))
    staged.delete(list(held)[3:5])
    retriever = StagedFaissRetriever.from_index(staged, held, Words(), k=5)
    for index in (retriever.to_index(), await retriever.ato_index()):
        assert isinstance(index.vector_store, FaissVectorStore)
        plain = index.as_retriever(similarity_top_k=5)
        for question in QUESTIONS:
            expected = retriever.retrieve(question)
            assert ids(plain.retrieve(question)) == ids(expected)
            assert scores(plain.retrieve(question)) == pytest.approx(scores(expected), rel=1e-5)
        assert ids(StagedFaissRetriever.from_index(index, k=5).retrieve("question 1")) == ids(
            retriever.retrieve("question 1")
        )
        index.insert_nodes([TextNode(text="later", id_="new")])
        assert plain.retrieve("later")[0].node_id == "new"
    assert len(staged) == 198


def test_an_index_is_its_own_index() -> None:
    index = llama_index("hnsw")
    assert StagedFaissRetriever.from_index(index).to_index() is index


def test_an_index_of_missing_nodes_is_refused() -> None:
    held = {node.node_id: node for node in nodes(5)}
    inner = faiss_index("flat")
    inner.add(vectors(["a"] * 6))
    staged = StagedIndex(inner, [*held, "other"])
    with pytest.raises(ConfigurationError, match=r"nodes must hold all .* 'other' is missing"):
        StagedFaissRetriever.from_index(staged, held, Words()).to_index()
