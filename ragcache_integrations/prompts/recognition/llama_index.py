"""Follows LlamaIndex's spans, and the results of all of its retrievers."""

from __future__ import annotations

from typing import Any

import llama_index.core.instrumentation as instrument
from llama_index.core.instrumentation.event_handlers import BaseEventHandler
from llama_index.core.instrumentation.events import BaseEvent
from llama_index.core.instrumentation.events.retrieval import RetrievalEndEvent
from llama_index.core.instrumentation.span import BaseSpan, active_span_id
from llama_index.core.instrumentation.span_handlers import BaseSpanHandler
from llama_index.core.schema import MetadataMode
from typing_extensions import override

from .requests import REQUESTS

__all__ = ["OWN_HANDLERS", "current_run", "watch_retrievers"]


def watch_retrievers() -> None:
    """Remember the results of every retriever in this process from now on, for their requests."""
    root = instrument.get_dispatcher()  # type: ignore[attr-defined]  # re-exported untyped
    if _RETRIEVALS not in root.event_handlers:
        root.add_event_handler(_RETRIEVALS)
        root.add_span_handler(_SPANS)


def current_run() -> str | None:
    """The span in which this code is executed; ``None`` outside of spans."""
    span: str | None = active_span_id.get()
    return span


class _RetrievalHandler(BaseEventHandler):
    @classmethod
    @override
    def class_name(cls) -> str:
        return "RAGCacheRetrievalHandler"

    @override
    def handle(self, event: BaseEvent, **kwargs: Any) -> None:
        """Remember the texts of nodes as synthesizers write them, and without metadata."""
        if isinstance(event, RetrievalEndEvent):
            REQUESTS.remember(
                event.span_id,
                [
                    (item.node.node_id, item.node.get_content(metadata_mode=mode))
                    for item in event.nodes
                    for mode in (MetadataMode.LLM, MetadataMode.NONE)
                ],
            )


class _SpanHandler(BaseSpanHandler[BaseSpan]):
    """Reports every span. Unlike the base class, it keeps none."""

    @classmethod
    @override
    def class_name(cls) -> str:
        return "RAGCacheSpanHandler"

    @override
    def span_enter(
        self,
        id_: str,
        bound_args: Any,
        instance: Any = None,
        parent_id: str | None = None,
        tags: Any = None,
        **kwargs: Any,
    ) -> None:
        REQUESTS.begin(id_, parent_id)

    @override
    def span_exit(
        self, id_: str, bound_args: Any, instance: Any = None, result: Any = None, **kwargs: Any
    ) -> None:
        REQUESTS.end(id_)

    @override
    def span_drop(
        self, id_: str, bound_args: Any, instance: Any = None, err: Any = None, **kwargs: Any
    ) -> None:
        REQUESTS.end(id_, failed=True)

    @override
    def new_span(self, *args: Any, **kwargs: Any) -> None:
        return None

    @override
    def prepare_to_exit_span(self, *args: Any, **kwargs: Any) -> None:
        return None

    @override
    def prepare_to_drop_span(self, *args: Any, **kwargs: Any) -> None:
        return None


_RETRIEVALS = _RetrievalHandler()
_SPANS = _SpanHandler()

OWN_HANDLERS = frozenset({_RetrievalHandler, _SpanHandler})
"""The classes of the handlers that :func:`watch_retrievers` adds."""
