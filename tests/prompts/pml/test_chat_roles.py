"""Chat templates taken apart: put together again, they are what the tokenizer writes."""

from __future__ import annotations

from functools import cache
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ragcache_integrations.errors import ConfigurationError
from ragcache_integrations.prompts.pml.schema import Role
from ragcache_integrations.prompts.pml.tokens import ChatRoles, Markers
from tests.support.sizes import examples

from .schemas import TEMPLATES, tokenizer

# Conversations that a template allows, and whether a system turn may begin them.
SYSTEM = {name: name not in {"gemma", "mistral"} for name in ("", *TEMPLATES)}


def rendered(tokens: Any, roles: list[Role], texts: list[str]) -> str:
    turns = [{"role": role, "content": text} for role, text in zip(roles, texts, strict=True)]
    return str(tokens.apply_chat_template(turns, tokenize=False, add_generation_prompt=True))


@cache
def roles_of(name: str) -> ChatRoles:
    return ChatRoles(tokenizer(name))


@pytest.mark.parametrize("name", SYSTEM)
@given(data=st.data())
@examples(20)
def test_the_pieces_make_the_whole(name: str, data: st.DataObject) -> None:
    tokens = tokenizer(name)
    count = data.draw(st.integers(0, 3))
    roles: list[Role] = ["user"]
    for _ in range(count):
        roles += ["assistant", "user"]
    if SYSTEM[name] and data.draw(st.booleans()):
        roles.insert(0, "system")
    texts = [data.draw(st.sampled_from(["Hello.", "a b", "Why?"])) for _ in roles]
    chat = roles_of(name)
    pieces = [
        f"{markers.opening}{text}{markers.closing}"
        for markers, text in zip(chat.markers(roles), texts, strict=True)
    ]
    head = tokens.bos_token if chat.begins_text else ""
    assert f"{head}{''.join(pieces)}{chat.answer(roles)}" == rendered(tokens, roles, texts)


@pytest.mark.parametrize("name", SYSTEM)
def test_the_first_turns_do_not_depend_on_later_ones(name: str) -> None:
    roles: list[Role] = ["user", "assistant", "user"]
    if SYSTEM[name]:
        roles.insert(0, "system")
    whole = ChatRoles(tokenizer(name)).markers(roles)
    for count in range(1, len(roles)):
        assert ChatRoles(tokenizer(name)).markers(roles[:count]) == whole[:count]


def test_markers_of_well_known_templates() -> None:
    (chatml,) = ChatRoles(tokenizer("chatml")).markers(["user"])
    assert chatml == Markers("<|im_start|>user\n", "<|im_end|>\n")
    llama = ChatRoles(tokenizer("llama-2")).markers(["system", "user"])
    # The system text is closed by the turn behind it.
    assert llama == (
        Markers("[INST] <<SYS>>\n", ""),
        Markers("\n<</SYS>>\n\n", " [/INST]"),
    )
    (phi,) = ChatRoles(tokenizer("phi")).markers(["user"])
    assert phi == Markers("<|user|>\n", "")  # what closes it depends on what follows


@pytest.mark.parametrize(
    ("name", "roles"),
    [
        ("gemma", ["system", "user"]),
        ("llama-2", ["assistant"]),
        ("llama-2", ["user", "user"]),
        ("mistral", ["system", "user", "assistant", "user"]),
    ],
)
def test_what_a_template_does_not_write_turn_by_turn_is_refused(
    name: str, roles: list[Role]
) -> None:
    with pytest.raises(ConfigurationError, match="does not write the turns"):
        ChatRoles(tokenizer(name)).markers(roles)


def test_a_tokenizer_without_a_template_is_refused() -> None:
    with pytest.raises(ConfigurationError, match=r"no chat template.*tokenizer\.chat_template"):
        ChatRoles(tokenizer("none"))


def test_a_conversation_has_only_so_many_turns() -> None:
    with pytest.raises(ConfigurationError, match="257 turns; allowed: 256"):
        ChatRoles(tokenizer()).markers(["user"] * 257)
