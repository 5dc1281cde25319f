"""Prompt Markup Language: read, laid out and put together, or refused with the place."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as ET

import pytest
from hypothesis import event, example, given
from hypothesis import strategies as st

from ragcache_integrations.errors import ConfigurationError, MarkupError
from ragcache_integrations.prompts.pml.prompt import Prompt
from ragcache_integrations.prompts.pml.schema import Schema
from tests.prompts.pml.schemas import served, tokenizer
from tests.support.sizes import examples

from .bounds import bounded
from .hostile import damaged

FOLDER = Path(__file__).parents[2] / "examples" / "pml"
EXAMPLES = {
    name: tuple((FOLDER / f"{name}.{kind}.xml").read_bytes() for kind in ("schema", "prompt"))
    for name in ("cities", "game", "learner", "travel")
}
PIECES = [
    *('<schema name="x">', "</schema>", '<module name="a">', "</module>", "<union>", "</union>"),
    *('<param name="p" len="2"/>', "<user>", "</user>", "text ", "&amp;", "&", "<", ">", '"', "\n"),
    *('<prompt schema="x">', "</prompt>", "<a/>", '<a p="1">', "</a>", "<!--", "-->", "<![CDATA["),
    *("]]>", "<!DOCTYPE a [", "<!ENTITY b 'c'>", "]>", "&b;", "<?x?>", "&#10;", "\x00", "\ud800"),
    *('<scaffold modules="*"/>', "<a:b/>", "xmlns='x'", "é", "🗼", "<system>", "</system>"),
    *("<module name='b'>" * 29, "<union>" * 40, '<param name="q" len="999999"/>', "<user>" * 2),
    *(
        ' len="-1"',
        ' len="1e9"',
        ' len="٣"',
        " name='a b'",
        '<scaffold modules="a,b"/>',
        "&#xD800;",
    ),
]
TAGS = [
    "module",
    "union",
    "param",
    "user",
    "system",
    "assistant",
    "scaffold",
    "a",
    "schema",
    "prompt",
]
VALUES = ["1", "0", "-1", "999999", "1000001", "a", "b", "*", "plan,tokyo", "travel", "for", "new"]
TEXTS = st.text(st.characters(codec="utf-8", exclude_categories=["Cc", "Cs", "Cn"]), max_size=20)
BYTES = tuple(piece.encode("utf-8", "surrogatepass") for piece in PIECES)


def line_of_fault(read: Callable[[str], object], text: str) -> int | None:
    """Where the text is refused, 0 for nowhere; ``None`` where it is read."""
    try:
        with bounded():
            read(text)
    except MarkupError as error:
        return error.line or 0
    return None


@given(st.text() | st.lists(st.sampled_from(PIECES), max_size=12).map("".join))
@example('<schema name="x"><a:b xmlns:a="x"/></schema>')
@example('<?xml version="1.0" encoding="utf-16"?><schema name="x"/>')
@example('<?xml version="1.0" encoding="no-such"?><schema name="x"/>')
def test_hostile_input_gives_a_markup_error_or_nothing(text: str) -> None:
    for read in (Schema.from_pml, Prompt.from_pml):
        assert line_of_fault(read, text) != 0


@st.composite
def texts(draw: st.DrawFn, saved: bytes, *, damage: bool) -> str:
    """A document, damaged if so; bytes that are no UTF-8 become halves of characters."""
    return draw(damaged(saved, BYTES) if damage else st.just(saved)).decode(
        "utf-8", "surrogateescape"
    )


@st.composite
def rearranged(draw: st.DrawFn, saved: bytes, *, change: bool) -> str:
    """A document whose elements were moved, copied, renamed, wrapped or given other texts."""
    root = ET.fromstring(saved)
    for _ in range(draw(st.integers(1, 4)) if change else 0):
        elements = list(root.iter())
        element, other = (draw(st.sampled_from(elements)) for _ in range(2))
        kinds = ["copy", "copy", "remove", "tag", "text", "tail", "attribute", "wrap"]
        match draw(st.sampled_from(kinds)):
            case "copy":
                other.insert(draw(st.integers(0, len(other))), copy.deepcopy(element))
            case "remove":
                for parent in elements:
                    if other in parent:
                        parent.remove(other)
            case "tag":
                element.tag = draw(st.sampled_from([*TAGS, other.tag]))
            case "text":
                element.text = draw(TEXTS)
            case "tail":
                element.tail = draw(TEXTS)
            case "attribute":
                name = draw(st.sampled_from(["name", "len", "schema", "modules", "for", "p"]))
                element.set(name, draw(st.sampled_from(VALUES) | TEXTS))
            case _:
                inner = ET.SubElement(element, draw(st.sampled_from(TAGS)), name="new")
                inner.extend(element[:-1])
                element[:] = [inner]
    return ET.tostring(root, "unicode")


@pytest.mark.parametrize("name", EXAMPLES)
@examples(60)
@given(data=st.data())
def test_damaged_documents(name: str, data: st.DataObject) -> None:
    """What is read can be written and read again, laid out, and put together."""
    which = data.draw(st.sampled_from(["schema", "prompt", "both"]))
    tree = data.draw(st.booleans())
    schema_text, prompt_text = (
        data.draw(rearranged(saved, change=which in {kind, "both"}))
        if tree
        else data.draw(texts(saved, damage=which in {kind, "both"}))
        for saved, kind in zip(EXAMPLES[name], ("schema", "prompt"), strict=True)
    )
    for read, text in ((Schema.from_pml, schema_text), (Prompt.from_pml, prompt_text)):
        assert line_of_fault(read, text) != 0
    try:
        with bounded():
            schema, prompt = Schema.from_pml(schema_text), Prompt.from_pml(prompt_text)
            assert Schema.from_pml(schema.to_pml()) == schema
            assert Prompt.from_pml(prompt.to_pml()) == prompt
            model: Any = tokenizer(data.draw(st.sampled_from(["chatml", "llama-3", "phi"])))
            assembly = schema.compile(model).assemble(prompt)
            assert served(assembly)
    except ConfigurationError:
        event("refused")
    else:
        event("put together")
