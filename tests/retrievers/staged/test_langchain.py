"""The staged LangChain retriever over real FAISS stores."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncGenerator, Generator
from concurrent.futures import ThreadPoolExecutor
from contextlib import aclosing, closing
from typing import Any

import numpy as np
import pytest
from blockbuster import blockbuster_ctx
from langchain_community.vectorstores import FAISS
from langchain_core.documents import Document
from langchain_core.embeddings import Embeddings
from langchain_core.vectorstores import InMemoryVectorStore

from ragcache_integrations.errors import ConfigurationError, EmbeddingError
from ragcache_integrations.retrievers.retrieval import DocumentStage
from ragcache_integrations.retrievers.staged.langchain import StagedFaissRetriever
from ragcache_integrations.vector_search import Stage, StagePlan
from tests.retrievers.cached.langchain.stores import METADATA, TEXTS, Words, queries_of
from tests.retrievers.cached.langchain.test_callbacks import Events

from .stores import KINDS, STAGED, documents, faiss_store, staged_index

QUESTIONS = [f"question {number}" for number in range(12)]


def read(stages: Generator[DocumentStage[Any]]) -> list[DocumentStage[Any]]:
    with closing(stages):
        return list(stages)


async def aread(stages: AsyncGenerator[DocumentStage[Any]]) -> list[DocumentStage[Any]]:
    async with aclosing(stages):
        return [stage async for stage in stages]


def check_order(stages: list[DocumentStage[Any]], k: int) -> None:
    assert [stage.number for stage in stages] == list(range(1, len(stages) + 1))
    assert [stage.final for stage in stages] == [False] * (len(stages) - 1) + [True]
    assert all(len(stage.documents) <= k for stage in stages)
    elapsed = [stage.elapsed for stage in stages]
    assert elapsed == sorted(elapsed)


@pytest.mark.parametrize("kind", KINDS)
class TestRanking:
    async def test_the_final_stage_is_the_store_s_own_answer(self, kind: str) -> None:
        store = faiss_store(kind)
        retriever = StagedFaissRetriever.from_vectorstore(store, k=5)
        several = 0
        for question in QUESTIONS:
            expected = store.similarity_search(question, k=5)
            for stages in (
                read(retriever.stages(question)),
                await aread(retriever.astages(question)),
            ):
                check_order(stages, 5)
                several += len(stages) > 1
                assert list(stages[-1].documents) == expected
            assert retriever.invoke(question) == expected
            assert await retriever.ainvoke(question) == expected
        assert several == (2 * len(QUESTIONS) if kind in STAGED else 0)

    def test_k_and_filter_of_the_call_come_before_those_of_the_retriever(self, kind: str) -> None:
        retriever = StagedFaissRetriever.from_vectorstore(
            faiss_store(kind), k=7, filter={"half": 0}
        )
        assert len(retriever.invoke("question")) == 7
        assert {one.metadata["half"] for one in retriever.invoke("question")} == {0}
        found = retriever.invoke("question", k=3, filter={"half": 1})
        assert [one.metadata["half"] for one in found] == [1, 1, 1]
        (*_, last) = read(retriever.stages("question", k=3, filter=lambda one: one["number"] < 200))
        assert len(last.documents) == 3
        assert all(document.metadata["number"] < 200 for document in last.documents)

    def test_an_index_of_ours_with_documents(self, kind: str) -> None:
        store, found = faiss_store(kind), documents()
        retriever = StagedFaissRetriever.from_index(staged_index(kind), found, Words())
        for question in QUESTIONS:
            assert retriever.invoke(question) == store.similarity_search(question)


def test_normalised_stores_get_normalised_questions() -> None:
    store = faiss_store("flat", normalize_L2=True)
    retriever = StagedFaissRetriever.from_vectorstore(store)
    for question in QUESTIONS:
        assert retriever.invoke(question) == store.similarity_search(question)


def test_without_k_it_gives_what_the_store_s_own_retriever_gives() -> None:
    store = faiss_store("hnsw")
    expected = store.as_retriever().invoke("question")
    assert StagedFaissRetriever.from_vectorstore(store).invoke("question") == expected


def test_filters_find_all_there_is_where_the_store_filters_what_it_found() -> None:
    wanted = {"number": 250}
    retriever = StagedFaissRetriever.from_vectorstore(faiss_store("flat"), filter=wanted)
    assert [one.metadata for one in retriever.invoke("question")] == [METADATA[250]]
    assert not faiss_store("flat").similarity_search("question", filter=wanted)


def test_a_repeated_question_is_embedded_once() -> None:
    store = faiss_store("ivf")
    retriever = StagedFaissRetriever.from_vectorstore(store)
    retriever.invoke("question")
    read(retriever.stages("question"))
    assert queries_of(store) == ["question"]


class TestPlans:
    def test_the_knob_decides_how_many_stages_there_are(self) -> None:
        store = faiss_store("ivf")
        for number in (1, 2, 3):
            plan = StagePlan(number=number)
            retriever = StagedFaissRetriever.from_vectorstore(store, plan=plan)
            assert len(read(retriever.stages("question"))) == number
            assert len(read(retriever.stages("question", interval=1e-9))) == number

    def test_otherwise_whoever_reads_them_says_how_long_they_take(self) -> None:
        retriever = StagedFaissRetriever.from_vectorstore(faiss_store("ivf"))
        for _ in range(3):  # the first ones measure
            read(retriever.stages("question", interval=10.0))
        assert len(read(retriever.stages("question", interval=10.0))) == 1
        assert len(read(retriever.stages("question", interval=1e-9))) > 4  # about one a cluster


class TestArguments:
    @pytest.mark.parametrize(
        ("knobs", "message"),
        [
            ({"k": 0}, "k must be a whole number of at least 1, or None, got 0"),
            ({"k": 2.5}, "k must be a whole number"),
            ({"plan": 8}, "plan must be a StagePlan, such as .*, got 8"),
            ({"filter": "half"}, "filter must be a mapping of metadata or a function"),
            ({"embedding_memo": -1}, "embedding_memo must be a whole number of at least 0"),
            ({"stages": 8}, "unknown argument 'stages': allowed are .*plan"),
            ({"embeddings": "model"}, "embeddings"),
        ],
    )
    def test_wrong_ones_are_refused(self, knobs: dict[str, Any], message: str) -> None:
        with pytest.raises(ConfigurationError, match=message):
            StagedFaissRetriever(vectorstore=faiss_store("flat"), **knobs)

    def test_exactly_one_of_store_and_index(self) -> None:
        store, index = faiss_store("flat"), staged_index("flat")
        for arguments in ({}, {"vectorstore": store, "index": index}):
            with pytest.raises(ConfigurationError, match="either vectorstore or index"):
                StagedFaissRetriever(embeddings=Words(), **arguments)
        with pytest.raises(ConfigurationError, match="index needs documents"):
            StagedFaissRetriever(index=index, embeddings=Words())
        with pytest.raises(ConfigurationError, match="documents are for an index"):
            StagedFaissRetriever(vectorstore=store, documents={})
        with pytest.raises(ConfigurationError, match="embeddings are needed"):
            StagedFaissRetriever(index=index, documents={})

    def test_other_stores_are_refused(self) -> None:
        store = InMemoryVectorStore(Words())
        with pytest.raises(ConfigurationError, match="LangChain's FAISS, got InMemoryVectorStore"):
            StagedFaissRetriever.from_vectorstore(store)

    async def test_questions_that_cannot_be_asked(self) -> None:
        retriever = StagedFaissRetriever.from_vectorstore(faiss_store("ivf"))
        with pytest.raises(ConfigurationError, match="must be a string"):
            retriever.invoke(3)  # type: ignore[arg-type]  # on purpose
        with pytest.raises(ConfigurationError, match="k must be"):
            await retriever.ainvoke("question", k=0)
        with pytest.raises(ConfigurationError, match="k must be"):
            next(retriever.stages("question", k=-1))
        with pytest.raises(ConfigurationError, match="filter must"):
            await anext(retriever.astages("question", filter={"half": {"$gt": 0}}))

    def test_unusable_embeddings(self) -> None:
        class Broken(Embeddings):
            def embed_query(self, text: str) -> list[float]:
                return [float("nan")] * 16 if text == "nan" else [1.0] * 3

            def embed_documents(self, texts: list[str]) -> list[list[float]]:
                raise NotImplementedError

        retriever = StagedFaissRetriever.from_vectorstore(faiss_store("flat"), Broken())
        for question in ("nan", "short"):
            with pytest.raises(EmbeddingError, match="unusable embedding"):
                retriever.invoke(question)


@pytest.mark.parametrize("kind", ["flat", "ivf", "hnsw"])
class TestChanges:
    def test_what_the_store_adds_is_found(self, kind: str) -> None:
        store = faiss_store(kind)
        retriever = StagedFaissRetriever.from_vectorstore(store)
        retriever.invoke("question", filter={"new": 1})
        store.add_texts(["question"], metadatas=[{"new": 1}], ids=["new"])
        # Words gives a question and a document of the same text the same point.
        assert retriever.invoke("question")[0].id == "new"
        assert [one.id for one in retriever.invoke("question", filter={"new": 1})] == ["new"]

    def test_a_search_under_way_begins_again(self, kind: str) -> None:
        store = faiss_store(kind)
        retriever = StagedFaissRetriever.from_vectorstore(store)
        search = retriever.stages("question")
        first = next(search)
        store.add_texts(["question"], ids=["new"])
        rest = read(search)
        if first.final:
            assert rest == []
        else:
            check_order([first, *rest], 4)
            assert list(rest[-1].documents) == store.similarity_search("question")
            assert rest[-1].documents[0].id == "new"


def test_what_a_flat_store_deletes_is_gone() -> None:
    store = faiss_store("flat")
    retriever = StagedFaissRetriever.from_vectorstore(store)
    before = retriever.invoke("question")
    store.delete([before[0].id, before[2].id])
    after = retriever.invoke("question")
    assert after == store.similarity_search("question")
    assert after[:2] == [before[1], before[3]]


def test_deleting_from_ivf_through_the_store_is_refused_as_it_mixes_documents_up() -> None:
    store = faiss_store("ivf")
    retriever = StagedFaissRetriever.from_vectorstore(store)
    store.delete(["id 3"])
    with pytest.raises(ConfigurationError, match="deleted from an IVF index through the store"):
        retriever.invoke("question")
    with pytest.raises(ConfigurationError, match="deleted from an IVF index through the store"):
        StagedFaissRetriever.from_vectorstore(store)


def test_what_is_deleted_before_its_document_is_looked_up(monkeypatch: pytest.MonkeyPatch) -> None:
    index, known = staged_index("ivf"), documents()
    retriever = StagedFaissRetriever.from_index(index, known, Words(), k=6)
    expected = retriever.invoke("question")
    plain = index.stages

    def stages(*given: Any, **more: Any) -> Generator[Stage]:
        *before, last = plain(*given, **more)
        yield from before
        index.delete([expected[0].id or ""])  # when the last stage has ended
        del known[expected[0].id or ""]
        yield last

    monkeypatch.setattr(index, "stages", stages)
    assert list(read(retriever.stages("question"))[-1].documents) == expected[1:]


def test_an_index_of_ours_is_changed_under_a_search() -> None:
    index, known = staged_index("ivf"), documents()
    retriever = StagedFaissRetriever.from_index(index, known, Words(), k=6)
    before = retriever.invoke("question")
    search = retriever.stages("question")
    next(search)
    gone = before[0].id
    assert gone is not None
    index.delete([gone])
    del known[gone]
    (*_, last) = read(search)
    assert [document.id for document in last.documents[:5]] == [one.id for one in before[1:]]


def test_a_document_that_is_missing_is_named() -> None:
    known = documents()
    retriever = StagedFaissRetriever.from_index(staged_index("flat"), known, Words())
    missing = retriever.invoke("question")[1].id
    assert missing is not None
    del known[missing]
    with pytest.raises(ConfigurationError, match=f"the index holds '{missing}'"):
        retriever.invoke("question")


class TestCallbacks:
    async def test_stages_are_one_run_that_ends_with_the_final_documents(self) -> None:
        ended: list[list[Document]] = []

        class Handler(Events):
            def on_retriever_end(self, documents: Any, **kwargs: Any) -> None:
                ended.append(documents)

        retriever = StagedFaissRetriever.from_vectorstore(faiss_store("ivf"))
        handler = Handler()
        config: Any = {"callbacks": [handler], "run_name": "mine"}
        stages = retriever.stages("question", config)
        assert handler.starts == []
        for stage in stages:
            assert ended == ([list(stage.documents)] if stage.final else [])
        async for stage in retriever.astages("question", config):
            assert len(ended) == 1 + stage.final
        assert [name for name, *_ in handler.starts] == ["mine", "mine"]
        assert ended[0] == ended[1] == retriever.invoke("question")

    async def test_giving_up_ends_the_run_and_an_error_fails_it(self) -> None:
        ended: list[int] = []

        class Handler(Events):
            def on_retriever_end(self, documents: Any, **kwargs: Any) -> None:
                ended.append(len(documents))

        retriever = StagedFaissRetriever.from_vectorstore(faiss_store("ivf"))
        handler = Handler()
        stages = retriever.stages("question", {"callbacks": [handler]})
        next(stages)
        stages.close()
        astages = retriever.astages("question", {"callbacks": [handler]})
        await anext(astages)
        await astages.aclose()
        assert ended == [4, 4]
        with pytest.raises(ConfigurationError):
            next(retriever.stages(3, {"callbacks": [handler]}))  # type: ignore[arg-type]  # on purpose
        with pytest.raises(ConfigurationError):
            await anext(retriever.astages(3, {"callbacks": [handler]}))  # type: ignore[arg-type]  # on purpose
        assert [type(error) for error in handler.errors] == [ConfigurationError] * 2
        assert ended == [4, 4]

    def test_traces_name_store_and_embeddings(self) -> None:
        retriever = StagedFaissRetriever.from_vectorstore(faiss_store("flat"))
        assert retriever._get_ls_params() == {
            "ls_retriever_name": "stagedfaiss",
            "ls_vector_store_provider": "FAISS",
            "ls_embedding_provider": "Words",
        }


class TestConcurrency:
    def test_many_threads_and_loops_find_what_one_finds(self) -> None:
        retriever = StagedFaissRetriever.from_vectorstore(faiss_store("hnsw"), k=5)
        expected = {question: retriever.invoke(question) for question in QUESTIONS}

        def work(number: int) -> None:
            question = QUESTIONS[number % len(QUESTIONS)]
            if number % 2:
                found = read(retriever.stages(question))
            else:
                found = asyncio.run(aread(retriever.astages(question)))
            assert list(found[-1].documents) == expected[question]

        with ThreadPoolExecutor(8) as pool:
            list(pool.map(work, range(64)))

    def test_an_index_of_ours_that_is_written_while_it_is_read(self) -> None:
        index, known = staged_index("ivf"), documents()
        retriever = StagedFaissRetriever.from_index(index, known, Words(), k=5)
        stop = threading.Event()
        rng = np.random.default_rng(0)

        def write() -> None:
            number = 0
            while not stop.is_set():
                number += 1
                known[f"new {number}"] = Document(f"new {number}", id=f"new {number}")
                index.add([f"new {number}"], rng.normal(size=(1, 16)) * 3)
                if number > 20:
                    index.delete([f"new {number - 20}"])
                    del known[f"new {number - 20}"]

        writer = threading.Thread(target=write)
        writer.start()
        try:
            for number in range(60):
                stages = read(retriever.stages(f"question {number}"))
                check_order(stages, 5)
        finally:
            stop.set()
            writer.join()
        for question in QUESTIONS:
            found = retriever.invoke(question)
            vector = np.array(Words().embed_query(question), np.float32)
            assert tuple(one.id for one in found) == index.search(vector, 5).ids

    async def test_nothing_blocks_the_event_loop(self) -> None:
        retriever = StagedFaissRetriever.from_vectorstore(faiss_store("ivf"))
        with blockbuster_ctx(scanned_modules=["ragcache_integrations"]):
            assert len(await retriever.ainvoke("question")) == 4
            assert (await aread(retriever.astages("question")))[-1].final

    async def test_cancelling_leaves_no_task_behind(self) -> None:
        retriever = StagedFaissRetriever.from_vectorstore(faiss_store("ivf"))
        for turns in range(12):
            task = asyncio.create_task(aread(retriever.astages(f"question {turns}")))
            for _ in range(turns):
                await asyncio.sleep(0)
            task.cancel()
            await asyncio.wait([task])
            assert task.cancelled() or task.result()[-1].final
        assert asyncio.all_tasks() == {asyncio.current_task()}
        assert retriever.invoke("question") == await retriever.ainvoke("question")


def test_texts_and_questions_are_alike() -> None:
    """What the tests above rely on."""
    assert Words().embed_query(TEXTS[0]) == Words().embed_documents(TEXTS[:1])[0]


@pytest.mark.parametrize("kind", KINDS)
class TestAStoreOfAStagedIndex:
    async def test_it_answers_as_the_retriever_does(self, kind: str) -> None:
        index = staged_index(kind)
        retriever = StagedFaissRetriever.from_index(index, documents(), Words(), k=5)
        index.delete(["id 3", "id 200"])
        for store in (retriever.to_vectorstore(), await retriever.ato_vectorstore()):
            assert isinstance(store, FAISS)
            assert store.index.ntotal == 298
            for question in QUESTIONS:
                assert store.similarity_search(question, k=5) == retriever.invoke(question)
            back = StagedFaissRetriever.from_vectorstore(store, k=5)
            assert back.invoke(QUESTIONS[0]) == retriever.invoke(QUESTIONS[0])

    def test_both_go_their_own_ways(self, kind: str) -> None:
        index = staged_index(kind)
        retriever = StagedFaissRetriever.from_index(index, documents(), Words(), k=1)
        store = retriever.to_vectorstore()
        store.add_texts(["later"], ids=["new"])
        assert store.similarity_search("later", k=1)[0].id == "new"
        assert retriever.invoke("later")[0].id != "new"
        assert len(index) == 300


def test_a_store_is_its_own_store() -> None:
    store = faiss_store("hnsw")
    assert StagedFaissRetriever.from_vectorstore(store).to_vectorstore() is store


def test_a_store_of_missing_documents_is_refused() -> None:
    known = documents()
    del known["id 7"]
    retriever = StagedFaissRetriever.from_index(staged_index("flat"), known, Words())
    with pytest.raises(ConfigurationError, match=r"documents must hold all .* 'id 7' is missing"):
        retriever.to_vectorstore()
