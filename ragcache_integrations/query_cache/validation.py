"""Checks of arguments, shared by the cache and the retrievers around it."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from numbers import Integral, Real

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ragcache_integrations.errors import ConfigurationError

__all__ = [
    "check_available",
    "check_choice",
    "check_key",
    "check_tolerance",
    "check_vector",
    "check_vectors",
    "check_whole",
]


def check_whole(name: str, value: object, low: int) -> int:
    """Return ``value`` as an int of at least ``low``."""
    if isinstance(value, bool) or not isinstance(value, Integral) or value < low:
        msg = f"{name} must be a whole number of at least {low}, got {value!r}"
        raise ConfigurationError(msg)
    return int(value)


def check_choice(name: str, value: object, allowed: Sequence[str]) -> None:
    """Raise unless ``value`` is one of ``allowed``."""
    if not isinstance(value, str) or value not in allowed:
        msg = f"{name} must be one of {', '.join(allowed)}, got {value!r}"
        raise ConfigurationError(msg)


def check_available(name: str, value: object, available: object) -> None:
    """Raise unless ``value`` is the only one that this version implements."""
    if value != available:
        msg = f"{name}={value!r} is not available in this version, only {name}={available!r} is"
        raise ConfigurationError(msg)


def check_tolerance(value: object) -> float:
    """Return the tolerance as a float: a distance, 0 to infinity."""
    if value == "auto":
        msg = "tolerance='auto' is not available in this version, give a number from 0"
        raise ConfigurationError(msg)
    if isinstance(value, bool) or not isinstance(value, Real) or not float(value) >= 0:
        msg = f"tolerance must be a number from 0 (exact match) to infinity, got {value!r}"
        raise ConfigurationError(msg)
    return float(value)


def check_key(key: Hashable) -> Hashable:
    """Return ``key`` if it can be one."""
    try:
        hash(key)
    except TypeError as error:
        msg = f"key must be hashable, got {key!r}"
        raise ConfigurationError(msg) from error
    return key


def _as_float32(name: str, value: ArrayLike) -> NDArray[np.float32]:
    try:
        array = np.asarray(value)
    except (TypeError, ValueError) as error:  # ragged, or something that is no array at all
        msg = f"{name} must be an array of numbers, got {type(value).__name__}: {error}"
        raise ConfigurationError(msg) from error
    if array.dtype.kind not in "fiu":
        msg = f"{name} must be an array of numbers, got an array of {array.dtype}"
        raise ConfigurationError(msg)
    with np.errstate(over="ignore"):  # what does not fit becomes infinite and is refused below
        array = array.astype(np.float32, copy=False)
    if not np.isfinite(array).all():
        msg = f"{name} must be finite in 32-bit floats, it has NaN, infinite or too large numbers"
        raise ConfigurationError(msg)
    return array


def check_vector(value: ArrayLike, dim: int | None = None) -> NDArray[np.float32]:
    """Return an embedding as a float32 array.

    Args:
        value: The embedding.
        dim: Its dimension; ``None`` accepts any.

    Raises:
        ConfigurationError: It is not one vector of that dimension, is not finite or is zero,
            all after rounding to 32-bit floats.
    """
    array = _as_float32("an embedding", value)
    if array.ndim != 1 or array.size == 0 or (dim is not None and array.size != dim):
        wanted = "(dim,)" if dim is None else f"({dim},)"
        msg = f"an embedding must have the shape {wanted}, got {array.shape}"
        raise ConfigurationError(msg)
    if not array.any():
        msg = "an embedding must not be zero: the zero vector has no direction"
        raise ConfigurationError(msg)
    return array


def check_vectors(value: ArrayLike, count: int, dim: int) -> NDArray[np.float32]:
    """Return what a :class:`VectorSource` gave as a float32 array of shape (count, dim)."""
    array = _as_float32("the documents' vectors", value)
    if array.shape != (count, dim):
        msg = f"the documents' vectors must have the shape {(count, dim)}, got {array.shape}"
        raise ConfigurationError(msg)
    return array
