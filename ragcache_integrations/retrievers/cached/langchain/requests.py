"""From a call of the LangChain retriever to a question for its core, by what is wrapped."""

from __future__ import annotations

import inspect
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from functools import partial
from inspect import Parameter
from typing import Any, Final, NamedTuple, cast

from langchain_core.callbacks import (
    AsyncCallbackManagerForRetrieverRun,
    CallbackManagerForRetrieverRun,
)
from langchain_core.documents import Document
from langchain_core.retrievers import BaseRetriever, LangSmithRetrieverParams, RetrieverLike
from langchain_core.runnables import RunnableConfig, ensure_config
from langchain_core.vectorstores import VectorStore, VectorStoreRetriever
from typing_extensions import override

from ragcache_integrations._suggestions import closest_names, shortened
from ragcache_integrations.core.checks import check_choice
from ragcache_integrations.errors import ConfigurationError
from ragcache_integrations.retrievers.cached.knobs import CacheKnobs
from ragcache_integrations.retrievers.keys import (
    NO_ARGUMENTS,
    FrozenArguments,
    Naming,
    OwnParts,
    RequestKey,
    Snapshots,
    StepWatch,
    Surroundings,
    freeze_arguments,
    in_context,
    nameless_values,
    opaque_values,
    said_besides,
    wrapped_settings,
)
from ragcache_integrations.retrievers.retrieval import Embedding, Question
from ragcache_integrations.retrievers.staged.langchain import StagedFaissRetriever
from ragcache_integrations.retrievers.stores import LiveState, StoreFacts

from .stores import (
    SEARCH_TYPES,
    Arguments,
    AsyncSearch,
    StoreSearches,
    TextSearch,
    searches_of,
)

__all__ = [
    "Call",
    "Requests",
    "StagedRequests",
    "StoreRequests",
    "WrappedRequests",
    "child_config",
    "configured",
    "read_call",
]

_HANDED_ON: Final = ("configurable", "metadata")
_OWN = ("k", "namespace", "filter_key", "search_type")
_NAMED = {Parameter.KEYWORD_ONLY, Parameter.POSITIONAL_OR_KEYWORD}
# What the methods are called to which a store's search may pass its arguments on.
_SEARCHES = ("similarity_search", "max_marginal_relevance_search")
# Parameters of a search that no caller of a retriever gives.
_POSITIONAL = {"self", "query", "embedding", "run_manager"}


@dataclass(slots=True)
class Call:
    """One call. What it says instead of the retriever's settings is ``None`` where it says nothing.

    Not frozen, as that takes longer to make.

    Attributes:
        query: The question.
        config: Makes the configuration for a wrapped Runnable; called where there is one.
        arguments: Further arguments of the call, for the search.
        interval: Seconds that a stage should take.
        k: How many documents to return.
        namespace: Name of the tenant.
        filter_key: Name of the meaning of its filter.
        search_type: How the store is searched.
    """

    query: str
    config: Callable[[], RunnableConfig | None]
    arguments: dict[str, Any]
    interval: float | None = None
    k: int | None = None
    namespace: str | None = None
    filter_key: str | None = None
    search_type: str | None = None


def read_call(
    query: str,
    config: Callable[[], RunnableConfig | None],
    named: Mapping[str, Any],
    interval: float | None = None,
) -> Call:
    """Return a call whose own values are checked; the search checks the others.

    Args:
        query: The question.
        config: Makes the configuration for a wrapped Runnable.
        named: The call's arguments, by name; one that is ``None`` says nothing. With ``context``,
            the turns before the question, it is asked together with them.
        interval: Seconds that a stage should take.

    Raises:
        ConfigurationError: A value cannot be used.
    """
    if not named:
        return Call(query, config, {}, interval)
    arguments = {name: value for name, value in named.items() if value is not None}
    own = {name: arguments.pop(name, None) for name in _OWN}
    turns = arguments.pop("context", None)
    if isinstance(query, str):  # anything else is refused later
        query = in_context(query, turns)
    for name in ("namespace", "filter_key"):
        if not isinstance(own[name], str | None):
            raise ConfigurationError(f"{name} must be a string, got {own[name]!r}")
    if own["search_type"] is not None:
        check_choice("search_type", own["search_type"], SEARCH_TYPES)
    return Call(query, config, arguments, interval, **own)


def _check_store_arguments(
    store: VectorStore,
    search_type: str,
    arguments: Mapping[str, Any],
    known: frozenset[str] | None,
) -> None:
    """Refuse arguments of a call that a store's search does not know.

    Args:
        store: The store that is searched.
        search_type: How it is searched, such as ``mmr``.
        arguments: The call's arguments, by name.
        known: Arguments that the search knows besides those in its signature; ``None`` where it
            is not known what it does with others.

    Raises:
        ConfigurationError: It has no such argument. Where it may have any, one that is nearly one
            of ours or of its own: a misspelt ``namespace`` would be lost without a word.
    """
    if arguments:
        methods = searches_of(store, search_type)
        if search_type == "similarity_score_threshold":
            known = None if known is None else known | {"score_threshold"}
        if known is None:  # it may pass them on to these
            methods += [getattr(store, name) for name in dir(store) if name.startswith(_SEARCHES)]
        _check(type(store).__name__, methods, arguments, known)


def _read_wrapped_arguments(retriever: object, call: Call) -> dict[str, Any]:
    """Return a call's arguments for a wrapped retriever.

    ``k`` is one of them where the retriever takes it: without it, it might find fewer.

    Raises:
        ConfigurationError: It has no such argument, or is a Runnable that is no retriever.
    """
    if call.search_type is not None:
        msg = "search_type is for a vectorstore; set it on the wrapped retriever instead"
        raise ConfigurationError(msg)
    method = getattr(type(retriever), "_get_relevant_documents", None)
    if method is None:
        if not call.arguments:
            return {}
        names = ", ".join(sorted(call.arguments))
        msg = f"{names} is for a vectorstore or a retriever; set it on what is wrapped instead"
        raise ConfigurationError(msg)
    if call.arguments and type(retriever) is VectorStoreRetriever:
        _check_store_arguments(retriever.vectorstore, retriever.search_type, call.arguments, None)
    else:
        _check(type(retriever).__name__, [method], call.arguments)
    if call.k is None or not _takes(method, "k"):
        return call.arguments
    return call.arguments | {"k": call.k}


def _is_blocking(retriever: object) -> bool:
    """Whether LangChain wrote the coroutine around a retriever's search; it takes no arguments."""
    method = getattr(type(retriever), "_aget_relevant_documents", None)
    return method is BaseRetriever._aget_relevant_documents  # noqa: SLF001 - not called


def _takes(method: Callable[..., Any], name: str) -> bool:
    parameters = inspect.signature(method).parameters
    return name in parameters or any(
        parameter.kind is Parameter.VAR_KEYWORD for parameter in parameters.values()
    )


def _check_staged_arguments(call: Call) -> None:
    """Refuse arguments of a call that a staged retriever does not know.

    Raises:
        ConfigurationError: An argument is not ``filter``.
    """
    if call.search_type not in {None, "similarity"}:
        msg = f"a staged search is search_type='similarity', got {call.search_type!r}"
        raise ConfigurationError(msg)

    def search(*, filter: object) -> None:  # noqa: A002 - what LangChain's stores call it
        """Has the parameters of a staged search."""

    _check("StagedFaissRetriever", [search], call.arguments)


def _check(
    owner: str,
    methods: Iterable[Callable[..., Any]],
    arguments: Mapping[str, Any],
    known: frozenset[str] | None = None,
) -> None:
    if "search_kwargs" in arguments:
        msg = "give the search's arguments to the call singly, such as k=4, not as search_kwargs"
        raise ConfigurationError(msg)
    parameters = [
        parameter
        for method in methods
        for parameter in inspect.signature(method).parameters.values()
    ]
    named = {parameter.name for parameter in parameters if parameter.kind in _NAMED} - _POSITIONAL
    named |= known or set()
    takes_any = any(parameter.kind is Parameter.VAR_KEYWORD for parameter in parameters)
    for name in arguments.keys() - named:
        meant = closest_names(name, [*_OWN, *named], cutoff=0.75)
        if meant or known is not None or not takes_any:
            hint = f"; did you mean {meant[0]}?" if meant else ""
            allowed = ", ".join(sorted(named | set(_OWN)))
            msg = f"{owner} has no argument {shortened(name)!r}: allowed are {allowed}{hint}"
            raise ConfigurationError(msg)


_CONFIG: ContextVar[RunnableConfig | None] = ContextVar("ragcache_retriever_config", default=None)


@contextmanager
def configured(config: RunnableConfig | None) -> Iterator[None]:
    """Note what the configuration of a call says to what is wrapped.

    LangChain hands a retriever's own method no configuration. It does not reach what is wrapped
    either, unless a chain is around them.
    """
    token = _CONFIG.set(config)
    try:
        yield
    finally:
        _CONFIG.reset(token)


def child_config(
    config: RunnableConfig | None,
    run: CallbackManagerForRetrieverRun | AsyncCallbackManagerForRetrieverRun,
) -> RunnableConfig:
    """Return a call's configuration for the wrapped retriever, with the run's callbacks.

    What LangChain notes of the cached retriever for traces is left out: it is nothing that an
    application says, and ``explain`` and ``warm``, which are no runs, would not find the answers.
    """
    callbacks = run.get_child()
    callbacks.remove_metadata([*LangSmithRetrieverParams.__annotations__])
    child = RunnableConfig(callbacks=callbacks)
    for name in _HANDED_ON:
        if config is not None and config.get(name) is not None:
            child[name] = config[name]
    return child


def _whole_config(config: RunnableConfig | None) -> RunnableConfig:
    """Return ``configurable`` values, metadata and tags of the enclosing run and the call.

    The callbacks are the call's own.
    """
    around, call = ensure_config(config), _CONFIG.get() or {}
    return RunnableConfig(
        callbacks=(config or {}).get("callbacks"),
        configurable={**around.get("configurable", {}), **(call.get("configurable") or {})},
        metadata={**around.get("metadata", {}), **(call.get("metadata") or {})},
        tags=list(dict.fromkeys((*(around.get("tags") or ()), *(call.get("tags") or ())))),
    )


class Requests(ABC):
    """Makes questions of calls.

    Args:
        knobs: The retriever's settings.
        live: The settings of what is wrapped, which an application may change.
        made_with: Arguments of the search that the retriever was made with.
        code: The application's own code: within what is asked with the embedding model, and within
            that model alone.

    Attributes:
        own: The opaque values among them.
    """

    def __init__(
        self,
        knobs: CacheKnobs,
        live: LiveState,
        made_with: Mapping[str, Any],
        code: tuple[OwnParts, OwnParts],
    ) -> None:
        self._knobs = knobs
        self._is_current = live.is_current
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
        self, call: Call, frozen: FrozenArguments, around: Surroundings | None
    ) -> tuple[RequestKey, tuple[str, ...]]:
        """Return a call's cache key, and the places of opaque values without a name."""
        if around is not None and around.values:
            frozen = frozen.with_others(around.frozen)
        if type(call.query) is not str:
            frozen = frozen.with_others(freeze_arguments(said_besides(query=call.query)))
        filter_key = self._knobs.filter_key if call.filter_key is None else call.filter_key
        namespace = self._knobs.namespace if call.namespace is None else call.namespace
        key = namespace, filter_key, frozen.key
        if not frozen.opaque:
            return key, ()
        naming = Naming(
            filter_key,
            by_call=call.filter_key is not None,
            namespace_by_call=call.namespace is not None,
            own=self.own,
        )
        return key, nameless_values(frozen, naming)

    def _question(
        self, call: Call, search: TextSearch, around: Surroundings | None, **others: Any
    ) -> Question[Document]:
        """Make a question with what all of a retriever's have in common."""
        return Question(
            (call.query,),
            partial(search, call.query),
            namespace=self._knobs.namespace if call.namespace is None else call.namespace,
            around=around,
            embeds_around=around if self._embeds else None,
            annotate=self._knobs.annotate,
            **others,
        )


class WrappedRequests(Requests):
    """Asks a wrapped retriever, or another Runnable from a question to documents."""

    def __init__(
        self,
        knobs: CacheKnobs,
        live: LiveState,
        retriever: RetrieverLike,
        code: tuple[OwnParts, OwnParts],
    ) -> None:
        super().__init__(knobs, live, wrapped_settings(retriever), code)
        self._retriever = retriever

    @override
    def make(self, call: Call) -> Question[Document]:
        """Make the question of one call; see :class:`Requests`."""
        retriever = self._retriever
        arguments = _read_wrapped_arguments(retriever, call)
        around = self._watch.surroundings(_whole_config(call.config()))

        def key() -> tuple[Hashable, tuple[str, ...]]:
            frozen = freeze_arguments(wrapped_settings(retriever) | arguments)
            return self._key(call, frozen, around)

        before, opaque = key()
        blocks = bool(arguments) and _is_blocking(retriever)

        def asked(
            config: RunnableConfig | None, unobserved: Question[Document] | None
        ) -> Question[Document]:
            def asearch(_: Embedding, __: int) -> Awaitable[Sequence[Document]]:
                return retriever.ainvoke(call.query, config, **arguments)

            return self._question(
                call,
                lambda query, _, __: retriever.invoke(query, config, **arguments),
                around,
                asearch=None if blocks else asearch,
                k=_first(call.k, self._knobs.k),
                key=before,
                opaque=opaque,
                conditions=(lambda: key()[0] == before, self._is_current),
                ranked=False,
                unobserved=unobserved,
            )

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
        live: LiveState,
        store: VectorStore,
        search_type: str,
        search_kwargs: dict[str, Any],
        facts: StoreFacts,
        code: tuple[OwnParts, OwnParts],
    ) -> None:
        super().__init__(knobs, live, search_kwargs, code)
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
            _check_store_arguments(self._store, search_type, call.arguments, self._facts.arguments)
        arguments = self._search_kwargs | call.arguments
        k = _first(call.k, arguments.pop("k", None), self._knobs.k)
        snapshot = self._snapshots.of(arguments) if arguments else NO_ARGUMENTS
        frozen, around = snapshot.frozen, self._around()
        key, opaque = self._key(call, frozen, around)
        # Nearly every question comes with the arguments of the one before.
        same, (planned, plan) = (search_type, frozen.key), self._last
        if plan is None or planned != same or frozen.opaque:
            copies = (lambda: arguments) if opaque else snapshot.copies()
            plan = self._plan(search_type, snapshot.arguments, copies)
            self._last = same, plan  # as one: another thread must not mix two of them
        return self._question(
            call,
            plan.search,
            around,
            asearch=plan.asearch,
            k=k,
            key=(key, search_type, k) if plan.fixed else key,
            opaque=opaque,
            conditions=(self._is_current,),
            ranked=plan.ranked,
            cut=plan.cut,
        )

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
        self,
        knobs: CacheKnobs,
        live: LiveState,
        staged: StagedFaissRetriever,
        code: tuple[OwnParts, OwnParts],
    ) -> None:
        super().__init__(knobs, live, {"filter": staged.filter}, code)
        self._staged = staged
        self._snapshots = Snapshots()

    @override
    def make(self, call: Call) -> Question[Document]:
        """Make the question of one call; see :class:`Requests`."""
        core = self._staged.core
        _check_staged_arguments(call)
        own = call.arguments.get("filter")
        filters = self._staged.filter if own is None else own
        snapshot = self._snapshots.of({} if filters is None else {"filter": filters})
        around = self._around()
        key, opaque = self._key(call, snapshot.frozen, around)
        if not opaque:
            filters = snapshot.copies()().get("filter")
        return self._question(
            call,
            lambda _, embedding, count: core.search(embedding, count, filters),
            around,
            k=_first(call.k, self._knobs.k),
            key=key,
            opaque=opaque,
            conditions=(self._is_current,),
            stages=lambda embedding, count: core.search_stages(
                embedding, count, filters, call.interval
            ),
        )


def _first(*numbers: int | None) -> int | None:
    for number in numbers:
        if number is not None:
            return number
    return None
