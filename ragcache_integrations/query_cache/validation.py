"""Checks of embeddings, document ids, cache keys and tolerances."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ragcache_integrations.core.checks import as_number
from ragcache_integrations.errors import ConfigurationError

__all__ = [
    "FLOAT32",
    "as_array",
    "as_query",
    "check_below_one",
    "check_ids",
    "check_key",
    "check_tolerance",
    "check_vector",
    "check_vectors",
    "is_ordinary",
]


def check_below_one(name: str, value: object) -> float:
    """Return ``value`` as a float above 0 and below 1."""
    share = as_number(value)
    if not 0 < share < 1:
        raise ConfigurationError(f"{name} must be a number above 0 and below 1, got {value!r}")
    return share


def check_tolerance(value: object, name: str = "tolerance") -> float | Literal["auto"]:
    """Return a tolerance: a distance from 0 to infinity, or ``auto``."""
    if name == "tolerance" and isinstance(value, str) and value == "auto":
        return "auto"
    number = as_number(value)
    if not number >= 0:
        auto = " or 'auto'" if name == "tolerance" else ""
        msg = f"{name} must be a number from 0 (exact match) to infinity{auto}, got {value!r}"
        raise ConfigurationError(msg)
    return number


def check_ids(ids: Sequence[object]) -> None:
    """Raise unless all ids are strings."""
    for document in ids:
        if not isinstance(document, str):
            raise ConfigurationError(f"ids must be strings, got {document!r}")


def check_key(key: Hashable) -> Hashable:
    """Return ``key`` if it is hashable."""
    try:
        hash(key)
    except TypeError as error:
        raise ConfigurationError(f"key must be hashable, got {key!r}") from error
    return key


_MATRIX = 2  # dimensions
FLOAT32 = np.dtype(np.float32)
_TINY, _HUGE = 1e-30, 1e30  # squared lengths of ordinary embeddings lie between


def as_array(name: str, value: ArrayLike, *, copy: bool = False) -> NDArray[Any]:
    """Return numbers as an array, without converting them.

    Args:
        name: Their name in messages.
        value: The numbers.
        copy: Whether the array must not share memory with ``value``.

    Raises:
        ConfigurationError: They do not form an array.
    """
    try:
        return np.array(value) if copy else np.asarray(value)
    except (TypeError, ValueError) as error:  # ragged, or something that is no array at all
        msg = f"{name} must be an array of numbers, got {type(value).__name__}: {error}"
        raise ConfigurationError(msg) from error


def _as_float32(name: str, value: ArrayLike) -> NDArray[np.float32]:
    array = as_array(name, value)
    if array.dtype.kind not in "fiu":
        msg = f"{name} must be an array of numbers, got an array of {array.dtype}"
        raise ConfigurationError(msg)
    with np.errstate(over="ignore"):  # what does not fit becomes infinite and is refused below
        # Of one kind, whatever came: compiled code is made for each kind of array.
        array = array.astype(np.float32, order="C", copy=False)
    if not array.flags.carray:
        array = np.require(array, np.float32, ["C", "A", "W"])
    if not np.isfinite(array).all():
        msg = f"{name} must be finite in 32-bit floats, it has NaN, infinite or too large numbers"
        raise ConfigurationError(msg)
    return array


def check_vector(
    value: ArrayLike, dim: int | None = None, *, zero: bool = False
) -> NDArray[np.float32]:
    """Return an embedding as a float32 array.

    Args:
        value: The embedding.
        dim: Its dimension; ``None`` accepts any.
        zero: Whether it may be zero.

    Raises:
        ConfigurationError: It is not one vector of that dimension, is not finite or is zero where
            it must not be, all after rounding to 32-bit floats.
    """
    array = _as_float32("an embedding", value)
    if array.ndim != 1 or array.size == 0 or (dim is not None and array.size != dim):
        shape = "(dim,)" if dim is None else f"({dim},)"
        raise ConfigurationError(f"an embedding must have the shape {shape}, got {array.shape}")
    if not zero and not array.any():
        raise ConfigurationError("an embedding must not be zero: the zero vector has no direction")
    return array


def is_ordinary(array: NDArray[Any], dim: int | None) -> bool:
    """Whether an array is surely an embedding that :func:`check_vector` lets pass.

    One number decides, the squared length, which is far from what 32-bit floats cannot hold.

    Args:
        array: The numbers.
        dim: As for :func:`check_vector`.
    """
    if array.ndim != 1 or array.dtype.kind != "f" or dim not in {None, array.size}:
        return False
    with np.errstate(over="ignore", invalid="ignore"):
        return _TINY < float(array.dot(array)) < _HUGE


def as_query(value: ArrayLike, dim: int) -> NDArray[np.float32]:
    """Return a query's embedding as an array that the kernels take.

    An array that needs no conversion is returned unchecked: the kernels compute its length, which
    shows whether it is finite and above zero.

    Raises:
        ConfigurationError: As :func:`check_vector`.
    """
    if (
        type(value) is np.ndarray
        and value.dtype is FLOAT32
        and value.shape == (dim,)
        and value.flags.carray
    ):
        return value
    return check_vector(value, dim)


def check_vectors(
    value: ArrayLike, count: int | None, dim: int, name: str = "the documents' vectors"
) -> NDArray[np.float32]:
    """Return vectors as a float32 array of shape (count, dim); ``None`` accepts any count."""
    array = _as_float32(name, value)
    if array.ndim != _MATRIX or array.shape[1] != dim or count not in {None, len(array)}:
        shape = f"(n, {dim})" if count is None else f"{(count, dim)}"
        raise ConfigurationError(f"{name} must have the shape {shape}, got {array.shape}")
    return array
