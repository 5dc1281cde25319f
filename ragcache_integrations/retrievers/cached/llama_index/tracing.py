"""LlamaIndex's events and spans, which are made only where somebody hears of them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import llama_index.core.instrumentation as instrument
from llama_index.core.indices.vector_store import VectorIndexRetriever
from llama_index.core.instrumentation.event_handlers import NullEventHandler
from llama_index.core.instrumentation.span_handlers import NullSpanHandler

from ragcache_integrations.prompts.llama_index import OWN_HANDLERS

__all__ = ["is_heard", "search_method"]

# Those of ours follow what a retriever returns, not how it searches.
_DEAF = OWN_HANDLERS | {NullEventHandler, NullSpanHandler}

# Tells of the spans of an index's own retriever.
_INDEX = instrument.get_dispatcher(VectorIndexRetriever.__module__)  # type: ignore[attr-defined]  # re-exported untyped


def is_heard(dispatcher: Any) -> bool:
    """Whether anybody hears of a dispatcher's events and spans."""
    while True:
        for handler in (*dispatcher.event_handlers, *dispatcher.span_handlers):
            if type(handler) not in _DEAF:
                return True
        if not dispatcher.propagate:
            return False
        dispatcher = dispatcher.parent


def search_method(retriever: Any, name: str) -> Callable[..., Any]:
    """Return the method by which a retriever searches, without a span that nobody hears of.

    Args:
        retriever: Any retriever; only an index's own one is known well enough to leave it out.
        name: Name of the method.
    """
    method: Callable[..., Any] = getattr(retriever, name)
    if type(retriever) is not VectorIndexRetriever or is_heard(_INDEX):
        return method
    return getattr(method, "__wrapped__", method)
