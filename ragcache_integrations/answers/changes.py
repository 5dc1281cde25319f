"""Notices that the settings of a chain, its prompts or its model have changed.

A chain is gone through once. From then on, each lookup compares what all of its parts hold, by
identity, with what they held before. Only data are read: no property, no method of anybody's class.
"""

from __future__ import annotations

import argparse
import array
import configparser
import contextlib
import functools
import itertools
import logging
import operator
import os
import string
import sys
import types
from collections import ChainMap, OrderedDict, UserDict, UserList, deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from enum import Enum
from typing import Any

import numpy as np
from pydantic import BaseModel

from ragcache_integrations.core.forks import make_lock
from ragcache_integrations.retrievers.keys import (
    Notes,
    OwnParts,
    Uses,
    is_own_class,
    is_own_code,
    is_own_module,
    remembered,
    slots_of,
    uses_of,
)

from .finish import WORDS

__all__ = ["CHANGED", "ChangeWatch"]

logger = logging.getLogger(__name__)

CHANGED = (
    "the chain, its prompt or its model changed while it answered. Nothing is kept of one that "
    "notes something in its own attributes with each answer"
)
"""Why the answer of a chain whose settings changed meanwhile is not kept."""

_MOST_OBJECTS = 3_000
_MOST_ITEMS = 10_000
"""Items of a container that are gone through: of a larger one, such as a vocabulary, changes within
the items are not noticed, only other items."""
_MOST_COMPARED = 50_000
"""Items of a container that are compared: of a larger one, how many there are, and a sample."""
_MOST_BYTES = 1 << 20
"""Bytes of an array that are compared: of a larger one, its shape and a sample."""
_SAMPLE = 1_000
_MANY_CHANGES = 20

_LARGE = "Of a chain, changes of the first %d objects are noticed"
_RESTLESS = (
    "A chain changed %d times, the last time in %s. Each change ends all earlier answers: pass "
    "what is another one for each question as an input"
)

_SEQUENCES = (list, tuple, set, frozenset, deque)
_ARRAYS = (np.ndarray, array.array, bytearray)
_MAPPINGS = (dict, types.MappingProxyType)
_HOLDERS = (
    *(types.SimpleNamespace, argparse.Namespace, UserDict, UserList, ChainMap),
    *(configparser.ConfigParser, configparser.RawConfigParser, string.Template, type(os.environ)),
)
"""Classes of Python's own whose objects hold what is given to them."""
_WRAPPERS = (functools.partial, type(functools.lru_cache(len)))
_FOLLOWED = (*_SEQUENCES, *_ARRAYS, *_MAPPINGS, *_WRAPPERS, types.FunctionType)
_FACTORIES = "default_factory"
_METHODS = (types.MethodType, types.BuiltinMethodType)
_PLAIN = (str, int, float, bool, bytes, complex, type(None), type(...))
_MADE = frozenset(WORDS["constructors"])
_WHOLE = frozenset(WORDS["whole"])
_ENVIRONMENT = frozenset(("environ", "getenv"))
Parts = tuple[Any, ...]
Read = Callable[[], Parts]


class ChangeWatch:
    """Says whether anything was assigned within an object since it was looked at last.

    Watched are

    - the attributes of pydantic models, of objects of a framework's classes and of your own, and of
      your own classes themselves; and the items of lists, dicts, sets and arrays within them,
    - environment variables, if your own functions read any,
    - what your functions name: variables around them, globals, attributes of your modules, defaults
      and what was bound by ``functools.partial``; and the functions that they name in turn, with
      the methods of your objects.

    What your functions assign or add to themselves while they answer, such as a count of calls, is
    taken for their notes and is not watched, except in attributes of pydantic models and of a
    framework's objects. A model, a prompt or a service that they make when it is first needed is
    watched from then on.

    Not watched are objects of other libraries, retrievers, whose documents say all, handlers of
    callbacks, and the frameworks' rate limiters and caches. Thread-safe.

    Args:
        root: The object, such as a chain.
        modules: Beginnings of the names of the modules whose objects are gone through, besides
            pydantic models.

    Attributes:
        reads_configs: Whether the application's own code within may read all that a run's
            configuration holds.
        holds_store: Whether it holds a Store of LangGraph's itself.
    """

    def __init__(self, root: object, modules: tuple[str, ...]) -> None:
        self._root = root
        self._modules = modules
        self._lock = make_lock()
        self._version = 0
        self._warned: set[str] = set()
        self._seen = self._look()

    def version(self) -> int:
        """Return a number that is another one after each change."""
        with self._lock:
            # By identity: comparing values could run anybody's code, and take any time.
            made = False
            for place, (value, read, held, lazy) in enumerate(self._seen):
                now = _read(read)
                if len(now) == len(held) and all(map(operator.is_, now, held)):
                    continue
                if lazy and _only_made(now, held):
                    made = True
                elif _same(now, held):
                    self._seen[place] = value, read, now, lazy
                else:
                    self._changed(value)
                    return self._version
            if made:
                self._seen = self._look()
            return self._version

    def _changed(self, value: object) -> None:
        self._version += 1
        self._seen = self._look()
        if self._version >= _MANY_CHANGES:
            self._warn(_RESTLESS, _MANY_CHANGES, _described(value))

    def _warn(self, warning: str, *args: object) -> None:
        if warning not in self._warned:
            self._warned.add(warning)
            logger.warning(warning, *args)

    def _look(self) -> list[tuple[Any, Read, Parts, bool]]:
        """Return the objects within, each with how to read it, and what it holds.

        The last says that something of it may be made when it is first needed.
        """
        parts = OwnParts(self._root)
        self.reads_configs, self.holds_store = parts.reads_configs, parts.holds_store
        # What code reads and writes is known only when all of it was found.
        uses = _Walk(self._modules).go(self._root).uses()
        walk = _Walk(self._modules, uses).go(self._root)
        if len(walk.found) == _MOST_OBJECTS:
            self._warn(_LARGE, _MOST_OBJECTS)
        reads = [(value, walk.reader(value), False) for value in walk.found.values()]
        made = [(value, walk.reader_of_made(value), True) for value in walk.found.values()]
        return [
            (value, read, _read(read), lazy)
            for value, read, lazy in reads + made
            if read is not None
        ]


class _Walk:
    """Goes through all that an object reaches.

    Args:
        modules: As for :class:`ChangeWatch`.
        uses: What all functions within read and write; ``None`` where that is to be found.

    Attributes:
        found: What it reached, by its ``id``.
    """

    def __init__(self, modules: tuple[str, ...], uses: Uses | None = None) -> None:
        self._modules = modules
        self._notes = Notes() if uses is None else uses.notes
        # None: all of them. An object may be read as a whole, too.
        self._read = None if uses is None or uses.names & _WHOLE else uses.names
        self.found: dict[int, Any] = {}
        self._waiting: list[Any] = []
        self._keys: dict[int, frozenset[Any]] = {}
        self._functions: list[types.FunctionType] = []
        self._names: set[str] = set()
        self._classes: dict[type, set[str]] = {}
        # What functions name they may call. What a constructor assigns is no note: it is there
        # before anything changes it.
        self._made: dict[type, None] = {}
        self._constructors: dict[types.CodeType, None] = {}
        self._names_of_made: set[str] = set()
        self._own_modules: dict[types.ModuleType, set[str]] = {}

    def go(self, root: object) -> _Walk:
        """Go through an object; return the walk itself."""
        self._waiting = [root]
        while self._waiting and len(self.found) < _MOST_OBJECTS:
            value = self._waiting.pop()
            if id(value) not in self.found and self._is_watched(value):
                self.found[id(value)] = value
                self._follow(value)
            if not self._waiting:
                self._follow_names()
        return self

    def uses(self) -> Uses:
        """Return what the functions that were found read and write."""
        uses = Uses()
        for function in self._functions:
            used = uses_of(function.__code__)
            made = function.__code__ in self._constructors
            uses.add(replace(used, notes=Notes(), returned={}) if made else used)
        uses.follow_returned()
        return uses

    def _is_watched(self, value: Any) -> bool:
        # By the class: what an object says to be, such as a proxy, is somebody's code.
        kind = type(value)
        if issubclass(kind, _METHODS):
            return not isinstance(value.__self__, types.ModuleType | None)
        if issubclass(kind, types.ModuleType):
            return is_own_module(value.__name__)
        if issubclass(kind, type):
            return is_own_class(value)
        if issubclass(kind, Enum):
            return is_own_class(kind)
        if issubclass(kind, _PLAIN):
            return False
        return issubclass(kind, _FOLLOWED) or _is_decorated(kind) or self._is_held(value)

    def _is_held(self, value: object) -> bool:
        """Whether the attributes of an object are watched."""
        kind = type(value)
        return self._is_known(kind) or (
            (kind in _HOLDERS or is_own_class(kind)) and not _is_left_out(kind)
        )

    def _is_known(self, kind: type) -> bool:
        return _is_known(kind.__mro__, self._modules)

    # What is reached from an object

    def _follow(self, value: Any) -> None:
        kind = type(value)
        if issubclass(kind, types.FunctionType):
            if is_own_code(value):
                self._functions.append(value)
                made = value.__code__ in self._constructors
                names = self._names_of_made if made else self._names
                names |= uses_of(value.__code__).names
            self._push(self._of_function(value))
        elif issubclass(kind, _METHODS):
            inner = getattr(value, "__func__", None)
            own = [] if self._is_held(value.__self__) else list(_own_dict(value.__self__).values())
            self._push_all((value.__self__, inner, *filter(self._is_held, own)))
        elif issubclass(kind, functools.partial):
            self._push_all((value.func, value.args, value.keywords))
        elif issubclass(kind, _WRAPPERS) or _is_decorated(kind):
            self._push_all((value.__wrapped__,))
        elif issubclass(kind, types.ModuleType):
            self._own_modules[value] = set()
        elif issubclass(kind, type):
            self._push(self._of_class(value))
        else:
            self._follow_object(value)

    def _follow_object(self, value: Any) -> None:
        kind = type(value)
        if issubclass(kind, _SEQUENCES) and _count(value) <= _MOST_ITEMS:
            self._push_all(_sequence(value, self._keys.get(id(value), frozenset())))
        elif issubclass(kind, _MAPPINGS) and _count(value) <= _MOST_ITEMS:
            self._push_all(_mapping(value, self._keys.get(id(value), frozenset())))
        elif issubclass(kind, np.ndarray) and value.dtype.hasobject and value.size <= _MOST_ITEMS:
            self._push_all(np.ndarray.view(value, np.ndarray).flat)
        if self._is_held(value):
            strict = self._is_known(kind)
            items = _attributes(value)
            read = self._read_of(kind)
            if read is not None:
                items = [item for item in items if item[0] in read]
            self._push((None if strict else name, part) for name, part in items)
            self._push(_private(value))
        if is_own_class(kind):
            self._waiting.append(kind)

    def _read_of(self, kind: type) -> set[str] | None:
        """Return which attributes of an own class are read; ``None``: any may be.

        What a service notes for others is no setting of the chain that uses a part of it.
        """
        return self._read if is_own_class(kind) and _is_service(kind) else None

    def _push_all(self, parts: Iterable[Any]) -> None:
        self._push((None, part) for part in parts)

    def _push(self, slots: Iterable[tuple[str | None, Any]]) -> None:
        """Have parts gone through, unless they are notes."""
        for name, part in slots:
            if issubclass(type(part), type):
                self._made[part] = None
            if type(part) in _PLAIN or (name in self._notes.assigned and not _acts(type(part))):
                continue
            keys = self._notes.keys_of(name)
            if keys is None and issubclass(type(part), (*_SEQUENCES, *_ARRAYS, *_MAPPINGS)):
                continue
            if keys and issubclass(type(part), _ARRAYS):
                continue
            if keys:
                self._keys[id(part)] = keys
            self._waiting.append(part)

    def _of_function(self, function: types.FunctionType) -> Iterator[tuple[str | None, Any]]:
        cells = zip(function.__code__.co_freevars, function.__closure__ or (), strict=False)
        yield from ((name, _content(cell)) for name, cell in cells)
        yield from ((None, value) for value in function.__defaults__ or ())
        yield from ((None, value) for value in (function.__kwdefaults__ or {}).values())
        yield from list(function.__dict__.items())
        around = function.__globals__
        yield from [(name, around.get(name)) for name in self._globals_of(function)]
        if is_own_code(function):
            imports = map(sys.modules.get, uses_of(function.__code__).imports)
            yield from ((None, module) for module in imports if module is not None)

    def _globals_of(self, function: types.FunctionType) -> list[str]:
        """Return the names of a function's globals that are watched."""
        around = function.__globals__
        names = uses_of(function.__code__).globals
        if is_own_code(function):
            return names
        # A library's code names much that is nobody's setting.
        return [name for name in names if self._is_known(type(around.get(name)))]

    def _of_class(self, kind: type) -> Iterator[tuple[str | None, Any]]:
        self._classes[kind] = set()
        self._waiting.append(type(kind))  # attributes of a class may be its metaclass's
        yield from ((None, base) for base in kind.__mro__[1:] if is_own_class(base))
        for name in self._names_of(kind):
            value = vars(kind).get(name)
            if not isinstance(value, _FUNCTIONS) and not _is_decorated(type(value)):
                yield name, value

    def _names_of(self, kind: type) -> list[str]:
        """Return the names in a class that are watched."""
        read = self._read_of(kind)
        names = [
            name
            for name in list(vars(kind))
            if not name.startswith(("__", "_abc_", "model_"))
            and not (name.startswith("_") and name.endswith("_"))  # an Enum's
        ]
        return [name for name in names if read is None or name in read]

    def _follow_names(self) -> None:
        """Follow the methods of own classes that are called by now, and what is used of modules."""
        for kind, done in self._classes.items():
            for name, value in list(vars(kind).items()):
                if name not in done and (name in self._names or _is_entry(kind, name)):
                    done.add(name)
                    self._waiting.extend(_functions_in(value))
        if not self._waiting:
            self._follow_made()
        names = self._names | self._names_of_made
        if names & _ENVIRONMENT and id(os.environ) not in self.found:
            self._waiting.append(os.environ)
        for module, done in self._own_modules.items():
            used = (names - done) & vars(module).keys()
            done.update(used)
            self._push([(name, vars(module)[name]) for name in used])

    def _follow_made(self) -> None:
        """Follow what runs when own code makes an object of an own class that it names."""
        for kind in [base for made in self._made for base in made.__mro__ if is_own_class(base)]:
            done = self._classes.setdefault(kind, set())
            names = self._names_of_made | _MADE
            for name, value in list(vars(kind).items()):
                if name in names and name not in done:
                    done.add(name)
                    self._follow_constructor(*_functions_in(value))
            if issubclass(kind, BaseModel) and _FACTORIES not in done:
                done.add(_FACTORIES)
                self._follow_constructor(*_factories(kind))

    def _follow_constructor(self, *functions: Any) -> None:
        for function in functions:
            code = getattr(getattr(function, "__func__", function), "__code__", None)
            if code is not None:
                self._constructors[code] = None
            self._waiting.append(function)

    # How an object is read again

    def reader(self, value: Any) -> Read:
        """Return a function that reads all that is compared of an object."""
        kind = type(value)
        if issubclass(kind, types.FunctionType):
            return self._function_reader(value)
        if issubclass(kind, types.MethodType):
            own = None if self._is_held(value.__self__) else value.__self__
            return lambda: (value.__self__, value.__func__, *_own_dict(own).values())
        if issubclass(kind, (types.BuiltinMethodType, *_WRAPPERS)) or _is_decorated(kind):
            return tuple  # what they hold can't be assigned
        if issubclass(kind, types.ModuleType | type):
            written = self._names_of(value) if issubclass(kind, type) else ()
            names = sorted({*written, *self._names} - self._notes.assigned)
            return lambda: tuple(map(vars(value).get, names))
        return self._object_reader(value)

    def reader_of_made(self, value: Any) -> Read | None:
        """Return a function that reads what code itself assigns, if it is no mere note."""
        kind, names = type(value), self._notes.assigned
        if issubclass(kind, types.FunctionType):
            around = value.__globals__
            globals_, cells = self._variables_of(value, noted=True)
            if not globals_ and not cells:
                return None
            return lambda: tuple(map(_lasting, (*map(around.get, globals_), *map(_content, cells))))
        if issubclass(kind, types.ModuleType | type):
            there = sorted(names & vars(value).keys())
            return (lambda: tuple(map(_lasting, map(vars(value).get, there)))) if there else None
        if not names or not self._is_held(value):
            return None
        private = _private(value)
        if self._is_known(kind) and not private:
            return None
        attributes = [] if self._is_known(kind) else sorted(names)
        slots = [slot for slot in slots_of(kind) if slot.__name__ in names]
        return lambda: (
            *map(_lasting, map(_own_dict(value).get, attributes)),
            *(_lasting(_slot(slot, value)) for slot in slots),
            *(_lasting(part) for name, part in _private(value) if name in names),
        )

    def _variables_of(
        self, function: types.FunctionType, *, noted: bool
    ) -> tuple[list[str], list[types.CellType]]:
        """Return the globals and closure variables that are notes, or those that are not."""
        notes = self._notes.assigned
        closure = zip(function.__code__.co_freevars, function.__closure__ or (), strict=False)
        return (
            [name for name in self._globals_of(function) if (name in notes) is noted],
            [cell for name, cell in closure if (name in notes) is noted],
        )

    def _function_reader(self, function: types.FunctionType) -> Read:
        around, left_out = function.__globals__, frozenset(self._notes.assigned)
        names, cells = self._variables_of(function, noted=False)
        return lambda: (
            function.__code__,
            function.__defaults__,
            *(function.__kwdefaults__ or {}).values(),
            *map(around.get, names),
            *map(_content, cells),
            *_mapping(function.__dict__, left_out),
        )

    def _object_reader(self, value: Any) -> Read:
        reads: list[Read] = []
        kind = type(value)
        if issubclass(kind, _SEQUENCES):
            places = self._keys.get(id(value), frozenset())
            reads.append(functools.partial(_sequence, value, places))
        elif issubclass(kind, _ARRAYS):
            reads.append(functools.partial(_array, value))
        elif issubclass(kind, _MAPPINGS):
            keys = self._keys.get(id(value), frozenset())
            reads.append(functools.partial(_mapping, value, keys, named=True))
        if self._is_held(value):
            reads += self._attribute_readers(value)
        if len(reads) == 1:
            return reads[0]
        return lambda: tuple(itertools.chain.from_iterable(read() for read in reads))

    def _attribute_readers(self, value: Any) -> Iterator[Read]:
        kind = type(value)
        assigned = frozenset(self._notes.assigned)
        notes = frozenset() if self._is_known(kind) else assigned
        read = self._read_of(kind)
        slots = [slot for slot in slots_of(kind) if slot.__name__ not in notes]
        if is_own_class(kind):
            yield lambda: (type(value),)  # which may be assigned
        if read is not None:
            names = sorted(read - notes)
            yield lambda: tuple(map(_own_dict(value).get, names))
            slots = [slot for slot in slots if slot.__name__ in read]
        else:
            computed = _computed_once(kind.__mro__)
            left_out = computed | notes
            yield lambda: _mapping(_own_dict(value), left_out, named=True)
        if issubclass(kind, BaseModel):
            if value.__pydantic_extra__ is not None:
                yield lambda: _mapping(value.__pydantic_extra__ or {}, named=True)
            if _private(value):
                yield lambda: _mapping(value.__pydantic_private__ or {}, assigned, named=True)
        if slots:
            yield lambda: tuple(_slot(slot, value) for slot in slots)


_FUNCTIONS = (types.FunctionType, property, staticmethod, classmethod, functools.cached_property)
_MISSING = object()


def _own_dict(value: Any) -> dict[str, Any]:
    """Return the attributes of an object, of which no code of its class is asked."""
    try:
        own = object.__getattribute__(value, "__dict__")
    except AttributeError:
        return {}
    return own if type(own) is dict else {}


def _attributes(value: Any) -> list[tuple[str, Any]]:
    """Return the attributes of an object, other than those that are computed when first read."""
    kind = type(value)
    computed = _computed_once(kind.__mro__)
    extra = (value.__pydantic_extra__ or {}) if issubclass(kind, BaseModel) else {}
    # Copied at once: other threads may set attributes meanwhile.
    items = [*list(_own_dict(value).items()), *list(extra.items())]
    items += [(slot.__name__, _slot(slot, value)) for slot in slots_of(kind)]
    return [item for item in items if item[0] not in computed]


def _private(value: Any) -> list[tuple[str, Any]]:
    """Return the private attributes of a model of an own class."""
    kind = type(value)
    if not issubclass(kind, BaseModel) or not is_own_class(kind):
        return []
    return list((value.__pydantic_private__ or {}).items())


def _slot(slot: types.MemberDescriptorType, value: Any) -> Any:
    with contextlib.suppress(AttributeError):  # not assigned yet
        return slot.__get__(value)
    return _MISSING


@remembered
def _is_service(kind: type) -> bool:
    """Whether a class of no framework has methods of its own, rather than only holding data."""
    own = [base for base in kind.__mro__ if base is not object]
    names = [name for base in own for name in list(vars(base)) if not name.startswith("__")]
    methods = any(_functions_in(vars(base).get(name)) for base in own for name in names)
    return all(map(is_own_class, own)) and methods


def _is_entry(kind: type, name: str) -> bool:
    """Whether a framework or Python itself may call a method of an own class."""
    if name.startswith("__") and name.endswith("__"):
        return name not in _MADE
    bases = [base for base in kind.__mro__[1:] if base is not object and not is_own_class(base)]
    return any(name in vars(base) for base in bases)


def _factories(kind: type[BaseModel]) -> Iterator[Any]:
    """Yield the functions that make a model's defaults, and check its fields."""
    fields: list[Any] = [*kind.model_fields.values(), *kind.__private_attributes__.values()]
    yield from (field.default_factory for field in fields if field.default_factory is not None)
    decorators = kind.__pydantic_decorators__
    for checks in (decorators.validators, decorators.field_validators, decorators.model_validators):
        yield from (check.func for check in checks.values())


def _functions_in(value: Any) -> list[Any]:
    """Return the functions that a class has under a name."""
    if isinstance(value, property):
        return [part for part in (value.fget, value.fset) if part is not None]
    if isinstance(value, staticmethod | classmethod):
        return [value.__func__]
    if isinstance(value, functools.cached_property):
        return [value.func]
    return [value] if isinstance(value, types.FunctionType) or _is_decorated(type(value)) else []


def _lasting(value: Any) -> Any:
    """Return an object that does something; ``None`` for notes, which only say something."""
    return value if _acts(type(value)) else None


@remembered
def _acts(kind: type) -> bool:
    """Whether objects are models, prompts, services or functions, rather than data."""
    if issubclass(kind, (*_PLAIN, *_SEQUENCES, *_ARRAYS, *_MAPPINGS)):
        return False
    calls = any("__call__" in vars(base) for base in kind.__mro__)
    return calls or _is_service(kind) or any(hasattr(kind, name) for name in WORDS["actions"])


def _content(cell: types.CellType) -> object:
    try:
        return cell.cell_contents
    except ValueError:  # not assigned yet
        return cell


def _base(value: object) -> Any:
    """Return the container's class of Python's own: its methods are asked, not somebody's."""
    return next(
        base for base in (OrderedDict, *_MAPPINGS, *_SEQUENCES) if issubclass(type(value), base)
    )


def _count(value: object) -> int:
    return int(_base(value).__len__(value))


def _sequence(value: Any, left_out: frozenset[Any] = frozenset()) -> Parts:
    """Return the items of a list, a tuple or a set; if they are very many, some of them."""
    base, many = _base(value), _count(value)
    if left_out and many <= _MOST_COMPARED:
        items = enumerate(base.__iter__(value))
        return tuple(item for at, item in items if not {at, at - many} & left_out)
    if many > _MOST_COMPARED and base in {list, tuple}:
        return (many, *base.__getitem__(value, slice(None, None, many // _SAMPLE)))
    return _some(base.__iter__(value), many)


def _some(items: Iterable[Any], many: int) -> Parts:
    """Return items; if they are very many, how many there are and the first of them."""
    return tuple(items) if many <= _MOST_COMPARED else (many, *itertools.islice(items, _SAMPLE))


def _mapping(value: Any, left_out: frozenset[Any] = frozenset(), *, named: bool = False) -> Parts:
    """Return the values of a dict, and their names if these are compared, too."""
    base, many = _base(value), _count(value)
    if many > _MOST_COMPARED:
        return _some(base.values(value), many)
    if not left_out:
        values = base.values(value)
        return (*base.keys(value), *values) if named else tuple(values)
    pairs = [pair for pair in list(base.items(value)) if pair[0] not in left_out]
    return (
        tuple(itertools.chain.from_iterable(pairs)) if named else tuple(part for _, part in pairs)
    )


def _array(value: Any) -> Parts:
    """Return what an array holds as bytes, which compare fast; of a very large one, a sample."""
    # No buffer is taken: the application could not append to the array meanwhile.
    if issubclass(type(value), np.ndarray):
        plain = np.ndarray.view(value, np.ndarray)
        told = (plain.dtype, *plain.shape)
        if plain.dtype.hasobject:
            return (*told, *_some(plain.flat, plain.size))
        if plain.nbytes > _MOST_BYTES:
            plain = plain.flat[:: max(plain.size // _SAMPLE, 1)]
        return (*told, plain.tobytes())
    base: Any = bytearray if issubclass(type(value), bytearray) else array.array
    code, size = ("", 1) if base is bytearray else (value.typecode, value.itemsize)
    many = base.__len__(value)
    step = many // _SAMPLE if many * size > _MOST_BYTES else 1
    return code, many, bytes(base.__getitem__(value, slice(None, None, step)))


def _read(read: Read) -> Parts:
    try:
        return read()
    except RuntimeError:  # it grew meanwhile
        return (object(),)


@remembered
def _is_known(classes: tuple[type, ...], modules: tuple[str, ...]) -> bool:
    """Whether objects of a class are watched without exceptions, by the class and its bases."""
    known = BaseModel in classes or any(kind.__module__.startswith(modules) for kind in classes)
    return known and not _is_left_out(classes[0])


@remembered
def _is_decorated(kind: type) -> bool:
    """Whether objects are functions within a decorator of wrapt's, as LlamaIndex wraps methods."""
    return kind.__name__ in {"FunctionWrapper", "BoundFunctionWrapper"} and any(
        base.__name__ == "ObjectProxy" for base in kind.__mro__
    )


@remembered
def _is_left_out(kind: type) -> bool:
    # By name, as no framework need be installed.
    if any(f"{base.__module__}.{base.__qualname__}" in WORDS["left_out"] for base in kind.__mro__):
        return True
    return any(hasattr(kind, name) for name in WORDS["not_watched"])


@remembered
def _computed_once(classes: tuple[type, ...]) -> frozenset[str]:
    """Return the attributes that are computed when they are first read."""
    return frozenset(
        name
        for base in classes
        for name, value in list(vars(base).items())
        if isinstance(value, functools.cached_property)
    )


def _described(value: Any) -> str:
    if isinstance(value, types.FunctionType | type):
        return f"what {value.__qualname__} names" if callable(value) else value.__qualname__
    return f"a {type(value).__qualname__}"


def _only_made(now: Parts, before: Parts) -> bool:
    """Whether nothing differs but what was not there before."""
    pairs = zip(now, before, strict=False)
    return len(now) == len(before) and all(had is None or had is has for has, had in pairs)


def _same(now: Parts, before: Parts) -> bool:
    return len(now) == len(before) and all(map(_is, now, before))


def _is(one: object, other: object) -> bool:
    return one is other or (type(one) in _PLAIN and type(one) is type(other) and one == other)
