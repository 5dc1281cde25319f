"""What an object hands on to the objects that are rebuilt from it.

LangChain makes a new object for every call of ``configurable_fields``, and ``model_copy`` makes one
with other settings. Both take the fields along, so a field that holds a :class:`SharedState` is
what they have in common: objects whose settings agree find the same core there, with its cache,
its statistics and its threads. Objects that were constructed independently have a state each, and
share nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Any, TypeVar, cast

from ragcache_integrations.core.forks import make_lock
from ragcache_integrations.core.memo import Memo

__all__ = ["Identity", "SharedState"]

C = TypeVar("C")

CAPACITY = 16
"""Cores that are kept for objects still to be rebuilt: one for each combination of settings, and
a setting may be a number that differs with every call."""


class Identity:
    """Represents an object in settings: equal to itself alone, and keeps the object alive."""

    __slots__ = ("_value",)

    def __init__(self, value: object) -> None:
        self._value = value

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Identity) and self._value is other._value

    def __hash__(self) -> int:
        return id(self._value)


class SharedState:
    """Cores by the settings that they were made with. Thread-safe.

    A copy or a pickle of it begins empty: a deep copy of an object shares nothing with it.
    """

    def __init__(self) -> None:
        self._lock = make_lock()
        self._cores: Memo[Hashable, Any] = Memo(CAPACITY)

    def core(self, settings: Hashable, make: Callable[[], C]) -> C:
        """Return the core for some settings, made at the first call for them.

        Args:
            settings: All that the core depends on. The least recently used ones are forgotten;
                retrievers that have their core keep it.
            make: Makes the core; must not use this state.

        Raises:
            Exception: Any error of ``make``; nothing is kept then.
        """
        with self._lock:
            if settings not in self._cores:
                self._cores[settings] = make()
            return cast("C", self._cores[settings])

    def __copy__(self) -> SharedState:
        return self

    def __deepcopy__(self, memo: dict[int, Any]) -> SharedState:
        return SharedState()

    def __reduce__(self) -> tuple[type[SharedState], tuple[()]]:
        return SharedState, ()
