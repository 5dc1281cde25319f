"""State that an object shares with its copies and with the objects that are rebuilt from it.

LangChain makes a new object for every call of ``configurable_fields``, and ``model_copy`` makes one
with other settings. Both take the fields along, so a field that holds a :class:`SharedState` is
what they have in common: objects whose settings agree find the same core there, with its cache,
its statistics and its threads. Objects that were constructed independently have a state each, and
share nothing.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Hashable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar, Self, TypeVar, cast

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from ragcache_integrations.core.checks import check_int, explain_error, refuse_assignment
from ragcache_integrations.core.forks import make_lock
from ragcache_integrations.core.memo import Memo

__all__ = ["FinishedRetriever", "Identity", "Rebuildable", "SharedState"]


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


class _Remade:
    """What is copied deeply and pickled by its settings."""

    def __deepcopy__(self, memo: dict[int, Any] | None = None) -> Self:
        return type(self)(**copy.deepcopy(self._settings(), memo))

    def __reduce__(self) -> tuple[Any, ...]:
        settings = self._settings()
        settings.pop("shared_state", None)
        return _restore, (partial(type(self), **settings), self._dump())

    def _settings(self) -> dict[str, Any]:
        """Return arguments that make an object like this one."""
        raise NotImplementedError

    def _dump(self) -> Any:
        """Return the content of a pickle besides the settings."""
        return None

    def _restore(self, dumped: Any) -> None:
        """Take the result of the pickled object's :meth:`_dump`."""


class Rebuildable(_Remade, BaseModel):
    """Settings that can be changed by making another object only.

    ``model_copy`` makes one from checked settings, and so does LangChain for
    ``configurable_fields``: in either case the new object finds in ``shared_state`` what it may
    share. A deep copy shares nothing. A pickle holds the settings, and what :meth:`_dump` returns.

    Attributes:
        shared_state: Holds the state that this object shares with those made from it. Not to be
            passed by callers.

    Raises:
        ConfigurationError: An argument is unknown or out of its range.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, arbitrary_types_allowed=True)

    shared_state: SharedState = Field(default_factory=SharedState, exclude=True, repr=False)

    if not TYPE_CHECKING:  # type checkers know the fields as arguments

        def __init__(self, *unnamed: Any, **arguments: Any) -> None:
            if unnamed:
                raise _unnamed(type(self), unnamed[0])
            try:
                super().__init__(**arguments)
            except ValidationError as error:
                raise explain_error(error, type(self).model_fields) from error

    def __setattr__(self, name: str, value: Any) -> None:
        if name in type(self).model_fields:
            raise refuse_assignment(self, name, f"model_copy(update={{{name!r}: ...}})")
        super().__setattr__(name, value)

    def model_copy(self, *, update: Mapping[str, Any] | None = None, deep: bool = False) -> Self:
        """Make an object with other settings, checked as on construction.

        It shares with this one what does not depend on the changed settings.

        Args:
            update: The settings to change, by name.
            deep: What the settings hold is copied, too; nothing is shared then.

        Raises:
            ConfigurationError: A setting is unknown or out of its range.
        """
        original = copy.deepcopy(self) if deep else self
        return type(self)(**original._settings() | dict(update or {}))  # noqa: SLF001 - its own

    def _settings(self) -> dict[str, Any]:
        """Return the fields as they are now, by name."""
        return {name: getattr(self, name) for name in type(self).model_fields}


def _unnamed(kind: type, argument: object) -> TypeError:
    """The error for an argument without a name. Python's own would name the class above."""
    makers = [
        name for name in dir(kind) if name.startswith("from_") and not hasattr(BaseModel, name)
    ]
    hint = f"; see also {' and '.join(makers)}" if makers else ""
    got = type(argument).__name__
    return TypeError(f"{kind.__name__} takes arguments by name only, got {got} without one{hint}")


class FinishedRetriever(_Remade):
    """The same for LlamaIndex's retrievers, which are no pydantic models.

    ``similarity_top_k`` alone can be assigned, as on LlamaIndex's own retrievers.
    """

    _FINISHED: ClassVar[frozenset[str]] = frozenset()
    """Names of the settings; what else is assigned is Python's own business."""

    _k: int | None
    _knobs: Any
    _verbose: bool
    callback_manager: Any
    object_map: dict[str, Any]

    @property
    def similarity_top_k(self) -> int | None:
        """How many nodes to return; ``None``: as many as what is wrapped gives."""
        return self._k or self._default_k()

    @similarity_top_k.setter
    def similarity_top_k(self, value: int) -> None:
        self._k = check_int("similarity_top_k", value, 1)

    def __setattr__(self, name: str, value: Any) -> None:
        if name in self._FINISHED:
            instead = "similarity_top_k" if name == "k" else f"{type(self).__name__}({name}=...)"
            raise refuse_assignment(self, name, instead)
        super().__setattr__(name, value)

    def __copy__(self) -> Self:
        clone = object.__new__(type(self))
        vars(clone).update(vars(self))
        return clone

    def _default_k(self) -> int | None:
        """Return the default number of nodes."""
        raise NotImplementedError

    def _settings(self) -> dict[str, Any]:
        """Return the knobs, and the arguments of LlamaIndex's own that all retrievers have."""
        return {
            **vars(self._knobs),
            "k": self._k,
            "callback_manager": self.callback_manager,
            "object_map": self.object_map,
            "verbose": self._verbose,
        }


def _restore(make: Callable[[], Any], dumped: Any) -> Any:
    restored = make()
    restored._restore(dumped)  # noqa: SLF001 - a method of the classes above
    return restored
