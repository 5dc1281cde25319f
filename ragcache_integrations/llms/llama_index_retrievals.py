"""Hears of what LlamaIndex's retrievers find, whosever they are."""

from __future__ import annotations

from typing import Any

import llama_index.core.instrumentation as instrument
from llama_index.core.instrumentation.event_handlers import BaseEventHandler
from llama_index.core.instrumentation.events import BaseEvent
from llama_index.core.instrumentation.events.retrieval import RetrievalEndEvent
from llama_index.core.schema import MetadataMode
from typing_extensions import override

from ragcache_integrations.prompts.recognition import RETRIEVED

__all__ = ["watch_retrievers"]


def watch_retrievers() -> None:
    """Remember what every retriever of this process finds from now on."""
    root = instrument.get_dispatcher()  # type: ignore[attr-defined]  # re-exported untyped
    if _HANDLER not in root.event_handlers:
        root.add_event_handler(_HANDLER)


class _RetrievalHandler(BaseEventHandler):
    @classmethod
    @override
    def class_name(cls) -> str:
        return "RAGCacheRetrievalHandler"

    @override
    def handle(self, event: BaseEvent, **kwargs: Any) -> None:
        """Remember nodes as synthesizers write them, and without their metadata."""
        if isinstance(event, RetrievalEndEvent):
            RETRIEVED.remember(
                (found.node.node_id, found.node.get_content(metadata_mode=mode))
                for found in event.nodes
                for mode in (MetadataMode.LLM, MetadataMode.NONE)
            )


_HANDLER = _RetrievalHandler()
