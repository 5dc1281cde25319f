"""Prompt programs: Python functions that are schemas (Prompt Cache §3.2.4)."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, Literal

import pytest

from ragcache_integrations.errors import MarkupError
from ragcache_integrations.modular.programs.program import (
    Length,
    PromptProgram,
    prompt_program,
    role,
)
from ragcache_integrations.prompts.pml.prompt import Import, Prompt
from ragcache_integrations.prompts.pml.schema import Schema
from tests.prompts.pml.schemas import text_of, tokenizer

HOUSE_RULES = "Answer <briefly> & kindly. "


@prompt_program
def place(town: Annotated[str, Length(8)], coastal: bool = False) -> Iterator[str]:
    """Not part of the prompt."""
    yield f"The town is {town}. "
    if coastal:
        yield "It lies by the sea. "


@prompt_program(name="trip")
def trip_plan(
    duration: Annotated[str, Length(6)],
    town: Annotated[str, Length(8)],
    way: Literal["train", "car", "boat", "foot"],
    frugal: bool,
    coastal: bool,
) -> Iterator[str]:
    yield HOUSE_RULES
    yield f"Plan {duration}, no more than {duration}. "
    if frugal:
        yield f"Spend little in {town}. "
    if coastal:
        yield "Bring a towel. "
    elif not frugal:
        yield "Bring money. "
    else:
        yield "Bring bread. "
    match way:
        case "train":
            yield "Take the train. "
        case "car" | "boat":
            yield "Drive. "
            if frugal:
                yield "Share it. "
        case _:
            yield "Walk. "
    yield from place(town, coastal)
    yield from place("Bern")
    if frugal:
        pass


AS_MARKUP = """\
<schema name="trip">Answer &lt;briefly> &amp; kindly. Plan <param name="duration" len="6"/>, no \
more than <param name="duration.2" len="6"/>.&#32;<module name="frugal">Spend little in <param \
name="town" len="8"/>.&#32;</module><union><module name="coastal">Bring a towel.&#32;</module>\
<module name="not-frugal">Bring money.&#32;</module><module name="coastal.else">Bring bread.&#32;\
</module></union><union><module name="way.train">Take the train.&#32;</module><module \
name="way.car">Drive. <module name="frugal">Share it.&#32;</module></module><module \
name="way.else">Walk.&#32;</module></union><module name="place">The town is <param name="town" \
len="8"/>.&#32;<module name="coastal">It lies by the sea.&#32;</module></module><module \
name="place.2">The town is <param name="town" len="8"/>.&#32;<module name="coastal">It lies by \
the sea.&#32;</module></module><module name="frugal.2"/></schema>"""


def test_a_program_is_the_schema_that_markup_would_give() -> None:
    assert trip_plan.schema == Schema.from_pml(AS_MARKUP)
    assert Schema.from_pml(trip_plan.schema.to_pml()) == trip_plan.schema


def test_a_call_is_the_prompt_that_markup_would_give() -> None:
    prompt = trip_plan.prompt("2 days", town="Basel", way="boat", frugal=True, coastal=False)
    assert prompt == Prompt.from_pml(
        '<prompt schema="trip" duration="2 days" duration.2="2 days"><frugal town="Basel"/>'
        '<coastal.else/><way.car><frugal/></way.car><place town="Basel"/><place.2 town="Bern"/>'
        "<frugal.2/></prompt>"
    )


def test_the_prompt_says_what_python_yields() -> None:
    there = trip_plan.schema.compile(tokenizer())
    ways: tuple[Any, ...] = ("train", "car", "boat", "foot")
    for way, frugal, coastal in itertools.product(ways, [True, False], [True, False]):
        arguments: Any = {
            "duration": "</x>",
            "town": "<b>",
            "way": way,
            "frugal": frugal,
            "coastal": coastal,
        }
        said = there.assemble(trip_plan.prompt(**arguments).with_text("Go."))
        assert text_of(said) == f"<|begin|>{''.join(trip_plan(**arguments))}Go."


@prompt_program
def chat(question: Annotated[str, Length(12)], expert: bool) -> Iterator[str]:
    with role("system"):
        yield "You help. "
        if expert:
            yield "They know much."
    with role("user"):
        yield question


def test_turns_are_written_with_role() -> None:
    assert chat.schema == Schema.from_pml(
        '<schema name="chat"><system>You help.&#32;<module name="expert">They know much.</module>'
        '</system><user><param name="question" len="12"/></user></schema>'
    )
    said = chat.schema.compile(tokenizer()).assemble(chat.prompt("Why?", expert=True))
    assert text_of(said) == (
        "<|begin|><|system|>You help. They know much.<|end|><|user|>Why?<|end|><|assistant|>"
    )


def test_programs_may_be_defined_within_functions_and_in_any_order() -> None:
    @prompt_program
    def outer(word: Annotated[str, Length(3)]) -> Iterator[str]:
        yield """Texts
keep their lines. """
        yield from inner(word=word)

    @prompt_program
    def inner(word: Annotated[str, Length(3)]) -> Iterator[str]:
        yield word

    assert outer.schema == Schema.from_pml(
        '<schema name="outer">Texts&#10;keep their lines.&#32;<module name="inner">'
        '<param name="word" len="3"/></module></schema>'
    )
    assert outer.prompt("a").children == (Import("inner", {"word": "a"}),)


@prompt_program
def there(deep: bool) -> Iterator[str]:
    if deep:
        yield from back(deep)


@prompt_program
def back(deep: bool) -> Iterator[str]:
    yield from there(deep)


def test_programs_that_call_each_other_in_a_circle_are_refused() -> None:
    for program, circle in ((there, "there -> back -> there"), (back, "back -> there -> back")):
        with pytest.raises(MarkupError, match=f"call each other: {circle}") as caught:
            _ = program.schema
        assert caught.value.source == __file__


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({}, "chat: missing a required argument: 'question'; its parameters are question, expert"),
        ({"question": "a", "expert": True, "x": 1}, "unexpected keyword argument 'x'"),
        ({"question": 1, "expert": True}, "question must be a string, got 1"),
        ({"question": "a", "expert": "yes"}, "expert must be True or False, got 'yes'"),
    ],
)
def test_arguments_that_do_not_fit_are_refused(arguments: Any, message: str) -> None:
    with pytest.raises(MarkupError, match=message):
        chat.prompt(**arguments)


def test_a_choice_has_only_its_values() -> None:
    way: Any = "plane"
    with pytest.raises(MarkupError, match="way must be one of 'train', 'car', 'boat', 'foot'"):
        trip_plan.prompt("a", "b", way, frugal=True, coastal=True)


def program(tmp_path: Path, body: str, parameters: str = "") -> PromptProgram[...]:
    """A program from a file of its own; its body begins in line 8."""
    lines = (
        "from typing import Annotated, Literal\n"
        "from ragcache_integrations.modular.programs.program import Length, prompt_program, role\n"
        "NUMBER = 3\n@prompt_program\ndef other(text: Annotated[str, Length(2)], way: "
        "Literal['a', 'b'] = 'a'): yield text\n"
        f"@prompt_program\ndef f({parameters}):\n"
    )
    path = tmp_path / "prog.py"
    path.write_text(lines + "".join(f"    {line}\n" for line in body.splitlines()), "utf-8")
    space: dict[str, Any] = {}
    exec(compile(path.read_text(encoding="utf-8"), str(path), "exec"), space)
    found = space["f"]
    assert isinstance(found, PromptProgram)
    return found


@pytest.mark.parametrize(
    ("body", "parameters", "line", "column", "message"),
    [
        ("yield 'a'\nx = 'b'\nyield x", "", 9, 5, "has 'x = 'b''; a prompt program consists of"),
        ("for x in 'ab':\n    yield x", "", 8, 5, "has 'for x in 'ab':'"),
        ("return ['a']", "", 8, 5, r"has 'return \['a'\]'"),
        ("yield 'a'.upper()", "", 8, 11, "the text ''a'.upper"),
        ("yield NUMBER", "", 8, 11, "'NUMBER', which is not text"),
        ("yield unknown", "", 8, 11, "'unknown', which is not text"),
        ("yield f'{a!r}'", "a: Annotated[str, Length(2)]", 8, 14, "the text"),
        ("yield f'{a}'", "a: bool", 8, 14, "'a', which is not text"),
        ("yield", "", 8, 5, "has 'yield'"),
        ("if a == 'x':\n    yield 'a'", "a: Annotated[str, Length(2)]", 8, 8, "is not a flag"),
        ("if NUMBER:\n    yield 'a'", "", 8, 8, "the condition 'NUMBER', which is not a flag"),
        ("match a:\n    case 'x':\n        yield 'a'", "a: bool", 8, 11, "which is not a choice"),
        (
            "match a:\n    case 'y':\n        yield 'a'",
            "a: Literal['x']",
            *(9, 14, "the case 'y', not a value of a"),
        ),
        (
            "match a:\n    case 'x' if a:\n        yield 'a'",
            "a: Literal['x']",
            *(9, 21, "a guard of a case"),
        ),
        (
            "match a:\n    case str():\n        yield 'a'",
            "a: Literal['x']",
            *(9, 14, "which is not text"),
        ),
        (
            "match a:\n    case 'new york':\n        yield 'a'",
            "a: Literal['new york']",
            *(9, 14, "the name of a module begins"),
        ),
        ("with open('a'):\n    yield 'a'", "", 8, 5, "a 'with' of anything but"),
        ("yield from 'ab'", "", 8, 5, "has 'yield from 'ab''"),
        ("yield from print('a')", "", 8, 16, "'print', which is not a prompt program"),
        ("yield from other()", "", 8, 16, "this call, missing a required argument"),
        ("yield from other(**{})", "", 8, 24, r"has '\*\*'"),
        ("yield from other('a' + 'b')", "", 8, 22, "the argument ''a' \\+ 'b''"),
        ("yield from other(True)", "", 8, 16, "this call, text must be a string"),
        ("yield from other(a)", "a: bool", 8, 16, "a may be what text may not"),
        ("yield from other('a', a)", "a: Literal['a', 'c']", 8, 16, "a may be what way may not"),
    ],
)
def test_what_has_no_counterpart_is_refused_where_it_is(
    tmp_path: Path, body: str, parameters: str, line: int, column: int, message: str
) -> None:
    with pytest.raises(MarkupError, match=message) as caught:
        _ = program(tmp_path, body, parameters).schema
    assert caught.value.source == str(tmp_path / "prog.py")
    assert (caught.value.line, caught.value.column) == (line, column)


@pytest.mark.parametrize("parameters", ["a", "a: int", "a: str", "a: Literal[1]", "*a: bool"])
def test_an_annotation_that_means_nothing_is_refused(tmp_path: Path, parameters: str) -> None:
    with pytest.raises(MarkupError, match=r"the program 'f': a .*; a text is annotated Annotated"):
        _ = program(tmp_path, "yield 'a'", parameters).schema


def test_a_program_without_source_is_refused() -> None:
    space: dict[str, Any] = {"prompt_program": prompt_program}
    exec("@prompt_program\ndef f():\n    yield 'a'\n", space)
    with pytest.raises(MarkupError, match="source of the program 'f' cannot be found"):
        _ = space["f"].schema
    with pytest.raises(MarkupError, match="not a function definition"):
        _ = prompt_program(
            lambda: iter(["a"]),
        ).schema


def test_lengths_and_roles_are_checked_where_they_are_written() -> None:
    with pytest.raises(MarkupError, match="whole number of tokens from 1 to 65536, got 0"):
        Length(0)
    with pytest.raises(MarkupError, match="role must be one of system, user, assistant"):
        role("tool")  # type: ignore[arg-type] # what is refused
