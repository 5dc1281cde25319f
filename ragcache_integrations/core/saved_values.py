"""Metadata as JSON, and back: what pandas, NumPy and Python's own types put there.

JSON's own values stand for themselves; an object is a dict whose keys are strings. Everything else
is a list that begins with the name of its kind. Values come back equal and of the same type.
Reading calls nothing but the constructors of the kinds named here.
"""

from __future__ import annotations

import base64
import datetime as dt
import decimal
import importlib
import math
import uuid
import zoneinfo
from collections.abc import Callable
from typing import Any

import numpy as np

from ragcache_integrations.errors import ConfigurationError

__all__ = ["decode_value", "encode_value"]

_MAX_DEPTH = 64
_DTYPE_CHARACTERS = 32
_PLAIN = (type(None), bool, int, str)
# Kinds that are their text.
_TEXTS: dict[str, tuple[type, Callable[[Any], str], Callable[[str], Any]]] = {
    "float": (float, repr, float),
    "date": (dt.date, dt.date.isoformat, dt.date.fromisoformat),
    "time": (dt.time, dt.time.isoformat, dt.time.fromisoformat),
    "decimal": (decimal.Decimal, str, decimal.Decimal),
    "uuid": (uuid.UUID, str, uuid.UUID),
    "bytes": (
        bytes,
        lambda value: base64.b64encode(value).decode(),
        lambda text: base64.b64decode(text, validate=True),
    ),
}
_TEXT_OF = {kind: (name, write) for name, (kind, write, _) in _TEXTS.items()}
_CONTAINERS: dict[str, type] = {"list": list, "tuple": tuple, "set": set, "frozenset": frozenset}
_CONTAINER_OF = {kind: name for name, kind in _CONTAINERS.items()}


def encode_value(value: Any, path: str = "value") -> Any:
    """Return a value as JSON can hold it.

    Args:
        value: The value.
        path: What it is called in messages.

    Raises:
        ConfigurationError: It holds something that :func:`decode_value` could not give back.
    """
    return _encode(value, path, _MAX_DEPTH)


def decode_value(encoded: Any) -> Any:
    """Return the value that :func:`encode_value` wrote.

    Raises:
        ValueError: It wrote no such thing.
    """
    return _decode(encoded, _MAX_DEPTH)


def _encode(value: Any, path: str, depth: int) -> Any:
    kind = type(value)
    if kind in _PLAIN or (kind is float and math.isfinite(value)):
        return value
    if kind in _TEXT_OF:
        name, write = _TEXT_OF[kind]
        return [name, write(value)]
    encoded = _encode_number(value) or _encode_time(value)
    if encoded is None and depth:
        encoded = _encode_container(value, path, depth - 1)
    if encoded is None:
        raise ConfigurationError(
            f"{path} cannot be saved: a {kind.__module__}.{kind.__qualname__} would not come back "
            "as it is. Allowed are JSON's values, numbers of NumPy, arrays, dates and times (of "
            "pandas, too), bytes, Decimal, UUID, tuples and sets"
        )
    return encoded


def _encode_container(value: Any, path: str, depth: int) -> Any:
    kind = type(value)
    if kind in _CONTAINER_OF:
        items = [_encode(item, f"{path}[{i}]", depth) for i, item in enumerate(value)]
        return [_CONTAINER_OF[kind], *items]
    if kind is not dict:
        return None
    if all(type(name) is str for name in value):
        return {name: _encode(item, f"{path}[{name!r}]", depth) for name, item in value.items()}
    pairs = [
        [_encode(name, path, depth), _encode(item, f"{path}[{name!r}]", depth)]
        for name, item in value.items()
    ]
    return ["dict", *pairs]


def _encode_number(value: Any) -> list[Any] | None:
    """Encode NumPy's numbers and arrays; those of Python objects cannot be."""
    if not isinstance(value, np.generic) and type(value) is not np.ndarray:
        return None
    if value.dtype.hasobject or value.dtype.names is not None:
        return None
    data = base64.b64encode(value.tobytes()).decode()
    shape = list(value.shape) if isinstance(value, np.ndarray) else None
    return ["numpy", value.dtype.str, shape, data]


def _encode_time(value: Any) -> list[Any] | None:
    kind = type(value)
    if kind is dt.timedelta:
        return ["timedelta", value.days, value.seconds, value.microseconds]
    if kind is dt.datetime and type(value.tzinfo) in {type(None), dt.timezone, zoneinfo.ZoneInfo}:
        zone = value.tzinfo.key if isinstance(value.tzinfo, zoneinfo.ZoneInfo) else None
        return ["datetime", value.replace(fold=0).isoformat(), zone, value.fold]
    if kind.__module__.partition(".")[0] != "pandas":
        return None
    if kind.__name__ == "Timestamp":
        zone = None if value.tzinfo is None else str(value.tzinfo)
        return ["pandas.Timestamp", value.isoformat(), zone, value.unit]
    if kind.__name__ == "Timedelta":
        return ["pandas.Timedelta", value.isoformat(), value.unit]
    names = {"NaTType": "NaT", "NAType": "NA"}
    return [f"pandas.{names[kind.__name__]}"] if kind.__name__ in names else None


def _decode(encoded: Any, depth: int) -> Any:
    if type(encoded) in {*_PLAIN, float}:
        return encoded
    if depth < 0:
        raise ValueError("a saved value is nested too deeply")
    if type(encoded) is dict:
        return {name: _decode(item, depth - 1) for name, item in encoded.items()}
    match encoded:
        case [str(name), *items] if name in _CONTAINERS:
            return _CONTAINERS[name](_decode(item, depth - 1) for item in items)
        case ["dict", *pairs]:
            return {_decode(name, depth - 1): _decode(item, depth - 1) for name, item in pairs}
    return _decode_atom(encoded)


def _decode_atom(encoded: Any) -> Any:
    match encoded:
        case [str(name), str(text)] if name in _TEXTS:
            return _TEXTS[name][2](text)
        case ["numpy", str(dtype), shape, str(data)]:
            return _decode_number(dtype, shape, base64.b64decode(data, validate=True))
        case [str(name), *parts]:
            return _decode_time(name, parts)
    raise ValueError(f"a saved value must be one that was written, got {encoded!r:.100}")


def _decode_number(name: str, shape: Any, data: bytes) -> Any:
    if len(name) > _DTYPE_CHARACTERS:
        raise ValueError(f"a saved number has no type {name!r:.100}")
    try:
        dtype = np.dtype(name)
        if dtype.hasobject or dtype.names is not None:
            raise TypeError(name)  # noqa: TRY301 - told below
        array = np.frombuffer(data, dtype=dtype) if dtype.itemsize else np.zeros(1, dtype)
        return array[0] if shape is None else array.reshape(shape).copy()
    except (TypeError, IndexError, OverflowError, SyntaxError) as error:
        raise ValueError(f"a saved number of type {name!r} is damaged: {error}") from error


def _decode_time(name: str, parts: list[Any]) -> Any:
    match name, parts:
        case "timedelta", [int(days), int(seconds), int(microseconds)]:
            return dt.timedelta(days, seconds, microseconds)
        case "datetime", [str(text), zone, int(fold)]:
            value = dt.datetime.fromisoformat(text)
            own = value.tzinfo if zone is None else zoneinfo.ZoneInfo(zone)
            return value.replace(tzinfo=own, fold=fold)
        case "pandas.Timestamp", [str(text), zone, str(unit)]:
            stamp = importlib.import_module("pandas").Timestamp(text)
            return (stamp if zone is None else stamp.tz_convert(zone)).as_unit(unit)
        case "pandas.Timedelta", [str(text), str(unit)]:
            return importlib.import_module("pandas").Timedelta(text).as_unit(unit)
        case (("pandas.NaT" | "pandas.NA"), []):
            return getattr(importlib.import_module("pandas"), name.removeprefix("pandas."))
    raise ValueError(f"a saved value must be one that was written, got {[name, *parts]!r:.100}")
