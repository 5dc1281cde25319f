"""Answers under grammars: each is JSON, or says that its length ran out."""

from __future__ import annotations

import json
import shutil
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from ragcache_integrations.engine import Generation, Prompt, RAGCacheEngine, SamplingOptions
from ragcache_integrations.engine.arguments import structured_outputs_config
from ragcache_integrations.engine.schema_limits import INTEGER_DIGITS
from ragcache_integrations.engine.tiny_model import default_model_path
from ragcache_integrations.errors import ConfigurationError, StructuredOutputError
from ragcache_integrations.llms.structured import whole_json

STRING, INTEGER, NUMBER = {"type": "string"}, {"type": "integer"}, {"type": "number"}
BOOLEAN, NULL = {"type": "boolean"}, {"type": "null"}


def array(items: Any, **limits: Any) -> dict[str, Any]:
    return {"type": "array", "items": items, **limits}


def record(**properties: Any) -> dict[str, Any]:
    return {"type": "object", "properties": properties, "required": list(properties)}


LINKED = record(v=INTEGER, next={"anyOf": [{"$ref": "#/$defs/N"}, NULL]})

SCHEMAS: list[dict[str, Any]] = [
    *(STRING, INTEGER, NUMBER, BOOLEAN, NULL, {}, {"type": "object"}, {"type": "array"}),
    *(array(STRING), array(INTEGER), array(array(STRING)), array({}), array(record(x=STRING))),
    *(
        record(answer=STRING),
        record(n=INTEGER, s=STRING),
        record(n=NUMBER),
        record(l=array(STRING)),
    ),
    *(record(a=record(b=record(c=STRING))), record(a={"anyOf": [STRING, INTEGER, array(STRING)]})),
    *({"type": ["string", "null"]}, {"oneOf": [STRING, INTEGER]}, {"allOf": [STRING]}),
    {"allOf": [record(a=INTEGER), record(b=STRING)]},
    *(
        {"enum": ["yes", "no", 1, None]},
        {"const": {"a": [1, 2]}},
        record(e={"enum": ["low", "high"]}),
    ),
    *({"type": "string", "maxLength": 5}, {"type": "string", "minLength": 30}),
    *({"type": "string", "pattern": "^[a-z]{3}$"}, {"type": "string", "pattern": "^\\s*$"}),
    *({"type": "string", "format": name} for name in ("date", "email", "uuid", "uri")),
    *({"type": "integer", "minimum": 0}, {"type": "integer", "multipleOf": 5}),
    *({"type": "number", "minimum": 0}, {"type": "number", "multipleOf": 0.5}),
    *(array(INTEGER, minItems=5, maxItems=9), {"type": "array", "prefixItems": [INTEGER, STRING]}),
    *({"type": "object", "additionalProperties": kind} for kind in (INTEGER, array(STRING))),
    {**record(a=INTEGER), "additionalProperties": STRING},
    {"type": "object", "patternProperties": {"^x": INTEGER}, "additionalProperties": False},
    {
        "type": "object",
        "properties": {"Ünï 日本": STRING, "q\"'": STRING},
        "required": ["Ünï 日本"],
    },
    {"$ref": "#/$defs/N", "$defs": {"N": LINKED}},
    record(**{f"p{number}": STRING for number in range(30)}),
    record(**{f"p{number}": BOOLEAN for number in range(12)}),
]

LINKS = range(5000)
REFUSED: list[dict[str, Any]] = [
    {"type": "nonsense"},
    {"not": STRING},
    {"enum": []},
    {"$ref": "#/nowhere"},
    {"$ref": "https://example.com/schema"},
    {"type": "string", "format": "weird"},
    {"type": "string", "pattern": "("},
    {"type": "string", "pattern": "(?=a)b"},
    {"type": "string", "minLength": 5, "maxLength": 2},
    {"type": "string", "minLength": 10**6},
    {"type": "integer", "minimum": 10**30},
    {**array(INTEGER), "uniqueItems": True},
    array(INTEGER, minItems=10**9),
    record(a=array(INTEGER, minItems=10**12)),
    {"$ref": "#"},
    {
        "$ref": "#/$defs/0",
        "$defs": {str(n): array({"$ref": f"#/$defs/{n + 1}"}) for n in range(5000)},
    },
    {"allOf": [{"anyOf": [record(**{f"a{i}{j}": {}}) for j in range(6)]} for i in range(8)]},
]


def run_all(
    engine: RAGCacheEngine, schemas: list[dict[str, Any]], **options: Any
) -> list[Generation | Exception]:
    def run(schema: dict[str, Any]) -> Generation | Exception:
        prompt = Prompt.raw("Rome is the capital of Italy. What is the capital of Italy?")
        try:
            return engine.generate(prompt, SamplingOptions(json_schema=schema, **options))
        except Exception as error:
            return error

    with ThreadPoolExecutor(8) as threads:
        return list(threads.map(run, schemas))


@pytest.mark.engine
@pytest.mark.parametrize(("max_tokens", "temperature"), [(64, 0.0), (100, 1.0)])
def test_each_answer_is_json_or_says_that_its_length_ran_out(
    engine: RAGCacheEngine, max_tokens: int, temperature: float
) -> None:
    options = {"max_tokens": max_tokens, "temperature": temperature, "seed": 5}
    for schema, answer in zip(SCHEMAS, run_all(engine, SCHEMAS, **options), strict=True):
        assert isinstance(answer, Generation), (schema, answer)
        assert answer.text == answer.text.strip(), schema
        try:
            parsed = json.loads(whole_json(answer.text, answer.finish_reason, max_tokens))
        except StructuredOutputError:
            assert answer.finish_reason == "length", (schema, answer)
        else:
            jsonschema.validate(parsed, schema)


@pytest.mark.engine
def test_what_no_grammar_is_made_of_is_refused_and_ends_nothing(engine: RAGCacheEngine) -> None:
    restarts = engine.stats().restarts
    for schema, error in zip(REFUSED, run_all(engine, REFUSED, max_tokens=64), strict=True):
        assert isinstance(error, ConfigurationError), (schema, error)
    assert isinstance(run_all(engine, [STRING], max_tokens=4)[0], Generation)
    assert engine.stats().restarts == restarts


@pytest.mark.engine
def test_an_integer_without_end_is_cut_off_and_the_end_says_so(engine: RAGCacheEngine) -> None:
    """This model writes digits for as long as it may."""
    own = {"type": "integer", "minimum": 0, "maximum": 10**15}
    for schema, digits, reason in ((INTEGER, INTEGER_DIGITS, "length"), (own, 16, "stop")):
        answers = run_all(engine, [schema] * 3, max_tokens=60, temperature=1.0)
        for answer in answers:
            assert isinstance(answer, Generation)
            assert len(answer.text.lstrip("-")) <= digits
            if len(answer.text.lstrip("-")) == digits:
                assert answer.finish_reason == reason
        assert reason in {answer.finish_reason for answer in answers}  # type: ignore[union-attr]


@pytest.mark.engine
def test_a_model_that_knows_no_capital_letters_writes_those_of_the_schema(tmp_path: Path) -> None:
    """Its tokenizer makes all text lower case."""
    model = shutil.copytree(default_model_path(), tmp_path / "model")
    tokenizer = json.loads((model / "tokenizer.json").read_text(encoding="utf-8"))
    tokenizer["normalizer"] = {"type": "Lowercase"}
    (model / "tokenizer.json").write_text(json.dumps(tokenizer), encoding="utf-8")
    schema = record(Name={"enum": ["Rome", "ROME"]}, Été={"const": "\u00c0"})
    eager = {"enforce_eager": True}  # nobody else would use what is compiled for this folder
    with RAGCacheEngine(model, kv_cache_gib=0.25, dtype="float32", vllm_args=eager) as engine:
        (answer,) = run_all(engine, [schema], max_tokens=64)
        (date,) = run_all(engine, [{"type": "string", "format": "duration"}], max_tokens=64)
    assert isinstance(answer, Generation), answer
    jsonschema.validate(json.loads(answer.text), schema)
    assert isinstance(date, Generation), date
    assert date.text.startswith('"P')


@pytest.mark.engine
def test_choices_are_as_they_are_whatever_they_hold(engine: RAGCacheEngine) -> None:
    choices = ('"yes"', "no\n", "a|b", "\\d+", "日本", "Yes and No", "{}", "%json")
    for choice in choices:
        answer = engine.generate(Prompt.raw("Which?"), SamplingOptions(choice=(choice,)))
        assert answer.text == choice


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (None, {"backend": "guidance", "disable_any_whitespace": True}),
        (
            {"reasoning_parser": "x"},
            {"backend": "guidance", "disable_any_whitespace": True, "reasoning_parser": "x"},
        ),
        ({"backend": "xgrammar"}, {"backend": "xgrammar", "disable_any_whitespace": True}),
        (
            {"backend": "guidance", "disable_any_whitespace": False},
            {"backend": "guidance", "disable_any_whitespace": False},
        ),
        ({"backend": "auto"}, {"backend": "auto"}),
        ({"backend": "outlines"}, {"backend": "outlines"}),
        ("in another form", "in another form"),
    ],
)
def test_white_space_is_off_unless_the_user_says_otherwise(given: Any, expected: Any) -> None:
    assert structured_outputs_config(given) == expected
