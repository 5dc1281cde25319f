"""A staged index over the FAISS index of either framework's store, as that is now."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ragcache_integrations.core.forks import make_lock
from ragcache_integrations.errors import ConfigurationError
from ragcache_integrations.vector_search import StagedIndex

__all__ = ["FaissView"]


class FaissView:
    """Sees an index through the store's own mapping; made again after the store has changed.

    All additions and deletions of the store change its mapping or the number of vectors, which are
    compared at every search. Making it takes a time that grows with the number
    of documents (a second or two a million), at the first search after a change: an index of
    many documents that often change is better off as a ``StagedIndex``.

    Args:
        index: Returns the FAISS index.
        ids: Returns the store's mapping from positions in the index (numbers, or numbers written
            as strings) to document ids.
        find: Returns a document by its id, ``None`` where there is none. Called only when a filter
            is used, which reads its ``metadata``.

    Raises:
        ConfigurationError: The FAISS index cannot be searched in stages.
    """

    def __init__(
        self,
        index: Callable[[], Any],
        ids: Callable[[], dict[Any, str]],
        find: Callable[[str], Any],
    ) -> None:
        self._index = index
        self._ids = ids
        self._find = find
        self._lock = make_lock()
        self._seen: tuple[Any, ...] = ()
        self._described = False
        self._made: StagedIndex | None = None
        self()

    def __call__(self, *, described: bool = False) -> StagedIndex:
        """Return the staged index; ``described``: with metadata to filter by.

        Raises:
            ConfigurationError: The FAISS index cannot be searched in stages, or which vector is
                which document's is not known any more.
        """
        with self._lock:
            index, ids = self._index(), self._ids()
            last = next(reversed(ids.items()), None)
            seen = (index, ids, len(ids), last, index.ntotal)
            if not _are_same(seen, self._seen):
                self._seen, self._described = (), False
            made = self._made
            if made is None or not self._seen or (described and not self._described):
                names = _names(index, ids)
                metadata = None
                if described:
                    metadata = [getattr(self._find(name), "metadata", None) for name in names]
                made = self._made = _make_index(index, names, metadata)
                self._seen, self._described = seen, described
            return made


def _are_same(these: Sequence[Any], those: Sequence[Any]) -> bool:
    """Whether the same objects were seen, with the same numbers."""
    return len(these) == len(those) and all(
        this is that or (isinstance(this, int | tuple) and this == that)
        for this, that in zip(these, those, strict=True)
    )


def _names(index: Any, ids: Mapping[Any, str]) -> list[str]:
    """Return the documents' ids in the order in which the index has their vectors."""
    import faiss  # noqa: PLC0415 - an extra; it is there where an index is

    by_number = {int(position): name for position, name in list(ids.items())}
    inner: Any = faiss.downcast_index(index)
    mapped = hasattr(inner, "id_map")
    numbers = faiss.vector_to_array(inner.id_map).tolist() if mapped else range(index.ntotal)
    if len(by_number) == len(numbers) and all(number in by_number for number in numbers):
        return [by_number[number] for number in numbers]
    msg = (
        f"the store's FAISS index holds {index.ntotal} vectors for {len(by_number)} documents, and "
        "which is whose is not known: rebuild it"
    )
    raise ConfigurationError(msg)


def _make_index(
    index: Any, names: Sequence[str], metadata: Sequence[Mapping[str, Any] | None] | None
) -> StagedIndex:
    try:
        return StagedIndex(index, names, metadata=metadata)
    except ConfigurationError as error:
        msg = (
            f"the store's FAISS index cannot be searched in stages: {error}. Where documents were "
            "deleted from an IVF index through the store, which renumbers the others as FAISS "
            "does not, rebuild it"
        )
        raise ConfigurationError(msg) from error
