"""What an application may change on a store that is in use: its collection, its model, its index.

What a retriever knows of a store (:mod:`.facts`) was read when the retriever was made, and answers
were found in the store as it was. So the store's settings are read again at each question.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable
from enum import Enum
from typing import Any

from pydantic import BaseModel

from ragcache_integrations.retrievers.keys import (
    freeze_arguments,
    is_own_object,
    settings_within,
)
from ragcache_integrations.retrievers.sharing import Identity

__all__ = ["LiveState", "settings_of_store"]

_NUMBERS = {bool, int, float}
_OWN = {"dense_vector_name", "sparse_vector_name"}
"""Attributes that LlamaIndex's Qdrant store changes on its own, once it has a collection."""
_CONTAINERS = (dict, list, tuple, set, frozenset)


def settings_of_store(store: object) -> dict[str, Hashable]:
    """Return the settings of a store or a model by name, each comparable.

    Texts are settings, such as the name of a collection; so are numbers and flags among the fields
    of a pydantic model, but not others, which stores keep to themselves, as they do counters. Other
    objects, such as a client or an index, are compared by identity, and those of the application's
    own by their data, too. Containers hold documents, and change with them.
    """
    declared = type(store).model_fields if isinstance(store, BaseModel) else {}
    attributes: dict[str, Any] = getattr(store, "__dict__", {})
    private = getattr(store, "__pydantic_private__", None) or {}
    settings: dict[str, Hashable] = {}
    items = (*attributes.items(), *((f"private {name}", item) for name, item in private.items()))
    for name, value in items:
        kind = type(value)
        if name in _OWN:
            continue
        if kind is str or (kind in _NUMBERS and name in declared) or isinstance(value, Enum):
            settings[name] = value
        elif value is not None and kind not in _NUMBERS and not isinstance(value, _CONTAINERS):
            settings[name] = Identity(value)
            if is_own_object(value):
                within = settings_within(value).items()
                settings |= {f"{name}{at}": freeze_arguments({at: held}).key for at, held in within}
    return settings


class LiveState:
    """The settings of a retriever's store and embedding model, to be compared later.

    Args:
        read: Returns the stores and models as they are now, whose settings count; and the
            retrievers around them, whose settings are in the keys of questions.
    """

    def __init__(self, read: Callable[[], tuple[Iterable[object], Iterable[object]]]) -> None:
        self._read = read
        self._known = self._now()

    @property
    def key(self) -> Hashable:
        """The settings as they were, as a part of a key."""
        return frozenset(self._known.items())

    def change(self) -> str | None:
        """Return the name of a setting that is another one now; ``None`` if there is none.

        A setting that was not there before is no change, as stores make clients and collections
        when they first need them.
        """
        now, known = self._now(), self._known
        if now == known:
            return None
        for name, value in known.items():
            if now.get(name) != value:
                return name
        self._known = now
        return None

    def is_current(self) -> bool:
        """Whether all settings are as they were."""
        return self.change() is None

    def _now(self) -> dict[str, Hashable]:
        state: dict[str, Hashable] = {}
        stores, retrievers = self._read()
        for subjects, inside in ((stores, True), (retrievers, False)):
            for subject in subjects:
                if subject is None:
                    continue
                kind = type(subject).__name__
                while kind in state:  # several of a class
                    kind += "'"
                state[kind] = Identity(subject)
                if inside:
                    for name, value in settings_of_store(subject).items():
                        state[f"{kind}.{name}"] = value
        return state
