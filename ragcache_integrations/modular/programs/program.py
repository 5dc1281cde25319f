"""Prompt programs: Python functions that are schemas (Prompt Cache §3.2.4).

A program yields its text. The branches of ``if`` and ``match`` become modules and unions, calls of
other programs become nested modules, and formatted arguments become params::

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
from ragcache_integrations.prompts.pml import (
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
    RoleBlock,
    SlotOf,
)
from .source import read_body

__all__ = ["Length", "PromptProgram", "prompt_program", "role"]

P = ParamSpec("P")


class PromptProgram(Program, Generic[P]):
    """A function that is a schema; made by :func:`prompt_program`.

    Attributes:
        name: Name of the schema, and of the module that a call from another program becomes.
        function: The function that was decorated.
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
            MarkupError: A parameter has an annotation that means nothing here.
        """
        return read_parameters(self.function)

    @cached_property
    def plan(self) -> tuple[PlanNode, ...]:
        """The plan of the function's body.

        Raises:
            MarkupError: The function uses Python that has no counterpart in a schema.
        """
        return read_body(self)

    @cached_property
    def schema(self) -> Schema:
        """The function's schema.

        Raises:
            MarkupError: The function or a program that it calls cannot be read, or programs call
                each other in a circle; the message names file and line.
        """
        return Schema(self.name, _nodes(self.plan, (self,)))

    def prompt(self, *args: P.args, **kwargs: P.kwargs) -> Prompt:
        """The prompt for a call with these arguments: which modules it imports, with which texts.

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
    """Turn a function into a schema (§3.2.4).

    The source is read when the schema is first needed, so programs may call programs that are
    defined later.

    Args:
        function: A generator function whose source Python can find.
        name: Name of the schema; by default the function's name, with ``-`` for ``_``.
    """

    def decorate(function: Callable[P, Iterator[str]]) -> PromptProgram[P]:
        own = getattr(function, "__name__", "program").replace("_", "-")
        return PromptProgram(function, name or own)

    return decorate if function is None else decorate(function)


def _nodes(plan: Sequence[PlanNode], callers: tuple[Program, ...]) -> tuple[Node, ...]:
    """Turn a plan into nodes of a schema."""
    nodes: list[Node] = []
    for node in plan:
        match node:
            case str():
                nodes.append(Text(node))
            case SlotOf():
                nodes.append(Slot(node.name, node.parameter.length, node.where))
            case Branches():
                members = tuple(_branch(branch, callers) for branch in node.branches)
                nodes += [Union(members, node.where)] if node.exclusive else members
            case RoleBlock():
                nodes.append(Turn(node.role, _nodes(node.body, callers), node.where))
            case Call():
                called = node.program
                if called in callers:
                    circle = [caller.name for caller in callers[callers.index(called) :]]
                    msg = f"these programs call each other: {' -> '.join([*circle, called.name])}"
                    where = node.where
                    raise MarkupError(msg, where.line, where.column, where.source)
                children = _nodes(called.plan, (*callers, called))
                nodes.append(SchemaModule(node.name, children, node.where))
    return tuple(nodes)


def _branch(branch: Branch, callers: tuple[Program, ...]) -> SchemaModule:
    return SchemaModule(branch.name, _nodes(branch.body, callers), branch.where)


def _imports(
    plan: Sequence[PlanNode], values: Mapping[str, Any]
) -> tuple[dict[str, str], tuple[Import, ...]]:
    """The arguments and imports of a module, for the values of the function's parameters."""
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
            case RoleBlock():
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
