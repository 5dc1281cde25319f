"""Notices what is changed in a store through the object that is watched.

A watched object becomes one of a class of its own: its class as it was, but for methods that change
documents, which tell their listeners when they are done. (PyTorch's
``torch.nn.utils.parametrize`` does so with modules.) So nothing is put into the object; copies and
pickles of it are of the class that it had, and unwatched.

Such methods call each other, across stores and indexes, too. What happened is told once, at the end
of the outermost call.
"""

from __future__ import annotations

import asyncio
import functools
import inspect
import logging
import os
import re
import types
import weakref
from collections.abc import Callable, Collection, Mapping
from contextvars import ContextVar, Token
from dataclasses import dataclass, field
from typing import Any, Protocol

from ragcache_integrations._forks import make_lock
from ragcache_integrations.errors import ConfigurationError

__all__ = ["Change", "Listener", "StoreMethods", "unwatch", "watch"]

logger = logging.getLogger(__name__)

# Names of methods that are believed to change documents; with those of their coroutines.
_CHANGES = re.compile(
    r"(a|async_)?(add|insert|upsert|update|refresh|merge|delete|remove|drop|clear|reset)(_|$)"
)
_WATCH = "__ragcache_watch__"
_lock = make_lock()


@dataclass
class Change:
    """What happened to a store's documents.

    Attributes:
        updated: Ids of documents that came, or are others now.
        removed: Ids of documents that are gone.
        unknown: Something else happened, and nobody knows what.
    """

    updated: set[str] = field(default_factory=set)
    removed: set[str] = field(default_factory=set)
    unknown: bool = False


class Listener(Protocol):
    """Whoever wants to know. Listening keeps nobody alive."""

    def documents_changed(self, change: Change) -> None:
        """Hear what happened. Called after it, in the thread where it did or in a worker's."""


# Returns ids of documents from a call's arguments, by name, and its result; None: not known.
_Ids = Callable[[Mapping[str, Any], Any], Collection[str] | None]


@dataclass(frozen=True)
class StoreMethods:
    """Which methods of a kind of store change documents, and which documents.

    Every other method whose name says so may change any document.

    Attributes:
        base: Module of the framework's base class, whose methods only call the store's own.
        updates: By name: the ids of the documents that a call added or updated.
        removes: By name: the ids of the documents that a call removed.
        listing: Returns the ids of all documents that a store holds, where it can tell.
        shrinks: Names of those whose removals are found in ``listing``, before and after.
        passes_on: Names of those that do nothing but call others that are watched, too.
    """

    base: str
    updates: Mapping[str, _Ids] = field(default_factory=dict)
    removes: Mapping[str, _Ids] = field(default_factory=dict)
    listing: Callable[[Any], Collection[str] | None] | None = None
    shrinks: frozenset[str] = frozenset()
    passes_on: frozenset[str] = frozenset()


def watch(store: object, methods: StoreMethods, listener: Listener) -> None:
    """Tell a listener what is changed through an object, from now on.

    Raises:
        ConfigurationError: Python does not let the object's class be changed.
    """
    with _lock:
        found = _watch_of(store)
        if found is None:
            try:
                found = _Watch(store, methods)
                _set_class(store, found.make_class(_plain_class(store)))
            except Exception as error:  # whatever the class, or its metaclass, does not like
                msg = f"changes of a {type(store).__name__} cannot be noticed: {error}"
                raise ConfigurationError(msg) from error
        found.listeners.add(listener)


def unwatch(store: object, listener: Listener) -> None:
    """Tell it no more; the last one leaves the object as it was."""
    with _lock:
        found = _watch_of(store)
        if found is not None:
            found.listeners.discard(listener)
            if not found.listeners:
                _set_class(store, _plain_class(store))


class _Watch:
    """One object that is watched."""

    def __init__(self, store: object, methods: StoreMethods) -> None:
        self.store = weakref.ref(store)
        self.methods = methods
        self.listeners: weakref.WeakSet[Listener] = weakref.WeakSet()

    def make_class(self, kind: type) -> type:
        """Return the class, under the same name."""
        namespace: dict[str, Any] = {
            _WATCH: self,
            "__module__": kind.__module__,
            "__qualname__": kind.__qualname__,
            "__doc__": kind.__doc__,
            "__reduce_ex__": functools.partialmethod(_reduce, kind),
        }
        for name in dir(kind):
            function = inspect.getattr_static(kind, name)
            if (
                _CHANGES.match(name)
                and inspect.isfunction(function)
                and function.__module__ != self.methods.base
            ):
                namespace[name] = _telling(name, function, self)
        return types.new_class(kind.__name__, (kind,), exec_body=lambda own: own.update(namespace))

    def hears(self, store: object) -> bool:
        """Whether anybody wants to know of this object. A copy may have the class, too."""
        return self.store() is store and len(self.listeners) > 0

    def tell(self, change: Change) -> None:
        """Tell every listener."""
        for listener in list(self.listeners):
            try:
                listener.documents_changed(change)
            except Exception:  # the store's own caller has nothing to do with it
                logger.exception("A change of the store was not followed")


def _watch_of(store: object) -> _Watch | None:
    found: _Watch | None = vars(type(store)).get(_WATCH)
    # A copy may have the class, but is another store.
    return found if found is not None and found.store() is store else None


def _plain_class(store: object) -> type:
    kind = type(store)
    return kind.__mro__[1] if _WATCH in vars(kind) else kind


def _set_class(store: object, kind: type) -> None:
    object.__setattr__(store, "__class__", kind)  # some classes have a setter of their own


def _reduce(store: object, kind: Any, protocol: Any) -> Any:
    """Copy and pickle as of the class that the store had."""
    reduced = kind.__reduce_ex__(store, protocol)
    if isinstance(reduced, str):
        return reduced
    make, arguments, *rest = reduced
    own = type(store)
    # Not ``make`` itself: pickle has a short way for it, which insists on the object's own class.
    maker = functools.partial(make, *(kind if one is own else one for one in arguments))
    return (maker, (), *rest)


class _Operation:
    """An outermost call, and all that happened within it."""

    def __init__(self) -> None:
        self.changes: dict[_Watch, Change] = {}
        self.open = True
        _untold.add(self)

    def tell(self) -> None:
        for watched, change in self.changes.items():
            if change.unknown or change.updated or change.removed:
                watched.tell(change)
        _untold.discard(self)


# Outermost calls under way, or whose changes are being told.
_untold: weakref.WeakSet[_Operation] = weakref.WeakSet()


def _tell_after_fork() -> None:
    """Tell a child what the parent's threads were doing: they tell it in the parent only."""
    untold = list(_untold)
    _untold.clear()
    for operation in untold:
        for watched in operation.changes:
            watched.tell(Change(unknown=True))


os.register_at_fork(after_in_child=_tell_after_fork)  # after locks are made new

_current: ContextVar[_Operation | None] = ContextVar("ragcache_store_operation", default=None)


class _Call:
    """A call of a watched method, bound to its object."""

    def __init__(self, watched: _Watch, method: Callable[..., Any], name: str) -> None:
        self._watched = watched
        self._method = method
        self._name = name
        operation = _current.get()
        self._token: Token[_Operation | None] | None = None
        # One that has ended can still be seen by tasks that it started.
        if operation is None or not operation.open:
            operation = _Operation()
            self._token = _current.set(operation)
        self._operation = operation
        self._change = operation.changes.setdefault(watched, Change())
        self._before = self._listed()

    def fail(self) -> None:
        """Note an exception: what was done until then is not known."""
        self._change.unknown = True
        if self._end():
            self._operation.tell()

    def succeed(self, result: Any, positional: Any, named: Any) -> _Operation | None:
        """Note what the call did; return what is to be told now, if it was the outermost."""
        try:
            known = self._note(result, positional, named)
        except Exception:  # arguments or results of kinds that no store is known to have
            logger.debug("It is not known what %s did", self._name, exc_info=True)
            known = False
        self._change.unknown |= not known
        return self._operation if self._end() else None

    def _note(self, result: Any, positional: Any, named: Any) -> bool:
        """Note what the call did; return whether that is all."""
        methods, change = self._watched.methods, self._change
        readers = [(methods.updates, change.updated)]
        known = self._name in methods.passes_on
        after = None if self._before is None else self._listed()
        if self._before is not None and after is not None:
            change.removed |= self._before - after
            known = True
        else:
            readers.append((methods.removes, change.removed))
        for reader, ids in readers:
            if self._name in reader:
                arguments = inspect.signature(self._method).bind(*positional, **named).arguments
                found = reader[self._name](arguments, result)
                if found is None or not all(isinstance(one, str) for one in found):
                    return False
                ids.update(found)
                known = True
        return known

    def _listed(self) -> set[str] | None:
        methods = self._watched.methods
        if methods.listing is None or self._name not in methods.shrinks:
            return None
        found = methods.listing(self._watched.store())
        return None if found is None else set(found)

    def _end(self) -> bool:
        if self._token is None:
            return False
        self._operation.open = False
        _current.reset(self._token)
        return True


def _telling(name: str, function: Callable[..., Any], watched: _Watch) -> Callable[..., Any]:
    """Return a method that tells what it did."""

    @functools.wraps(function)
    def method(self: Any, *positional: Any, **named: Any) -> Any:
        own = function.__get__(self)
        if not watched.hears(self):
            return own(*positional, **named)
        call = _Call(watched, own, name)
        try:
            result = own(*positional, **named)
        except BaseException:
            call.fail()
            raise
        done = call.succeed(result, positional, named)
        if done is not None:
            done.tell()
        return result

    @functools.wraps(function)
    async def coroutine(self: Any, *positional: Any, **named: Any) -> Any:
        own = function.__get__(self)
        if not watched.hears(self):
            return await own(*positional, **named)
        call = _Call(watched, own, name)
        try:
            result = await own(*positional, **named)
        except BaseException:
            call.fail()
            raise
        done = call.succeed(result, positional, named)
        if done is not None:
            try:
                await asyncio.to_thread(done.tell)
            except BaseException:  # cancelled, perhaps before the thread began
                done.tell()
                raise
        return result

    return coroutine if inspect.iscoroutinefunction(function) else method
