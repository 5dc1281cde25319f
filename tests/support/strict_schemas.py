"""OpenAI's rules for the schemas of its strict mode, as its servers check them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

# https://platform.openai.com/docs/guides/structured-outputs#supported-schemas
KNOWN = {
    *("type", "title", "description", "enum", "const", "$ref", "$defs", "definitions", "anyOf"),
    *("properties", "required", "additionalProperties", "items", "minItems", "maxItems"),
    *("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"),
    *("pattern", "format"),
}


def nodes(schema: Any) -> Iterator[dict[str, Any]]:
    """Every schema within a schema."""
    yield schema
    for name in ("$defs", "definitions", "properties"):
        for part in schema.get(name, {}).values():
            yield from nodes(part)
    for part in schema.get("anyOf", []):
        yield from nodes(part)
    if "items" in schema:
        yield from nodes(schema["items"])


def problems(schema: dict[str, Any]) -> Iterator[str]:
    """What OpenAI's strict mode refuses in a schema."""
    if schema.get("type") != "object" or "anyOf" in schema:
        yield "the root is no object"
    for node in nodes(schema):
        if unknown := node.keys() - KNOWN:
            yield f"{unknown} is not permitted"
        if "$ref" in node and len(node) > 1:
            yield "$ref cannot have keywords beside it"
        if not {"type", "anyOf", "$ref"} & node.keys():
            yield f"{node} must have a 'type' key"
        if "properties" in node or "object" in node.get("type", ()):
            if node.get("additionalProperties") is not False:
                yield "'additionalProperties' is required to be supplied and to be false"
            if node.get("required") != list(node["properties"]):
                yield "'required' must include every key in properties"
        if "array" in node.get("type", ()) and "items" not in node:
            yield "array schema missing items"
