"""Retrievals in stages, as LlamaIndex's callbacks and events see them."""

from __future__ import annotations

from typing import Any

import llama_index.core.instrumentation as instrument
from llama_index.core.base.base_retriever import BaseRetriever
from llama_index.core.callbacks import CBEventType, EventPayload
from llama_index.core.instrumentation.events.retrieval import RetrievalEndEvent, RetrievalStartEvent
from llama_index.core.schema import QueryBundle, QueryType

from ragcache_integrations.retrievers.retrieval import DocumentStage

__all__ = ["RetrieverRun", "as_bundle"]

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
