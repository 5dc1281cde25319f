"""A prompt program as it was read: what stands between Python and a schema."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

from ragcache_integrations.errors import MarkupError
from ragcache_integrations.modular.pml import Role, Where

__all__ = [
    "Branch",
    "Branches",
    "Call",
    "ChoiceParameter",
    "Condition",
    "Constant",
    "Flag",
    "Parameter",
    "Passed",
    "PlanNode",
    "Program",
    "Said",
    "SlotOf",
    "TextParameter",
]


@dataclass(frozen=True, slots=True)
class TextParameter:
    """``Annotated[str, Length(20)]``: becomes a param wherever it is formatted."""

    length: int

    def check(self, name: str, value: object) -> None:
        """Refuse an argument that does not fit.

        Raises:
            MarkupError: It is no string.
        """
        if not isinstance(value, str):
            msg = f"{name} must be a string, got {value!r:.200}"
            raise MarkupError(msg)


@dataclass(frozen=True, slots=True)
class Flag:
    """``bool``: what ``if`` asks."""

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
    """``Literal["a", "b"]``: what ``match`` asks."""

    values: tuple[str, ...]

    def check(self, name: str, value: object) -> None:
        """Refuse an argument that does not fit.

        Raises:
            MarkupError: It is none of the values.
        """
        if value not in self.values:
            msg = f"{name} must be one of {', '.join(map(repr, self.values))}, got {value!r:.200}"
            raise MarkupError(msg)


Parameter: TypeAlias = TextParameter | Flag | ChoiceParameter


@dataclass(frozen=True, slots=True)
class SlotOf:
    """A param: what is formatted.

    Attributes:
        name: Name of the param.
        source: The function's parameter.
        parameter: What may be passed.
        where: Place in the source.
    """

    name: str
    source: str
    parameter: TextParameter
    where: Where


@dataclass(frozen=True, slots=True)
class Condition:
    """When a branch is taken: when a parameter has one of these values."""

    source: str
    values: tuple[object, ...]

    def holds(self, values: Mapping[str, Any]) -> bool:
        """Whether it is taken."""
        return values[self.source] in self.values


@dataclass(frozen=True, slots=True)
class Branch:
    """A body that is a module; taken always, if no branch before it was, without a condition."""

    name: str
    condition: Condition | None
    body: tuple[PlanNode, ...]
    where: Where


@dataclass(frozen=True, slots=True)
class Branches:
    """``if`` or ``match``: the first branch whose condition holds is taken."""

    branches: tuple[Branch, ...]
    exclusive: bool
    where: Where


@dataclass(frozen=True, slots=True)
class Said:
    """``with role(...)``."""

    role: Role
    body: tuple[PlanNode, ...]
    where: Where


@dataclass(frozen=True, slots=True)
class Passed:
    """An argument that is the caller's own."""

    source: str


@dataclass(frozen=True, slots=True)
class Constant:
    """An argument that is always the same."""

    value: str | bool


class Program(ABC):
    """What a plan may call. Its own plan is read when it is needed, so that the order is free.

    Attributes:
        name: Of the module that a call becomes.
        function: What was decorated.
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
        """The function's body."""


@dataclass(frozen=True, slots=True)
class Call:
    """``yield from program(...)``."""

    name: str
    program: Program
    arguments: Mapping[str, Passed | Constant]
    where: Where


PlanNode: TypeAlias = str | SlotOf | Branches | Said | Call
