"""Hears of what LangChain's retrievers find, whosever they are."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from contextvars import ContextVar
from typing import Any
from uuid import UUID

from langchain_core.callbacks import BaseCallbackHandler
from langchain_core.documents import Document
from langchain_core.tracers.context import register_configure_hook
from typing_extensions import override

from ragcache_integrations.prompts.recognition import RETRIEVED

__all__ = ["watch_retrievers"]


@functools.cache
def watch_retrievers() -> None:
    """Remember what every retriever of this process finds from now on.

    LangChain has no way to take a hook back, and needs none here: what is remembered is bounded.
    """
    # A default is seen in every context and thread. Not inheritable: every run asks the hook anew.
    handler: ContextVar[Any] = ContextVar("ragcache_retrievals", default=_RetrievalHandler())  # noqa: B039 - it has no state
    register_configure_hook(handler, inheritable=False)


class _RetrievalHandler(BaseCallbackHandler):
    """Passes over every event but a retriever's end."""

    run_inline = True  # it takes microseconds; a thread would take longer
    ignore_llm = True
    ignore_retry = True
    ignore_chain = True
    ignore_agent = True
    ignore_chat_model = True
    ignore_custom_event = True

    @override
    def on_retriever_end(
        self,
        documents: Sequence[Document],
        *,
        run_id: UUID,
        parent_run_id: UUID | None = None,
        **kwargs: Any,
    ) -> None:
        # Retrievers return what they like; LangChain does not check it.
        found = documents if isinstance(documents, list | tuple) else ()
        RETRIEVED.remember(
            (getattr(document, "id", None), getattr(document, "page_content", None))
            for document in found
        )
