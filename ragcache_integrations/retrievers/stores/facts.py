"""What is known of a vector store, and how the query cache reads it from stores of one kind."""

from __future__ import annotations

import logging
import math
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain
from typing import Any, Generic, Literal, Protocol, TypeVar, get_args

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ragcache_integrations.core.checks import check_choice, check_flag, check_text
from ragcache_integrations.errors import ConfigurationError
from ragcache_integrations.query_cache import Metric, VectorSource

__all__ = [
    "EXPONENTIAL_SCORES",
    "AsyncSearch",
    "Client",
    "MappedVectors",
    "Search",
    "SearchResults",
    "StoreFacts",
    "StoreKind",
    "VectorSearch",
    "brings",
    "cosine_of",
    "is_kind",
    "tag_of",
    "text_or_number",
    "text_unchanged",
    "with_searches",
]

logger = logging.getLogger(__name__)

T = TypeVar("T")
Results_co = TypeVar("Results_co", covariant=True)


class SearchResults(list[T], Generic[T]):
    """The documents that a search returned, best first, and their vectors.

    Args:
        documents: The documents, as the store's own class makes them.
        vectors: Their vectors, shape (len(documents), dim).
    """

    def __init__(self, documents: Iterable[T], vectors: ArrayLike) -> None:
        super().__init__(documents)
        self.vectors = vectors


class VectorSearch(Protocol[Results_co]):
    """Searches a store by vector."""

    def __call__(
        self, embedding: NDArray[Any], k: int, arguments: Mapping[str, Any], /
    ) -> Results_co:
        """Return the k nearest documents.

        Args:
            embedding: The question's embedding, shape (dim,).
            k: How many documents to return.
            arguments: Further arguments of the search: in LangChain none but
                :attr:`StoreFacts.harmless` ones, in LlamaIndex those of ``index.as_retriever``
                and ``query_bundle``, the question with its embedding.
        """


Search = VectorSearch[SearchResults[Any]]
AsyncSearch = VectorSearch[Awaitable[SearchResults[Any]]]
"""A search that does not block."""


@dataclass(frozen=True)
class StoreFacts:
    """What is known of a store. By default, nothing is.

    Attributes:
        metric: How the store ranks documents; ``None`` if that is not known.
        vectors: Reads documents' vectors; ``None`` if the store cannot return them.
        dim: Dimension of the embeddings; ``None`` if that is not known.
        exact: Whether a search is certain to compare all documents, by ``metric``.
        doubt: Why that is not certain; empty if it is.
        inexact: Whether a search is certain to leave documents out.
        lengths: Reads the L2 lengths of the shortest and the longest document vector; it returns
            ``None`` if there are no documents.
        score: Returns the score that the store reports for a document at a distance (with ``ip``:
            for an inner product).
        filters_afterwards: Whether the store applies a filter to the results of a search.
        harmless: Arguments of the search that do not change that it ranks by distance alone.
        arguments: Arguments of the similarity search besides those in its signature; ``None`` if
            it is not known what it does with others.
        search: Searches by vector and returns the documents' vectors, too, in one round trip. It
            is used only with ``vectors``, which is needed when the store changes.
        asearch: Async version of ``search`` that does not block.
        exhaustive: Like ``search``, but certain to compare all documents; ``None`` if only
            ``exact`` says whether a search does.
        aexhaustive: Async version of ``exhaustive`` that does not block.
        outside: Whether others can write to the store without using this object.
        id_of: Returns a document's id in the store; ``None`` if it is where the framework keeps a
            document's id.
        by_text: Whether the store's own search reads the question's text, as hybrid searches do.
            Then it is searched by text.
    """

    metric: Metric | None = None
    vectors: VectorSource | None = None
    dim: int | None = None
    exact: bool = False
    doubt: str = "it is not known how it searches"
    inexact: bool = False
    lengths: Callable[[], tuple[float, float] | None] | None = None
    score: Callable[[float], float] | None = None
    filters_afterwards: bool = False
    harmless: frozenset[str] = frozenset()
    arguments: frozenset[str] | None = None
    search: Search | None = None
    asearch: AsyncSearch | None = None
    exhaustive: Search | None = None
    aexhaustive: AsyncSearch | None = None
    outside: bool = False
    id_of: Callable[[Any], str | None] | None = None
    by_text: bool = False

    def incomplete(self, doubt: str, *, ranks: bool = False) -> StoreFacts:
        """Return the facts of a search that certainly leaves documents out.

        Args:
            doubt: Why it does.
            ranks: Whether it ranks by distance nevertheless.
        """
        vectors = self.vectors if ranks else None
        return replace(
            self, vectors=vectors, exact=False, doubt=doubt, inexact=True, exhaustive=None
        )

    def with_vectors(self, vectors: VectorSource) -> StoreFacts:
        """Return the facts of a store whose documents' vectors come from elsewhere."""
        return replace(
            self, vectors=vectors, lengths=None, search=None, asearch=None, exhaustive=None
        )

    def searched_exhaustively(self) -> StoreFacts:
        """Return the facts of searches that go over all documents, where there are such."""
        if self.exhaustive is None:
            return self
        search, asearch = self.exhaustive, self.aexhaustive
        return replace(self, search=search, asearch=asearch, exact=True, inexact=False, doubt="")

    def of_other_searches(self, doubt: str) -> StoreFacts:
        """Return what holds where a subclass searches in a way of its own.

        Args:
            doubt: Why it is not known how it searches.
        """
        doubt = self.doubt or doubt
        return replace(
            self,
            exact=False,
            doubt=doubt,
            arguments=None,
            search=None,
            asearch=None,
            exhaustive=None,
        )


class MappedVectors:
    """Reads the vectors of documents by their ids, from a store that returns them one by one.

    Args:
        read: Returns a dict of vectors by document id, without ids that do not exist.
    """

    def __init__(self, read: Callable[[Sequence[str]], Mapping[str, ArrayLike]]) -> None:
        self._read = read

    def __call__(self, ids: Sequence[str], /) -> NDArray[np.float64]:
        """Read the vectors of some documents, shape (len(ids), d).

        Raises:
            LookupError: An id is unknown, or its vector is zero: many stores rank by cosine, which
                a zero vector has not.
        """
        by_id = self._read(ids) if ids else {}
        missing = next((document_id for document_id in ids if document_id not in by_id), None)
        if missing is not None:
            raise LookupError(f"document {missing!r} has no vector in the store")
        vectors: NDArray[np.float64] = np.array([by_id[name] for name in ids], dtype=np.float64)
        directed = vectors.any(axis=1) if ids else vectors
        if not directed.all():
            msg = f"document {ids[int(directed.argmin())]!r} has a zero vector in the store"
            raise LookupError(msg)
        return vectors


def _full_name(kind: type) -> str:
    """Return a class's name as ``module.Class``."""
    return f"{kind.__module__}.{kind.__qualname__}"


def is_kind(instance: object, *names: str) -> bool:
    """Whether an object is of a class, given as ``module.Class``, that need not be imported."""
    return any(_full_name(kind) in names for kind in type(instance).__mro__)


def brings(instance: object, module: str, *methods: str) -> bool:
    """Whether an object's methods are those that a module defines, and nobody's own."""
    return all(getattr(type(instance), name).__module__ == module for name in methods)


def tag_of(model: object, store: object) -> str:
    """Name an embedding model and a store by their classes, and the model by its own name, too."""
    names = (getattr(model, name, None) for name in ("model_name", "model", "model_id"))
    name = next((name for name in names if isinstance(name, str) and name), "")
    return f"{type(model).__name__}({name}) {type(store).__name__}"


Proofs = Literal["known", "exhaustive", "flat", "declared", "no"]


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
        known = next((base for base in mine.__mro__ if _full_name(base) in self.classes), None)
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


def cosine_of(chord: float) -> float:
    """Return the cosine of two unit vectors at a distance."""
    return 1 - chord * chord / 2


EXPONENTIAL_SCORES: dict[str, Callable[[float], float]] = {
    "l2": lambda distance: math.exp(-distance * distance),
    "cosine": lambda chord: math.exp(-chord * chord / 2),
    "ip": lambda product: math.exp(product - 1),
}
"""By metric, the scores of LlamaIndex's stores that report exp(-d) for a distance d: the squared L2
distance, or one minus the cosine or the inner product."""


def with_searches(
    facts: StoreFacts, watch: Callable[..., Any], index: Any = None, *, exhaustive: bool = False
) -> StoreFacts:
    """Return facts with searches by the store's own code, which makes the documents.

    LlamaIndex's go through the index's own retriever. So nodes are made, completed from the
    document store and traced as always. The searches' arguments are those of
    ``index.as_retriever``, and ``query_bundle``, which has the embedding; the async version blocks
    if the store has no coroutines.

    Args:
        facts: The facts.
        watch: Returns a store that answers as the searched one, and adds the vector of each
            document that it finds to a list; with ``exhaustive=True``, one that compares all
            documents.
        index: The ``VectorStoreIndex`` over the store; ``None`` for a store of LangChain.
        exhaustive: Whether ``watch`` takes ``exhaustive=True``.
    """
    search, asearch = _watched(watch, index)
    facts = replace(facts, search=search, asearch=asearch)
    if not exhaustive:
        return facts
    search, asearch = _watched(partial(watch, exhaustive=True), index)
    return replace(facts, exhaustive=search, aexhaustive=asearch)


def _watched(watch: Callable[..., Any], index: Any) -> tuple[Search, AsyncSearch | None]:
    if index is None:

        def search_store(
            embedding: NDArray[Any], k: int, arguments: Mapping[str, Any]
        ) -> SearchResults[Any]:
            vectors: list[Any] = []
            method = watch(vectors).similarity_search_by_vector
            return SearchResults(method(embedding.tolist(), k, **arguments), vectors)

        return search_store, None

    def prepare(k: int, arguments: Mapping[str, Any], vectors: list[Any]) -> tuple[Any, Any]:
        others = dict(arguments)
        bundle = others.pop("query_bundle")
        retriever = index.as_retriever(similarity_top_k=k, **others)
        retriever._vector_store = watch(vectors)  # noqa: SLF001 - there is no public way
        return retriever, bundle

    def search(_: NDArray[Any], k: int, arguments: Mapping[str, Any]) -> SearchResults[Any]:
        vectors: list[Any] = []
        retriever, bundle = prepare(k, arguments, vectors)
        return SearchResults(retriever._retrieve(bundle), vectors)  # noqa: SLF001 - no public way

    async def asearch(_: NDArray[Any], k: int, arguments: Mapping[str, Any]) -> SearchResults[Any]:
        vectors: list[Any] = []
        retriever, bundle = prepare(k, arguments, vectors)
        return SearchResults(await retriever._aretrieve(bundle), vectors)  # noqa: SLF001 - no public way

    return search, asearch
