"""Copies of documents that callers may change."""

from __future__ import annotations

from typing import Any, TypeVar

from pydantic import BaseModel

__all__ = ["copy_container", "copy_model"]

M = TypeVar("M", bound=BaseModel)

_CONTAINERS = (dict, list, set)


def copy_model(model: M, **update: Any) -> M:
    """Copy a document so that changing the copy's fields and containers leaves it as it is.

    What is neither list, dict nor set inside is shared, as it may not be copyable.

    Args:
        model: The document.
        **update: New values of fields, which are not copied.
    """
    copied = model.model_copy(update=update) if update else model.__copy__()
    fields = copied.__dict__
    for name, value in fields.items():
        if name not in update and isinstance(value, _CONTAINERS):
            fields[name] = copy_container(value)
    return copied


def copy_container(value: Any) -> Any:
    """Copy a list, a dict or a set, and those within."""
    if isinstance(value, set):
        return set(value)
    copied: Any = dict(value) if isinstance(value, dict) else list(value)
    for place, item in value.items() if isinstance(value, dict) else enumerate(value):
        if isinstance(item, _CONTAINERS):
            copied[place] = copy_container(item)
    return copied
