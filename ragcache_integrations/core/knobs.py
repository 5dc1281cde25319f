"""Settings that are read by pydantic, with errors of this package.

Some are checked when an object is made, and changed only by making another object.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import fields
from typing import TYPE_CHECKING, Any, Self, TypeVar

from pydantic import BaseModel, ValidationError

from ragcache_integrations.errors import ConfigurationError

from .checks import explain_error, refuse_assignment, unknown_name

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

__all__ = [
    "CheckedSettings",
    "FixedSettings",
    "assignment_error",
    "explained_errors",
    "read_knobs",
    "settings_of",
]

Knobs = TypeVar("Knobs", bound=BaseModel)
Settings = TypeVar("Settings", bound="DataclassInstance")


@contextmanager
def explained_errors(
    kind: type[BaseModel], *, secrets: frozenset[str] = frozenset()
) -> Iterator[None]:
    """Raise an error of ours instead of pydantic's.

    Args:
        kind: The class of the settings that are read.
        secrets: Names of the arguments whose values are not shown.

    Raises:
        ConfigurationError: An argument is unknown or out of range.
    """
    try:
        yield
    except ValidationError as error:
        raise explain_error(error, kind.model_fields, secrets=secrets) from error


def read_knobs(kind: type[Knobs], arguments: Mapping[str, Any]) -> Knobs:
    """Read keyword arguments.

    Args:
        kind: The class of the settings.
        arguments: The keyword arguments.

    Raises:
        ConfigurationError: An argument is unknown or out of range.
    """
    with explained_errors(kind):
        return kind(**arguments)


def settings_of(kind: type[Settings], knobs: object, **others: Any) -> Settings:
    """Make settings of the knobs that have the same names.

    Args:
        kind: The class of the settings, a dataclass.
        knobs: The object with the knobs.
        **others: Settings that are no knobs.
    """
    names = {field.name for field in fields(kind)} - others.keys()
    return kind(**{name: getattr(knobs, name) for name in names}, **others)


def assignment_error(owner: BaseModel, name: str) -> ConfigurationError:
    """The error for an assignment to a setting of a finished object.

    Args:
        owner: The object.
        name: The name that was assigned to; it may not be a setting at all.
    """
    kind = type(owner)
    if name not in kind.model_fields:
        return ConfigurationError(
            unknown_name(f"field of {kind.__name__}", name, kind.model_fields)
        )
    return refuse_assignment(owner, name, f"model_copy(update={{{name!r}: ...}})")


class FixedSettings(BaseModel):
    """A model whose fields cannot be assigned, and whose copies are checked.

    Fields of a framework's own base class can be assigned: query engines do that.
    """

    def __setattr__(self, name: str, value: Any) -> None:
        if name.startswith("_") or name in _frameworks_fields(type(self)):
            super().__setattr__(name, value)
        else:
            raise assignment_error(self, name)

    def model_copy(self, *, update: Mapping[str, Any] | None = None, deep: bool = False) -> Self:
        """Copy it.

        Args:
            update: Values of fields that differ in the copy; they are checked.
            deep: Whether mutable values are copied, too.

        Raises:
            ConfigurationError: A field is unknown, or its value out of range.
        """
        origin = super().model_copy(deep=deep)
        if not update:
            return origin
        fields = {name: getattr(origin, name) for name in type(self).model_fields}
        return type(self)(**{**fields, **update})


class CheckedSettings(FixedSettings):
    """Fixed settings whose errors are :class:`ConfigurationError`."""

    def __init__(self, *args: Any, **settings: Any) -> None:
        with explained_errors(type(self)):
            super().__init__(*args, **settings)


def _frameworks_fields(kind: type[BaseModel]) -> set[str]:
    return {
        name
        for base in kind.__mro__
        if not base.__module__.startswith("ragcache_integrations.")
        for name in getattr(base, "model_fields", ())
    }
