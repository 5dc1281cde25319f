"""Text in schemas and prompts is text, whatever markup the model has."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ragcache_integrations.prompts.pml.prompt import Import, Prompt
from ragcache_integrations.prompts.pml.schema import Schema, SchemaModule, Slot, Text, Turn
from tests.support.chat_models import FAMILIES, tokenizer_of
from tests.support.hostile_texts import MARKUP, hostile_texts
from tests.support.sizes import examples

from .schemas import served

NAMES = ("chatml", "llama-3", "qwen-3", "phi", "command-r")


def markup(name: str, texts: list[str]) -> list[str]:
    """The markup in a prompt with these texts in each of the places there are."""
    module, argument, turn, tail = texts
    tokenizer: Any = tokenizer_of("byte-level", name)
    schema = Schema(
        "all",
        (
            Turn("system", (Text("Be brief. "), Text(module))),
            SchemaModule("facts", (Text(module), Slot("who", 200))),
        ),
    )
    prompt = Prompt(
        "all",
        (
            Import("facts", {"who": argument}),
            Turn("user", (Text(turn),)),
            Turn("assistant", (Text(turn),)),
            Turn("user", (Text(tail),)),
        ),
    )
    tokens = served(schema.compile(tokenizer).assemble(prompt))
    names = tokenizer.convert_ids_to_tokens([tokens[at] for at in sorted(tokens)])
    return [token for token in names if token in FAMILIES[name].markup]


@pytest.mark.parametrize("name", NAMES)
@examples(25)
@given(texts=st.lists(hostile_texts.map(lambda text: f"x{text[:60]}"), min_size=4, max_size=4))
def test_no_text_is_markup(name: str, texts: list[str]) -> None:
    assert markup(name, texts) == markup(name, ["x"] * 4)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("token", MARKUP)
def test_no_token_of_any_family_is_markup(name: str, token: str) -> None:
    assert markup(name, [token] * 4) == markup(name, ["x"] * 4)
