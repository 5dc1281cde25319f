"""Settings that are checked once, when an object is made, and changed by making another one."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Self

from pydantic import BaseModel

from ragcache_integrations._suggestions import closest_names, shortened
from ragcache_integrations.errors import ConfigurationError

__all__ = ["FixedSettings", "fixed"]


def fixed(changed: BaseModel, name: str) -> ConfigurationError:
    """What to raise where a setting of a finished object is set."""
    kind = type(changed).__name__
    allowed = sorted(type(changed).model_fields)
    if name not in allowed:
        meant = closest_names(name, allowed)
        hint = f": did you mean {meant[0]!r}?" if meant else f": it has {', '.join(allowed)}"
        return ConfigurationError(f"a {kind} has no {shortened(name)!r}{hint}")
    return ConfigurationError(
        f"{name!r} of a finished {kind} cannot be set: "
        f"make another one by model_copy(update={{{name!r}: ...}})"
    )


class FixedSettings(BaseModel):
    """A model whose fields cannot be set, and whose copies are checked.

    What a framework's base class declares can be set: query engines do that.
    """

    def __setattr__(self, name: str, value: Any) -> None:
        if name.startswith("_") or name in _frameworks_fields(type(self)):
            super().__setattr__(name, value)
        else:
            raise fixed(self, name)

    def model_copy(self, *, update: Mapping[str, Any] | None = None, deep: bool = False) -> Self:
        """Copy it.

        Args:
            update: What shall be different; it is checked.
            deep: Whether the copy shares nothing that changes.

        Raises:
            ConfigurationError: What shall be different is unknown or out of its range.
        """
        origin = super().model_copy(deep=deep)
        if not update:
            return origin
        fields = {name: getattr(origin, name) for name in type(self).model_fields}
        return type(self)(**{**fields, **update})


def _frameworks_fields(kind: type[BaseModel]) -> set[str]:
    return {
        name
        for base in kind.__mro__
        if not base.__module__.startswith("ragcache_integrations.")
        for name in getattr(base, "model_fields", ())
    }
