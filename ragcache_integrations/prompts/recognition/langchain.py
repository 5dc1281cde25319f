"""Follows LangChain's runs, and the results of all of its retrievers."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from contextvars import ContextVar
from typing import Any
from uuid import UUID

from langchain_core.callbacks import BaseCallbackHandler
from langchain_core.documents import Document
from langchain_core.runnables import ensure_config
from langchain_core.tracers.context import register_configure_hook
from typing_extensions import override

from .requests import REQUESTS

__all__ = ["current_run", "run_around", "watch_retrievers"]

# The run around the last call of a chat model in this context.
_asking: ContextVar[UUID | None] = ContextVar("ragcache_asking", default=None)


@functools.cache
def watch_retrievers() -> None:
    """Remember the results of every retriever in this process from now on, for their requests.

    LangChain cannot remove a hook. That does no harm, because the memory of results is bounded.
    """
    # Every context and thread has the default. Inheritable, because LangGraph hands its own runs'
    # handlers on to the runs of its nodes, which do not read the hook; one that is there already is
    # not added twice.
    handler: ContextVar[Any] = ContextVar("ragcache_retrievals", default=_RetrievalHandler())  # noqa: B039 - it has no state
    register_configure_hook(handler, inheritable=True)


def current_run() -> UUID | None:
    """The run in which this code is executed; ``None`` outside of runs."""
    run: UUID | None = getattr(ensure_config().get("callbacks"), "parent_run_id", None)
    return run


def run_around(run_manager: Any) -> UUID | None:
    """The run around a model's own, in which its documents were retrieved.

    Args:
        run_manager: The model's run manager; ``None`` if LangChain passes none, as for streams of
            chat models. The last call that LangChain reported in this context is then this one.
    """
    if run_manager is None:
        return _asking.get()
    run: UUID | None = run_manager.parent_run_id
    return run


class _RetrievalHandler(BaseCallbackHandler):
    """Reports all runs in which documents may be retrieved, and the documents.

    LangChain awaits the handlers for the beginning of a run in the context of the code that begins
    it, which :class:`~ragcache_integrations.prompts.recognition.requests.Requests` needs; those for
    the end run in another task.
    """

    run_inline = True  # it takes microseconds; a thread would take longer
    ignore_llm = True
    ignore_retry = True
    ignore_custom_event = True

    @override
    def on_chat_model_start(
        self, *args: Any, parent_run_id: UUID | None = None, **kwargs: Any
    ) -> None:
        _asking.set(parent_run_id)

    @override
    def on_chain_start(
        self, *args: Any, run_id: UUID, parent_run_id: UUID | None = None, **kwargs: Any
    ) -> None:
        REQUESTS.begin(run_id, parent_run_id)

    @override
    def on_chain_end(self, *args: Any, run_id: UUID, **kwargs: Any) -> None:
        REQUESTS.end(run_id)

    @override
    def on_chain_error(self, *args: Any, run_id: UUID, **kwargs: Any) -> None:
        REQUESTS.end(run_id, failed=True)

    on_tool_start = on_retriever_start = on_chain_start
    on_tool_end = on_chain_end
    on_tool_error = on_retriever_error = on_chain_error

    @override
    def on_retriever_end(
        self, documents: Sequence[Document], *, run_id: UUID, **kwargs: Any
    ) -> None:
        # LangChain does not check what retrievers return.
        results = documents if isinstance(documents, list | tuple) else ()
        REQUESTS.remember(
            run_id,
            [
                (getattr(document, "id", None), getattr(document, "page_content", None))
                for document in results
            ],
        )
        REQUESTS.end(run_id)
