"""Document order for LangChain."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any, Unpack

from langchain_core.documents import Document
from langchain_core.runnables import RunnableConfig, RunnableSerializable
from pydantic import ConfigDict
from typing_extensions import TypedDict, override

from ragcache_integrations.errors import ConfigurationError
from ragcache_integrations.prompts.order.knobs import OrderKnobs, Retrieved, retrieved
from ragcache_integrations.prompts.order.settings import Order, TreeSource, Uncached

__all__ = ["OrderDocuments", "order_documents"]


class _Knobs(TypedDict, total=False):
    """The knobs behind ``order``, for type checkers."""

    max_displacement: int | None
    pin_top: int
    uncached: Uncached
    cache_tokens: int | None
    engine: TreeSource | None
    refresh_seconds: float
    namespace: str


class OrderDocuments(OrderKnobs, RunnableSerializable[Sequence[Document], list[Document]]):
    """Puts retrieved documents into the order in which they stand in the prompt.

    Made by :func:`order_documents`. The very documents that came in come out, none changed.
    ``batch`` and ``abatch`` look ahead: of the documents that are not cached, those come first
    that save most in the batch's other requests.

    The knobs are those of :class:`~ragcache_integrations.prompts.order.knobs.OrderKnobs`.

    Raises:
        ConfigurationError: A knob is unknown or out of its range.
    """

    model_config = ConfigDict(extra="forbid", arbitrary_types_allowed=True)

    @override
    def invoke(
        self, input: Sequence[Document], config: RunnableConfig | None = None, **kwargs: Any
    ) -> list[Document]:
        """Order the documents of one request, given by relevance.

        Raises:
            ConfigurationError: One of them is no document.
        """
        return self._call_with_config(self._order_one, input, config, **kwargs)

    @override
    async def ainvoke(
        self, input: Sequence[Document], config: RunnableConfig | None = None, **kwargs: Any
    ) -> list[Document]:
        """Do what :meth:`invoke` does; it takes microseconds, so no thread is needed."""

        async def order(documents: Sequence[Document]) -> list[Document]:
            return self._order_one(documents)

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
        """Order the documents of several requests, each with a view to the others."""
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
        """Do what :meth:`batch` does."""

        async def order(requests: list[Sequence[Document]]) -> list[Exception | list[Document]]:
            return self._order_all(requests)

        return await self._abatch_with_config(
            order, inputs, config, return_exceptions=return_exceptions, **kwargs
        )

    def schedule(self, requests: Sequence[Sequence[Document]]) -> list[tuple[int, list[Document]]]:
        """Order the documents of many requests, and the requests among themselves.

        For a job whose requests are all known, and wait for nobody.

        Args:
            requests: The documents of each, the most relevant first.

        Returns:
            In the order in which to send them: each request's place in ``requests``, and its
            documents in order.

        Raises:
            ConfigurationError: One of them is no document.
        """
        scheduled = self._schedule([_read(one) for one in requests])
        return [(number, _take(requests[number], order)) for number, order in scheduled]

    async def aschedule(
        self, requests: Sequence[Sequence[Document]]
    ) -> list[tuple[int, list[Document]]]:
        """The async twin of :meth:`schedule`: it computes in a thread."""
        return await asyncio.to_thread(self.schedule, requests)

    def report(self, documents: Sequence[Document], cached_documents: int) -> None:
        """Tell how much of a prompt that was ordered here its usage reported as cached.

        Args:
            documents: The prompt's documents, in the order in which they stood.
            cached_documents: How many of the first ones were cached, whole or mostly.
        """
        self._report(_read(documents), cached_documents)

    def _order_one(self, documents: Sequence[Document]) -> list[Document]:
        return _take(documents, self._arrange(_read(documents)))

    def _order_all(self, requests: list[Sequence[Document]]) -> list[Exception | list[Document]]:
        try:
            orders = self._arrange_all([_read(one) for one in requests])
        except ConfigurationError:  # of one of them: the others shall not suffer
            return [self._try(one) for one in requests]
        return [_take(*one) for one in zip(requests, orders, strict=True)]

    def _try(self, documents: Sequence[Document]) -> Exception | list[Document]:
        try:
            return self._order_one(documents)
        except ConfigurationError as error:
            return error


def order_documents(order: Order = "relevance", **knobs: Unpack[_Knobs]) -> OrderDocuments:
    """A step between retriever and prompt that orders documents.

    ::

        chain = {"context": retriever | order_documents("cached_first") | format_docs, ...} | prompt

    Args:
        order: ``relevance``, ``reverse`` or ``cached_first``.
        **knobs: The other knobs of
            :class:`~ragcache_integrations.prompts.order.knobs.OrderKnobs`.

    Raises:
        ConfigurationError: A knob is unknown or out of its range.
    """
    return OrderDocuments(order=order, **knobs)


def _read(documents: Sequence[Document]) -> Retrieved:
    for document in documents:
        if not isinstance(document, Document):
            msg = f"only LangChain Documents can be ordered, got {type(document).__name__}"
            raise ConfigurationError(msg)
    return retrieved((document.id, document.page_content) for document in documents)


def _take(documents: Sequence[Document], order: Sequence[int]) -> list[Document]:
    return [documents[place] for place in order]
