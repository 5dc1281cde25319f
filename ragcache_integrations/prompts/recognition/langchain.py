"""Hears of LangChain's runs and of what its retrievers find, whosever they are."""

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

from ragcache_integrations.prompts.recognition.requests import REQUESTS

__all__ = ["current_run", "run_around", "watch_retrievers"]

# The run around the chat model that was called last in this context.
_asking: ContextVar[UUID | None] = ContextVar("ragcache_asking", default=None)


@functools.cache
def watch_retrievers() -> None:
    """Remember what every retriever of this process finds from now on, each for its request.

    LangChain has no way to take a hook back, and needs none here: what is remembered is bounded.
    """
    # A default is seen in every context and thread. Not inheritable: every run asks the hook anew.
    handler: ContextVar[Any] = ContextVar("ragcache_retrievals", default=_RetrievalHandler())  # noqa: B039 - it has no state
    register_configure_hook(handler, inheritable=False)


def current_run() -> UUID | None:
    """The run within which this code is being executed, where there is one."""
    run: UUID | None = getattr(ensure_config().get("callbacks"), "parent_run_id", None)
    return run


def run_around(run_manager: Any) -> UUID | None:
    """The run around a model's own, in which its documents were retrieved.

    Args:
        run_manager: The model's; ``None`` where LangChain gives none, as to chat models' streams.
            What LangChain reported last in this context is then the very call.
    """
    if run_manager is None:
        return _asking.get()
    run: UUID | None = run_manager.parent_run_id
    return run


class _RetrievalHandler(BaseCallbackHandler):
    """Reports every run in which something may be retrieved, and what was.

    LangChain awaits the beginnings in the context of whoever begins a run, which
    :class:`~ragcache_integrations.prompts.recognition.requests.Requests` needs; the ends in another
    task.
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

    @override
    def on_tool_start(
        self, *args: Any, run_id: UUID, parent_run_id: UUID | None = None, **kwargs: Any
    ) -> None:
        REQUESTS.begin(run_id, parent_run_id)

    @override
    def on_tool_end(self, *args: Any, run_id: UUID, **kwargs: Any) -> None:
        REQUESTS.end(run_id)

    @override
    def on_tool_error(self, *args: Any, run_id: UUID, **kwargs: Any) -> None:
        REQUESTS.end(run_id, failed=True)

    @override
    def on_retriever_start(
        self, *args: Any, run_id: UUID, parent_run_id: UUID | None = None, **kwargs: Any
    ) -> None:
        REQUESTS.begin(run_id, parent_run_id)

    @override
    def on_retriever_end(
        self, documents: Sequence[Document], *, run_id: UUID, **kwargs: Any
    ) -> None:
        # Retrievers return what they like; LangChain does not check it.
        found = documents if isinstance(documents, list | tuple) else ()
        REQUESTS.remember(
            run_id,
            [
                (getattr(document, "id", None), getattr(document, "page_content", None))
                for document in found
            ],
        )
        REQUESTS.end(run_id)

    @override
    def on_retriever_error(self, *args: Any, run_id: UUID, **kwargs: Any) -> None:
        REQUESTS.end(run_id, failed=True)
