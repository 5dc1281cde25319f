"""From a call of the LangChain retriever to a question for its core, by what is wrapped."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Awaitable, Hashable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple, cast

from langchain_core.documents import Document
from langchain_core.retrievers import RetrieverLike
from langchain_core.runnables import RunnableConfig
from langchain_core.vectorstores import VectorStore
from typing_extensions import override

from ragcache_integrations.errors import ConfigurationError
from ragcache_integrations.retrievers.cached.knobs import CacheKnobs
from ragcache_integrations.retrievers.embedder import Embedding
from ragcache_integrations.retrievers.keys import (
    FrozenArguments,
    Naming,
    OwnParts,
    Snapshots,
    StepWatch,
    Surroundings,
    freeze_arguments,
    nameless_values,
    opaque_values,
    request_key,
    said_besides,
    wrapped_settings,
)
from ragcache_integrations.retrievers.retrieval import Question, watch_question
from ragcache_integrations.retrievers.staged.langchain import StagedFaissRetriever
from ragcache_integrations.retrievers.stores import StoreFacts

from .arguments import (
    Call,
    check_staged_arguments,
    check_store_arguments,
    is_blocking,
    read_wrapped_arguments,
    whole_config,
)
from .searches import Arguments, AsyncSearch, StoreSearches, TextSearch

__all__ = ["Requests", "StagedRequests", "StoreRequests", "WrappedRequests"]


class Requests(ABC):
    """Makes questions of calls.

    Args:
        knobs: The retriever's settings.
        made_with: Arguments of the search that the retriever was made with.
        code: The application's own code: within what is asked with the embedding model, and within
            that model alone.

    Attributes:
        own: The opaque values among them.
    """

    def __init__(
        self, knobs: CacheKnobs, made_with: Mapping[str, Any], code: tuple[OwnParts, OwnParts]
    ) -> None:
        self._knobs = knobs
        self.own = opaque_values(made_with)
        self._code, of_model = code
        self._watch = StepWatch(knobs.ignores, self._code)
        self._embeds = of_model.any

    @abstractmethod
    def make(self, call: Call) -> Question[Document]:
        """Make the question of one call.

        Raises:
            ConfigurationError: What is wrapped has no such argument.
        """

    def _around(self) -> Surroundings | None:
        """Return what the application's own code in a store may read; ``None``: there is none."""
        return self._watch.surroundings() if self._code.any else None

    def _key(
        self, call: Call, namespace: str, frozen: FrozenArguments, around: Surroundings | None
    ) -> tuple[Hashable, tuple[str, ...]]:
        """Return a call's cache key, and the places of opaque values without a name."""
        if around is not None:
            frozen = frozen.with_others(around.frozen)
        frozen = frozen.with_others(freeze_arguments(said_besides(query=call.query)))
        filter_key = self._knobs.filter_key if call.filter_key is None else call.filter_key
        key = request_key(frozen, namespace, filter_key)
        if not frozen.opaque:
            return key, ()
        naming = Naming(
            filter_key,
            by_call=call.filter_key is not None,
            namespace_by_call=call.namespace is not None,
            own=self.own,
        )
        return key, nameless_values(frozen, naming)

    def _namespace(self, call: Call) -> str:
        return self._knobs.namespace if call.namespace is None else call.namespace


class WrappedRequests(Requests):
    """Asks a wrapped retriever, or another Runnable from a question to documents."""

    def __init__(
        self, knobs: CacheKnobs, retriever: RetrieverLike, code: tuple[OwnParts, OwnParts]
    ) -> None:
        super().__init__(knobs, wrapped_settings(retriever), code)
        self._retriever = retriever

    @override
    def make(self, call: Call) -> Question[Document]:
        """Make the question of one call; see :class:`Requests`."""
        retriever, outer = self._retriever, call.config()
        arguments = read_wrapped_arguments(retriever, call)
        around = self._watch.surroundings(whole_config(outer))
        namespace = self._namespace(call)

        def key() -> tuple[Hashable, tuple[str, ...]]:
            return self._key(
                call, namespace, freeze_arguments(wrapped_settings(retriever) | arguments), around
            )

        before, opaque = key()
        blocks = bool(arguments) and is_blocking(retriever)

        def asked(
            config: RunnableConfig | None, unobserved: Question[Document] | None
        ) -> Question[Document]:
            def asearch(_: Embedding, __: int) -> Awaitable[Sequence[Document]]:
                return retriever.ainvoke(call.query, config, **arguments)

            question = Question(
                (call.query,),
                lambda _, __: retriever.invoke(call.query, config, **arguments),
                None if blocks else asearch,
                k=_first(call.k, self._knobs.k),
                key=before,
                namespace=namespace,
                opaque=opaque,
                is_current=lambda: key()[0] == before,
                ranked=False,
                annotate=self._knobs.annotate,
                unobserved=unobserved,
            )
            return watch_question(question, around, embeds=self._embeds)

        config = around.config
        return asked(config, asked(cast("RunnableConfig", {**config, "callbacks": []}), None))


class _Plan(NamedTuple):
    """How a store is searched with given arguments.

    Attributes:
        search: Searches for a question, with its embedding, for that many documents.
        asearch: Async version of it, which needs no question; ``None`` where there is none.
        fixed: The first documents need not be what it finds where fewer are wanted.
        ranked: As in :class:`Question`.
        cut: As in :class:`Question`.
    """

    search: TextSearch
    asearch: AsyncSearch | None
    fixed: bool
    ranked: bool
    cut: bool


class StoreRequests(Requests):
    """Asks a vector store."""

    def __init__(
        self,
        knobs: CacheKnobs,
        store: VectorStore,
        search_type: str,
        search_kwargs: dict[str, Any],
        facts: StoreFacts,
        code: tuple[OwnParts, OwnParts],
    ) -> None:
        super().__init__(knobs, search_kwargs, code)
        self._store = store
        self._search_type = search_type
        self._search_kwargs = search_kwargs  # not a copy: what is changed in it is honoured
        self._facts = facts
        self._searches = StoreSearches(store, facts)
        self._snapshots = Snapshots()
        self._last: tuple[Hashable, _Plan | None] = (None, None)
        # With these alone it still ranks by distance, and the first documents are the same.
        filters = () if facts.filters_afterwards else ("filter",)
        self._harmless = facts.harmless.union(filters)

    @override
    def make(self, call: Call) -> Question[Document]:
        """Make the question of one call; see :class:`Requests`."""
        search_type = call.search_type or self._search_type
        if call.arguments:
            check_store_arguments(self._store, search_type, call.arguments, self._facts.arguments)
        arguments = self._search_kwargs | call.arguments
        k = _first(call.k, arguments.pop("k", None), self._knobs.k)
        snapshot, around = self._snapshots.of(arguments), self._around()
        frozen, namespace = snapshot.frozen, self._namespace(call)
        key, opaque = self._key(call, namespace, frozen, around)
        # Nearly every question comes with the arguments of the one before.
        same, (planned, plan) = (search_type, frozen.key), self._last
        if plan is None or planned != same or frozen.opaque:
            copies = (lambda: arguments) if opaque else snapshot.copies()
            plan = self._plan(search_type, snapshot.arguments, copies)
            self._last = same, plan  # as one: another thread must not mix two of them
        question = Question(
            (call.query,),
            partial(plan.search, call.query),
            plan.asearch,
            k=k,
            key=(key, search_type, k) if plan.fixed else key,
            namespace=namespace,
            opaque=opaque,
            ranked=plan.ranked,
            annotate=self._knobs.annotate,
            cut=plan.cut,
        )
        return watch_question(question, around, embeds=self._embeds)

    def _plan(self, search_type: str, arguments: Mapping[str, Any], copies: Arguments) -> _Plan:
        facts, filters = self._facts, "filter" in arguments
        if filters and facts.filters_afterwards and self._knobs.guarantee is not None:
            kind = type(self._store).__name__
            raise ConfigurationError(
                f"filter cannot go with guarantee={self._knobs.guarantee!r}: "
                f"{kind} filters only what it found, so that documents are left out"
            )
        fixed = search_type != "similarity" or not arguments.keys() <= self._harmless
        by_distance = search_type == "similarity" and not facts.by_text
        return _Plan(
            self._searches.search(search_type, arguments, copies),
            self._searches.asearch(search_type, arguments, copies),
            fixed=fixed,
            ranked=by_distance and (facts.vectors is None or not fixed),
            cut=filters and facts.filters_afterwards and not fixed,
        )


class StagedRequests(Requests):
    """Asks a staged retriever."""

    def __init__(
        self, knobs: CacheKnobs, staged: StagedFaissRetriever, code: tuple[OwnParts, OwnParts]
    ) -> None:
        super().__init__(knobs, {"filter": staged.filter}, code)
        self._staged = staged
        self._snapshots = Snapshots()

    @override
    def make(self, call: Call) -> Question[Document]:
        """Make the question of one call; see :class:`Requests`."""
        core = self._staged.core
        check_staged_arguments(call)
        own = call.arguments.get("filter")
        filters = self._staged.filter if own is None else own
        snapshot = self._snapshots.of({} if filters is None else {"filter": filters})
        namespace, around = self._namespace(call), self._around()
        key, opaque = self._key(call, namespace, snapshot.frozen, around)
        if not opaque:
            filters = snapshot.copies()().get("filter")

        question = Question(
            (call.query,),
            lambda embedding, count: core.search(embedding, count, filters),
            k=_first(call.k, self._knobs.k),
            key=key,
            namespace=namespace,
            opaque=opaque,
            annotate=self._knobs.annotate,
            stages=lambda embedding, count: core.search_stages(
                embedding, count, filters, call.interval
            ),
        )
        return watch_question(question, around, embeds=self._embeds)


def _first(*numbers: int | None) -> int | None:
    for number in numbers:
        if number is not None:
            return number
    return None
