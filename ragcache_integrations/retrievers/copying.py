"""Keys out of search arguments, and copies of documents that callers may change."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from typing import Any, TypeVar

from pydantic import BaseModel

from ragcache_integrations.errors import ConfigurationError

__all__ = ["copy_model", "freeze"]

M = TypeVar("M", bound=BaseModel)


def freeze(value: Any) -> Hashable:
    """Turn an argument of a search, such as a filter, into a part of a cache key.

    Values of different types make different keys, even where Python holds them equal: a store may
    tell 1 from True.

    Raises:
        ConfigurationError: It holds something that cannot be told from its like.
    """
    if isinstance(value, Mapping):
        return type(value), frozenset((freeze(name), freeze(one)) for name, one in value.items())
    if isinstance(value, list | tuple):
        return type(value), tuple(freeze(one) for one in value)
    if isinstance(value, set | frozenset):
        return type(value), frozenset(freeze(one) for one in value)
    if isinstance(value, BaseModel):
        return type(value), freeze(dict(value))
    try:
        hash(value)
    except TypeError as error:
        msg = f"an argument of the search must be hashable or made of what is, got {value!r}"
        raise ConfigurationError(msg) from error
    return type(value), value


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
