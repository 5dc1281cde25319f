"""Whether code reads all that a run's configuration holds, rather than values by their names.

LangChain hands plain copies of ``configurable`` and ``metadata`` on. Who looks a value up in one is
noticed (see :mod:`.watched`), but not who lists all values, prints them or writes
them as JSON. The byte code of the application's functions shows that they do.
"""

from __future__ import annotations

import dis
import types
from dataclasses import dataclass
from typing import Any

from typing_extensions import override

from .own_code import NAMES, CodeReading, Constant, Uses, is_own_code, own_code, remembered

__all__ = ["OwnParts", "reads_whole_config"]


_CONFIG, _VALUES, _MANAGER = "config", "values", "manager"
_MAPPINGS = frozenset(("configurable", "metadata"))
_MANAGERS = frozenset(("run_manager", "callbacks", "manager", "callback_manager"))
_VARIABLE = "var_child_runnable_config"
_MAKERS = NAMES["makers"]
_RUNS = NAMES["runs"]
_HARMLESS = NAMES["harmless"]
_SILENT = ("POP_", "JUMP", "TO_BOOL", "UNARY_NOT", "IS_OP", "CONTAINS_OP", "NOP", "COPY_FREE")
"""Beginnings of instructions that read nothing of what is in a mapping."""


class OwnParts:
    """The application's own code in what a step is made of.

    Args:
        roots: The step, or its parts.

    Attributes:
        any: Whether there is any.
        reads_configs: Whether some of it reads more of a run's configuration than single values.
        holds_store: Whether it holds a Store of LangGraph's itself.
    """

    def __init__(self, *roots: object) -> None:
        functions, self.holds_store = own_code(*roots)
        self.any = bool(functions)
        self.reads_configs = any(map(reads_whole_config, functions))


@dataclass(frozen=True, slots=True)
class _Held:
    """A configuration, a mapping of its values, or a manager of callbacks, which has such."""

    kind: str


@dataclass(frozen=True, slots=True)
class _Get:
    """The method that looks up a name in one of them."""

    kind: str


def reads_whole_config(function: types.FunctionType) -> bool:
    """Whether a function does anything else with a run's values than look some up by name.

    A configuration that it hands to what it runs, or to a function of the application that has a
    parameter for it, counts as read there.
    """
    around = function.__globals__
    named = {name: around.get(name) for name in function.__code__.co_names}
    makers = frozenset(
        name for name, value in named.items() if getattr(value, "__name__", "") in _MAKERS
    )
    takers = frozenset(name for name, value in named.items() if _takes_config(value))
    own = frozenset(
        name for name, kind in function.__annotations__.items() if "RunnableConfig" in str(kind)
    )
    return _reads_whole(function.__code__, own | {_CONFIG}, makers | _MAKERS, takers)


def _takes_config(value: object) -> bool:
    if not isinstance(value, types.FunctionType) or not is_own_code(value):
        return False
    code = value.__code__
    named = code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]
    return _CONFIG in named or "RunnableConfig" in str(value.__annotations__)


@remembered
def _reads_whole(
    code: types.CodeType, own: frozenset[str], makers: frozenset[str], takers: frozenset[str]
) -> bool:
    reading = _ConfigReading(code, own, makers, takers)
    reading.go(dis.get_instructions(code))
    return reading.whole or any(
        _reads_whole(inner, own, makers, takers)
        for inner in code.co_consts
        if isinstance(inner, types.CodeType)
    )


class _ConfigReading(CodeReading):
    """Follows configurations on their way through a function.

    Attributes:
        whole: Whether one goes where more than single values of it may be read.
    """

    def __init__(
        self,
        code: types.CodeType,
        own: frozenset[str],
        makers: frozenset[str],
        takers: frozenset[str],
    ) -> None:
        super().__init__(Uses(), code.co_name)
        self._makers, self._takers = makers, takers
        count = code.co_argcount + code.co_kwonlyargcount
        given = {*code.co_varnames[:count], *code.co_freevars}
        for name in given:
            if name in own:
                self._locals[name] = _Held(_CONFIG)
            elif name in _MANAGERS:
                self._locals[name] = _Held(_MANAGER)
        self.whole = False

    def _use(self, *values: Any) -> None:
        """Note that anything may be read of these values."""
        kinds = {value.kind for value in values if isinstance(value, _Held)}
        self.whole = self.whole or bool(kinds - {_MANAGER})

    @override
    def _joined(self, one: Any, other: Any) -> Any:
        return next((value for value in (one, other) if isinstance(value, _Held)), None)

    @override
    def _other(self, instruction: dis.Instruction) -> None:
        name, before = instruction.opname, list(self._stack)
        super()._other(instruction)
        if not name.startswith(_SILENT):
            pairs = zip(before, self._stack, strict=False)
            gone = [value for value, now in pairs if value is not now]
            self._use(*gone, *before[len(self._stack) :])

    @override
    def _store(self, name: str) -> None:
        # Another branch may come here with what was there before.
        if isinstance(self._locals.get(name), _Held):
            self._pop()
        else:
            super()._store(name)

    @override
    def _import_from(self, instruction: dis.Instruction) -> None:
        self._stack.append(instruction.argval)

    # Lookups

    @override
    def _load_attr(self, instruction: dis.Instruction) -> None:
        name, owner = instruction.argval, self._stack[-1] if self._stack else None
        known = owner.kind if isinstance(owner, _Held) else None
        if known is not None:
            self._stack[-1] = None
        super()._load_attr(instruction)
        found: Any = name
        if name == "inheritable_metadata" or (known == _MANAGER and name == "metadata"):
            found = _Held(_VALUES)
        elif known == _MANAGER:
            found = _Held(_MANAGER) if name in _MANAGERS else name
        elif known is not None and name == "get":
            found = _Get(known)
        elif known is not None:
            self.whole = True
        elif owner == _VARIABLE and name == "get":
            found = _Get(_VARIABLE)
        if self._stack:
            self._stack[-1] = found

    _load_method = _load_attr

    @override
    def _binary_subscr(self, instruction: dis.Instruction) -> None:
        key, owner = self._pop(), self._pop()
        self._stack.append(self._item(owner, key))

    def _item(self, owner: Any, key: Any) -> Any:
        """Return what is found of an object under a key."""
        name = key.value if isinstance(key, Constant) else None
        if isinstance(owner, _Held):
            if not isinstance(key, Constant):
                self._use(owner)
            elif owner.kind == _CONFIG and name in _MAPPINGS:
                return _Held(_VALUES)
            elif owner.kind == _CONFIG and name == "callbacks":
                return _Held(_MANAGER)
            return None
        return _Held(_VALUES) if name == "configurable" else None

    @override
    def _store_subscr(self, instruction: dis.Instruction) -> None:
        if instruction.opname == "STORE_SUBSCR":
            self._use(*self._stack[-3:-2])
        super()._store_subscr(instruction)

    _delete_subscr = _store_subscr

    # Calls

    def _precall(self, instruction: dis.Instruction) -> None:
        """Do nothing: the call itself takes the arguments."""

    def _call(self, instruction: dis.Instruction) -> None:
        count = instruction.arg or 0
        given = self._stack[len(self._stack) - count :] if count else []
        del self._stack[max(len(self._stack) - count, 0) :]
        callee = [self._pop(), self._pop()]
        self._stack.append(self._result(callee, given))

    def _call_kw(self, instruction: dis.Instruction) -> None:
        self._pop()  # the names
        self._call(instruction)

    def _result(self, callee: list[Any], given: list[Any]) -> Any:
        get = next((part for part in callee if isinstance(part, _Get)), None)
        if get is not None and get.kind == _VARIABLE:
            return _Held(_CONFIG)
        if get is not None:
            self._use(*given)
            return self._item(_Held(get.kind), given[0] if given else None)
        names = {part for part in callee if isinstance(part, str)}
        if "get" in names and given and given[0] == Constant("configurable"):
            return _Held(_VALUES)
        if names & self._makers:
            return _Held(_CONFIG)
        if names & (_RUNS | self._takers):
            self._use(*(value for value in given if value == _Held(_VALUES)))
        elif not names & _HARMLESS:
            self._use(*callee, *given)
        return None
