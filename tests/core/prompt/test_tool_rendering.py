"""Tools in a rendered conversation: the template's own form, and no text of anybody is markup."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ragcache_integrations.core.prompt import (
    NO_TOOLS,
    Message,
    Prompt,
    PromptDocument,
    PromptRenderer,
    Tool,
    ToolCall,
)
from ragcache_integrations.errors import ConfigurationError
from tests.support.chat_models import FAMILIES, tokenizer_of
from tests.support.hostile_texts import MARKUP, hostile_texts
from tests.support.sizes import examples

# Writes whatever tools and calls have, names in brackets among them.
TEMPLATE = """\
{%- for tool in tools or [] %}<|im_start|>tool {{ tool.function.name }} {{ tool | tojson }}
{%- for key, spec in tool.function.parameters.properties.items() %}
<{{ key }}>{{ 'number' if spec.type == 'number' else spec.description }}</{{ key }}>
{%- endfor %}<|im_end|>
{%- endfor %}
{%- for m in messages %}<|im_start|>{{ m.role }} {{ m.tool_call_id }} {{ m.content }}
{%- for call in m.tool_calls or [] %}<tool_call>
<{{ call.function.name }}>{{ call.function.arguments | tojson }}{{ call.id }}
{%- if call.function.arguments is mapping %}
{%- for key, value in call.function.arguments.items() %}<{{ key }}>{{ value }}{% endfor %}
{%- endif %}
{%- endfor %}<|im_end|>
{%- endfor %}<|im_start|>assistant """

TOKENIZER = tokenizer_of("byte-level", "qwen-3")
RENDERER = PromptRenderer(TOKENIZER, TEMPLATE)


def prompt(*texts: str, name: str = "ask") -> Prompt:
    """A conversation with texts wherever there can be some."""
    called, id_, key, value, description, said, result = texts
    schema = {"type": "object", "properties": {key: {"type": "string", "description": description}}}
    return Prompt(
        messages=(
            Message("user", said),
            Message(
                "assistant", said, tool_calls=[ToolCall(id_, called, json.dumps({key: value}))]
            ),
            Message("tool", [PromptDocument(result), result], tool_call_id=id_),
            Message("assistant", "", tool_calls=[ToolCall(id_, called, value)]),
        ),
        tools=(Tool(name, description, schema),),
    )


HARMLESS = ("ask", "call-1", "who", "the cat", "Asks one.", "Who?", "It purrs.")


def markup(rendered: Prompt) -> list[str]:
    names = TOKENIZER.convert_ids_to_tokens(RENDERER.render(rendered).token_ids)
    return [name for name in names if name in FAMILIES["qwen-3"].markup]


def test_without_markup_the_text_is_the_templates() -> None:
    called, id_, key, value, _, said, result = HARMLESS
    whole = prompt(*HARMLESS)
    function = {"name": called, "arguments": {key: value}}
    second = {"name": called, "arguments": value}
    written = TOKENIZER.apply_chat_template(
        [
            {"role": "user", "content": said},
            {
                "role": "assistant",
                "content": said,
                "tool_calls": [{"id": id_, "function": function}],
            },
            {"role": "tool", "content": result * 2, "tool_call_id": id_},
            {"role": "assistant", "content": "", "tool_calls": [{"id": id_, "function": second}]},
        ],
        tools=[tool.definition() for tool in whole.tools],
        chat_template=TEMPLATE,
        tokenize=False,
    )
    assert TOKENIZER.decode(RENDERER.render(whole).token_ids) == written


@examples(60)
@given(texts=st.lists(hostile_texts.map(lambda text: f".{text}."), min_size=7, max_size=7))
def test_hostile_texts_are_text(texts: list[str]) -> None:
    assert markup(prompt(*texts)) == markup(prompt(*HARMLESS))


@pytest.mark.parametrize("text", [*MARKUP, "think", "/think", "im_start", "tool_call"])
@pytest.mark.parametrize("place", range(len(HARMLESS)))
def test_no_token_is_markup_in_any_place(text: str, place: int) -> None:
    texts = [*HARMLESS]
    texts[place] = text
    assert markup(prompt(*texts)) == markup(prompt(*HARMLESS))


@pytest.mark.parametrize("name", ["think", "im_start", "tool_call", "im_start_"])
def test_names_of_tools_are_text(name: str) -> None:
    assert markup(prompt(*HARMLESS, name=name)) == markup(prompt(*HARMLESS))


def test_templates_see_names_and_types() -> None:
    schema = {"type": "object", "properties": {"who": {"type": "number"}}}
    tools = (Tool("ask", "", schema),)
    rendered = RENDERER.render(Prompt(messages=(Message("user", "?"),), tools=tools))
    assert "<who>number</who>" in TOKENIZER.decode(rendered.token_ids)


def test_templates_without_tools_refuse_them() -> None:
    assert RENDERER.template.writes_tools
    for name in ("chatml", "llama-3", "gemma"):
        renderer = PromptRenderer(tokenizer_of("byte-level", name))
        assert not renderer.template.writes_tools
        for refused in (
            Prompt(messages=(Message("user", "?"),), tools=(Tool("f"),)),
            Prompt(messages=prompt(*HARMLESS).messages),
        ):
            with pytest.raises(ConfigurationError) as caught:
                renderer.render(refused)
            assert str(caught.value) == NO_TOOLS
    plain = tokenizer_of("byte-level", "chatml")
    assert not PromptRenderer(plain, "{{ messages[7].content }}").template.writes_tools


def test_a_template_of_its_own_for_tools() -> None:
    """Some tokenizers have one template for chats, and one for chats with tools."""
    from copy import deepcopy  # noqa: PLC0415

    tokenizer = deepcopy(TOKENIZER)
    tokenizer.chat_template = {"default": FAMILIES["chatml"].template, "tool_use": TEMPLATE}
    renderer = PromptRenderer(tokenizer)
    assert renderer.template.writes_tools
    assert renderer.template.text == FAMILIES["chatml"].template
    assert renderer.template.tool_text == TEMPLATE
    whole = prompt(*HARMLESS)
    assert renderer.render(whole) == RENDERER.render(whole)
