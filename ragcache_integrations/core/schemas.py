"""JSON schemas as plain values, and in the strict form that OpenAI's servers demand."""

from __future__ import annotations

import json
import pickle
import re
import tomllib
from collections.abc import Mapping
from importlib.resources import files
from typing import Any, NoReturn

from ragcache_integrations.errors import ConfigurationError

from .checks import check_type

__all__ = ["copy_schema", "strict_schema"]

_Schema = dict[str, Any]

_MOST_PARTS = 10_000
"""Of a schema: references that are resolved may multiply them. OpenAI allows 5,000 properties."""
_MOST_VALUES = 1000
"""OpenAI's limit for the values of all enumerations."""

_WORDS: dict[str, list[str]] = tomllib.loads(
    files(__package__).joinpath("schemas.toml").read_text("utf-8")
)
_REMARKS = frozenset(_WORDS["remarks"])
"""Keywords that allow and forbid nothing. Strict mode refuses them."""
_LOOKAROUND = re.compile(r"\(\?(?:[=!]|<[=!])")
_TYPE_NAMES: dict[type, str] = {
    type(None): "null",
    bool: "boolean",
    int: "integer",
    float: "number",
    str: "string",
    list: "array",
    dict: "object",
}


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
    raise TypeError(f"it contains a {type(value).__name__}")


def strict_schema(schema: Mapping[str, Any], *, asked: bool = False) -> dict[str, Any]:
    """A copy of a schema that OpenAI's strict mode accepts.

    Objects are closed and require all their properties, as OpenAI's own client has it. Remarks are
    left out, and references with other keywords next to them are resolved. Every answer that
    satisfies the result satisfies the schema.

    An optional property becomes a required one only if an answer can still say nothing: it may be
    null, has a default, or is a list. Elsewhere a model would have to make a value up.

    Args:
        schema: A JSON schema of plain values; it is not changed.
        asked: Whether the caller insists on strict mode. Then all optional properties become
            required ones, and keywords that OpenAI does not know stay: the server judges them.

    Raises:
        ConfigurationError: The schema has no strict form; the message says what has none, and
            where.
    """
    root = copy_schema("json_schema", schema)
    try:
        strict = _Strict(root, asked=asked).node(root, "it", frozenset())
    except (RecursionError, TypeError) as error:  # nested too deeply, or lists for names
        raise ConfigurationError(f"the schema has no strict form: {error}") from error
    if "object" not in _types(strict) or "anyOf" in strict:
        _refuse("it", "is not that of an object")
    return strict


class _Strict:
    """Makes schemas within a root strict."""

    def __init__(self, root: _Schema, *, asked: bool) -> None:
        self._root = root
        self._asked = asked
        self._count = 0
        self._values = 0

    def node(self, schema: object, at: str, resolving: frozenset[str]) -> _Schema:
        """The strict form of a schema.

        Args:
            schema: It.
            at: Its place, for messages.
            resolving: References that are resolved around it.
        """
        if not isinstance(schema, dict):
            _refuse(at, "allows any value" if schema is True else f"is {schema!r:.50}")
        self._count += 1
        if self._count > _MOST_PARTS:
            _refuse("it", f"has more than {_MOST_PARTS} parts")
        schema = _merged(schema)
        siblings = schema.keys() - _REMARKS - {"$ref"}
        if "$ref" in schema and (siblings or schema is self._root):
            return self._resolved(schema, at, resolving)
        if not self._asked:
            self._check_keywords(schema, at)
        strict = {name: value for name, value in schema.items() if name not in _REMARKS}
        strict |= self._parts(strict, at, resolving)
        if "$ref" in strict:
            self._target(strict["$ref"], at)  # checks it
        else:
            self._type(strict, at)
        if "properties" in strict or "object" in _types(strict):
            self._close(strict, schema, at)
        return strict

    def _parts(self, schema: _Schema, at: str, resolving: frozenset[str]) -> _Schema:
        """The strict forms of the schemas in a schema, under its keywords."""
        parts: _Schema = {}
        for name in [n for n in ("$defs", "definitions", "properties") if n in schema]:
            prefix = f"{at}." if name == "properties" else ""
            parts[name] = {
                key: self.node(part, f"{prefix}{key}", resolving)
                for key, part in _checked(schema[name], dict, at).items()
            }
        if "anyOf" in schema:
            several = _checked(schema["anyOf"], list, at)
            parts["anyOf"] = [self.node(part, f"a part of {at}", resolving) for part in several]
        if "items" in schema and not (self._asked and isinstance(schema["items"], list)):
            parts["items"] = self.node(schema["items"], f"{at}[]", resolving)
        return parts

    def _resolved(self, schema: _Schema, at: str, resolving: frozenset[str]) -> _Schema:
        reference = schema["$ref"]
        target = self._target(reference, at)
        siblings = {name: value for name, value in schema.items() if name != "$ref"}
        if reference in resolving:  # within itself, where only a bare reference comes to an end
            if siblings.keys() - _REMARKS - {"title", "description"}:
                _refuse(at, "refers to a schema around it with other keywords next to it")
            return {"$ref": reference}
        return self.node({**target, **siblings}, at, resolving | {reference})

    def _target(self, reference: object, at: str) -> _Schema:
        target: Any = self._root if isinstance(reference, str) else None
        first, *names = str(reference).split("/")
        for name in names:
            plain = name.replace("~1", "/").replace("~0", "~")
            target = target.get(plain) if isinstance(target, dict) else None
        if first != "#" or not isinstance(target, dict):
            _refuse(at, f"refers to {reference!r:.100}, which is not in it")
        return target

    def _check_keywords(self, schema: _Schema, at: str) -> None:
        unknown = sorted(schema.keys() - {*_WORDS["keywords"], *_REMARKS})
        if unknown:
            _refuse(at, f"has {unknown[0]!r}, which strict mode does not know")
        form, pattern = schema.get("format"), schema.get("pattern")
        if form is not None and form not in _WORDS["formats"]:
            _refuse(at, f"has the format {form!r:.50}, which strict mode does not know")
        if isinstance(pattern, str) and _LOOKAROUND.search(pattern):
            _refuse(at, "has a pattern that looks around, which strict mode does not know")

    def _type(self, schema: _Schema, at: str) -> None:
        """Say the type of the values, which strict mode demands."""
        values = _checked(_values(schema), list, at)
        self._values += len(values)
        if self._values > _MOST_VALUES:
            _refuse("it", f"lists more than {_MOST_VALUES} values")
        if "array" in _types(schema) and not {"items", "prefixItems"} & schema.keys():
            _refuse(at, "is a list of any values")
        if {"type", "anyOf", "oneOf", "allOf"} & schema.keys():
            return
        names = list(dict.fromkeys(_TYPE_NAMES[type(value)] for value in values))
        names = ["object"] if "properties" in schema else names
        if not names:
            _refuse(at, "allows values of any type")
        schema["type"] = names if len(names) > 1 else names[0]

    def _close(self, strict: _Schema, schema: _Schema, at: str) -> None:
        """Forbid further properties, and require those that are named."""
        named, extra = schema.get("properties", {}), schema.get("additionalProperties")
        # An object of no properties is an open one, unless it has the arguments of a tool.
        is_open = extra is None and not named and not (self._asked and "properties" in schema)
        if is_open or extra not in (None, False):
            _refuse(at, "is an object whose properties may have any names")
        required = set(_checked(schema.get("required", []), list, at))
        for name, part in named.items():
            if not (self._asked or name in required or self._may_be_nothing(part)):
                _refuse(f"{at}.{name}", "is optional, but can't be null")
        unknown = sorted(required - named.keys())
        if unknown:
            _refuse(at, f"requires {unknown[0]!r:.50} without describing it")
        closed = {"properties": {}, "additionalProperties": False, "required": list(named)}
        strict |= {**closed, **({"properties": strict["properties"]} if named else {})}

    def _may_be_nothing(self, schema: object, depth: int = 8) -> bool:
        """Whether an answer can say by a value that it has none."""
        if not isinstance(schema, dict) or not depth:
            return False
        types = _types(schema)
        if "default" in schema or "null" in types or None in _values(schema):
            return True
        if "array" in types and not schema.get("minItems"):
            return True
        parts: Any = schema.get("anyOf", schema.get("oneOf", []))
        if "$ref" in schema:
            parts = [self._target(schema["$ref"], "it")]
        return any(self._may_be_nothing(part, depth - 1) for part in parts)


def _merged(schema: _Schema) -> _Schema:
    """A schema without the ways of writing that stand for another one that strict mode knows."""
    several = schema.get("allOf")
    if isinstance(several, list) and len(several) == 1 and isinstance(several[0], dict):
        inner, outer = several[0], {name: part for name, part in schema.items() if name != "allOf"}
        if not (inner.keys() & outer.keys()) - {"title", "description", *_REMARKS}:
            return _merged({**inner, **outer})
    if "oneOf" in schema and "discriminator" in schema and "anyOf" not in schema:
        # What tells the parts apart lets no value satisfy two of them.
        schema = {("anyOf" if name == "oneOf" else name): part for name, part in schema.items()}
    return schema


def _types(schema: _Schema) -> tuple[str, ...]:
    types = schema.get("type", ())
    return (types,) if isinstance(types, str) else tuple(map(str, types))


def _values(schema: _Schema) -> list[Any]:
    values: list[Any] = schema.get("enum", [schema["const"]] if "const" in schema else [])
    return values


def _checked(value: Any, kind: type, at: str) -> Any:
    if not isinstance(value, kind):
        _refuse(at, f"holds {value!r:.50}, which makes no sense there")
    return value


def _refuse(at: str, problem: str) -> NoReturn:
    raise ConfigurationError(f"the schema has no strict form: {at} {problem}")
