"""Limits for JSON schemas, so that an answer under a grammar comes to an end.

A grammar lets a model write for as long as the schema allows, and most schemas allow strings,
integers and arrays of any length: a model that has lost its way fills all of ``max_tokens`` with
one of them, and the answer is no valid JSON. So values without a limit get one that is derived from
``max_tokens``: an answer has :data:`CHARACTERS_PER_TOKEN` characters per token, and a value may
have the characters that remain if every other required value is as short as possible.

Nothing else changes. Every answer that satisfies the limited schema satisfies the schema. Every
answer that satisfies the schema in compact JSON of at most ``CHARACTERS_PER_TOKEN * max_tokens``
characters, with integers below 10**18, satisfies the limited one. Two things get no limit:

- strings with a ``pattern`` or ``format``, and numbers that need not be whole: a grammar that
  limits their digits knows no exponents, so that 6.02e23 would end as 6.02;
- schemas with keywords under which a stricter part may allow more answers, such as ``not``.

Objects with ``properties`` get no other properties, unless ``additionalProperties`` allows them.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from math import ceil, inf
from typing import Any

from ragcache_integrations.errors import ConfigurationError

__all__ = [
    "CHARACTERS_PER_TOKEN",
    "INTEGER_DIGITS",
    "check_schema",
    "limit_schema",
    "reaches_limits",
]

CHARACTERS_PER_TOKEN = 3
"""Fewer than in English prose, so that the rest of an answer fits after its longest string."""
INTEGER_DIGITS = 18
"""Integers beyond 2**53 are not exact in most JSON readers; the grammars support 64 bits."""
MAX_LEVELS = 1000
"""Half of the levels that overflow guidance's stack, which ends the process."""
MAX_ITEMS = 100_000
"""Grammars of longer arrays take minutes and then all memory, which ends the process."""
MOST_CHARACTERS_PER_TOKEN = 16

_Schema = dict[str, Any]

_NOT_MONOTONE = frozenset(
    {
        *("not", "if", "contains", "dependentSchemas", "dependencies"),
        *("unevaluatedProperties", "unevaluatedItems", "$dynamicRef", "$recursiveRef"),
    }
)
_COMBINATORS = ("anyOf", "oneOf", "allOf")
_REFERRING = frozenset({"$ref", *_COMBINATORS})
_MAPS = ("properties", "patternProperties", "$defs", "definitions")
_SINGLE = ("items", "additionalProperties", "additionalItems", "propertyNames")
_LISTS = ("prefixItems", "items", *_COMBINATORS)


def limit_schema(schema: Mapping[str, Any], max_tokens: int) -> dict[str, Any]:
    """A copy of a schema in which every value has a limit where possible.

    Args:
        schema: A JSON schema of plain values; it is not changed.
        max_tokens: The most tokens of the answer.

    Raises:
        ConfigurationError: Not even the shortest answer fits, or no grammar can express the
            schema.
    """
    copy = check_schema(schema)
    nodes = list(_nodes(copy))
    if any(_NOT_MONOTONE & node.keys() for node in nodes):
        return copy
    try:
        limiter = _Limiter(copy, nodes, max_tokens)
    except RecursionError as error:
        raise ConfigurationError("json_schema holds a value that is nested too deeply") from error
    close_objects = not any(map(_combines_objects, nodes))
    changes = [limiter.limits(node, close_objects=close_objects) for node in nodes]
    for node, limits in zip(nodes, changes, strict=True):
        node.update(limits)
    return copy


def check_schema(schema: Mapping[str, Any]) -> dict[str, Any]:
    """A copy of a schema that the grammar's compiler can accept or refuse without crashing.

    Args:
        schema: A JSON schema of plain values; it is not changed.

    Raises:
        ConfigurationError: The schema requires too long an array, or is nested too deeply.
    """
    copy: _Schema = json.loads(json.dumps(schema))
    _check_sizes(copy)
    _check_depth(copy)
    return copy


def reaches_limits(text: str, max_tokens: int) -> bool:
    """Whether a limit that was derived from ``max_tokens`` may have cut an answer short."""
    if len(text) >= CHARACTERS_PER_TOKEN * max_tokens:
        return True
    return re.search(rf"\d{{{INTEGER_DIGITS}}}", text) is not None


class _Limiter:
    """Derives limits of values from the length of the shortest answer."""

    def __init__(self, root: _Schema, nodes: list[_Schema], max_tokens: int) -> None:
        self._root = root
        self._least: dict[int, float] = {id(node): inf for node in nodes}
        while self._improves(nodes):
            pass
        least = self._shortest(root)
        if least == inf:
            msg = "no answer satisfies json_schema: it requires itself within itself without end"
            raise ConfigurationError(msg)
        if least > MOST_CHARACTERS_PER_TOKEN * max_tokens:
            raise ConfigurationError(
                f"the shortest answer that json_schema allows has {least} characters, more than "
                f"max_tokens={max_tokens} can hold: raise max_tokens, or require less"
            )
        budget = CHARACTERS_PER_TOKEN * max_tokens
        # If the shortest answer takes most of the budget, limits would cut values to nothing. Then
        # an answer that ends at max_tokens is better, so that each value may use the whole budget.
        self._spare = budget - least if 2 * least <= budget else budget

    def _improves(self, nodes: list[_Schema]) -> bool:
        """Lower the known lengths; repeated until nothing changes, as schemas may be recursive."""
        improved = False
        for node in reversed(nodes):
            count = self._count(node)
            if count < self._least[id(node)]:
                self._least[id(node)] = count
                improved = True
        return improved

    def limits(self, node: _Schema, *, close_objects: bool) -> _Schema:
        """The limits to add to a schema within the root."""
        if "const" in node or "enum" in node or self._shortest(node) == inf:
            return {}
        # In the shortest answer this value has its shortest length. It may have, in addition, all
        # characters of the budget that the shortest answer does not use.
        room = int(self._spare + self._shortest(node))
        types = _types(node)
        if types is None and _REFERRING & node.keys():
            return {}
        return {
            **(_string_limit(node, room) if types is None or "string" in types else {}),
            **(_integer_limits(node, room) if types and "number" not in types else {}),
            **(self._array_limit(node, room) if types is None or "array" in types else {}),
            **(self._object_limits(node, room, close_objects) if _is_object(node, types) else {}),
        }

    def _array_limit(self, node: _Schema, room: int) -> _Schema:
        items = [*_list(node, "prefixItems"), *_list(node, "items"), node.get("items")]
        shortest = min((self._shortest(i) for i in items if not isinstance(i, list)), default=1)
        return _capped(node, "maxItems", "minItems", ceil((room - 1) / (shortest + 1)))

    def _object_limits(self, node: _Schema, room: int, close_objects: bool) -> _Schema:
        properties, required = _map(node, "properties"), _names(node)
        if _REFERRING & node.keys():
            return {}
        named = properties or _map(node, "patternProperties")
        if named and "additionalProperties" not in node:
            closed = close_objects and (required <= properties.keys() or not properties)
            return {"additionalProperties": False} if closed else {}
        if node.get("additionalProperties") is False or not properties.keys() <= required:
            return {}
        values = [*properties.values(), *_map(node, "patternProperties").values()]
        values.append(node.get("additionalProperties"))
        shortest = min(map(self._shortest, values))
        count = max(ceil((room - 1) / (shortest + len('"":,'))), len(required))
        return _capped(node, "maxProperties", "minProperties", count)

    def _shortest(self, schema: object) -> float:
        """A lower bound of the characters of a valid compact answer; infinite if there is none."""
        return self._least.get(id(schema), 1)

    def _count(self, schema: _Schema) -> float:
        if "const" in schema:
            return _length(schema["const"])
        if isinstance(schema.get("enum"), list) and schema["enum"]:
            return min(map(_length, schema["enum"]))
        # Each of these is a lower bound. The lowest one is taken: the room of the values relies on
        # a bound that grows no faster than any value does, and the highest one may.
        parts = [part for name in _COMBINATORS for part in _list(schema, name)]
        if "$ref" in schema:
            parts.append(_resolve(self._root, schema["$ref"]))
        bounds: list[float] = [self._shortest(part) for part in parts]
        types = _types(schema)
        if types is not None:
            bounds.append(min((self._shortest_of(kind, schema) for kind in types), default=1))
        return min(bounds, default=1)

    def _shortest_of(self, kind: str, schema: _Schema) -> float:
        if kind == "string":
            return 2 + _whole(schema.get("minLength"))
        if kind == "array":
            return self._shortest_array(schema)
        if kind == "object":
            return self._shortest_object(schema)
        return len("null") if kind in {"null", "boolean"} else 1

    def _shortest_array(self, schema: _Schema) -> float:
        count = _whole(schema.get("minItems"))
        first = [*_list(schema, "prefixItems"), *_list(schema, "items")][:count]
        items = schema.get("items")
        more = self._shortest(items) * (count - len(first)) if count > len(first) else 0
        return 2 + sum(map(self._shortest, first)) + more + max(0, count - 1)

    def _shortest_object(self, schema: _Schema) -> float:
        properties, names = _map(schema, "properties"), _names(schema)
        members = [_length(name) + 1 + self._shortest(properties.get(name)) for name in names]
        return 2 + sum(members) + max(0, len(members) - 1)


def _string_limit(node: _Schema, room: int) -> _Schema:
    if "pattern" in node or "format" in node:
        return {}
    return _capped(node, "maxLength", "minLength", room - len('""'))


def _integer_limits(node: _Schema, room: int) -> _Schema:
    if "integer" not in (_types(node) or ()) or "multipleOf" in node:
        return {}
    largest = 10 ** min(INTEGER_DIGITS, max(1, room)) - 1
    low, high = _bound(node, "minimum", "Minimum"), _bound(node, "maximum", "Maximum")
    limits = {}
    if low is None and (high is None or high > -largest):
        limits["minimum"] = -largest
    if high is None and (low is None or low < largest):
        limits["maximum"] = largest
    return limits


def _capped(node: _Schema, most: str, least: str, limit: int) -> _Schema:
    """A limit that is at most the schema's own, and at least what the schema requires."""
    limit = max(limit, _whole(node.get(least)), 0)
    own = node.get(most)
    return {} if isinstance(own, int) and own <= limit else {most: limit}


def _combines_objects(node: _Schema) -> bool:
    """Whether an object's properties are listed in several places, none of which lists them all."""
    combined = _REFERRING & node.keys() and {"properties", "patternProperties"} & node.keys()
    return bool(combined) or len(_list(node, "allOf")) > 1


def _check_sizes(schema: object) -> None:
    waiting = [schema]
    while waiting:
        node = waiting.pop()
        if isinstance(node, dict):
            waiting.extend(value for name, value in node.items() if name not in {"const", "enum"})
            for name in ("minItems", "minProperties"):
                value = node.get(name)
                if isinstance(value, int | float) and value > MAX_ITEMS:
                    msg = f"{name} in json_schema must be at most {MAX_ITEMS}, got {value}"
                    raise ConfigurationError(msg)
            if isinstance(node.get("maxItems"), int) and node["maxItems"] > MAX_ITEMS:
                node["maxItems"] = MAX_ITEMS
        elif isinstance(node, list):
            waiting.extend(node)


def _check_depth(root: _Schema) -> None:
    """Refuse chains of references that may overflow the stack of the grammar's compiler.

    The compiler goes no deeper than the levels of the root and of every referenced schema together.
    """
    waiting, known, levels = [root], {id(root)}, 0
    while waiting:
        depth = 0
        level: list[object] = [waiting.pop()]
        while level:
            depth += 1
            nodes = [node for node in level if isinstance(node, dict)]
            targets = [_resolve(root, node.get("$ref")) for node in nodes]
            new = [t for t in targets if isinstance(t, dict) and id(t) not in known]
            waiting.extend({id(target): target for target in new}.values())
            known.update(map(id, new))
            level = [part for node in nodes for part in _parts(node)]
        levels += depth
        if levels > MAX_LEVELS:
            raise ConfigurationError(
                f"json_schema is nested too deeply: with all that it refers to it has {levels} "
                f"levels or more, at most {MAX_LEVELS} are allowed"
            )


def _nodes(root: _Schema) -> Iterator[_Schema]:
    """Every schema within a schema, the root included."""
    waiting: list[object] = [root]
    while waiting:
        node = waiting.pop()
        if not isinstance(node, dict):
            continue
        yield node
        waiting.extend(_parts(node))


def _parts(node: _Schema) -> Iterator[object]:
    """The schemas directly within a schema."""
    yield from (value for name in _MAPS for value in _map(node, name).values())
    yield from (node[name] for name in _SINGLE if name in node)
    yield from (part for name in _LISTS for part in _list(node, name))


def _resolve(root: _Schema, reference: object) -> object:
    """The target of a reference within the schema; ``None`` if there is none."""
    if not isinstance(reference, str) or not reference.startswith("#"):
        return None
    target: Any = root
    for part in reference[1:].split("/")[1:]:
        name = part.replace("~1", "/").replace("~0", "~")
        target = target.get(name) if isinstance(target, dict) else None
    return target


def _types(node: _Schema) -> tuple[str, ...] | None:
    """The types that are allowed; ``None`` for all."""
    types = node.get("type")
    if isinstance(types, str):
        return (types,)
    return tuple(map(str, types)) if isinstance(types, list) and types else None


def _is_object(node: _Schema, types: tuple[str, ...] | None) -> bool:
    return "object" in types if types is not None else bool(_map(node, "properties"))


def _list(node: _Schema, name: str) -> list[Any]:
    value = node.get(name)
    return value if isinstance(value, list) else []


def _map(node: _Schema, name: str) -> dict[str, Any]:
    value = node.get(name)
    return value if isinstance(value, dict) else {}


def _names(node: _Schema) -> set[str]:
    return {name for name in _list(node, "required") if isinstance(name, str)}


def _whole(value: object) -> int:
    return value if isinstance(value, int) and value > 0 else 0


def _bound(node: _Schema, name: str, suffix: str) -> float | None:
    values = [node.get(name), node.get(f"exclusive{suffix}")]
    numbers = [v for v in values if isinstance(v, int | float) and not isinstance(v, bool)]
    return numbers[0] if numbers else None


def _length(value: object) -> int:
    """Characters of a value in its shortest form: 1.0 can be written as 1."""
    if isinstance(value, list):
        return 2 + sum(map(_length, value)) + max(0, len(value) - 1)
    if isinstance(value, dict):
        members = (_length(name) + 1 + _length(member) for name, member in value.items())
        return 2 + sum(members) + max(0, len(value) - 1)
    if isinstance(value, str):
        return len(json.dumps(value, ensure_ascii=False))
    return len("true") if value is None or isinstance(value, bool) else 1
