"""What callbacks and traces see of the LangChain retriever."""

from __future__ import annotations

import sys
from typing import Any, NoReturn
from uuid import UUID

import pytest
from langchain_core.callbacks import AsyncCallbackHandler, BaseCallbackHandler
from langchain_core.runnables import RunnableConfig, RunnableLambda, RunnableParallel
from langchain_core.tracers.base import BaseTracer
from langchain_core.tracers.schemas import Run

from ragcache_integrations.retrievers.cached.langchain.retriever import (
    QUERY_CACHE_EVENT,
    ApproximateCacheRetriever,
)

from .stores import Words, faiss_store


class Events(BaseCallbackHandler):
    def __init__(self) -> None:
        self.custom: list[tuple[str, dict[str, Any], UUID]] = []
        self.starts: list[tuple[str, UUID, UUID | None]] = []
        self.errors: list[BaseException] = []

    def on_custom_event(self, name: str, data: Any, *, run_id: UUID, **kwargs: Any) -> None:
        self.custom.append((name, data, run_id))

    def on_retriever_start(
        self,
        serialized: dict[str, Any],
        query: str,
        *,
        run_id: UUID,
        parent_run_id: UUID | None = None,
        **kwargs: Any,
    ) -> None:
        self.starts.append((kwargs["name"], run_id, parent_run_id))

    def on_retriever_error(self, error: BaseException, **kwargs: Any) -> None:
        self.errors.append(error)


class DeafEvents(Events):
    ignore_custom_event = True


class AsyncEvents(AsyncCallbackHandler):
    def __init__(self) -> None:
        self.custom: list[tuple[str, dict[str, Any]]] = []

    async def on_custom_event(self, name: str, data: Any, **kwargs: Any) -> None:
        self.custom.append((name, data))


class Tracer(BaseTracer):
    def __init__(self) -> None:
        super().__init__()
        self.runs: list[Run] = []

    def _persist_run(self, run: Run) -> None:
        self.runs.append(run)


class TestCallbacks:
    def test_hits_are_seen_by_handlers_and_in_traces(self) -> None:
        retriever = ApproximateCacheRetriever.from_vectorstore(
            faiss_store(), tolerance=1, guard=False
        )
        events, tracer = Events(), Tracer()
        metadata = {"user": 1}
        config = RunnableConfig(callbacks=[events, tracer], metadata=metadata, tags=["tag"])
        for question in ("question", "question~1", "question"):
            retriever.invoke(question, config)
        assert [name for name, _, _ in events.custom] == [QUERY_CACHE_EVENT] * 3
        assert [run_id for _, _, run_id in events.custom] == [start[1] for start in events.starts]
        assert [data["hit"] for _, data, _ in events.custom] == [False, True, True]
        assert [data["reranked"] for _, data, _ in events.custom] == [False, True, False]
        near = events.custom[1][1]
        assert 0 < near["distance"] < 1
        assert near["embedding_seconds"] >= 0 <= near["retrieval_seconds"]
        traced = [run.metadata for run in tracer.runs]
        assert [one["query_cache_hit"] for one in traced] == [False, True, True]
        assert [one["query_cache_distance"] for one in traced] == [None, near["distance"], 0.0]
        assert all(one["user"] == 1 for one in traced)
        assert metadata == {"user": 1}

    async def test_hits_are_seen_by_async_handlers_and_in_event_streams(self) -> None:
        retriever = ApproximateCacheRetriever.from_vectorstore(
            faiss_store(), tolerance=1, guard=False
        )
        handler = AsyncEvents()
        await retriever.ainvoke("question", {"callbacks": [handler]})
        await retriever.ainvoke("question~1", {"callbacks": [handler]})
        assert [data["hit"] for _, data in handler.custom] == [False, True]
        streamed = [event async for event in retriever.astream_events("question~2", version="v2")]
        custom = [one for one in streamed if one["event"] == "on_custom_event"]
        data: list[Any] = [one["data"] for one in custom]
        assert [one["name"] for one in custom] == [QUERY_CACHE_EVENT]
        assert [one["hit"] for one in data] == [True]
        (end,) = [one for one in streamed if one["event"] == "on_retriever_end"]
        assert end["metadata"]["query_cache_hit"]

    def test_for_handlers_that_ignore_events_no_child_is_made(self) -> None:
        retriever = ApproximateCacheRetriever.from_vectorstore(faiss_store())
        calls: list[str] = []

        def made(handler: Events) -> bool:
            calls.clear()
            sys.setprofile(lambda frame, *_: calls.append(frame.f_code.co_name))
            try:
                retriever.invoke("question", RunnableConfig(callbacks=[handler]))
            finally:
                sys.setprofile(None)
            return "get_child" in calls

        assert made(Events())
        assert not made(DeafEvents())

    def test_runs_side_by_side_keep_their_metadata(self) -> None:
        store, tracer = faiss_store(), Tracer()
        # The embedding model is of a class of our own, so the run's metadata would count.
        warm = ApproximateCacheRetriever.from_vectorstore(store, ignores=["shared"])
        warm.invoke("question")
        both = RunnableParallel(warm=warm, cold=ApproximateCacheRetriever.from_vectorstore(store))
        both.invoke("question", {"callbacks": [tracer], "metadata": {"shared": 1}})
        (root,) = tracer.runs
        assert "query_cache_hit" not in root.metadata
        hits = [run.metadata["query_cache_hit"] for run in root.child_runs]
        assert sorted(hits) == [False, True]

    def test_a_wrapped_retriever_runs_as_a_child_and_only_on_a_miss(self) -> None:
        plain = faiss_store().as_retriever(search_type="mmr")
        retriever = ApproximateCacheRetriever.from_retriever(plain)
        events = Events()
        retriever.invoke("question", {"callbacks": [events]})
        retriever.invoke("question", {"callbacks": [events]})
        names = [(name, parent is None) for name, _, parent in events.starts]
        ours = ("ApproximateCacheRetriever", True)
        assert names == [ours, ("VectorStoreRetriever", False), ours]
        assert events.starts[1][2] == events.starts[0][1]

    def test_errors_reach_the_callbacks_and_pass_unchanged(self) -> None:
        error = ConnectionError("gone")

        def fail(_: str) -> NoReturn:
            raise error

        retriever = ApproximateCacheRetriever.from_retriever(RunnableLambda(fail), Words())
        events = Events()
        for _ in range(2):
            with pytest.raises(ConnectionError) as caught:
                retriever.invoke("question", {"callbacks": [events]})
            assert caught.value is error
        assert events.errors == [error, error]
        assert retriever.stats().failures == 2

    def test_traces_name_store_and_embeddings(self) -> None:
        params = ApproximateCacheRetriever.from_vectorstore(faiss_store())._get_ls_params()
        assert params == {
            "ls_retriever_name": "approximatecache",
            "ls_vector_store_provider": "FAISS",
            "ls_embedding_provider": "Words",
        }
