"""Arguments of one call of a LangChain retriever, on their way to what is wrapped."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from inspect import Parameter
from typing import Any, Final

from langchain_core.callbacks import (
    AsyncCallbackManagerForRetrieverRun,
    CallbackManagerForRetrieverRun,
)
from langchain_core.retrievers import BaseRetriever, LangSmithRetrieverParams
from langchain_core.runnables import RunnableConfig, ensure_config
from langchain_core.vectorstores import VectorStore, VectorStoreRetriever

from ragcache_integrations._suggestions import closest_names, shortened
from ragcache_integrations.core.checks import check_choice
from ragcache_integrations.errors import ConfigurationError
from ragcache_integrations.retrievers.keys import in_context

from .searches import SEARCH_TYPES, methods_of

__all__ = [
    "Call",
    "check_staged_arguments",
    "check_store_arguments",
    "child_config",
    "configured",
    "is_blocking",
    "read_call",
    "read_wrapped_arguments",
    "whole_config",
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


def check_store_arguments(
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
        methods = methods_of(store, search_type)
        if search_type == "similarity_score_threshold":
            known = None if known is None else known | {"score_threshold"}
        if known is None:  # it may pass them on to these
            methods += [getattr(store, name) for name in dir(store) if name.startswith(_SEARCHES)]
        _check(type(store).__name__, methods, arguments, known)


def read_wrapped_arguments(retriever: object, call: Call) -> dict[str, Any]:
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
        check_store_arguments(retriever.vectorstore, retriever.search_type, call.arguments, None)
    else:
        _check(type(retriever).__name__, [method], call.arguments)
    if call.k is None or not _takes(method, "k"):
        return call.arguments
    return call.arguments | {"k": call.k}


def is_blocking(retriever: object) -> bool:
    """Whether LangChain wrote the coroutine around a retriever's search; it takes no arguments."""
    method = getattr(type(retriever), "_aget_relevant_documents", None)
    return method is BaseRetriever._aget_relevant_documents  # noqa: SLF001 - not called


def _takes(method: Callable[..., Any], name: str) -> bool:
    parameters = inspect.signature(method).parameters
    return name in parameters or any(
        parameter.kind is Parameter.VAR_KEYWORD for parameter in parameters.values()
    )


def check_staged_arguments(call: Call) -> None:
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


def whole_config(config: RunnableConfig | None) -> RunnableConfig:
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
