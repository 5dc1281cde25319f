"""Which document each vector of an index is, and what is known of it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from ragcache_integrations.errors import ConfigurationError

from .searches import Labels
from .selection import Selection
from .types import Filter

__all__ = ["Documents", "check_filter", "check_ids", "check_metadata"]

_KEPT_SELECTIONS = 16

Metadata = Mapping[str, Any]


class Documents:
    """The documents by the numbers of their vectors, their labels in FAISS's terms.

    Args:
        labels: Ascending.
        ids: In the same order, no two the same.
        metadata: In the same order; ``None`` where no document has any.
        vectors: How many vectors the index holds. Those of no document do not count in a search.
        end: The least label that none has had.
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
        """The least label that none has had."""
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
        """Replace what is known of documents."""
        for name, one in zip(ids, metadata, strict=True):
            if one is None:
                self.metadata.pop(name, None)
            else:
                self.metadata[name] = one
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
            ids: Theirs.
            buried: Their vectors stay in the index.
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

    def select(self, wanted: Filter | None) -> Selection | None:
        """Return the vectors that count: those of documents that a filter lets through.

        Raises:
            Exception: Whatever a function raises.
        """
        if wanted is None and not self.buried:
            return None
        if wanted is not None and not isinstance(wanted, Mapping):
            return self._select(wanted)
        try:
            key = None if wanted is None else tuple(sorted(map(_hashable, wanted.items())))
            known = self._selections.get(key)
        except TypeError:  # values that cannot be looked up
            return self._select(_has(wanted or {}))
        if known is None:
            if len(self._selections) >= _KEPT_SELECTIONS:
                self._selections.clear()
            known = self._selections[key] = self._select(None if wanted is None else _has(wanted))
        return known

    def _select(self, passes: Callable[[Metadata], bool] | None) -> Selection:
        mask = np.zeros(len(self.names), np.uint8)
        if passes is None:
            mask[list(self.labels.values())] = 1
        else:
            known = self.metadata
            mask[[n for one, n in self.labels.items() if passes(known.get(one, {}))]] = 1
        return Selection(mask)


def _hashable(item: tuple[str, Any]) -> tuple[str, str, Any]:
    name, value = item
    many = isinstance(value, list)
    key = tuple(value) if many else value
    hash(key)
    # The class, since 1, 1.0 and True are the same key; as text, so that keys can be sorted.
    return name, repr((type(value), key)), key


def _has(wanted: Mapping[str, Any]) -> Callable[[Metadata], bool]:
    items = [(name, one if isinstance(one, list) else [one]) for name, one in wanted.items()]

    def passes(metadata: Metadata) -> bool:
        return all(name in metadata and metadata[name] in values for name, values in items)

    return passes


def check_filter(wanted: object) -> None:
    """Check a filter.

    Raises:
        ConfigurationError: It is none.
    """
    if wanted is None or callable(wanted):
        return
    if not isinstance(wanted, Mapping) or not all(isinstance(name, str) for name in wanted):
        msg = f"filter must be a mapping from names to values, a function or None, got {wanted!r}"
        raise ConfigurationError(msg)
    operators = [
        key
        for name, value in wanted.items()
        for key in (name, *(value if isinstance(value, Mapping) else ()))
        if isinstance(key, str) and key.startswith("$")
    ]
    if operators:
        msg = f"filter must not have operators such as {operators[0]}: give a function instead"
        raise ConfigurationError(msg)


def check_ids(ids: object, count: int | None = None) -> list[str]:
    """Return ids as a list of distinct strings.

    Args:
        ids: Something to check.
        count: How many there must be.

    Raises:
        ConfigurationError: They are something else.
    """
    if isinstance(ids, str) or not isinstance(ids, Iterable):
        msg = f"ids must be a sequence of strings, got {ids!r}"
        raise ConfigurationError(msg)
    found = list(ids)
    wrong = [one for one in found if not isinstance(one, str)]
    if wrong:
        msg = f"ids must be strings, got {wrong[0]!r}"
        raise ConfigurationError(msg)
    if count is not None and len(found) != count:
        msg = f"ids must be one for each of the {count} vectors, got {len(found)}"
        raise ConfigurationError(msg)
    if len(set(found)) < len(found):
        ((twice, _),) = Counter(found).most_common(1)
        msg = f"ids must differ from each other, got {twice!r} twice"
        raise ConfigurationError(msg)
    return found


def check_metadata(metadata: object, count: int) -> list[Metadata | None] | None:
    """Return metadata as a list.

    Args:
        metadata: Something to check.
        count: How many documents there are.

    Raises:
        ConfigurationError: They are something else.
    """
    if metadata is None:
        return None
    if isinstance(metadata, str | Mapping) or not isinstance(metadata, Iterable):
        msg = f"metadata must be a sequence of mappings, got {metadata!r}"
        raise ConfigurationError(msg)
    found = list(metadata)
    if len(found) != count:
        msg = f"metadata must be one mapping for each of the {count} documents, got {len(found)}"
        raise ConfigurationError(msg)
    wrong = [one for one in found if one is not None and not isinstance(one, Mapping)]
    if wrong:
        msg = f"metadata must be mappings or None, got {wrong[0]!r}"
        raise ConfigurationError(msg)
    return found
