"""The limits of schemas: what they keep, what they let through, and what is refused."""

from __future__ import annotations

import copy
import json
from typing import Any

import jsonschema
import pytest
from hypothesis import assume, example, given, reject
from hypothesis import strategies as st

from ragcache_integrations.engine.schema_limits import (
    CHARACTERS_PER_TOKEN,
    INTEGER_DIGITS,
    limit_schema,
    reaches_limits,
)
from ragcache_integrations.errors import ConfigurationError
from tests.support.sizes import examples

Schema = dict[str, Any]

NAMES = ("a", "bb", 'q"', "ü")
MOST_CHARACTERS = 60

SIZES = st.none() | st.integers(0, 12)
INTEGERS = st.integers(-(10**20), 10**20) | st.integers(-99, 99)
NUMBERS = INTEGERS | st.floats(-1e9, 1e9).map(lambda number: round(number, 3))
STRINGS = st.text('ab "\\\n日', max_size=MOST_CHARACTERS)
CONSTANTS = st.sampled_from([None, True, 1, 1.5, "x", 'a"b', [1, "y"], {"k": 1.0}])


@st.composite
def _sized(draw: st.DrawFn, least: str, most: str) -> Schema:
    """Two limits of which any may be missing, and which do not contradict each other."""
    low, high = draw(SIZES), draw(SIZES)
    if low is not None and high is not None:
        low, high = sorted((low, high))
    return {name: size for name, size in ((least, low), (most, high)) if size is not None}


def _leaves() -> st.SearchStrategy[Schema]:
    strings = _sized("minLength", "maxLength").map(lambda limits: {"type": "string", **limits})
    bounds: st.SearchStrategy[Schema] = st.sampled_from(
        [{}, {"minimum": 0}, {"maximum": -5}, {"minimum": -3, "maximum": 10**19}, {"minimum": 1e19}]
    )
    integers = bounds.map(lambda limits: {"type": "integer", **limits})
    others: list[Schema] = [
        *({"type": kind} for kind in ("number", "boolean", "null", "array", "object")),
        *({"type": ["string", "null"]}, {"type": ["integer", "string"]}, {"type": ["number"]}),
        *({"type": "string", "pattern": "^a*$"}, {"enum": ["x", 1, None]}, {}),
        {"$ref": "#/$defs/N"},
    ]
    constants = CONSTANTS.map(lambda value: {"const": value})
    return strings | integers | constants | st.sampled_from(others).map(copy.deepcopy)


def _arrays(items: st.SearchStrategy[Schema]) -> st.SearchStrategy[Schema]:
    plain = st.builds(
        lambda item, limits: {"type": "array", "items": item, **limits},
        items,
        _sized("minItems", "maxItems"),
    )
    tuples = st.builds(
        lambda first, least: {"type": "array", "prefixItems": first, "minItems": least},
        st.lists(items, min_size=1, max_size=2),
        st.integers(0, 2),
    )
    return plain | tuples


def _objects(values: st.SearchStrategy[Schema]) -> st.SearchStrategy[Schema]:
    def build(properties: Schema, required: list[str], more: Any) -> Schema:
        names = [name for name in required if name in properties]
        return {"type": "object", "properties": properties, "required": names, **more}

    more: st.SearchStrategy[Schema] = st.just({}) | values.map(
        lambda value: {"additionalProperties": value}
    )
    more |= st.sampled_from([{"additionalProperties": False}, {"additionalProperties": True}])
    properties = st.dictionaries(st.sampled_from(NAMES), values, max_size=3)
    return st.builds(build, properties, st.lists(st.sampled_from(NAMES), unique=True), more)


def _composed(parts: st.SearchStrategy[Schema]) -> st.SearchStrategy[Schema]:
    pairs = st.lists(parts, min_size=1, max_size=2)
    return st.builds(lambda name, of: {name: of}, st.sampled_from(["anyOf", "allOf"]), pairs)


ANY_SCHEMAS = st.recursive(
    _leaves(), lambda inner: _arrays(inner) | _objects(inner) | _composed(inner), max_leaves=6
)


@st.composite
def roots(draw: st.DrawFn) -> Schema:
    """A schema with a definition that may refer to itself."""
    root, definition = draw(ANY_SCHEMAS), draw(ANY_SCHEMAS)
    assume(not set(definition) & {"$ref", "anyOf", "allOf"})
    return {**root, "$defs": {"N": definition}}


def value(draw: st.DrawFn, schema: Any, root: Schema, depth: int = 0) -> Any:
    """A value that is likely to satisfy a schema, and not likely to be short."""
    if not isinstance(schema, dict) or depth > 6:
        return draw(CONSTANTS)
    if "const" in schema or "enum" in schema:
        return draw(st.sampled_from(schema.get("enum", [schema.get("const")])))
    parts = [root["$defs"]["N"]] if "$ref" in schema else []
    parts += schema.get("anyOf", []) + schema.get("allOf", [])
    if parts:
        return value(draw, draw(st.sampled_from(parts)), root, depth + 1)
    kinds = schema.get("type", ["string", "number", "array", "object"])
    kind = kinds if isinstance(kinds, str) else draw(st.sampled_from(kinds))
    if kind in {"array", "object"}:
        return (_array if kind == "array" else _object)(draw, schema, root, depth)
    return _string(draw, schema) if kind == "string" else draw(SCALARS[kind])


SCALARS: dict[str, st.SearchStrategy[Any]] = {
    "null": st.none(),
    "boolean": st.booleans(),
    "integer": INTEGERS,
    "number": NUMBERS,
}


def _string(draw: st.DrawFn, schema: Schema) -> str:
    least, most = schema.get("minLength", 0), schema.get("maxLength", MOST_CHARACTERS)
    text = draw(st.text('ab"日', min_size=least, max_size=max(least, most)))
    return text if "pattern" not in schema else "a" * len(text)


def _array(draw: st.DrawFn, schema: Schema, root: Schema, depth: int) -> list[Any]:
    least, most = schema.get("minItems", 0), schema.get("maxItems", 12)
    count = draw(st.integers(least, max(least, min(most, 12 if depth < 2 else 2))))
    first = schema.get("prefixItems", [])
    items = [*first, *[schema.get("items", {})] * count][:count]
    return [value(draw, item, root, depth + 1) for item in items]


def _object(draw: st.DrawFn, schema: Schema, root: Schema, depth: int) -> dict[str, Any]:
    properties, required = schema.get("properties", {}), schema.get("required", [])
    names = [name for name in properties if name in required or draw(st.booleans())]
    made = {name: value(draw, properties[name], root, depth + 1) for name in names}
    others = schema.get("additionalProperties", not properties)
    if others is not False:
        count = draw(st.integers(0, 8 if depth < 2 else 1))
        made |= {f"n{i}": value(draw, others, root, depth + 1) for i in range(count)}
    return made


def without_limits(schema: Any) -> Any:
    """The schema without what it says of length, for values that exceed it."""
    if isinstance(schema, list):
        return [without_limits(part) for part in schema]
    if not isinstance(schema, dict):
        return schema
    kept = schema.keys() - {"maxLength", "maxItems", "minLength", "minItems"}
    return {name: without_limits(schema[name]) for name in schema if name in kept}


@st.composite
def cases(draw: st.DrawFn) -> tuple[Schema, Any, int]:
    """A schema, a value that may satisfy it, and ``max_tokens`` that may be just enough for it."""
    root = draw(roots())
    source = root if draw(st.booleans()) else without_limits(root)
    instance = value(draw, source, source)
    needed = -(-len(compact(instance)) // CHARACTERS_PER_TOKEN)
    return root, instance, draw(st.just(needed) | st.integers(1, 60))


def is_valid(schema: Schema, instance: Any) -> bool:
    return bool(jsonschema.Draft202012Validator(schema).is_valid(instance))


def compact(instance: Any) -> str:
    return json.dumps(instance, ensure_ascii=False, separators=(",", ":"))


def holds_long_integer(instance: Any) -> bool:
    if isinstance(instance, dict):
        return any(map(holds_long_integer, instance.values()))
    if isinstance(instance, list):
        return any(map(holds_long_integer, instance))
    return isinstance(instance, int) and abs(instance) >= 10**INTEGER_DIGITS


def limited(schema: Schema, max_tokens: int) -> Schema:
    try:
        return limit_schema(schema, max_tokens)
    except ConfigurationError:  # not even the shortest answer fits
        reject()


@examples(200)
@given(cases())
def test_what_satisfies_the_limited_schema_satisfies_the_schema(
    case: tuple[Schema, Any, int],
) -> None:
    schema, instance, max_tokens = case
    if is_valid(limited(schema, max_tokens), instance):
        assert is_valid(schema, instance)


@examples(200)
@given(cases())
@example(({"type": "array", "items": {"const": ""}}, [""] * 2, 3))
@example(({"type": "string"}, "x" * 10, 4))
def test_short_answers_stay_possible(case: tuple[Schema, Any, int]) -> None:
    schema, instance, max_tokens = case
    assume(is_valid(schema, instance) and not holds_long_integer(instance))
    assume(len(compact(instance)) <= CHARACTERS_PER_TOKEN * max_tokens)
    assert is_valid(limit_schema(schema, max_tokens), instance)


@examples(200)
@given(cases())
def test_an_answer_that_a_limit_cut_is_known_by_its_length(
    case: tuple[Schema, Any, int],
) -> None:
    """What the limits exclude is longer than what is taken for an answer in full."""
    schema, instance, max_tokens = case
    assume(is_valid(schema, instance))
    if not is_valid(limited(schema, max_tokens), instance):
        assert reaches_limits(compact(instance), max_tokens)


@examples(100)
@given(roots(), st.integers(1, 60))
def test_a_schema_stays_as_it_is_and_what_it_says_stays_in_it(
    schema: Schema, max_tokens: int
) -> None:
    before = copy.deepcopy(schema)
    after = limited(schema, max_tokens)
    assert schema == before
    assert limit_schema(after, max_tokens) == after


def test_every_kind_gets_its_limit() -> None:
    properties = {
        "text": {"type": "string"},
        "count": {"type": "integer"},
        "tags": {"type": "array", "items": {"type": "string", "maxLength": 5}},
        "more": {"type": "object", "additionalProperties": {"type": "boolean"}},
    }
    schema = {"type": "object", "properties": properties, "required": ["text"]}
    after = limit_schema(schema, 100)
    room = 300 - len('{"text":""}')
    assert after["properties"]["text"] == {"type": "string", "maxLength": room}
    assert after["properties"]["count"]["maximum"] == 10**18 - 1
    assert after["properties"]["count"]["minimum"] == -(10**18) + 1
    assert after["properties"]["tags"]["items"] == {"type": "string", "maxLength": 5}
    assert after["properties"]["tags"]["maxItems"] == 97
    assert after["properties"]["more"]["maxProperties"] == 37
    assert after["additionalProperties"] is False


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "string", "pattern": "^a+$"},
        {"type": "string", "format": "date"},
        {"type": "string", "maxLength": 3},
        {"type": "number"},
        {"type": "integer", "minimum": 0, "maximum": 10**30},
        {"type": "integer", "multipleOf": 7},
        {"enum": ["a" * 500, 10**40]},
        {"const": 10**40},
        {"not": {"type": "string"}, "type": ["string", "array"]},
        {"if": {"type": "string"}, "then": {"type": "string"}},
        {"anyOf": [{"$ref": "#"}, {"type": "null"}]},
    ],
)
def test_what_stays_as_it_is(schema: Schema) -> None:
    assert limit_schema(schema, 64) == schema


def test_objects_that_several_parts_describe_stay_open() -> None:
    """Each part names its own properties alone; closed, they would exclude one another."""
    parts = [{"type": "object", "properties": {name: {"type": "null"}}} for name in "ab"]
    for schema in ({"allOf": parts}, {**parts[0], "anyOf": [parts[1]]}):
        assert "additionalProperties" not in json.dumps(limit_schema(schema, 64))


def test_where_hardly_anything_is_spared_values_are_not_cut_to_nothing() -> None:
    names = [f"p{number}" for number in range(30)]
    schema = {
        "type": "object",
        "properties": {name: {"type": "string"} for name in names},
        "required": names,
    }
    lengths = {part["maxLength"] for part in limit_schema(schema, 64)["properties"].values()}
    assert lengths == {3 * 64}


@pytest.mark.parametrize(
    ("schema", "words"),
    [
        ({"type": "array", "minItems": 10**9}, "minItems .* at most 100000, got 1000000000"),
        ({"properties": {"a": {"not": {"minItems": 10**9}}}}, "minItems"),
        ({"type": "object", "minProperties": 1e12}, "minProperties"),
        ({"type": "string", "minLength": 10**6}, "shortest answer .* max_tokens=64"),
        ({"type": "array", "items": {"const": "x" * 50}, "minItems": 100}, "max_tokens=64"),
    ],
)
def test_what_no_answer_can_satisfy_is_refused(schema: Schema, words: str) -> None:
    with pytest.raises(ConfigurationError, match=words):
        limit_schema(schema, 64)


def test_longer_arrays_than_a_grammar_can_say_end_there() -> None:
    schema = {"allOf": [{"maxItems": 10**12}, {"type": "array", "items": {"type": "null"}}]}
    assert limit_schema(schema, 10**9)["allOf"][0]["maxItems"] == 100_000


def _chain(links: int) -> Schema:
    steps: Schema = {
        f"d{number}": {"type": "array", "items": {"$ref": f"#/$defs/d{number + 1}"}, "minItems": 1}
        for number in range(links)
    }
    return {"$defs": {**steps, f"d{links}": {"type": "null"}}}


def test_chains_of_references_that_end_the_process_are_refused() -> None:
    assert limit_schema({**_chain(300), "$ref": "#/$defs/d0"}, 1000)
    spread = [{"$ref": f"#/$defs/d{number}"} for number in range(5000)]
    for schema in ({"$ref": "#/$defs/d0"}, {"anyOf": spread}, {"not": {"anyOf": spread}}):
        with pytest.raises(ConfigurationError, match="nested too deeply"):
            limit_schema({**_chain(5000), **schema, "allOf": spread[:1]}, 64)


@pytest.mark.parametrize(
    "schema",
    [
        {"$ref": "#"},
        {"anyOf": [{"$ref": "#"}]},
        {"type": "array", "items": {"$ref": "#"}, "minItems": 1},
        {"type": "object", "properties": {"a": {"$ref": "#"}}, "required": ["a"]},
    ],
)
def test_what_requires_itself_without_end_is_refused(schema: Schema) -> None:
    with pytest.raises(ConfigurationError, match="itself without end"):
        limit_schema(schema, 64)


@pytest.mark.parametrize(
    "schema",
    [
        {"properties": 5},
        {"type": 5},
        {"type": []},
        {"required": "a", "properties": []},
        {"items": 5, "type": "array"},
        {"items": [], "type": "array"},
        {"$defs": [], "$ref": 5},
        {"$ref": "#/a~1b/0"},
        {"anyOf": {}, "enum": 5},
        {"maxLength": "5", "minLength": -1, "type": "string"},
        {"maximum": "x", "type": "integer"},
    ],
)
def test_what_is_no_schema_is_left_to_the_grammar_to_refuse(schema: Schema) -> None:
    assert isinstance(limit_schema(schema, 64), dict)
