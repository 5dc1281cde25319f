"""The knobs and methods of document order that both frameworks' classes have."""

from __future__ import annotations

import asyncio
import copy
from collections.abc import Callable, Hashable, Iterable, Sequence
from functools import partial
from typing import Annotated, Any, NamedTuple, Self, TypeVar

from pydantic import (
    Field,
    PrivateAttr,
    SkipValidation,
    model_validator,
)

from ragcache_integrations.core.texts import content_id, estimate_tokens

from .order import DocumentOrder, OrderStats, SharedOrders
from .settings import OrderSettings

__all__ = ["OrderKnobs", "RequestDocuments", "request_documents"]

D = TypeVar("D")


class RequestDocuments(NamedTuple):
    """The documents of a request for the core: ids, and estimated lengths in tokens."""

    documents: list[Hashable]
    tokens: list[int]


def request_documents(documents: Iterable[tuple[str | None, str]]) -> RequestDocuments:
    """Read the ids and texts of a framework's documents.

    A document without an id gets the hash of its text, as in the engine.
    """
    ids: list[Hashable] = []
    tokens: list[int] = []
    for name, text in documents:
        ids.append(name or content_id(text))
        tokens.append(estimate_tokens(text))
    return RequestDocuments(ids, tokens)


class OrderKnobs(OrderSettings):
    """The settings of a class that orders documents.

    Attributes:
        order: ``relevance`` leaves documents as retrieved; ``reverse`` puts the most relevant
            last, next to the question; ``cached_first`` begins with the longest path of documents
            whose KV cache exists already, then the others; ``auto`` does that for requests in which
            it saves ``min_saved_share``, and leaves the documents of the others as retrieved.
        max_displacement: For ``cached_first``: the largest distance between a document's place and
            its place in the order of relevance; ``None`` for no limit.
        pin_top: For ``cached_first``: number of documents that stay first, in order of relevance.
        uncached: For ``cached_first``: order of the documents on no cached path, by ``relevance``
            or by ``popularity``, which begins with those that would save most tokens if they were
            used as often as before. ``auto`` takes relevance as long as the cache holds everything
            that was sent, and popularity otherwise and for batches.
        cache_tokens: Room for documents in the KV cache, in tokens; ``None`` for the engine's, or
            for no limit.
        engine: An engine whose knowledge tree is read from time to time; you close it yourself.
        refresh_seconds: With an engine: seconds between two readings of its tree.
        min_saved_share: For ``auto``: the share of the documents' tokens, from 0 to 1, that moving
            documents has to save more than leaving them does.
        namespace: Tenant; tenants with different namespaces never share a KV cache.
        shared_state: Knowledge about the cache, which copies share, and objects that LangChain
            makes for a call with other settings (``configurable_fields``).
    """

    namespace: str = Field(default="", strict=True)
    shared_state: Annotated[SharedOrders, SkipValidation] = Field(
        default_factory=SharedOrders, exclude=True, repr=False
    )

    _core: DocumentOrder = PrivateAttr()

    @model_validator(mode="after")
    def _make_core(self) -> Self:
        knobs = {name: getattr(self, name) for name in OrderSettings.model_fields}
        self._core = DocumentOrder(**knobs, shared=self.shared_state)
        return self

    def __deepcopy__(self, memo: dict[int, Any] | None = None) -> Self:
        memo = {} if memo is None else memo
        fields = {name: getattr(self, name) for name in type(self).model_fields}
        duplicate = type(self)(**{**fields, "shared_state": copy.deepcopy(self.shared_state, memo)})
        memo[id(self)] = duplicate
        return duplicate

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        """A pickle has the settings, but neither the engine nor knowledge about its cache."""
        left = {"engine", "shared_state"}
        fields = {name: getattr(self, name) for name in type(self).model_fields if name not in left}
        return partial(type(self), **fields), ()

    def refresh(self) -> bool:
        """Read the engine's tree now, which waits for the engine; whether there is a tree."""
        return self._core.refresh()

    async def arefresh(self) -> bool:
        """Async version of :meth:`refresh`."""
        return await asyncio.to_thread(self.refresh)

    def clear(self) -> None:
        """Forget what is cached, because the cache was emptied."""
        self._core.clear()

    def stats(self) -> OrderStats:
        """Counters of what was ordered, and what was expected to be cached."""
        return self._core.stats()

    def schedule(self, requests: Sequence[Sequence[D]]) -> list[tuple[int, list[D]]]:
        """Order the documents of many requests, and the requests among themselves.

        This is for jobs whose requests are all known in advance and not urgent.

        Args:
            requests: The documents of each request, the most relevant first.

        Returns:
            Each request's index in ``requests`` and its documents in order, in the order in which
            to send the requests.

        Raises:
            ConfigurationError: An item is no document of the framework.
        """
        documents, tokens = _columns([self._read(request) for request in requests])
        scheduled = self._core.schedule(documents, tokens, namespace=self.namespace)
        return [(number, pick(requests[number], order)) for number, order in scheduled]

    async def aschedule(self, requests: Sequence[Sequence[D]]) -> list[tuple[int, list[D]]]:
        """Async version of :meth:`schedule`, which computes in a thread."""
        return await asyncio.to_thread(self.schedule, requests)

    # For the adapters.

    def _read(self, documents: Sequence[Any]) -> RequestDocuments:
        """Read the framework's documents."""
        raise NotImplementedError

    def _arrange(self, documents: Sequence[D]) -> list[D]:
        order = self._core.arrange(*self._read(documents), namespace=self.namespace)
        return pick(documents, order)

    def _arrange_all(self, requests: Sequence[Sequence[D]]) -> list[list[D]]:
        documents, tokens = _columns([self._read(request) for request in requests])
        orders = self._core.arrange_all(documents, tokens, namespace=self.namespace)
        return list(map(pick, requests, orders))

    def _report(self, documents: Sequence[Any], cached: int) -> None:
        self._core.report(self._read(documents).documents, cached, namespace=self.namespace)


def pick(documents: Sequence[D], order: Iterable[int]) -> list[D]:
    """The documents in an order of their indices."""
    return [documents[place] for place in order]


def _columns(requests: Sequence[RequestDocuments]) -> tuple[list[list[Hashable]], list[list[int]]]:
    return [request.documents for request in requests], [request.tokens for request in requests]
