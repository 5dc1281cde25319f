"""Retrievals in stages, as LlamaIndex's callbacks and events see them."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Generator
from contextlib import aclosing, closing
from dataclasses import replace
from typing import Any

import llama_index.core.instrumentation as instrument
from llama_index.core.base.base_retriever import BaseRetriever
from llama_index.core.callbacks import CBEventType, EventPayload
from llama_index.core.instrumentation.events.retrieval import RetrievalEndEvent, RetrievalStartEvent
from llama_index.core.schema import NodeWithScore, QueryBundle, QueryType

from ragcache_integrations.retrievers.retrieval import DocumentStage, RetrievalTrace

from .base import aobserved, observed

__all__ = ["arun_stages", "as_bundle", "run_stages"]

dispatcher = instrument.get_dispatcher(__name__)  # type: ignore[attr-defined]  # re-exported untyped


def as_bundle(query: QueryType) -> QueryBundle:
    """Return a question as LlamaIndex's bundle of its text and embedding."""
    return query if isinstance(query, QueryBundle) else QueryBundle(query)


class RetrieverRun:
    """Sends the events and callbacks of ``BaseRetriever.retrieve``. Never blocks.

    Args:
        retriever: The retriever, whose callbacks are notified.
        query: The question.
    """

    def __init__(self, retriever: BaseRetriever, query: QueryBundle) -> None:
        self._query = query
        self._callbacks = retriever.callback_manager
        dispatcher.event(RetrievalStartEvent(str_or_query_bundle=query))
        payload: dict[str, Any] = {EventPayload.QUERY_STR: query.query_str}
        self._event = self._callbacks.on_event_start(CBEventType.RETRIEVE, payload=payload)

    def end(self, stage: DocumentStage[Any] | None) -> None:
        """Report the end of the retrieval, with its last stage."""
        nodes = [] if stage is None else list(stage.documents)
        self._callbacks.on_event_end(
            CBEventType.RETRIEVE, payload={EventPayload.NODES: nodes}, event_id=self._event
        )
        dispatcher.event(RetrievalEndEvent(str_or_query_bundle=self._query, nodes=nodes))

    def fail(self, error: BaseException) -> None:
        """Report an error."""
        self._callbacks.on_event_end(
            CBEventType.RETRIEVE, payload={EventPayload.EXCEPTION: error}, event_id=self._event
        )

    async def aend(self, stage: DocumentStage[Any] | None) -> None:
        """Async version of :meth:`end`."""
        self.end(stage)

    async def afail(self, error: BaseException) -> None:
        """Async version of :meth:`fail`."""
        self.fail(error)


def run_stages(
    retriever: BaseRetriever,
    query: QueryBundle,
    search: Callable[[], Generator[DocumentStage[NodeWithScore]]],
    report: Callable[[RetrievalTrace], None] | None = None,
) -> Generator[DocumentStage[NodeWithScore]]:
    """Run a search in stages; nodes that stand for objects are followed, as by ``retrieve``.

    Args:
        retriever: Whose run it is.
        query: The question.
        search: Begins the search.
        report: Reports how the last stage came about, where that is known.
    """

    def followed(_: RetrieverRun) -> Generator[DocumentStage[NodeWithScore]]:
        with closing(search()) as stages:
            for stage in stages:
                if report is not None and stage.trace is not None:
                    report(stage.trace)
                nodes = retriever._handle_recursive_retrieval(query, list(stage.documents))  # noqa: SLF001 - as retrieve() does
                yield replace(stage, documents=tuple(nodes))

    return observed(lambda: RetrieverRun(retriever, query), followed)


def arun_stages(
    retriever: BaseRetriever,
    query: QueryBundle,
    search: Callable[[], AsyncGenerator[DocumentStage[NodeWithScore]]],
    report: Callable[[RetrievalTrace], None] | None = None,
) -> AsyncGenerator[DocumentStage[NodeWithScore]]:
    """Async version of :func:`run_stages`."""

    async def start() -> RetrieverRun:
        return RetrieverRun(retriever, query)

    async def followed(_: RetrieverRun) -> AsyncGenerator[DocumentStage[NodeWithScore]]:
        async with aclosing(search()) as stages:
            async for stage in stages:
                if report is not None and stage.trace is not None:
                    report(stage.trace)
                nodes = await retriever._ahandle_recursive_retrieval(query, list(stage.documents))  # noqa: SLF001 - as aretrieve() does
                yield replace(stage, documents=tuple(nodes))

    return aobserved(start, followed)
