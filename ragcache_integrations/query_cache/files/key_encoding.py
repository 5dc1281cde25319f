"""Cache keys as JSON, and back.

JSON distinguishes ``None``, booleans, whole numbers, floats and strings. Everything else becomes a
list that begins with the name of its kind. Types and members of enumerations, which occur in frozen
filters, are written by name. Reading looks names up among the loaded modules; it imports none and
calls nothing, so that no file can make it run code.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Hashable
from enum import Enum
from typing import Any

from ragcache_integrations.errors import ConfigurationError
from ragcache_integrations.query_cache.tolerance import MOST_TENANTS, TenantTolerances

__all__ = ["decode_key", "decode_learning", "encode_key", "encode_learning"]

_PLAIN = (type(None), bool, int, float, str)
# Says that it lives in builtins, and does not.
_NONE_TYPE = ["builtins", "NoneType"]


def encode_key(key: Hashable) -> Any:
    """Return a cache key as JSON can hold it.

    Raises:
        ConfigurationError: It holds something that :func:`decode_key` could not give back.
    """
    if type(key) in _PLAIN:
        return key
    if type(key) is bytes:
        return ["bytes", key.hex()]
    if type(key) is tuple:
        return ["tuple", *(encode_key(part) for part in key)]
    if type(key) is frozenset:
        return ["frozenset", *sorted((encode_key(part) for part in key), key=json.dumps)]
    encoded: list[str] | None = None
    if isinstance(key, type):
        encoded = ["type", *_name(key)]
    elif isinstance(key, Enum):
        encoded = ["enum", *_name(type(key)), str(key.name)]
    try:
        if encoded is not None and decode_key(encoded) is key:
            return encoded
    except ValueError:
        pass  # a type that is made inside a function, for example
    msg = (
        "what a saved cache's keys hold must be None, bool, int, float, str, bytes, tuples, "
        f"frozensets, or types and enum members found in their modules, got {key!r}"
    )
    raise ConfigurationError(msg)


def decode_key(encoded: Any) -> Hashable:
    """Return the cache key that :func:`encode_key` wrote.

    Raises:
        ValueError: It wrote no such thing, or a type in it is not loaded.
    """
    if type(encoded) in _PLAIN:
        plain: Hashable = encoded
        return plain
    match encoded:
        case ["bytes", str(digits)]:
            return bytes.fromhex(digits)
        case ["tuple", *parts]:
            return tuple(decode_key(part) for part in parts)
        case ["frozenset", *parts]:
            return frozenset(decode_key(part) for part in parts)
        case ["type", str(module), str(name)]:
            return _find(module, name)
        case ["enum", str(module), str(name), str(member)]:
            kind = _find(module, name)
            if issubclass(kind, Enum) and member in kind.__members__:
                return kind.__members__[member]
    msg = f"a cache key must be one that was saved, got {encoded!r}"
    raise ValueError(msg)


def _name(kind: type) -> list[str]:
    return [kind.__module__, kind.__qualname__]


def encode_learning(learnt: TenantTolerances | None) -> list[Any] | None:
    """Return what tenants have learnt as JSON can hold it; ``None`` if the tolerance is fixed.

    A tenant whose key cannot be written is left out, and starts again.
    """
    if learnt is None:
        return None
    encoded = []
    for tenant, state in learnt.states():
        try:
            encoded.append([encode_key(tenant), state])
        except ConfigurationError:
            continue
    return encoded


def decode_learning(saved: Any, learnt: TenantTolerances | None) -> TenantTolerances | None:
    """Return tolerances that continue from what :func:`encode_learning` wrote.

    Args:
        saved: What it wrote.
        learnt: The tolerances of the cache that is to have them.

    Returns:
        ``None`` if that cache does not learn, or for other targets.

    Raises:
        ValueError: It wrote no such thing.
    """
    if learnt is None or saved is None:
        return None
    if not isinstance(saved, list) or len(saved) > MOST_TENANTS:
        msg = f"what was learnt must be a list of at most {MOST_TENANTS} tenants"
        raise ValueError(msg)
    return learnt.restore((decode_key(tenant), state) for tenant, state in saved)


def _find(module: str, name: str) -> type:
    if [module, name] == _NONE_TYPE:
        return type(None)
    value: object = sys.modules.get(module)
    for part in name.split("."):
        # Not getattr, which modules and classes may answer by running code.
        value = getattr(value, "__dict__", {}).get(part)
    if isinstance(value, type):
        return value
    msg = f"the type {module}.{name} of a cache key is not there: import {module} before"
    raise ValueError(msg)
