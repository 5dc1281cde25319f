"""The plan of a prompt program: the form between Python source and a schema."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

from ragcache_integrations.errors import MarkupError
from ragcache_integrations.prompts.pml import Role, Where

__all__ = [
    "Branch",
    "Branches",
    "Call",
    "ChoiceParameter",
    "Condition",
    "Constant",
    "Flag",
    "Parameter",
    "ParameterReference",
    "PlanNode",
    "Program",
    "RoleBlock",
    "SlotOf",
    "TextParameter",
]


@dataclass(frozen=True, slots=True)
class TextParameter:
    """``Annotated[str, Length(20)]``: becomes a param in each place where it is formatted.

    Attributes:
        length: The most tokens of an argument.
    """

    length: int

    def check(self, name: str, value: object) -> None:
        """Refuse an argument that does not fit.

        Raises:
            MarkupError: It is not a string.
        """
        if not isinstance(value, str):
            msg = f"{name} must be a string, got {value!r:.200}"
            raise MarkupError(msg)


@dataclass(frozen=True, slots=True)
class Flag:
    """``bool``: the condition of an ``if``."""

    def check(self, name: str, value: object) -> None:
        """Refuse an argument that does not fit.

        Raises:
            MarkupError: It is neither ``True`` nor ``False``.
        """
        if not isinstance(value, bool):
            msg = f"{name} must be True or False, got {value!r:.200}"
            raise MarkupError(msg)


@dataclass(frozen=True, slots=True)
class ChoiceParameter:
    """``Literal["a", "b"]``: the subject of a ``match``.

    Attributes:
        values: The texts that may be passed.
    """

    values: tuple[str, ...]

    def check(self, name: str, value: object) -> None:
        """Refuse an argument that does not fit.

        Raises:
            MarkupError: It is not one of the values.
        """
        if value not in self.values:
            msg = f"{name} must be one of {', '.join(map(repr, self.values))}, got {value!r:.200}"
            raise MarkupError(msg)


Parameter: TypeAlias = TextParameter | Flag | ChoiceParameter


@dataclass(frozen=True, slots=True)
class SlotOf:
    """A param of the schema, made where the program formats a parameter.

    Attributes:
        name: Name of the param.
        source: Name of the function's parameter.
        parameter: The function's parameter, which says what may be passed.
        where: Place in the source.
    """

    name: str
    source: str
    parameter: TextParameter
    where: Where


@dataclass(frozen=True, slots=True)
class Condition:
    """The condition of a branch: a parameter has one of these values.

    Attributes:
        source: Name of the parameter.
        values: The values for which the branch is taken.
    """

    source: str
    values: tuple[object, ...]

    def holds(self, values: Mapping[str, Any]) -> bool:
        """Whether the branch is taken for these values of the parameters."""
        return values[self.source] in self.values


@dataclass(frozen=True, slots=True)
class Branch:
    """A branch of ``if`` or ``match``, which becomes a module.

    Attributes:
        name: Name of the module.
        condition: When the branch is taken; ``None`` for always, if no earlier branch was taken.
        body: Content of the module.
        where: Place in the source.
    """

    name: str
    condition: Condition | None
    body: tuple[PlanNode, ...]
    where: Where


@dataclass(frozen=True, slots=True)
class Branches:
    """``if`` or ``match``: the first branch whose condition holds is taken.

    Attributes:
        branches: In the order of the source.
        exclusive: Whether they become a union.
        where: Place in the source.
    """

    branches: tuple[Branch, ...]
    exclusive: bool
    where: Where


@dataclass(frozen=True, slots=True)
class RoleBlock:
    """``with role(...)``, which becomes a turn."""

    role: Role
    body: tuple[PlanNode, ...]
    where: Where


@dataclass(frozen=True, slots=True)
class ParameterReference:
    """An argument of a call that is a parameter of the calling program.

    Attributes:
        source: Name of that parameter.
    """

    source: str


@dataclass(frozen=True, slots=True)
class Constant:
    """An argument of a call that is always the same."""

    value: str | bool


class Program(ABC):
    """A program that plans may call.

    Its own plan is read when it is needed, so programs may be defined in any order.

    Attributes:
        name: Name of the module that a call becomes.
        function: The function that was decorated.
    """

    name: str
    function: Callable[..., Iterator[str]]

    @property
    @abstractmethod
    def parameters(self) -> Mapping[str, Parameter]:
        """The function's parameters, by name."""

    @property
    @abstractmethod
    def plan(self) -> tuple[PlanNode, ...]:
        """The plan of the function's body."""


@dataclass(frozen=True, slots=True)
class Call:
    """``yield from program(...)``, which becomes a nested module."""

    name: str
    program: Program
    arguments: Mapping[str, ParameterReference | Constant]
    where: Where


PlanNode: TypeAlias = str | SlotOf | Branches | RoleBlock | Call
