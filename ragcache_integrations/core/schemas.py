"""JSON schemas as plain values."""

from __future__ import annotations

import json
import pickle
from collections.abc import Mapping
from typing import Any

from ragcache_integrations.errors import ConfigurationError

from .checks import check_type

__all__ = ["copy_schema"]


def copy_schema(name: str, schema: object) -> dict[str, Any]:
    """A copy of a JSON schema in plain parts, which the engine's process can read.

    Args:
        name: What the schema is, for the message.
        schema: A mapping.

    Raises:
        ConfigurationError: It is no mapping, or holds something that JSON has not.
    """
    check_type(name, schema, Mapping, "a mapping")
    try:
        copy: dict[str, Any] = json.loads(json.dumps(schema, default=_plain_mapping))
        pickle.dumps(copy)  # as it travels; it may be nested too deeply for that alone
    except (TypeError, ValueError, RecursionError) as error:
        msg = f"{name} must be a JSON schema, which this is not: {error}"
        raise ConfigurationError(msg) from error
    return copy


def _plain_mapping(value: object) -> object:
    if isinstance(value, Mapping):
        return dict(value)
    msg = f"it contains a {type(value).__name__}"
    raise TypeError(msg)
