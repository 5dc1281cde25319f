"""Notices changes that are made in a store through a watched object.

Methods that change documents are wrapped once, on the classes that define them; the wrappers check
whether their object is watched, and notify its listeners when they are done. So the object keeps
its class, by which other code looks things up, and nothing is put into it; copies and pickles of it
are unwatched. For all other objects of a class, a call costs one more look into a dictionary.

Such methods call each other, across stores and indexes, too. Listeners are notified once, at the
end of the outermost call.
"""

from __future__ import annotations

import asyncio
import functools
import inspect
import logging
import os
import re
import weakref
from collections import Counter
from collections.abc import Callable, Collection, Mapping
from contextvars import ContextVar, Token
from dataclasses import dataclass, field
from typing import Any, Protocol

from ragcache_integrations.core.forks import make_lock
from ragcache_integrations.errors import ConfigurationError

__all__ = ["Change", "Listener", "StoreMethods", "unwatch", "watch"]

logger = logging.getLogger(__name__)

# Names of methods that are believed to change documents; with those of their coroutines.
_CHANGES = re.compile(
    r"(a|async_)?m?(add|insert|upsert|update|refresh|merge|delete|remove|drop|clear|reset)(_|$)"
    r"|a?mset$"
)
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
    """Receives changes. A listener is referred to weakly."""

    def documents_changed(self, change: Change) -> None:
        """Receive a change. Called after it, in the same thread or in a worker thread."""


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
        listing: Returns the ids of all documents that a store holds, where they are known; an id
            comes as often as the store holds it.
        shrinks: Names of those whose removals are found in ``listing``, before and after. A
            document that is held less often than before, but still is, is another one now.
        passes_on: Names of those that do nothing but call others that are watched, too.
    """

    base: str
    updates: Mapping[str, _Ids] = field(default_factory=dict)
    removes: Mapping[str, _Ids] = field(default_factory=dict)
    listing: Callable[[Any], Collection[str] | None] | None = None
    shrinks: frozenset[str] = frozenset()
    passes_on: frozenset[str] = frozenset()


def watch(store: object, methods: StoreMethods, listener: Listener) -> None:
    """Notify a listener of all changes made through an object from now on.

    Raises:
        ConfigurationError: Python does not let the object be referred to weakly, or its class be
            changed.
    """
    with _lock:
        try:
            watched = _watch_of(store) or _Watch(store, methods)
            _wrap_methods(type(store), methods.base)
        except Exception as error:  # any objection of the class or its metaclass
            msg = f"changes of a {type(store).__name__} cannot be noticed: {error}"
            raise ConfigurationError(msg) from error
        watched.listeners.add(listener)
        _watches[id(store)] = watched


def unwatch(store: object, listener: Listener) -> None:
    """Stop notifying a listener."""
    with _lock:
        watched = _watch_of(store)
        if watched is not None:
            watched.listeners.discard(listener)
            if not watched.listeners:
                del _watches[id(store)]


class _Watch:
    """One object that is watched."""

    def __init__(self, store: object, methods: StoreMethods) -> None:
        number, watches = id(store), _watches

        def forget(_: object) -> None:
            # In a garbage collection, perhaps under the lock. Nothing else has this number before
            # the object is gone, so that no lock is needed. At the interpreter's exit, the module
            # may have lost its names.
            if watches.get(number) is self:
                del watches[number]

        self.store = weakref.ref(store, forget)
        self.methods = methods
        self.listeners: weakref.WeakSet[Listener] = weakref.WeakSet()

    def tell(self, change: Change) -> None:
        """Notify every listener."""
        for listener in list(self.listeners):
            try:
                listener.documents_changed(change)
            except Exception:  # the store's own caller has nothing to do with it
                logger.exception("A change of the store was not followed")


# By the objects' numbers: stores may compare as equal, or have no hash.
_watches: dict[int, _Watch] = {}
_wrappers: weakref.WeakSet[Callable[..., Any]] = weakref.WeakSet()


def _watch_of(store: object) -> _Watch | None:
    watched = _watches.get(id(store))
    return watched if watched is not None and watched.store() is store else None


def _wrap_methods(kind: type, base: str) -> None:
    """Wrap the methods that change documents, in all base classes, unless they are wrapped."""
    for owner in kind.__mro__:
        for name, function in list(vars(owner).items()):
            if (
                _CHANGES.match(name)
                and inspect.isfunction(function)
                and function not in _wrappers
                and function.__module__ != base
            ):
                wrapper = _watched_method(name, function)
                setattr(owner, name, wrapper)
                _wrappers.add(wrapper)


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


# Outermost calls under way, or whose changes are being reported.
_untold: weakref.WeakSet[_Operation] = weakref.WeakSet()


def _tell_after_fork() -> None:
    """Report unknown changes in a child; the parent's threads report theirs in the parent only."""
    untold = list(_untold)
    _untold.clear()
    for operation in untold:
        for watched in operation.changes:
            watched.tell(Change(unknown=True))


os.register_at_fork(after_in_child=_tell_after_fork)  # after locks are made new

_current: ContextVar[_Operation | None] = ContextVar("ragcache_store_operation", default=None)


# The innermost call of this thread or task.
_innermost: ContextVar[_Call | None] = ContextVar("ragcache_store_call", default=None)


class _Call:
    """A call of a watched method, bound to its object."""

    def __init__(self, watched: _Watch, function: Callable[..., Any], name: str) -> None:
        self._watched = watched
        self.function = function
        self._method = function.__get__(watched.store())
        self._name = name
        self.over = False
        self.outer = _innermost.get()
        self._outer_token = _innermost.set(self)
        operation = _current.get()
        self._token: Token[_Operation | None] | None = None
        # One that has ended can still be seen by tasks that it started.
        if operation is None or not operation.open:
            operation = _Operation()
            self._token = _current.set(operation)
        self._operation = operation
        self._change = operation.changes.setdefault(watched, Change())
        self._before = self._list_ids()

    @classmethod
    def begin(cls, store: object, function: Callable[..., Any], name: str) -> _Call | None:
        """Begin a call, if its store is watched."""
        watched = _watches.get(id(store))
        if watched is None or watched.store() is not store or not watched.listeners:
            return None
        if function.__module__ == watched.methods.base or cls._is_inherited(
            watched, function, name
        ):
            return None
        return cls(watched, function, name)

    @staticmethod
    def _is_inherited(watched: _Watch, function: Callable[..., Any], name: str) -> bool:
        """Whether a method of a subclass calls the one of the same name that it overrides."""
        call = _innermost.get()
        while call is not None and not call.is_of(watched, name):
            call = call.outer
        return call is not None and not call.over and call.function is not function

    def is_of(self, watched: _Watch, name: str) -> bool:
        """Whether it is a call of this method's name on this object."""
        return self._watched is watched and self._name == name

    def fail(self) -> None:
        """Note an exception: what was done until then is not known."""
        self._change.unknown = True
        if self._end():
            self._operation.tell()

    def succeed(self, result: Any, positional: Any, named: Any) -> _Operation | None:
        """Note what the call did; return what is to be reported now, if it was the outermost."""
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
        after = None if self._before is None else self._list_ids()
        if self._before is not None and after is not None:
            fewer = self._before - after
            change.removed |= fewer.keys() - after.keys()
            change.updated |= fewer.keys() & after.keys()
            known = True
        else:
            readers.append((methods.removes, change.removed))
        for reader, ids in readers:
            if self._name in reader:
                arguments = inspect.signature(self._method).bind(*positional, **named).arguments
                changed = reader[self._name](arguments, result)
                if changed is None or not all(
                    isinstance(document_id, str) for document_id in changed
                ):
                    return False
                ids.update(changed)
                known = True
        return known

    def _list_ids(self) -> Counter[str] | None:
        methods = self._watched.methods
        if methods.listing is None or self._name not in methods.shrinks:
            return None
        ids = methods.listing(self._watched.store())
        return None if ids is None else Counter(ids)

    def _end(self) -> bool:
        self.over = True  # tasks that it started still see it
        _innermost.reset(self._outer_token)
        if self._token is None:
            return False
        self._operation.open = False
        _current.reset(self._token)
        return True


def _watched_method(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a method that reports its changes of an object that is watched."""

    @functools.wraps(function)
    def method(self: Any, *positional: Any, **named: Any) -> Any:
        call = _Call.begin(self, function, name)
        if call is None:
            return function(self, *positional, **named)
        try:
            result = function(self, *positional, **named)
        except BaseException:
            call.fail()
            raise
        done = call.succeed(result, positional, named)
        if done is not None:
            done.tell()
        return result

    @functools.wraps(function)
    async def coroutine(self: Any, *positional: Any, **named: Any) -> Any:
        call = _Call.begin(self, function, name)
        if call is None:
            return await function(self, *positional, **named)
        try:
            result = await function(self, *positional, **named)
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
