"""Finds out whether a step uses what its key does not hold.

Mappings and objects are replaced by ones that note each use. The application's context variables,
and OpenTelemetry's baggage, may say who asks, so their values are collected here.
"""

from __future__ import annotations

import contextvars
import copy
import decimal
import functools
import re
import sys
import types
from abc import ABCMeta
from collections.abc import Callable, Iterator, Mapping
from contextvars import ContextVar
from types import FrameType
from typing import Any, Self

from pydantic import BaseModel
from typing_extensions import override

from ragcache_integrations.retrievers.keys.own_code import NAMES, is_own_class, is_own_module

__all__ = [
    "SILENT",
    "Note",
    "WatchedName",
    "WatchedValues",
    "subclass_of",
    "variables_around",
    "watched_object",
]


_SILENT_PACKAGES = NAMES["silent_packages"]
# The same of LlamaIndex's package whose name an application may have, too.
_SILENT_MODULES = (
    *("workflows.runtime.types.", "workflows.plugins.basic", "workflows.context.serializers"),
)
_TAGS = "instrument_tags"
_OTHER_TRACES = {f"sentry-{name}" for name in NAMES["other_traces"]}
_DRAWN = re.compile(r"-[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$")
"""What OpenTelemetry adds to the name of a key, in each process another one."""
_PATCHED = re.compile(r"(torch(\.\w+)+)\.ConfigPatch\[\d+\]")
"""The variable of each patch of torch's settings, which nothing else holds."""
_SPANS = ("current-span", "suppress")
"""Beginnings of the keys of the current span, and of marks that nothing is to be traced."""


SILENT: set[tuple[ContextVar[Any], type]] = set()
"""Variables that do not count while they hold an object of a class: libraries' own, which stay so.
"""
_MOST_SILENT = 1024


def variables_around() -> Iterator[tuple[str, str, Any]]:
    """Yield what the context says now: its place in keys, its own name, and its value."""
    for variable, value in contextvars.copy_context().items():
        place = _place(variable)
        if place == _TAGS:
            for tag in value:
                if not (isinstance(tag, str) and tag.startswith("llamaindex.")):  # a workflow's
                    yield f"{_TAGS}.{tag}", str(tag), value[tag]
        elif place:
            yield f"variable.{place}", variable.name, value
        elif place == "" and not _is_a_library_s(variable, value):
            # Variables that are no module's attribute may share a name.
            yield f"variable.{variable.name}@{id(variable)}", variable.name, value
        elif len(SILENT) < _MOST_SILENT:
            SILENT.add((variable, type(value)))
        else:
            SILENT.clear()
    yield from _of_opentelemetry()


@functools.lru_cache(maxsize=1024)
def _place(variable: ContextVar[Any]) -> str | None:
    """Return a variable's name in keys.

    It is empty if the variable is no module's attribute, and ``None`` if it does not identify a
    user.
    """
    owners = [
        name
        for name, module in sys.modules.copy().items()  # at once: imports may run
        if any(value is variable for value in list(getattr(module, "__dict__", {}).values()))
    ]
    if variable.name == _TAGS and any(name.startswith("llama_index") for name in owners):
        return _TAGS
    if any(
        (name.partition(".")[0] in _SILENT_PACKAGES or name.startswith(_SILENT_MODULES))
        and not is_own_module(name)
        for name in owners
    ):
        return None
    return f"{min(owners)}.{variable.name}" if owners else ""


def _is_a_library_s(variable: ContextVar[Any], value: object) -> bool:
    """Whether a variable that is no module's attribute belongs to a library, and names no user.

    Its name says nothing: an application may choose the same.
    """
    kind = type(value)
    if kind is decimal.Context:
        return True
    if kind.__module__.startswith("langchain_core.") and hasattr(kind, "ignore_llm"):
        return True  # a counter of tokens, which each call makes a variable for
    if _is_a_setting_of_torch(variable):
        return True
    tracing = getattr(sys.modules.get("opentelemetry.context"), "_RUNTIME_CONTEXT", None)
    logging = getattr(sys.modules.get("structlog.contextvars"), "_CONTEXT_VARS", {})
    owners = [_attributes(tracing), logging, *map(_attributes, _of_a_notebook())]
    return any(held is variable for owner in owners for held in list(owner.values()))


@functools.lru_cache(maxsize=1024)
def _is_a_setting_of_torch(variable: ContextVar[Any]) -> bool:
    """Whether a variable holds a setting of torch (``torch.utils._config_module``) or a patch."""
    patched = _PATCHED.fullmatch(variable.name)
    if patched is not None and patched[1] in sys.modules:
        return True
    settings = (
        getattr(module, "_config", None)
        for name, module in sys.modules.copy().items()
        if name.startswith("torch.")
    )
    return any(
        getattr(entry, "user_override", None) is variable
        for entries in settings
        if isinstance(entries, dict)
        for entry in list(entries.values())
    )


def _attributes(owner: object) -> Mapping[str, Any]:
    return getattr(owner, "__dict__", {})


def _of_a_notebook() -> list[object]:
    """Return the objects of Jupyter's kernel that have context variables, if it runs."""
    application = getattr(sys.modules.get("ipykernel.kernelapp"), "IPKernelApp", None)
    kernel = getattr(getattr(application, "_instance", None), "kernel", None)
    shell = getattr(kernel, "shell", None)
    parts = [getattr(shell, name, None) for name in ("displayhook", "display_pub")]
    return [] if kernel is None else [kernel, shell, *parts, sys.stdout, sys.stderr]


def _of_opentelemetry() -> Iterator[tuple[str, str, Any]]:
    """Yield the baggage, and other values of its context that say something."""
    module = sys.modules.get("opentelemetry.context")
    current: Mapping[str, Any] = {} if module is None else module.get_current()
    for key, value in current.items():
        name = _DRAWN.sub("", str(key))
        if name.startswith(_SPANS):
            continue
        if name == "baggage" and isinstance(value, Mapping):
            for entry, said in value.items():
                if entry not in _OTHER_TRACES:
                    yield f"baggage.{entry}", entry, said
        elif type(value).__module__ == "builtins" or is_own_class(type(value)):
            yield f"opentelemetry.{name}", name, value


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

    # Threads and connections end with the object itself, not with its substitute.
    return subclass_of(kind, __getattribute__=getattribute, __del__=lambda _: None)


def subclass_of(kind: Any, **members: Any) -> type:
    """Make a subclass under the same name, with members of its own."""
    body = {"__module__": kind.__module__, "__qualname__": kind.__qualname__, **members}
    if issubclass(kind, BaseModel):
        # As a plain class, which has its base's validators: no model is built for each object.
        made: type = ABCMeta.__new__(type(kind), kind.__name__, (kind,), body)
        return made
    return types.new_class(kind.__name__, (kind,), exec_body=lambda own: own.update(body))
