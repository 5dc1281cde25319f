"""Settings that are checked when an object is made, and changed by making another object."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Self

from pydantic import BaseModel

from ragcache_integrations.core.checks import refuse_assignment, unknown_name
from ragcache_integrations.core.knobs import explained_errors
from ragcache_integrations.errors import ConfigurationError

__all__ = ["CheckedSettings", "FixedSettings", "assignment_error"]


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
