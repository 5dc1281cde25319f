"""The interface by which the query cache knows a kind of vector store.

It also has searches that record the vectors of what they find.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from itertools import chain
from typing import Any, Literal, get_args

from numpy.typing import NDArray

from ragcache_integrations.core.checks import check_choice, check_flag, check_text
from ragcache_integrations.errors import ConfigurationError
from ragcache_integrations.retrievers.stores.facts import (
    SearchResults,
    StoreFacts,
    VectorSearch,
    full_name,
    is_kind,
)

__all__ = [
    "EXPONENTIAL_SCORES",
    "Client",
    "StoreKind",
    "text_or_number",
    "text_unchanged",
    "watched_search",
    "watched_searches",
]

logger = logging.getLogger(__name__)

Proofs = Literal["known", "exhaustive", "flat", "declared", "no"]

EXPONENTIAL_SCORES: dict[str, Callable[[float], float]] = {
    "l2": lambda distance: math.exp(-distance * distance),
    "cosine": lambda chord: math.exp(-chord * chord / 2),
    "ip": lambda product: math.exp(product - 1),
}
"""By metric, the scores of LlamaIndex's stores that report exp(-d) for a distance d: the squared L2
distance, or one minus the cosine or the inner product."""


def text_unchanged(value: object) -> tuple[str, ...]:
    """Return an id that is a string as it is."""
    return (value,) if isinstance(value, str) else ()


def text_or_number(value: object) -> tuple[str, ...]:
    """Return an id that is a string or a whole number as a string."""
    return (str(value),) if isinstance(value, str | int) else ()


@dataclass(frozen=True)
class StoreKind:
    """How the query cache reads one kind of vector store.

    Attributes:
        name: The usual name of the store.
        classes: Its classes, each as ``module.Class``; they need not be installed. Their subclasses
            are of this kind, too.
        distribution: The distribution on PyPI that has the classes.
        facts: Returns what is known of a store. Its argument is the vector store for LangChain, and
            the index over it for LlamaIndex.
        spellings: Returns how the ids of returned documents may spell an id that the methods for
            changes take or return; empty if that is not known.
        recognises: Whether an object is of this kind although its class is not listed.
        vectors_come_along: Whether a search returns vectors; otherwise they are read by id.
        proofs: Whether answers can be proven: ``known`` if the facts say whether a search compares
            all documents, ``exhaustive`` if it can be made to, ``flat`` if it can with a flat
            index, ``declared`` if the application must say so, otherwise ``no``.

    Raises:
        ConfigurationError: An argument cannot be used, such as one name in the place of a tuple of
            names.
    """

    name: str
    classes: tuple[str, ...]
    distribution: str
    facts: Callable[[Any], StoreFacts]
    spellings: Callable[[object], tuple[str, ...]] = text_unchanged
    recognises: Callable[[Any], bool] | None = None
    vectors_come_along: bool = False
    proofs: Proofs = "no"

    def __post_init__(self) -> None:
        """Check each argument."""
        check_text("name", self.name)
        check_text("distribution", self.distribution)
        if isinstance(self.classes, str):
            msg = f"classes must be a tuple of names, such as ({self.classes!r},), got one name"
            raise ConfigurationError(msg)
        if not isinstance(self.classes, tuple) or not all(
            isinstance(name, str) for name in self.classes
        ):
            msg = f"classes must be a tuple of names as module.Class, got {self.classes!r:.100}"
            raise ConfigurationError(msg)
        for name in ("facts", "spellings", "recognises"):
            value = getattr(self, name)
            if not callable(value) and (name != "recognises" or value is not None):
                optional = " or None" if name == "recognises" else ""
                msg = f"{name} must be a function of one argument{optional}, got {value!r:.100}"
                raise ConfigurationError(msg)
        check_flag("vectors_come_along", self.vectors_come_along)
        check_choice("proofs", self.proofs, get_args(Proofs))

    def read_facts(self, subject: object) -> StoreFacts | None:
        """Return what is known of a store; ``None`` where that cannot be read, which is logged.

        Args:
            subject: What ``facts`` takes.

        Raises:
            ConfigurationError: ``facts`` returned something else.
        """
        try:
            facts: object = self.facts(subject)
        except Exception as error:  # noqa: BLE001 - of a server, or of another version of its class
            logger.warning("Nothing is known of this %s: %s", self.name, error)
            return None
        if not isinstance(facts, StoreFacts):
            msg = f"facts of the kind {self.name!r} must return a StoreFacts, got {facts!r:.100}"
            raise ConfigurationError(msg)
        return facts

    def includes(self, store: object) -> bool:
        """Whether a store is of this kind."""
        if self.recognises is not None:
            return self.recognises(store)
        return is_kind(store, *self.classes)

    def brings(self, store: object, *methods: str) -> bool:
        """Whether a store's methods are those of its class of this kind, and no subclass's own."""
        mine = type(store)
        known = next((base for base in mine.__mro__ if full_name(base) in self.classes), None)
        return known is not None and all(
            getattr(mine, name) is getattr(known, name) for name in methods
        )

    def ids(self, values: Iterable[object]) -> Collection[str] | None:
        """Return ids as answers may spell them; ``None`` where that is not known of one."""
        spellings = [self.spellings(value) for value in values]
        return list(chain.from_iterable(spellings)) if all(spellings) else None


class Client:
    """A client of a database some of whose methods are others.

    Args:
        client: The client.
        **methods: The methods, by their names.
    """

    def __init__(self, client: Any, **methods: Callable[..., Any]) -> None:
        self._client = client
        vars(self).update(methods)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._client, name)


def watched_search(watch: Callable[[list[Any]], Any]) -> VectorSearch[SearchResults[Any]]:
    """Return a search of a LangChain store by the store's own method, which makes the documents.

    Args:
        watch: Returns a store that answers as the searched one, and adds the vector of each
            document that it finds to a list.
    """

    def search(embedding: NDArray[Any], k: int, arguments: Mapping[str, Any]) -> SearchResults[Any]:
        vectors: list[Any] = []
        method = watch(vectors).similarity_search_by_vector
        return SearchResults(method(embedding.tolist(), k, **arguments), vectors)

    return search


def watched_searches(
    index: Any, watch: Callable[[list[Any]], Any]
) -> tuple[VectorSearch[SearchResults[Any]], VectorSearch[Awaitable[SearchResults[Any]]]]:
    """Return searches of an index through its framework's own retriever.

    So nodes are made, completed from the document store and traced as always. The searches'
    arguments are those of ``index.as_retriever``, and ``query_bundle``, which has the embedding.

    Args:
        index: A ``VectorStoreIndex``.
        watch: Returns a store that answers as the index's own, and adds the vector of each node
            that it finds to a list.

    Returns:
        The search, and its async version, which blocks where the store has no coroutines.
    """

    def prepare(k: int, arguments: Mapping[str, Any], vectors: list[Any]) -> tuple[Any, Any]:
        others = dict(arguments)
        bundle = others.pop("query_bundle")
        retriever = index.as_retriever(similarity_top_k=k, **others)
        retriever._vector_store = watch(vectors)  # noqa: SLF001 - there is no public way
        return retriever, bundle

    def search(_: NDArray[Any], k: int, arguments: Mapping[str, Any]) -> SearchResults[Any]:
        vectors: list[Any] = []
        retriever, bundle = prepare(k, arguments, vectors)
        return SearchResults(retriever._retrieve(bundle), vectors)  # noqa: SLF001

    async def asearch(_: NDArray[Any], k: int, arguments: Mapping[str, Any]) -> SearchResults[Any]:
        vectors: list[Any] = []
        retriever, bundle = prepare(k, arguments, vectors)
        return SearchResults(await retriever._aretrieve(bundle), vectors)  # noqa: SLF001

    return search, asearch
