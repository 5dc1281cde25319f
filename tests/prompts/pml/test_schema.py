"""Schemas and prompts as objects, and the way through markup and back."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ragcache_integrations.errors import MarkupError
from ragcache_integrations.prompts.pml.prompt import Import, Prompt
from ragcache_integrations.prompts.pml.schema import (
    Scaffold,
    Schema,
    SchemaModule,
    Slot,
    Text,
    Turn,
    Union,
)
from tests.support.sizes import examples

from .schemas import SCHEMAS, WORDS


@given(SCHEMAS)
@examples(50)
def test_a_schema_comes_back_from_its_markup(schema: Schema) -> None:
    assert Schema.from_pml(schema.to_pml()) == schema


def test_a_schema_with_scaffolds_comes_back_from_its_markup() -> None:
    modules = (SchemaModule("a", (Text("A"),)), SchemaModule("b", (Text("B"),)))
    scaffolds = (Scaffold(("a", "b")), Scaffold(("#text", "a")), Scaffold(("*",)))
    for children in (modules, (Text("words "), *modules)):
        schema = Schema('a "name" & <more>', children, scaffolds)
        assert Schema.from_pml(schema.to_pml()) == schema


IMPORTS = st.recursive(
    st.builds(Import, st.sampled_from("abc"), st.dictionaries(st.sampled_from("pq"), WORDS)),
    lambda inner: st.builds(
        Import,
        st.sampled_from("abc"),
        st.just({}),
        st.lists(inner | st.builds(Text, WORDS), max_size=3).map(tuple),
    ),
    max_leaves=4,
)
TURNS = st.builds(Turn, st.sampled_from(["user", "assistant"]), st.tuples(st.builds(Text, WORDS)))


@given(
    st.lists(IMPORTS | st.builds(Text, WORDS), max_size=4),
    st.lists(TURNS | st.builds(Text, WORDS), max_size=3),
    st.dictionaries(st.sampled_from("pq"), WORDS),
)
def test_a_prompt_comes_back_from_its_markup(
    front: list[Any], back: list[Any], arguments: dict[str, str]
) -> None:
    prompt = Prompt("any", (*front, *back), arguments)
    assert Prompt.from_pml(prompt.to_pml()) == prompt


def test_what_markup_cannot_hold_is_refused_on_writing_alone() -> None:
    prompt = Prompt("x").with_text("a\0b")
    with pytest.raises(MarkupError, match=r"holds U\+0000 at position 1"):
        prompt.to_pml()


def test_modules_are_named_by_where_they_stand() -> None:
    town = SchemaModule("town")
    schema = Schema("x", (SchemaModule("a", (Turn("user", (town,)),)), Union((town,))))
    assert list(schema.modules) == ["a", "a/town", "town"]


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: Schema("", ()), "a schema's name"),
        (lambda: Schema("x", (Slot("schema", 2),)), "no param of a schema can be called 'schema'"),
        (lambda: Schema("x", (Slot("p", 2), Turn("user", (Slot("p", 2),)))), "two params"),
        (lambda: Schema("x", (None,)), "a schema holds text, params"),  # type: ignore[arg-type]
        (lambda: Slot("p", length=True), "whole number"),
        (lambda: Slot("1p", 2), "the name of a param begins"),
        (lambda: SchemaModule("a" * 129), "up to 128 characters"),
        (lambda: Union(()), "one or more"),
        (lambda: Turn("tool"), "role must be one of"),  # type: ignore[arg-type]
        (lambda: Text(3), "text must be a string"),  # type: ignore[arg-type]
        (lambda: Import("a b"), "the name of a module begins"),
        (lambda: Import("a", {"p": 3}), "'p' must be a string, got int"),  # type: ignore[dict-item]
        (lambda: Import("a", {}, (Turn("user"),)), "an import holds"),  # type: ignore[arg-type]
        (lambda: Prompt("x", (Turn("user", (SchemaModule("a"),)),)), "contains only text"),
        (lambda: Prompt("x", (Turn("user"), Import("a"))), "<a> comes after <user>"),
        (lambda: Prompt("x", (None,)), "a prompt holds"),  # type: ignore[arg-type]
    ],
)
def test_what_makes_no_sense_is_refused_on_construction(build: Any, message: str) -> None:
    with pytest.raises(MarkupError, match=message):
        build()


@pytest.mark.parametrize(
    ("text", "column", "message"),
    [
        ("<schema name='x'/>", 1, 'expected <prompt schema="...">, found <schema>'),
        ("<prompt/>", 1, "<prompt> needs the attribute 'schema'"),
        ("<prompt schema='x'><user><a/></user></prompt>", 26, "contains only text, found <a>"),
        ("<prompt schema='x'><user/><a/></prompt>", 27, "<a> comes after <user>"),
        ("<prompt schema='x'><a><user/></a></prompt>", 23, "turns directly into <prompt>"),
        ("<prompt schema='x'><a:b/></prompt>", 20, "the name of a module begins"),
    ],
)
def test_a_prompt_that_is_wrong_is_refused_where_it_is(
    text: str, column: int, message: str
) -> None:
    with pytest.raises(MarkupError, match=message) as caught:
        Prompt.from_pml(text)
    assert (caught.value.line, caught.value.column) == (1, column)
