"""Document order for LangChain."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Unpack

from langchain_core.documents import Document
from langchain_core.runnables import RunnableConfig, RunnableSerializable
from pydantic import ConfigDict
from typing_extensions import override

from ragcache_integrations.errors import ConfigurationError

from .knobs import (
    OrderKnobs,
    RequestDocuments,
    request_documents,
)
from .settings import Order, OrderArguments

__all__ = ["OrderDocuments", "order_documents"]


class _Knobs(OrderArguments, total=False):
    """The knobs besides ``order``, for type checkers."""

    namespace: str


class OrderDocuments(OrderKnobs, RunnableSerializable[Sequence[Document], list[Document]]):
    """Orders retrieved documents for the prompt; :func:`order_documents` makes it.

    The documents themselves are not changed. ``batch`` and ``abatch`` look ahead: of the documents
    that are not cached, those come first that save most in the batch's other requests.

    The knobs are those of :class:`~ragcache_integrations.prompts.order.knobs.OrderKnobs`.

    Raises:
        ConfigurationError: A knob is unknown or out of range.
    """

    model_config = ConfigDict(extra="forbid", arbitrary_types_allowed=True)

    @override
    def invoke(
        self, input: Sequence[Document], config: RunnableConfig | None = None, **kwargs: Any
    ) -> list[Document]:
        """Order the documents of one request.

        Args:
            input: The documents, the most relevant first.
            config: As for every Runnable.
            **kwargs: As for every Runnable.

        Raises:
            ConfigurationError: An item is no document.
        """
        return self._call_with_config(self._arrange, input, config, **kwargs)

    @override
    async def ainvoke(
        self, input: Sequence[Document], config: RunnableConfig | None = None, **kwargs: Any
    ) -> list[Document]:
        """Async version of :meth:`invoke`; it takes microseconds, so it needs no thread."""

        async def order(documents: Sequence[Document]) -> list[Document]:
            return self._arrange(documents)

        return await self._acall_with_config(order, input, config, **kwargs)

    @override
    def batch(
        self,
        inputs: list[Sequence[Document]],
        config: RunnableConfig | list[RunnableConfig] | None = None,
        *,
        return_exceptions: bool = False,
        **kwargs: Any | None,
    ) -> list[list[Document]]:
        """Order the documents of several requests, taking the others into account."""
        return self._batch_with_config(
            self._order_all, inputs, config, return_exceptions=return_exceptions, **kwargs
        )

    @override
    async def abatch(
        self,
        inputs: list[Sequence[Document]],
        config: RunnableConfig | list[RunnableConfig] | None = None,
        *,
        return_exceptions: bool = False,
        **kwargs: Any | None,
    ) -> list[list[Document]]:
        """Async version of :meth:`batch`."""

        async def order(requests: list[Sequence[Document]]) -> list[Exception | list[Document]]:
            return self._order_all(requests)

        return await self._abatch_with_config(
            order, inputs, config, return_exceptions=return_exceptions, **kwargs
        )

    def report(self, documents: Sequence[Document], cached_documents: int) -> None:
        """Report how much of a prompt that was ordered here was cached.

        Args:
            documents: The prompt's documents, in the order of the prompt.
            cached_documents: How many of the first ones were cached, completely or mostly, by the
                usage that the server reported.
        """
        self._report(documents, cached_documents)

    def _order_all(self, requests: list[Sequence[Document]]) -> list[Exception | list[Document]]:
        try:
            return [*self._arrange_all(requests)]
        except ConfigurationError:  # of one request: the others must get their results
            return [self._try(documents) for documents in requests]

    def _try(self, documents: Sequence[Document]) -> Exception | list[Document]:
        try:
            return self._arrange(documents)
        except ConfigurationError as error:
            return error

    @override
    def _read(self, documents: Sequence[Document]) -> RequestDocuments:
        for document in documents:
            if not isinstance(document, Document):
                msg = f"only LangChain Documents can be ordered, got {type(document).__name__}"
                raise ConfigurationError(msg)
        return request_documents((document.id, document.page_content) for document in documents)


def order_documents(order: Order = "relevance", **knobs: Unpack[_Knobs]) -> OrderDocuments:
    """Make a step between retriever and prompt that orders documents.

    ::

        chain = {"context": retriever | order_documents("cached_first") | format_docs, ...} | prompt

    Args:
        order: ``relevance``, ``reverse``, ``cached_first`` or ``auto``.
        **knobs: The other knobs of
            :class:`~ragcache_integrations.prompts.order.knobs.OrderKnobs`.

    Raises:
        ConfigurationError: A knob is unknown or out of range.
    """
    return OrderDocuments(order=order, **knobs)
