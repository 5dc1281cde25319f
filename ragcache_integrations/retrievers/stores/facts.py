"""What is known of a vector store, as far as the query cache needs it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Generic, Protocol, TypeVar

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ragcache_integrations.query_cache import Metric, VectorSource

__all__ = [
    "MappedVectors",
    "SearchResults",
    "StoreFacts",
    "VectorSearch",
    "brings",
    "full_name",
    "is_kind",
    "tag_of",
]

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
    search: VectorSearch[SearchResults[Any]] | None = None
    asearch: VectorSearch[Awaitable[SearchResults[Any]]] | None = None
    exhaustive: VectorSearch[SearchResults[Any]] | None = None
    aexhaustive: VectorSearch[Awaitable[SearchResults[Any]]] | None = None
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


def full_name(kind: type) -> str:
    """Return a class's name as ``module.Class``."""
    return f"{kind.__module__}.{kind.__qualname__}"


def is_kind(instance: object, *names: str) -> bool:
    """Whether an object is of a class, given as ``module.Class``, that need not be imported."""
    return any(full_name(kind) in names for kind in type(instance).__mro__)


def brings(instance: object, module: str, *methods: str) -> bool:
    """Whether an object's methods are those that a module defines, and nobody's own."""
    return all(getattr(type(instance), name).__module__ == module for name in methods)


def tag_of(model: object, store: object) -> str:
    """Name an embedding model and a store by their classes, and the model by its own name, too."""
    names = (getattr(model, name, None) for name in ("model_name", "model", "model_id"))
    name = next((name for name in names if isinstance(name, str) and name), "")
    return f"{type(model).__name__}({name}) {type(store).__name__}"
