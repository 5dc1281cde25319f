"""Copies of documents that callers may change."""

from __future__ import annotations

from typing import Any, TypeVar

from pydantic import BaseModel

__all__ = ["copy_model"]

M = TypeVar("M", bound=BaseModel)


def copy_model(model: M, **update: Any) -> M:
    """Copy a document so that changing the copy's fields and containers leaves it as it is.

    What is neither list, dict nor set inside is shared, as it may not be copyable.
    """
    containers = {
        name: _copy_containers(value)
        for name, value in model.__dict__.items()
        if isinstance(value, dict | list | set)
    }
    return model.model_copy(update=containers | update)


def _copy_containers(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _copy_containers(one) for name, one in value.items()}
    if isinstance(value, list):
        return [_copy_containers(one) for one in value]
    if isinstance(value, set):
        return set(value)
    return value
