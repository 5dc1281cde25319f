"""The application's own code: which it is, what its functions name, and what they write.

A function of a chain may count its calls, or remember its questions. What it writes itself is no
setting. What it only reads is one. Its byte code says which is which: it is there for every
function, unlike its source.
"""

from __future__ import annotations

import contextlib
import dis
import functools
import itertools
import re
import sys
import sysconfig
import tomllib
import types
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from importlib import metadata
from importlib.resources import files
from pathlib import Path
from typing import Any, TypeVar, cast

__all__ = [
    "NAMES",
    "CodeReading",
    "Constant",
    "Notes",
    "Uses",
    "is_own_class",
    "is_own_code",
    "is_own_module",
    "own_code",
    "remembered",
    "slots_of",
    "uses_of",
]


NAMES: dict[str, frozenset[str]] = {
    name: frozenset(names)
    for name, names in tomllib.loads(
        files(__package__).joinpath("names.toml").read_text("utf-8")
    ).items()
}
"""Names that frameworks, libraries and Python have, by what they are; see the file."""

_OURS = ("ragcache_integrations", "ragcache_reader", "ragcache_workbench")
_FRAMEWORKS = ("langchain", "langgraph", "llama_index", "pydantic")
_FOLDERS = frozenset(("site-packages", "dist-packages"))
_PYTHONS = tuple(
    {str(Path(sysconfig.get_path(name)).resolve()) for name in ("stdlib", "platstdlib")}
)
_WRITES = NAMES["writes"]
_FIELD = re.compile(r"\{[^{}]*\}")
"""A place in a text that is formatted, such as "{0.text}"."""
_ATTRIBUTE = re.compile(r"\.([^\W\d]\w*)")
_LEAVES = ("JUMP_FORWARD", "JUMP_BACKWARD", "JUMP_ABSOLUTE", "RETURN", "RAISE", "RERAISE")
_JUMPS = frozenset((*dis.hasjrel, *dis.hasjabs))
_ALL = object()
"""In the place of a key: any of them."""
_NONE: frozenset[Any] = frozenset()
_KEEP_TOP = (
    *("POP_", "STORE_", "DELETE_", "JUMP", "RETURN", "RESUME", "NOP", "CACHE", "PRECALL"),
    *("KW_NAMES", "MAKE_CELL", "COPY_FREE_VARS", "NOT_TAKEN", "EXTENDED_ARG"),
)
"""Beginnings of instructions that leave nothing of their own on the stack."""


F = TypeVar("F", bound=Callable[..., Any])


def remembered(function: F) -> F:
    """Remember what a function of classes, code or names returns, of the last of them."""
    return cast("F", functools.lru_cache(1 << 14)(function))  # whose type takes no classes


@dataclass(slots=True)
class Notes:
    """What code writes while it runs.

    Attributes:
        assigned: Names of attributes and variables.
        changed: Keys that are written of containers, by the names of these.
    """

    assigned: set[str] = field(default_factory=set)
    changed: dict[str, set[Any]] = field(default_factory=dict)

    def add(self, other: Notes) -> None:
        """Take over what other code writes."""
        self.assigned |= other.assigned
        for name, keys in other.changed.items():
            self.changed.setdefault(name, set()).update(keys)

    def keys_of(self, name: str | None) -> frozenset[Any] | None:
        """Return the keys of a container that are written; ``None``: it as a whole."""
        keys = _NONE if name is None else self.changed.get(name, _NONE)
        return None if _ALL in keys else frozenset(keys)

    def write(self, symbol: Any, key: Any = _ALL) -> None:
        """Note that a container is changed, which the code found under a name."""
        if isinstance(symbol, _Item):
            symbol, key = symbol.name, _ALL
        if isinstance(symbol, str):
            self.changed.setdefault(symbol, set()).add(key)


@dataclass(slots=True)
class Uses:
    """What a function's code names.

    Attributes:
        globals: Names of globals.
        names: Names of attributes, whosever.
        imports: Modules that it imports.
        notes: What it writes.
        returned: Names of what functions return as it is, by the names of these functions.
    """

    globals: list[str] = field(default_factory=list)
    names: set[str] = field(default_factory=set)
    imports: list[str] = field(default_factory=list)
    notes: Notes = field(default_factory=Notes)
    returned: dict[str, set[str]] = field(default_factory=dict)

    def add(self, other: Uses) -> None:
        """Take over what other code names."""
        self.globals = list(dict.fromkeys(self.globals + other.globals))
        self.names |= other.names
        self.imports += other.imports
        self.notes.add(other.notes)
        for name, symbols in other.returned.items():
            self.returned.setdefault(name, set()).update(symbols)

    def follow_returned(self) -> None:
        """Note that what a property returns is written, if the property's value is written."""
        waiting = [name for name in self.returned if name in self.notes.changed]
        while waiting:
            name = waiting.pop()
            for symbol in self.returned[name]:
                keys = self.notes.changed.setdefault(symbol, set())
                if not self.notes.changed[name] <= keys:
                    keys |= self.notes.changed[name]
                    waiting += [symbol] if symbol in self.returned else []


@remembered
def uses_of(code: types.CodeType) -> Uses:
    """Return what a function's code names, with the functions within it."""
    return _uses_of(code)


def _uses_of(code: types.CodeType) -> Uses:
    uses = Uses()
    CodeReading(uses, code.co_name).go(dis.get_instructions(code))
    for inner in code.co_consts:
        if isinstance(inner, types.CodeType):
            uses.add(_uses_of(inner))
        elif isinstance(inner, str):
            places = _FIELD.findall(inner)
            uses.names.update(name for place in places for name in _ATTRIBUTE.findall(place))
    # Variables of its own are no one's setting.
    uses.notes.assigned -= set(code.co_cellvars) - set(code.co_freevars) - uses.names
    return uses


@dataclass(frozen=True, slots=True)
class _Item:
    """An item of a container that the code found under a name."""

    name: str


@dataclass(frozen=True, slots=True)
class Constant:
    """A value that is written in the code."""

    value: Any


class CodeReading:
    """Reads instructions in their order, with the names of what is on the stack.

    What it can't follow, such as a container that is handed to another function, only hides that
    something is written: the chain is then taken for changed by its answers.
    """

    def __init__(self, uses: Uses, name: str) -> None:
        self._uses = uses
        self._name = name
        self._stack: list[Any] = []
        self._locals: dict[str, Any] = {}

    def go(self, instructions: Iterable[dis.Instruction]) -> None:
        """Read instructions."""
        stacks: dict[Any, list[Any]] = {}
        left = False  # the code before, by a jump or a return
        for instruction in instructions:
            other = stacks.get(instruction.offset)
            if other is not None:  # either branch comes here
                same = len(other) == len(self._stack) and not left
                pairs = zip(other, self._stack, strict=True) if same else ()
                joined = [a if a == b else self._joined(a, b) for a, b in pairs]
                self._stack = joined if same else list(other)
            # Where such an instruction jumps, what it looked at is still there.
            kept = list(self._stack) if instruction.opname.endswith("_OR_POP") else None
            self._read(instruction)
            if instruction.opcode in _JUMPS:
                stacks.setdefault(instruction.argval, list(self._stack) if kept is None else kept)
            left = instruction.opname.startswith(_LEAVES)

    def _joined(self, one: Any, other: Any) -> Any:  # noqa: ARG002 - for subclasses
        """Return what is on the stack if it may be one or the other."""
        return None

    def _read(self, instruction: dis.Instruction) -> None:
        read = getattr(self, f"_{instruction.opname.lower()}", None)
        if read is not None:
            read(instruction)
        else:
            self._other(instruction)

    def _pop(self) -> Any:
        return self._stack.pop() if self._stack else None

    def _other(self, instruction: dis.Instruction) -> None:
        effect = dis.stack_effect(instruction.opcode, instruction.arg, jump=False)
        for _ in range(-effect):
            self._pop()
        self._stack.extend([None] * effect)
        if self._stack and not instruction.opname.startswith(_KEEP_TOP):
            self._stack[-1] = None

    def _named(self, instruction: dis.Instruction) -> None:
        self._other(instruction)
        if self._stack:
            self._stack[-1] = instruction.argval

    def _load(self, name: str) -> None:
        self._stack.append(self._locals.get(name))

    def _store(self, name: str) -> None:
        value = self._pop()
        self._locals[name] = None if isinstance(value, Constant) else value

    def _load_global(self, instruction: dis.Instruction) -> None:
        self._uses.globals.append(instruction.argval)
        self._uses.names.add(instruction.argval)
        self._named(instruction)

    def _load_fast(self, instruction: dis.Instruction) -> None:
        self._load(instruction.argval)

    _load_fast_check = _load_fast
    _load_fast_borrow = _load_fast
    _load_closure = _load_fast

    def _load_deref(self, instruction: dis.Instruction) -> None:
        self._stack.append(self._locals.get(instruction.argval, instruction.argval))

    _load_classderef = _load_deref

    def _load_fast_load_fast(self, instruction: dis.Instruction) -> None:
        for name in instruction.argval:
            self._load(name)

    _load_fast_borrow_load_fast_borrow = _load_fast_load_fast

    def _store_fast(self, instruction: dis.Instruction) -> None:
        self._store(instruction.argval)

    def _store_fast_load_fast(self, instruction: dis.Instruction) -> None:
        stored, loaded = instruction.argval
        self._store(stored)
        self._load(loaded)

    def _store_fast_store_fast(self, instruction: dis.Instruction) -> None:
        for name in instruction.argval:
            self._store(name)

    _load_name = _load_global

    def _load_const(self, instruction: dis.Instruction) -> None:
        self._stack.append(Constant(instruction.argval))

    _load_small_int = _load_const

    def _load_attr(self, instruction: dis.Instruction) -> None:
        name = instruction.argval
        self._uses.names.add(name)
        if name in _WRITES and self._stack:
            self._uses.notes.write(self._stack[-1])
        self._named(instruction)

    _load_method = _load_attr

    def _load_super_attr(self, instruction: dis.Instruction) -> None:
        self._uses.names.add(instruction.argval)
        self._other(instruction)

    def _match_class(self, instruction: dis.Instruction) -> None:
        self._uses.names.add("__match_args__")
        self._other(instruction)

    def _import_name(self, instruction: dis.Instruction) -> None:
        self._uses.imports.append(instruction.argval)
        self._other(instruction)

    def _import_from(self, instruction: dis.Instruction) -> None:
        self._uses.names.add(instruction.argval)
        self._other(instruction)

    def _copy(self, instruction: dis.Instruction) -> None:
        place = instruction.arg or 1
        self._stack.append(self._stack[-place] if len(self._stack) >= place else None)

    def _swap(self, instruction: dis.Instruction) -> None:
        place = instruction.arg or 1
        if len(self._stack) >= place:
            stack = self._stack
            stack[-1], stack[-place] = stack[-place], stack[-1]

    def _binary_op(self, instruction: dis.Instruction) -> None:
        if instruction.argrepr == "[]":  # since Python 3.14
            self._binary_subscr(instruction)
        else:
            self._other(instruction)

    def _binary_subscr(self, _: dis.Instruction) -> None:
        self._pop()
        symbol = self._pop()
        self._stack.append(_Item(symbol) if isinstance(symbol, str) else symbol)

    def _store_subscr(self, instruction: dis.Instruction) -> None:
        key, symbol = self._pop(), self._pop()
        known = isinstance(key, Constant) and isinstance(key.value, str | int)
        self._uses.notes.write(symbol, key.value if known else _ALL)
        if instruction.opname == "STORE_SUBSCR":
            self._pop()

    _delete_subscr = _store_subscr

    def _return_value(self, instruction: dis.Instruction) -> None:
        symbol = self._stack[-1] if self._stack else None
        if isinstance(symbol, str):
            self._uses.returned.setdefault(self._name, set()).add(symbol)
        self._other(instruction)

    def _store_slice(self, instruction: dis.Instruction) -> None:
        if len(self._stack) >= 3:  # noqa: PLR2004 - container, start and stop
            self._uses.notes.write(self._stack[-3])
        self._other(instruction)

    def _store_attr(self, instruction: dis.Instruction) -> None:
        self._uses.notes.assigned.add(instruction.argval)
        self._other(instruction)

    _delete_attr = _store_attr
    _store_global = _store_attr
    _delete_global = _store_attr
    _store_deref = _store_attr
    _delete_deref = _store_attr


def is_own_code(function: types.FunctionType) -> bool:
    """Whether a function is the application's, and no library's."""
    return _is_own_file(function.__code__.co_filename, function.__module__ or "")


@remembered
def is_own_module(name: str) -> bool:
    """Whether a module is the application's, and no library's."""
    module = sys.modules.get(name)
    return _is_own_file(getattr(module, "__file__", None) or "", name)


@remembered
def is_own_class(kind: type) -> bool:
    """Whether a class is the application's, and no library's."""
    if kind.__module__ not in sys.modules:  # as those of some extensions, which have no functions
        written = any(isinstance(value, types.FunctionType) for value in vars(kind).values())
        return written and kind.__module__ != "_wrappers"
    return is_own_module(kind.__module__)


@remembered
def _is_own_file(file: str, module: str) -> bool:
    package = module.partition(".")[0]
    if package in sys.stdlib_module_names or package in {"builtins", *_OURS}:
        return False
    if package.startswith(_FRAMEWORKS):
        return False
    if not file or file.startswith("<"):  # made by exec, in a notebook or an interpreter
        return not file.startswith("<frozen")
    path = Path(file)
    if not _FOLDERS.isdisjoint(path.parts):
        return _is_installed_from_a_folder(package)
    return not str(path.resolve()).startswith(_PYTHONS)


@remembered
def _is_installed_from_a_folder(package: str) -> bool:
    """Whether a package was installed by ``pip install .``, as applications are in containers."""
    try:
        found = metadata.distribution(package)
    except (metadata.PackageNotFoundError, ValueError):
        return False
    # Conda names a folder for each package, which it built it in.
    by_conda = (found.read_text("INSTALLER") or "").strip() == "conda"
    return not by_conda and '"file:' in (found.read_text("direct_url.json") or "")


_MOST_PARTS = 3_000
_MOST_ITEMS = 128
"""Items of a container that are gone through: what has more holds data."""
_PLAIN = (str, int, float, bool, bytes, complex, type(None))
_WITHIN: dict[type, tuple[str, ...]] = {
    functools.partial: ("func", "args", "keywords"),
    property: ("fget", "fset"),
    staticmethod: ("__func__",),
    classmethod: ("__func__",),
    functools.cached_property: ("func",),
    types.MethodType: ("__func__", "__self__"),
    types.BuiltinMethodType: ("__self__",),
}
"""What objects of Python's own classes call."""
_SEQUENCES = (list, tuple, set, frozenset, deque)
_UNHEARD = ("ignore_llm", "on_event_start", "as_trace", "on_chain_start")
"""Attributes of what only hears of a run."""


def own_code(*roots: object) -> tuple[list[types.FunctionType], bool]:
    """Return the application's functions that objects are made of, or may call.

    These are the methods of its classes, and functions in attributes, containers, closures and
    defaults, with all that they name in turn. Handlers of callbacks are left out. Only data are
    read: no property, no method of the objects. Of what is larger than 3,000 objects, the parts
    that are nearest to the root are gone through.
    """
    waiting: deque[Any] = deque(roots)
    seen: dict[int, object] = {}
    functions: list[types.FunctionType] = []
    modules: dict[str, types.ModuleType] = {}
    names: set[str] = set()
    holds_store = False
    while waiting and len(seen) < _MOST_PARTS:
        value = waiting.popleft()
        if type(value) in _PLAIN or id(value) in seen:
            continue
        seen[id(value)] = value
        # By the class: what an object says to be, such as a proxy, is somebody's code.
        if issubclass(type(value), types.FunctionType) and is_own_code(value):
            functions.append(value)
            uses = uses_of(value.__code__)
            loaded = {name for name in uses.imports if name in sys.modules}
            modules |= {name: sys.modules[name] for name in loaded if is_own_module(name)}
            names |= uses.names
            named = list(map(value.__globals__.get, uses.globals))
            holds_store = holds_store or any(map(_is_graph_s_store, named))
            waiting.extend(named)
        elif issubclass(type(value), types.ModuleType) and is_own_module(value.__name__):
            modules[value.__name__] = value
        parts = list(_parts(value))
        if not type(value).__module__.startswith(_FRAMEWORKS):  # as a graph holds its own
            holds_store = holds_store or any(map(_is_graph_s_store, parts))
        waiting.extend(parts)
        if not waiting:
            found = [vars(module).get(name) for module in modules.values() for name in names]
            holds_store = holds_store or any(map(_is_graph_s_store, found))
            waiting.extend(part for part in found if id(part) not in seen)
    return functions, holds_store


def _is_graph_s_store(value: object) -> bool:
    return all(hasattr(type(value), name) for name in ("list_namespaces", "aput", "abatch"))


def _parts(value: Any) -> Iterator[object]:
    """Yield what an object is made of."""
    kind = type(value)
    if issubclass(kind, types.FunctionType):
        for cell in value.__closure__ or ():
            with contextlib.suppress(ValueError):  # not assigned yet
                yield cell.cell_contents
        yield from value.__defaults__ or ()
        yield from (value.__kwdefaults__ or {}).values()
    elif issubclass(kind, tuple(_WITHIN)):
        names = next(names for base, names in _WITHIN.items() if issubclass(kind, base))
        yield from (getattr(value, name) for name in names)
    elif issubclass(kind, type):
        yield from _of_class(value)
    elif issubclass(kind, dict):
        yield from itertools.islice(list(dict.values(value)), _MOST_ITEMS)
    elif issubclass(kind, _SEQUENCES):
        base: Any = next(base for base in _SEQUENCES if issubclass(kind, base))
        yield from itertools.islice(list(base.__iter__(value)), _MOST_ITEMS)
    if not any(hasattr(kind, name) for name in _UNHEARD) and kind is not types.ModuleType:
        yield from _of_object(value)


def _of_class(kind: type) -> Iterator[object]:
    for base in kind.__mro__:
        if is_own_class(base):
            yield from list(vars(base).values())


@remembered
def slots_of(kind: type) -> list[types.MemberDescriptorType]:
    """Return what reads the slots of an own class's objects."""
    return [
        member
        for base in kind.__mro__
        if is_own_class(base)
        for member in list(vars(base).values())
        if isinstance(member, types.MemberDescriptorType)
    ]


def _of_object(value: Any) -> Iterator[object]:
    kind = type(value)
    if not issubclass(kind, type):
        yield kind
    if kind.__module__.partition(".")[0] in sys.stdlib_module_names - {"functools", "types"}:
        return
    for name in ("__dict__", "__pydantic_private__", "__pydantic_extra__"):
        with contextlib.suppress(AttributeError):
            held = object.__getattribute__(value, name)
            yield from list(held.values()) if type(held) is dict else ()
    for slot in slots_of(kind):
        with contextlib.suppress(AttributeError):  # not assigned yet
            yield slot.__get__(value)
    with contextlib.suppress(AttributeError):  # of lru_cache(), functools.wraps() and wrapt
        yield object.__getattribute__(value, "__wrapped__")
