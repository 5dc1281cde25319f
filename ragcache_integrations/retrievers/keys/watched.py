"""Objects that note their use: what a step gets in the place of what its key does not hold."""

from __future__ import annotations

import copy
import functools
import sys
import types
from collections.abc import Callable, Mapping
from types import FrameType
from typing import Any, Self

from typing_extensions import override

__all__ = ["Note", "WatchedName", "WatchedValues", "watched_object"]

Note = Callable[[str], None]
"""Called with the name of what a step used although its key does not hold it."""

# Modules that look names up only to copy or to trace a configuration.
_COPYING_MODULES = (
    *("langchain_core.runnables.config", "langchain_core.callbacks", "langchain_core.tracers"),
    *("langsmith", "ragcache_integrations", "ragcache_workbench"),
)
# Methods of callback handlers, which get the metadata of each run. Tracers look for a thread there.
_HANDLERS = {
    "on_chat_model_start",
    *(
        f"on_{what}_{when}"
        for what in ("chain", "llm", "retriever", "tool")
        for when in ("start", "end", "error")
    ),
}
_MOST_CALLERS = 16


class WatchedName(str):
    """A key of a mapping that notes lookups.

    A mapping that notes its readers is not enough, because the frameworks copy configurations all
    the time, by ``{**configurable}`` and the like. Such copies keep the key objects. To find a key,
    a dict compares it with the given name, and Python lets an instance of a subclass of ``str``
    answer that comparison.
    """

    __slots__ = ("_note",)

    _note: Note

    def __new__(cls, name: str, note: Note) -> Self:
        """Make a key that calls a function when it is looked up."""
        made = super().__new__(cls, name)
        made._note = note
        return made

    def __eq__(self, other: object) -> bool:
        same = str.__eq__(self, other)
        if same is True and not _only_copies(sys._getframe(1)):
            self.note()
        return same

    def __ne__(self, other: object) -> bool:
        same = str.__ne__(self, other)
        if same is False and not _only_copies(sys._getframe(1)):
            self.note()
        return same

    __hash__ = str.__hash__

    def note(self) -> None:
        """Note a lookup."""
        self._note(f"the run's {self!s}")

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        return self

    def __reduce__(self) -> tuple[type[str], tuple[str]]:
        return str, (str.__str__(self),)


class WatchedValues(dict[str, Any]):
    """A mapping with watched names that also notes when all of its values are read at once."""

    names: tuple[WatchedName, ...] = ()

    @classmethod
    def of(
        cls, values: Mapping[str, Any], watched: Mapping[str, WatchedName], note: Note
    ) -> WatchedValues:
        """Return values with watched names; names that are watched already stay so."""
        made = cls()
        for name, value in values.items():
            key = watched.get(name, name)
            if key is not name and isinstance(name, WatchedName):  # by an enclosing step
                key = WatchedName(str.__str__(name), _both(name, note))
            made[key] = value
        made.names = tuple(name for name in dict.keys(made) if isinstance(name, WatchedName))
        return made

    def _read(self, frame: FrameType) -> None:
        if not _only_copies(frame):
            for name in self.names:
                name.note()

    @override
    def items(self) -> Any:
        self._read(sys._getframe(1))  # noqa: SLF001 - who asks
        return super().items()

    @override
    def values(self) -> Any:
        self._read(sys._getframe(1))  # noqa: SLF001 - who asks
        return super().values()

    @override
    def copy(self) -> WatchedValues:
        return self.__copy__()

    def __copy__(self) -> WatchedValues:
        made = WatchedValues(self)
        made.names = self.names
        return made

    def __deepcopy__(self, memo: dict[int, Any]) -> WatchedValues:
        made = WatchedValues(copy.deepcopy(dict(self), memo))
        made.names = self.names
        return made

    def __reduce__(self) -> tuple[type[dict[str, Any]], tuple[dict[str, Any]]]:
        return dict, ({str(name): value for name, value in super().items()},)


def _both(outer: WatchedName, note: Note) -> Note:
    def both(what: str) -> None:
        outer.note()
        note(what)

    return both


def _only_copies(frame: FrameType) -> bool:
    """Whether a lookup copies a configuration, or is made by a handler of callbacks."""
    if str(frame.f_globals.get("__name__")).startswith(_COPYING_MODULES):
        return True
    callers: FrameType | None = frame
    for _ in range(_MOST_CALLERS):
        if callers is None:
            return False
        if callers.f_code.co_name in _HANDLERS:
            return True
        callers = callers.f_back
    return False


def watched_object(value: object, note: Note, names: frozenset[str] | None, what: str) -> Any:
    """Return a substitute for an object, an instance of a subclass of the object's class.

    Args:
        value: The object.
        note: Called with ``what`` when an attribute is read.
        names: The attributes that count; ``None`` for all.
        what: The text for ``note``; an empty one for the attribute's name.
    """
    kind: Any = type(value)
    try:
        made: Any = object.__new__(_watched_class(kind))
        object.__setattr__(made, "_ragcache_watch", (value, note, names, what))
    except TypeError:  # its class allows no subclasses
        note(what)
        return value
    return made


@functools.lru_cache(maxsize=256)
def _watched_class(kind: type) -> type:
    def getattribute(self: Any, name: str) -> Any:
        value, note, names, what = object.__getattribute__(self, "_ragcache_watch")
        if name in names if names is not None else not name.startswith("__"):
            note(what or f"the run's {name}")
        return getattr(value, name)

    def fill(body: dict[str, Any]) -> None:
        body["__getattribute__"] = getattribute
        body["__module__"] = kind.__module__
        # Threads and connections end with the object itself, not with its substitute.
        body["__del__"] = lambda _: None

    return types.new_class(kind.__name__, (kind,), exec_body=fill)
