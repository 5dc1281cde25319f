"""Settings that are read by pydantic, with errors of this package."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import fields
from typing import TYPE_CHECKING, Any, TypeVar

from pydantic import BaseModel, ValidationError

from .checks import explain_error

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

__all__ = ["explained_errors", "read_knobs", "settings_of"]

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
