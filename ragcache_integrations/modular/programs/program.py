"""Prompt programs: Python functions that are schemas (Prompt Cache §3.2.4).

A program yields its text. What it decides by ``if`` and ``match`` becomes modules and unions, what
it calls becomes nested modules, what it formats becomes params::

    @prompt_program
    def trip(duration: Annotated[str, Length(4)], frugal: bool, city: Literal["tokyo", "miami"]):
        yield f"Plan a trip of {duration}. "
        if frugal:
            yield "Spend little. "
        match city:
            case "tokyo":
                yield "Tokyo is the capital of Japan. "
            case "miami":
                yield "Miami is a city in Florida. "

``trip.schema`` is the schema, ``trip.prompt(...)`` a prompt of it, and calling ``trip(...)`` yields
the same text in plain Python.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cached_property
from typing import Any, Generic, ParamSpec, overload

from ragcache_integrations.errors import MarkupError
from ragcache_integrations.modular.pml import (
    Import,
    Node,
    Prompt,
    Schema,
    SchemaModule,
    Slot,
    Text,
    Turn,
    Union,
)

from .annotations import Length, role
from .parameters import read_parameters
from .plan import (
    Branch,
    Branches,
    Call,
    Constant,
    Parameter,
    PlanNode,
    Program,
    Said,
    SlotOf,
)
from .source import read_body

__all__ = ["Length", "PromptProgram", "prompt_program", "role"]

P = ParamSpec("P")


class PromptProgram(Program, Generic[P]):
    """A function that is a schema; made by :func:`prompt_program`.

    Attributes:
        name: Name of the schema, and of the module where another program calls this one.
        function: What was decorated.
    """

    def __init__(self, function: Callable[P, Iterator[str]], name: str) -> None:
        self.function = function
        self.name = name
        self.__doc__ = function.__doc__

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> Iterator[str]:
        """The text of the prompt, as Python yields it, without markers of turns."""
        return self.function(*args, **kwargs)

    def __repr__(self) -> str:
        return f"PromptProgram({self.name!r})"

    @cached_property
    def parameters(self) -> dict[str, Parameter]:
        """The function's parameters.

        Raises:
            MarkupError: One has an annotation that means nothing here.
        """
        return read_parameters(self.function)

    @cached_property
    def plan(self) -> tuple[PlanNode, ...]:
        """The function's body.

        Raises:
            MarkupError: It uses of Python what has no counterpart in a schema.
        """
        return read_body(self)

    @cached_property
    def schema(self) -> Schema:
        """The schema that the function is.

        Raises:
            MarkupError: The function or one that it calls cannot be read, or they call each other
                in a circle; the message names file and line.
        """
        return Schema(self.name, _nodes(self.plan, (self,)))

    def prompt(self, *args: P.args, **kwargs: P.kwargs) -> Prompt:
        """The prompt that a call makes: which modules, with which arguments.

        Raises:
            MarkupError: As for :attr:`schema`, or an argument is missing, unknown or of the wrong
                type.
        """
        schema = self.schema
        values = self._values(args, kwargs)
        arguments, imports = _imports(self.plan, values)
        return Prompt(schema.name, imports, arguments)

    def _values(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> dict[str, Any]:
        try:
            bound = inspect.signature(self.function).bind(*args, **kwargs)
        except TypeError as error:
            msg = f"{self.name}: {error}; its parameters are {', '.join(self.parameters)}"
            raise MarkupError(msg) from None
        bound.apply_defaults()
        for name, value in bound.arguments.items():
            self.parameters[name].check(name, value)
        return bound.arguments


@overload
def prompt_program(function: Callable[P, Iterator[str]], /) -> PromptProgram[P]: ...


@overload
def prompt_program(
    *, name: str | None = None
) -> Callable[[Callable[P, Iterator[str]]], PromptProgram[P]]: ...


def prompt_program(
    function: Callable[P, Iterator[str]] | None = None, /, *, name: str | None = None
) -> PromptProgram[P] | Callable[[Callable[P, Iterator[str]]], PromptProgram[P]]:
    """Make a schema of a function (§3.2.4).

    The function's source is read when its schema is first asked for, so programs may call what is
    defined after them.

    Args:
        function: A generator function, whose source Python can find.
        name: Name of the schema; the function's own, with ``-`` for ``_``, unless given.
    """

    def decorated(function: Callable[P, Iterator[str]]) -> PromptProgram[P]:
        own = getattr(function, "__name__", "program").replace("_", "-")
        return PromptProgram(function, name or own)

    return decorated if function is None else decorated(function)


def _nodes(plan: Sequence[PlanNode], callers: tuple[Program, ...]) -> tuple[Node, ...]:
    """The schema's nodes of a plan."""
    found: list[Node] = []
    for node in plan:
        match node:
            case str():
                found.append(Text(node))
            case SlotOf():
                found.append(Slot(node.name, node.parameter.length, node.where))
            case Branches():
                members = tuple(_branch(branch, callers) for branch in node.branches)
                found += [Union(members, node.where)] if node.exclusive else members
            case Said():
                found.append(Turn(node.role, _nodes(node.body, callers), node.where))
            case Call():
                called = node.program
                if called in callers:
                    circle = [caller.name for caller in callers[callers.index(called) :]]
                    msg = f"these programs call each other: {' -> '.join([*circle, called.name])}"
                    where = node.where
                    raise MarkupError(msg, where.line, where.column, where.source)
                nodes = _nodes(called.plan, (*callers, called))
                found.append(SchemaModule(node.name, nodes, node.where))
    return tuple(found)


def _branch(branch: Branch, callers: tuple[Program, ...]) -> SchemaModule:
    return SchemaModule(branch.name, _nodes(branch.body, callers), branch.where)


def _imports(
    plan: Sequence[PlanNode], values: Mapping[str, Any]
) -> tuple[dict[str, str], tuple[Import, ...]]:
    """What a module's import holds, for the values of the function's parameters."""
    arguments: dict[str, str] = {}
    imports: list[Import] = []
    for node in plan:
        match node:
            case SlotOf():
                arguments[node.name] = values[node.source]
            case Branches():
                for branch in node.branches:
                    if branch.condition is None or branch.condition.holds(values):
                        imports.append(_import(branch.name, branch.body, values))
                        break
            case Said():
                within, more = _imports(node.body, values)
                arguments |= within
                imports += more
            case Call():
                passed = {
                    name: argument.value
                    if isinstance(argument, Constant)
                    else values[argument.source]
                    for name, argument in node.arguments.items()
                }
                imports.append(_import(node.name, node.program.plan, passed))
            case _:
                pass
    return arguments, tuple(imports)


def _import(name: str, plan: Sequence[PlanNode], values: Mapping[str, Any]) -> Import:
    arguments, imports = _imports(plan, values)
    return Import(name, arguments, imports)
