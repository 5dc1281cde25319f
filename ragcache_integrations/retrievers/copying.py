"""Copies of documents that callers may change."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, TypeVar

from pydantic import BaseModel

__all__ = ["copy_container", "copy_model"]

M = TypeVar("M", bound=BaseModel)

_CONTAINERS = (dict, list, set)
# Types that most fields have, told from containers sooner than by ``isinstance``.
_PLAIN = frozenset({str, int, float, bool, type(None)})

_set = object.__setattr__


def copy_model(model: M, **update: Any) -> M:
    """Copy a document so that changing the copy's fields and containers leaves it as it is.

    What is neither list, dict nor set inside is shared, as it may not be copyable.

    Args:
        model: The document.
        **update: New values of fields, which are not copied.
    """
    kind = type(model)
    more = model.__pydantic_private__, model.__pydantic_extra__
    if kind.__copy__ is not BaseModel.__copy__ or more != (None, None):
        copied = model.model_copy(update=update) if update else model.__copy__()
    else:  # as pydantic copies it, in half the time
        copied = kind.__new__(kind)
        _set(copied, "__dict__", model.__dict__ | update)
        _set(copied, "__pydantic_extra__", None)
        _set(copied, "__pydantic_fields_set__", model.__pydantic_fields_set__ | update.keys())
        _set(copied, "__pydantic_private__", None)
    fields = copied.__dict__
    for name, value in fields.items():
        if type(value) not in _PLAIN and isinstance(value, _CONTAINERS) and name not in update:
            empty = not value and type(value) in _CONTAINERS  # as most are
            fields[name] = value.copy() if empty else copy_container(value)
    return copied


def copy_container(value: Any) -> Any:
    """Copy a list, a dict or a set, and those within."""
    copied: Any
    items: Iterable[tuple[Any, Any]]
    if isinstance(value, dict):
        copied, items = dict(value), value.items()
    elif isinstance(value, list):
        copied, items = list(value), enumerate(value)
    else:
        return set(value)
    for place, item in items:
        if type(item) not in _PLAIN and isinstance(item, _CONTAINERS):
            copied[place] = copy_container(item)
    return copied
