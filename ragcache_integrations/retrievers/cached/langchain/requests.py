"""From a call of the LangChain retriever to a request of its core, by what is wrapped."""

from __future__ import annotations

import copy
from collections.abc import Callable, Hashable
from typing import Any, Protocol

from langchain_core.documents import Document
from langchain_core.retrievers import RetrieverLike
from langchain_core.runnables import RunnableConfig
from langchain_core.vectorstores import VectorStore

from ragcache_integrations.errors import ConfigurationError
from ragcache_integrations.retrievers.cached.knobs import CacheKnobs
from ragcache_integrations.retrievers.keys import (
    FrozenArguments,
    Naming,
    Snapshots,
    freeze_arguments,
    opaque_values,
    request_key,
    wrapped_settings,
)
from ragcache_integrations.retrievers.retrieval import Request
from ragcache_integrations.retrievers.sharing import Identity
from ragcache_integrations.retrievers.staged import StagedRequest
from ragcache_integrations.retrievers.staged.langchain import StagedFaissRetriever
from ragcache_integrations.retrievers.stores import StoreFacts

from .arguments import (
    Call,
    check_staged_arguments,
    check_store_arguments,
    check_wrapped_arguments,
    configurable_of,
    settings_of,
)
from .searches import StoreSearches

__all__ = ["Requests", "StagedRequests", "StoreRequests", "WrappedRequests"]


class Requests(Protocol):
    """Makes requests.

    Attributes:
        own: The opaque values among what the retriever was made with.
    """

    own: frozenset[Identity]

    def make(
        self,
        query: str,
        config: Callable[[], RunnableConfig | None],
        call: Call,
        arguments: dict[str, Any],
        interval: float | None,
    ) -> Request[Document]:
        """Make the request of one call.

        Args:
            query: The question.
            config: Makes the configuration for a wrapped Runnable; called where there is one.
            call: What the call says instead of the retriever's settings.
            arguments: Further arguments of the call, for the search.
            interval: Seconds that a stage should take.

        Raises:
            ConfigurationError: What is wrapped has no such argument.
        """


class WrappedRequests:
    """Asks a wrapped retriever, or another Runnable from a question to documents."""

    def __init__(self, knobs: CacheKnobs, retriever: RetrieverLike) -> None:
        self._knobs = knobs
        self._retriever = retriever
        self.own = opaque_values(wrapped_settings(retriever))

    def make(
        self,
        query: str,
        config: Callable[[], RunnableConfig | None],
        call: Call,
        arguments: dict[str, Any],
        interval: float | None,  # noqa: ARG002 - it has no stages
    ) -> Request[Document]:
        """Make the request of one call; see :class:`Requests`."""
        retriever, outer = self._retriever, config()
        check_wrapped_arguments(retriever, call, arguments)
        configurable = configurable_of(outer)

        def key() -> tuple[Hashable, tuple[str, ...]]:
            settings = wrapped_settings(retriever) | settings_of(configurable) | arguments
            return _request_key(self._knobs, call, freeze_arguments(settings), self.own)

        before, opaque = key()

        def request(
            config: RunnableConfig | None, unobserved: Request[Document] | None
        ) -> Request[Document]:
            return Request(
                (query,),
                lambda _, __: retriever.invoke(query, config, **arguments),
                lambda _, __: retriever.ainvoke(query, config, **arguments),
                k=_first(call.k, self._knobs.k),
                key=before,
                namespace=_namespace(self._knobs, call),
                opaque=opaque,
                is_current=lambda: key()[0] == before,
                ranked=False,
                annotate=self._knobs.annotate,
                unobserved=unobserved,
            )

        callbacks = (outer or {}).get("callbacks")
        observed = RunnableConfig(configurable=configurable, callbacks=callbacks)
        unobserved = RunnableConfig(configurable=configurable, callbacks=[])
        return request(observed, request(unobserved, None))


class StoreRequests:
    """Asks a vector store."""

    def __init__(
        self,
        knobs: CacheKnobs,
        store: VectorStore,
        search_type: str,
        search_kwargs: dict[str, Any],
        facts: StoreFacts,
    ) -> None:
        self._knobs = knobs
        self._store = store
        self._search_type = search_type
        self._search_kwargs = search_kwargs  # not a copy: what is changed in it is honoured
        self._facts = facts
        self._searches = StoreSearches(store)
        self._snapshots = Snapshots()
        # With these alone it still ranks by distance, and the first documents are the same.
        self._harmless = facts.harmless | {"filter"}
        self.own = opaque_values(search_kwargs)

    def make(
        self,
        query: str,
        config: Callable[[], RunnableConfig | None],  # noqa: ARG002 - a store runs nothing
        call: Call,
        arguments: dict[str, Any],
        interval: float | None,  # noqa: ARG002 - it has no stages
    ) -> Request[Document]:
        """Make the request of one call; see :class:`Requests`."""
        store, facts = self._store, self._facts
        search_type = call.search_type or self._search_type
        check_store_arguments(store, search_type, arguments, facts.arguments)
        arguments = self._search_kwargs | arguments
        k = _first(call.k, arguments.pop("k", None), self._knobs.k)
        filters = "filter" in arguments
        if filters and facts.filters_afterwards and self._knobs.guarantee is not None:
            msg = (
                f"filter cannot go with guarantee={self._knobs.guarantee!r}: "
                f"{type(store).__name__} filters only what it found, so that documents are left out"
            )
            raise ConfigurationError(msg)
        # The first documents of such a search need not be what it finds where fewer are wanted.
        fixed = search_type != "similarity" or not arguments.keys() <= self._harmless
        frozen = freeze_arguments(arguments)
        key, opaque = _request_key(self._knobs, call, frozen, self.own)
        snapshot = (lambda: arguments) if opaque else self._snapshots.of(frozen, arguments)
        return Request(
            (query,),
            self._searches.search(search_type, query, arguments, snapshot),
            self._searches.asearch(search_type, snapshot),
            k=k,
            key=(key, search_type, k) if fixed else key,
            namespace=_namespace(self._knobs, call),
            opaque=opaque,
            ranked=search_type == "similarity" and (facts.vectors is None or not fixed),
            annotate=self._knobs.annotate,
            cut=filters and facts.filters_afterwards and not fixed,
        )


class StagedRequests:
    """Asks a staged retriever."""

    def __init__(self, knobs: CacheKnobs, staged: StagedFaissRetriever) -> None:
        self._knobs = knobs
        self._staged = staged
        self.own = opaque_values({"filter": staged.filter})

    def make(
        self,
        query: str,
        config: Callable[[], RunnableConfig | None],  # noqa: ARG002 - its search runs nothing
        call: Call,
        arguments: dict[str, Any],
        interval: float | None,
    ) -> Request[Document]:
        """Make the request of one call; see :class:`Requests`."""
        core = self._staged.core
        check_staged_arguments(call, arguments)
        own = arguments.get("filter")
        filters = self._staged.filter if own is None else own
        search = {} if filters is None else {"filter": filters}
        key, opaque = _request_key(self._knobs, call, freeze_arguments(search), self.own)
        if not opaque:
            filters = copy.deepcopy(filters)

        def request(count: int) -> StagedRequest:
            return StagedRequest((query,), count, filters, interval)

        return Request(
            (query,),
            lambda embedding, count: core.search(embedding, request(count)),
            k=_first(call.k, self._knobs.k),
            key=key,
            namespace=_namespace(self._knobs, call),
            opaque=opaque,
            annotate=self._knobs.annotate,
            stages=lambda embedding, count: core.search_stages(embedding, request(count)),
            astages=lambda embedding, count: core.asearch_stages(embedding, request(count)),
        )


def _first(*numbers: int | None) -> int | None:
    for number in numbers:
        if number is not None:
            return number
    return None


def _request_key(
    knobs: CacheKnobs, call: Call, frozen: FrozenArguments, own: frozenset[Identity]
) -> tuple[Hashable, tuple[str, ...]]:
    naming = Naming(
        knobs.filter_key if call.filter_key is None else call.filter_key,
        by_call=call.filter_key is not None,
        namespace_by_call=call.namespace is not None,
        own=own,
    )
    return request_key(frozen, _namespace(knobs, call), naming)


def _namespace(knobs: CacheKnobs, call: Call) -> str:
    return knobs.namespace if call.namespace is None else call.namespace
