"""Strict forms of JSON schemas: which there are, and that they allow nothing new."""

from __future__ import annotations

import datetime as dt
import random
from enum import StrEnum
from typing import Any, Literal
from uuid import UUID

import jsonschema
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel, ConfigDict, Field, HttpUrl, RootModel

from ragcache_integrations.core.schemas import strict_schema
from ragcache_integrations.errors import ConfigurationError
from tests.support.strict_schemas import problems


class Colour(StrEnum):
    RED = "red"
    BLUE = "blue"


class Part(BaseModel):
    size: int = 5


class Tree(BaseModel):
    """A tree."""

    name: str
    children: list[Tree] = Field(default_factory=list)
    parent: Tree | None = Field(None, description="the one above")


class Twins(BaseModel):
    first: Twins | None = None
    second: Part = Field(description="a part of it")
    third: Part | None = Field(None, description="perhaps another")


class Cat(BaseModel):
    kind: Literal["cat"]
    lives: int = Field(9, ge=0)


class Dog(BaseModel):
    kind: Literal["dog"] = "dog"
    toys: list[Part] | None = None


class Everything(BaseModel):
    pet: Cat | Dog = Field(discriminator="kind")
    colour: Colour = Colour.RED
    mixed: Literal["a", 1] | None
    several: int | str | list[float] | None = None
    when: dt.datetime
    id: UUID
    share: float = Field(0.5, ge=0, le=1, examples=[0.1])
    default: str = Field("x", deprecated=True)
    words: list[str] = Field(min_length=1, max_length=3)


class Nothing(BaseModel):
    fee: int | None = None


MADE_STRICT: tuple[type[BaseModel], ...] = (Part, Tree, Twins, Cat, Dog, Everything, Nothing)


class Prices(BaseModel):
    prices: dict[str, int]


class Open(BaseModel):
    model_config = ConfigDict(extra="allow")
    a: int


class Short(BaseModel):
    text: str = Field(max_length=3)


class Pair(BaseModel):
    pair: tuple[int, str]


class Untyped(BaseModel):
    value: Any


class Link(BaseModel):
    link: HttpUrl


class Made(BaseModel):
    part: Part = Field(default_factory=Part)


NOT_STRICT: dict[str, dict[str, Any]] = {
    **{
        kind.__name__: kind.model_json_schema()
        for kind in (Prices, Open, Short, Pair, Untyped, Link, Made)
    },
    "a list of numbers": RootModel[list[int]].model_json_schema(),
    "an optional property": {"type": "object", "properties": {"a": {"type": "string"}}},
    "any object": {"type": "object"},
    "no properties": {"type": "object", "properties": {}},
    "either of two": {"anyOf": [Part.model_json_schema(), Cat.model_json_schema()]},
    "one of two": {
        "type": "object",
        "properties": {"a": {"oneOf": [{"type": "integer"}, {"type": "number"}]}},
        "required": ["a"],
    },
    "both of two": {
        "type": "object",
        "properties": {"a": {"allOf": [{"type": "integer"}, {"minimum": 1}]}},
        "required": ["a"],
    },
    "another file": {"type": "object", "properties": {"a": {"$ref": "x.json"}}, "required": ["a"]},
    "nowhere": {"type": "object", "properties": {"a": {"$ref": "#/$defs/x"}}, "required": ["a"]},
    "a list": {"type": "object", "properties": {"a": {"type": "array"}}, "required": ["a"]},
    "looks ahead": {
        "type": "object",
        "properties": {"a": {"type": "string", "pattern": "^(?!x)"}},
        "required": ["a"],
    },
    "requires more": {
        "type": "object",
        "properties": {"a": {"type": "string"}},
        "required": ["a", "b"],
    },
    "a schema that is none": {"type": "object", "properties": {"a": 7}},
    "types that are none": {"type": 7},
    "properties that are none": {"type": "object", "properties": [], "required": 7},
    "required lists": {"type": "object", "properties": {"a": {"type": "null"}}, "required": [[]]},
    "many values": {
        "type": "object",
        "properties": {"a": {"enum": list(range(1001))}},
        "required": ["a"],
    },
}


@pytest.mark.parametrize("asked", [False, True])
@pytest.mark.parametrize("kind", MADE_STRICT, ids=lambda kind: kind.__name__)
def test_a_class_becomes_strict(kind: type[BaseModel], asked: bool) -> None:
    schema = kind.model_json_schema()
    strict = strict_schema(schema, asked=asked)
    assert [*problems(strict)] == []
    assert schema == kind.model_json_schema(), "the schema itself is not changed"
    assert strict_schema(strict) == strict


@pytest.mark.parametrize("schema", NOT_STRICT.values(), ids=NOT_STRICT)
def test_what_has_no_strict_form(schema: dict[str, Any]) -> None:
    with pytest.raises(ConfigurationError, match="has no strict form: "):
        strict_schema(schema)


def test_the_message_says_where() -> None:
    outer = {"type": "object", "properties": {"a": Prices.model_json_schema()}, "required": ["a"]}
    with pytest.raises(
        ConfigurationError, match=r"it\.a\.prices is an object whose properties may"
    ):
        strict_schema(outer)
    with pytest.raises(ConfigurationError, match=r"it\.text has 'maxLength', which strict mode"):
        strict_schema(Short.model_json_schema())


@pytest.mark.parametrize(
    "name", ["Prices", "Open", "Untyped", "a list of numbers", "any object", "nowhere"]
)
def test_what_has_no_strict_form_even_if_asked(name: str) -> None:
    with pytest.raises(ConfigurationError, match="has no strict form: "):
        strict_schema(NOT_STRICT[name], asked=True)


def test_what_is_made_strict_only_if_asked() -> None:
    """As OpenAI's own client has it: all is required, and the server judges the keywords."""
    short = strict_schema(NOT_STRICT["Short"], asked=True)
    assert short["properties"]["text"]["maxLength"] == 3
    for name in ("an optional property", "Made", "no properties"):
        assert [*problems(strict_schema(NOT_STRICT[name], asked=True))] == []


def test_references_that_multiply_come_to_an_end() -> None:
    levels = {
        f"l{n}": {
            "anyOf": [{"$ref": f"#/$defs/l{n + 1}", "description": text} for text in ("a", "b")]
        }
        for n in range(40)
    }
    leaf = {"type": "null"}
    root = {"type": "object", "properties": {"a": {"$ref": "#/$defs/l0"}}, "required": ["a"]}
    with pytest.raises(ConfigurationError, match="more than 10000 parts"):
        strict_schema({**root, "$defs": {**levels, "l40": leaf}})


def test_deep_schemas_are_no_crash() -> None:
    schema: dict[str, Any] = {"type": "string"}
    for _ in range(300):
        schema = {"type": "array", "items": schema}
    deep = {"type": "object", "properties": {"a": schema}, "required": ["a"]}
    assert [*problems(strict_schema(deep))] == []


# Every answer that satisfies the strict form satisfies the schema


def sample(schema: dict[str, Any], root: dict[str, Any], rng: random.Random, depth: int = 0) -> Any:
    """A value that satisfies a strict schema."""
    if "$ref" in schema:
        target: Any = root
        for name in schema["$ref"].split("/")[1:]:
            target = target[name]
        return sample(target, root, rng, depth)
    if "anyOf" in schema:
        nulls = [part for part in schema["anyOf"] if part.get("type") == "null"]
        parts = nulls if nulls and depth > 4 else schema["anyOf"]
        return sample(rng.choice(parts), root, rng, depth)
    if "enum" in schema or "const" in schema:
        return rng.choice(schema.get("enum", [schema.get("const")]))
    kinds = schema["type"] if isinstance(schema["type"], list) else [schema["type"]]
    match rng.choice(kinds):
        case "object":
            return {
                name: sample(part, root, rng, depth + 1)
                for name, part in schema["properties"].items()
            }
        case "array":
            least = schema.get("minItems", 0)
            count = least if depth > 4 else rng.randint(least, schema.get("maxItems", 2))
            return [sample(schema["items"], root, rng, depth + 1) for _ in range(count)]
        case kind:
            low = schema.get("minimum", 0)
            simple = {"integer": low + 1, "number": low + 0.25, "boolean": True, "null": None}
            return simple.get(kind, "text")


@pytest.mark.parametrize("kind", MADE_STRICT, ids=lambda kind: kind.__name__)
def test_what_satisfies_the_strict_form_of_a_class_satisfies_the_class(
    kind: type[BaseModel],
) -> None:
    rng = random.Random(3)
    schema = kind.model_json_schema()
    strict = strict_schema(schema)
    for _ in range(50):
        value = sample(strict, strict, rng)
        jsonschema.validate(value, strict)
        jsonschema.validate(value, schema)


leaves = st.sampled_from(
    [
        {"type": "string"},
        {"type": "integer", "minimum": 0},
        {"type": ["string", "null"]},
        {"type": "string", "maxLength": 3},
        {"enum": ["a", 1, None]},
        {"const": "a"},
        {"type": "null", "default": None},
        {"$ref": "#/$defs/a"},
        {"$ref": "#/$defs/b", "description": "it"},
        {},
        True,
        {"type": "object"},
        {"type": "object", "additionalProperties": {"type": "string"}},
    ]
)


def larger(parts: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    names = st.sampled_from(["a", "b", "default", "required"])
    return st.one_of(
        st.builds(lambda part: {"type": "array", "items": part}, parts),
        st.builds(lambda some: {"anyOf": some}, st.lists(parts, min_size=1, max_size=3)),
        st.builds(lambda part: {"allOf": [part], "description": "it"}, parts),
        st.builds(lambda some: {"oneOf": some}, st.lists(parts, min_size=1, max_size=2)),
        st.builds(
            lambda properties, required, extra: {
                "type": "object",
                "properties": properties,
                "required": [name for name in properties if name in required],
                **extra,
            },
            st.dictionaries(names, parts, max_size=3),
            st.sets(names),
            st.sampled_from([{}, {"additionalProperties": False}, {"additionalProperties": True}]),
        ),
    )


schemas = st.recursive(leaves, larger, max_leaves=6)


@given(schemas, schemas, schemas, st.booleans(), st.randoms(use_true_random=False))
def test_any_schema_is_refused_or_strict(
    part: Any, one: Any, other: Any, asked: bool, rng: random.Random
) -> None:
    schema = {
        "type": "object",
        "properties": {"it": part},
        "required": ["it"],
        "$defs": {"a": one, "b": other},
    }
    try:
        strict = strict_schema(schema, asked=asked)
    except ConfigurationError:
        return
    if not asked:
        assert [*problems(strict)] == []
        try:
            value = sample(strict, strict, rng)
        except RecursionError:
            return  # it requires itself within itself
        jsonschema.validate(value, schema)
