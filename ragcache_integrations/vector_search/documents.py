"""Which document each vector of an index is, and what is known of it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from ragcache_integrations.errors import ConfigurationError
from ragcache_integrations.query_cache import validation

from .searches import Filter, Labels, Selection

__all__ = ["Documents", "check_filter", "check_ids", "check_metadata"]

_KEPT_SELECTIONS = 16

Metadata = Mapping[str, Any]


class Documents:
    """The documents by the numbers of their vectors, their labels in FAISS's terms.

    Args:
        labels: Labels of the documents, ascending.
        ids: Their ids in the same order, all different.
        metadata: Their metadata in the same order; ``None`` where no document has any.
        vectors: Number of vectors in the index. Vectors of no document do not count in a search.
        end: The smallest label that was never used.
    """

    def __init__(
        self,
        labels: Labels,
        ids: Sequence[str],
        metadata: Sequence[Metadata | None] | None,
        vectors: int,
        end: int,
    ) -> None:
        self.names: list[str | None] = list(ids) if end == len(ids) else [None] * end
        self.labels = dict(zip(ids, labels.tolist(), strict=True))
        self.metadata: dict[str, Metadata] = {}
        for name, label in self.labels.items():
            self.names[label] = name
        self._selections: dict[Any, Selection] = {}
        if metadata is not None:
            self.describe(ids, metadata)
        self.buried = vectors - len(ids)

    @property
    def end(self) -> int:
        """The smallest label that was never used."""
        return len(self.names)

    def add(
        self, label: int, ids: Sequence[str], metadata: Sequence[Metadata | None] | None
    ) -> None:
        """Add documents under labels from ``label`` on, which is at least ``end``."""
        self.names += [None] * (label - len(self.names))
        self.labels.update(zip(ids, range(label, label + len(ids)), strict=True))
        self.names += ids
        self.describe(ids, metadata or [None] * len(ids))

    def describe(self, ids: Sequence[str], metadata: Sequence[Metadata | None]) -> None:
        """Replace documents' metadata."""
        for name, values in zip(ids, metadata, strict=True):
            if values is None:
                self.metadata.pop(name, None)
            else:
                self.metadata[name] = values
        self._selections.clear()

    def bury(self, labels: Iterable[int]) -> None:
        """Note that there are vectors in the index that are no documents."""
        for label in labels:
            self.names += [None] * (label + 1 - len(self.names))
            self.names[label] = None
            self.buried += 1
        self._selections.clear()

    def remove(self, ids: Sequence[str], *, buried: bool) -> None:
        """Forget documents.

        Args:
            ids: Ids of the documents.
            buried: Whether their vectors stay in the index.
        """
        for name in ids:
            self.names[self.labels.pop(name)] = None
            self.metadata.pop(name, None)
        if buried:
            self.buried += len(ids)
        self._selections.clear()

    def close_ranks(self, gone: Collection[int]) -> None:
        """Follow an index that moves vectors to close the gaps of those that are gone."""
        self.names = [name for label, name in enumerate(self.names) if label not in gone]
        places = {name: label for label, name in enumerate(self.names) if name is not None}
        self.labels = {name: places[name] for name in self.labels}
        self.buried = len(self.names) - len(places)
        self._selections.clear()

    def select(self, filter_: Filter | None) -> Selection | None:
        """Return the vectors that count: those of documents that pass a filter.

        Raises:
            Exception: Any error of a filter that is a function.
        """
        if filter_ is None and not self.buried:
            return None
        if filter_ is not None and not isinstance(filter_, Mapping):
            return self._select(filter_)
        try:
            key = None if filter_ is None else tuple(sorted(map(_hashable, filter_.items())))
            known = self._selections.get(key)
        except TypeError:  # values that cannot be looked up
            return self._select(_has(filter_ or {}))
        if known is None:
            if len(self._selections) >= _KEPT_SELECTIONS:
                self._selections.clear()
            known = self._selections[key] = self._select(None if filter_ is None else _has(filter_))
        return known

    def _select(self, passes: Callable[[Metadata], bool] | None) -> Selection:
        mask = np.zeros(len(self.names), np.uint8)
        if passes is None:
            mask[list(self.labels.values())] = 1
        else:
            known = self.metadata
            passing = [n for name, n in self.labels.items() if passes(known.get(name, {}))]
            mask[passing] = 1
        return Selection(mask)


def _hashable(item: tuple[str, Any]) -> tuple[str, str, Any]:
    name, value = item
    many = isinstance(value, list)
    key = tuple(value) if many else value
    hash(key)
    # The class, since 1, 1.0 and True are the same key; as text, so that keys can be sorted.
    return name, repr((type(value), key)), key


def _has(filter_: Mapping[str, Any]) -> Callable[[Metadata], bool]:
    items = [
        (name, value if isinstance(value, list) else [value]) for name, value in filter_.items()
    ]

    def passes(metadata: Metadata) -> bool:
        return all(name in metadata and metadata[name] in values for name, values in items)

    return passes


def check_filter(filter_: object) -> None:
    """Check a filter.

    Raises:
        ConfigurationError: It is not a filter.
    """
    if filter_ is None or callable(filter_):
        return
    if not isinstance(filter_, Mapping) or not all(isinstance(name, str) for name in filter_):
        msg = f"filter must be a mapping from names to values, a function or None, got {filter_!r}"
        raise ConfigurationError(msg)
    operators = [
        key
        for name, value in filter_.items()
        for key in (name, *(value if isinstance(value, Mapping) else ()))
        if isinstance(key, str) and key.startswith("$")
    ]
    if operators:
        msg = f"filter must not have operators such as {operators[0]}: give a function instead"
        raise ConfigurationError(msg)


def check_ids(ids: object, count: int | None = None) -> list[str]:
    """Return ids as a list of distinct strings.

    Args:
        ids: The value to check.
        count: The number of ids required; ``None`` for any.

    Raises:
        ConfigurationError: The value is something else.
    """
    if isinstance(ids, str) or not isinstance(ids, Iterable):
        raise ConfigurationError(f"ids must be a sequence of strings, got {ids!r}")
    checked = list(ids)
    validation.check_ids(checked)
    if count is not None and len(checked) != count:
        msg = f"ids must be one for each of the {count} vectors, got {len(checked)}"
        raise ConfigurationError(msg)
    if len(set(checked)) < len(checked):
        ((twice, _),) = Counter(checked).most_common(1)
        raise ConfigurationError(f"ids must differ from each other, got {twice!r} twice")
    return checked


def check_metadata(metadata: object, count: int) -> list[Metadata | None] | None:
    """Return metadata as a list.

    Args:
        metadata: The value to check.
        count: How many documents there are.

    Raises:
        ConfigurationError: The value is something else.
    """
    if metadata is None:
        return None
    if isinstance(metadata, str | Mapping) or not isinstance(metadata, Iterable):
        raise ConfigurationError(f"metadata must be a sequence of mappings, got {metadata!r}")
    checked = list(metadata)
    if len(checked) != count:
        msg = f"metadata must be one mapping for each of the {count} documents, got {len(checked)}"
        raise ConfigurationError(msg)
    wrong = [each for each in checked if not isinstance(each, Mapping | None)]
    if wrong:
        raise ConfigurationError(f"metadata must be mappings or None, got {wrong[0]!r}")
    return checked
