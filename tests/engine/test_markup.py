"""No content of a chat is markup: several kinds of tokenizers, ten model families."""

from __future__ import annotations

import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from transformers import PreTrainedTokenizerFast

from ragcache_integrations.core.prompt import ChangedContentError, PromptRenderer
from ragcache_integrations.engine import Message, Prompt, PromptDocument
from ragcache_integrations.errors import ConfigurationError
from tests.support.chat_models import FAMILIES, KINDS, tokenizer_of
from tests.support.hostile_texts import MARKUP, conversations, harmless_texts, hostile_texts
from tests.support.sizes import examples

CASES = [(kind, name) for kind in KINDS for name in FAMILIES]
RENDERERS: dict[tuple[str, str], PromptRenderer] = {}


def renderer_of(kind: str, name: str) -> PromptRenderer:
    key = kind, name
    if key not in RENDERERS:
        RENDERERS[key] = PromptRenderer(tokenizer_of(kind, name))
    return RENDERERS[key]


def with_template(template: str, **fields: Any) -> PromptRenderer:
    return PromptRenderer(tokenizer_of("byte-level", "qwen-3"), template, **fields)


def official(tokenizer: Any, messages: tuple[Message, ...]) -> list[int]:
    turns = [{"role": message.role, "content": message.text} for message in messages]
    return list(tokenizer.apply_chat_template(turns, add_generation_prompt=True, return_dict=False))


def text_of(tokenizer: Any, token_ids: list[int]) -> str:
    return str(tokenizer.decode(token_ids, clean_up_tokenization_spaces=False))


def markup_of(kind: str, name: str, token_ids: list[int]) -> list[str]:
    """The markup among tokens, in its order."""
    tokenizer, markup = tokenizer_of(kind, name), set(FAMILIES[name].markup)
    tokens = tokenizer.convert_ids_to_tokens(token_ids)
    return [token for token in tokens if token in markup and token.strip()]


@pytest.mark.parametrize(("kind", "name"), CASES)
@examples(15)
@given(data=st.data())
def test_without_markup_the_tokens_are_those_of_the_model_itself(
    kind: str, name: str, data: st.DataObject
) -> None:
    messages = data.draw(conversations(harmless_texts, system=FAMILIES[name].system))
    prompt = Prompt(messages=messages)
    ours = renderer_of(kind, name).render(prompt).token_ids
    assert ours == official(tokenizer_of(kind, name), messages)


@pytest.mark.parametrize(("kind", "name"), CASES)
@examples(15)
@given(data=st.data())
def test_only_the_template_writes_markup(kind: str, name: str, data: st.DataObject) -> None:
    system = FAMILIES[name].system
    hostile = data.draw(conversations(hostile_texts, system=system, documents=True, tools=True))
    renderer = renderer_of(kind, name)
    harmless = [harmless_twin(message) for message in hostile]
    ours = renderer.render(Prompt(messages=hostile))
    theirs = renderer.render(Prompt(messages=tuple(harmless)))
    markup = markup_of(kind, name, ours.token_ids)
    assert markup == markup_of(kind, name, theirs.token_ids)
    assert len(ours.documents) == len(theirs.documents)
    # The twin keeps the tags of an answer's reasoning. Of these the template writes its own alone.
    answers = sum(message.role == "assistant" for message in hostile) if name == "qwen-3" else 0
    assert markup.count("</think>") <= answers
    assert markup.count("<think>") <= answers + (name in {"qwen-3", "deepseek"})


def harmless_twin(message: Message) -> Message:
    """The same message with words instead of what is not white space.

    The tags of the assistant's reasoning stay, as some templates look for it.
    """
    tags = "(</?think>)" if message.role == "assistant" else r"(\A(?!))"
    parts = [
        PromptDocument("x")
        if isinstance(part, PromptDocument)
        else "".join(
            piece if at % 2 else words(piece) for at, piece in enumerate(re.split(tags, part))
        )
        for part in message.parts
    ]
    return Message(message.role, parts)


def words(text: str) -> str:
    inner = text.strip()
    return text.replace(inner, "x") if inner else text


@given(st.lists(hostile_texts, min_size=1, max_size=3), st.booleans())
def test_the_text_stays_as_it_is(texts: list[str], marked: bool) -> None:
    parts: list[str | PromptDocument] = [
        PromptDocument(text) if marked and text else text for text in texts
    ]
    if not "".join(texts).strip():
        return
    tokenizer = tokenizer_of("byte-level", "chatml")
    rendered = renderer_of("byte-level", "chatml").render(
        Prompt(messages=(Message("user", parts),))
    )
    expected = f"<|im_start|>user\n{''.join(texts)}<|im_end|>\n<|im_start|>assistant\n"
    assert text_of(tokenizer, rendered.token_ids) == expected


@pytest.mark.parametrize(("kind", "name"), CASES)
def test_each_token_of_each_family_is_text(kind: str, name: str) -> None:
    renderer = renderer_of(kind, name)
    expected = markup_of(kind, name, renderer.render(Prompt.rag("x")).token_ids)
    for text in (*MARKUP, "".join(MARKUP), " ".join(MARKUP)):
        for prompt in (Prompt.rag(text), Prompt.rag("x", [text]), Prompt.rag("x", ["a", text])):
            assert markup_of(kind, name, renderer.render(prompt).token_ids) == expected


def test_markup_is_not_joined_over_borders() -> None:
    renderer = renderer_of("byte-level", "chatml")
    expected = markup_of("byte-level", "chatml", renderer.render(Prompt.rag("x")).token_ids)
    token = "<|im_start|>"
    for at in range(1, len(token)):
        head, tail = token[:at], token[at:]
        contents: tuple[list[str | PromptDocument], ...] = (
            [head, tail],
            [PromptDocument(head), tail],
            [head, PromptDocument(tail)],
            [PromptDocument(head), PromptDocument(tail)],
        )
        for parts in contents:
            rendered = renderer.render(Prompt(messages=(Message("user", parts),)))
            assert markup_of("byte-level", "chatml", rendered.token_ids) == expected
    # The template's own words do not complete a token either.
    joining = with_template("{% for m in messages %}<|im_{{ m.content }}|>{% endfor %}")
    assert markup_of("byte-level", "qwen-3", joining.render(Prompt.rag("start")).token_ids) == []


def test_a_raw_prompt_is_the_applications_own() -> None:
    renderer = renderer_of("byte-level", "chatml")
    text = "<|im_start|>user\nWhy?<|im_end|>\n"
    raw = renderer.render(Prompt.raw([text, PromptDocument(text)])).token_ids
    assert markup_of("byte-level", "chatml", raw) == ["<|im_start|>", "<|im_end|>"]


class TestTemplates:
    """What templates do with contents."""

    def shown(self, template: str, *messages: Message) -> str:
        rendered = with_template(template).render(Prompt(messages=messages))
        return text_of(tokenizer_of("byte-level", "qwen-3"), rendered.token_ids)

    def test_dropped_repeated_and_moved(self) -> None:
        template = (
            "{% for m in messages | reverse %}{% if m.role != 'system' %}<think>{{ m.content }}/"
            "{{ m.content }}</think>{% endif %}{% endfor %}"
        )
        user = Message("user", ["see ", PromptDocument("<think>", "a")])
        messages = (Message("system", "gone"), user, Message("tool", "</think>"))
        renderer = with_template(template)
        rendered = renderer.render(Prompt(messages=messages))
        expected = "<think></think>/</think></think><think>see <think>/see <think></think>"
        assert text_of(tokenizer_of("byte-level", "qwen-3"), rendered.token_ids) == expected
        assert markup_of("byte-level", "qwen-3", rendered.token_ids) == ["<think>", "</think>"] * 2
        assert [span.id for span in rendered.documents] == ["a", "a"]

    def test_white_space_is_the_templates_to_trim(self) -> None:
        template = "{% for m in messages %}[{{ m.content | trim }}|{{ m.content }}]{% endfor %}"
        shown = self.shown(template, Message("user", " \n a b\t"), Message("user", " \n"))
        assert shown == "[a b| \n a b\t][| \n]"

    @pytest.mark.parametrize(
        "change",
        [
            *("upper", "lower", "title", "capitalize", "reverse", "e", "urlencode", "first"),
            *("truncate(9)", "truncate(20)", "replace('X', 'Y')", "tojson(ensure_ascii=True)"),
            *("length | string + m.content[:1]", "list", "wordwrap(7)", "center(60) | e"),
        ],
    )
    def test_a_template_that_changes_contents_is_refused(self, change: str) -> None:
        template = f"{{% for m in messages %}}{{{{ m.content | {change} }}}}{{% endfor %}}"
        with pytest.raises(ChangedContentError, match="changes the text of messages"):
            self.shown(template, Message("user", "Why?"), Message("user", "How?"))

    def test_contents_within_json_are_json(self) -> None:
        text = 'a "quoted"\\ <think>\n line'
        template = "{% for m in messages %}{{ m.content | tojson }}{% endfor %}"
        assert self.shown(template, Message("tool", text)) == '"a \\"quoted\\"\\\\ <think>\\n line"'
        twice = "{% for m in messages %}{{ {'x': m.content} | tojson | tojson }}{% endfor %}"
        plain = tokenizer_of("byte-level", "qwen-3").apply_chat_template(
            [{"role": "tool", "content": text}], chat_template=twice, tokenize=False
        )
        assert self.shown(twice, Message("tool", text)) == plain

    @examples(100)
    @given(text=hostile_texts)
    @pytest.mark.parametrize("change", ["trim", "tojson", "tojson | tojson", "trim | tojson"])
    def test_trimmed_contents_and_those_within_json_are_text(self, change: str, text: str) -> None:
        template = f"{{% for m in messages %}}<think>{{{{ m.content | {change} }}}}{{% endfor %}}"
        messages = (Message("user", f".{text}"), Message("tool", [PromptDocument(f".{text}")]))
        token_ids = with_template(template).render(Prompt(messages=messages)).token_ids
        assert markup_of("byte-level", "qwen-3", token_ids) == ["<think>", "<think>"]

    def test_templates_of_content_parts(self) -> None:
        template = (
            "{% for m in messages %}{% for part in m.content %}{% if part.type == 'text' %}"
            "<think>{{ part.text }}{% endif %}{% endfor %}{% endfor %}"
        )
        assert self.shown(template, Message("user", "</think> why?")) == "<think></think> why?"

    def test_a_template_that_refuses_says_so(self) -> None:
        template = (
            "{% if messages[0].role == 'system' %}{{ raise_exception('no system') }}{% endif %}"
        )
        with pytest.raises(ConfigurationError, match="no system"):
            self.shown(template, Message("system", "x"), Message("user", "y"))
        with pytest.raises(ConfigurationError, match="refuses these messages"):
            self.shown("{{ messages[0].content + 1 }}", Message("user", "y"))

    def test_several_templates_in_one_tokenizer(self) -> None:
        own = PreTrainedTokenizerFast(
            tokenizer_object=tokenizer_of("byte-level", "chatml").backend_tokenizer,
            chat_template={"default": FAMILIES["chatml"].template, "tool_use": "{{ 'tools' }}"},
        )
        rendered = PromptRenderer(own).render(Prompt.rag("Why?"))
        expected = renderer_of("byte-level", "chatml").render(Prompt.rag("Why?"))
        assert rendered == expected


class TestReasoning:
    """Templates that look for ``</think>`` in what the assistant said."""

    ANSWERS = (
        "<think>\nCats, then.\n</think>\n\nCats purr.",
        "Cats, then.</think>Cats purr.",
        "</think>",
        "<think></think>",
        "Cats purr.",
        "<think>\na</think>b<think>c\n</think>\n\nd",
    )

    @pytest.mark.parametrize("answer", ANSWERS)
    @pytest.mark.parametrize("name", ["qwen-3", "deepseek"])
    def test_it_is_left_out_or_written_as_ever(self, name: str, answer: str) -> None:
        turns = [
            {"role": "user", "content": "Who?"},
            {"role": "assistant", "content": answer},
            {"role": "user", "content": "And?"},
        ]
        tokenizer = tokenizer_of("byte-level", name)
        messages = tuple(Message(turn["role"], turn["content"]) for turn in turns)
        rendered = renderer_of("byte-level", name).render(Prompt(messages=messages))
        plain = tokenizer.apply_chat_template(turns, tokenize=False, add_generation_prompt=True)
        assert text_of(tokenizer, rendered.token_ids) == plain

    def test_tags_within_the_reasoning_are_text(self) -> None:
        answer = "<think><|im_start|>a</think>b<|im_end|><tool_call></think>"
        messages = (Message("user", "Who?"), Message("assistant", answer), Message("user", "And?"))
        rendered = renderer_of("byte-level", "qwen-3").render(Prompt(messages=messages))
        expected = [
            *("<|im_start|>", "<|im_end|>", "<|im_start|>", "<think>", "</think>", "<|im_end|>"),
            *("<|im_start|>", "<|im_end|>", "<|im_start|>", "<think>"),
        ]
        assert markup_of("byte-level", "qwen-3", rendered.token_ids) == expected

    def test_documents_keep_their_places(self) -> None:
        parts: list[str | PromptDocument] = [
            "<think>",
            PromptDocument("a"),
            "</think>",
            PromptDocument("b"),
            ".",
        ]
        messages = (Message("user", "Who?"), Message("assistant", parts))
        both = renderer_of("byte-level", "qwen-3").render(Prompt(messages=messages))
        answer = renderer_of("byte-level", "deepseek").render(Prompt(messages=messages))
        ids = [PromptDocument("a").id, PromptDocument("b").id]
        assert [span.id for span in both.documents] == ids
        assert [span.id for span in answer.documents] == ids[1:]

    def test_what_users_say_is_not_parted(self) -> None:
        messages = (Message("user", "<think>a</think>b"),)
        rendered = renderer_of("byte-level", "deepseek").render(Prompt(messages=messages))
        text = text_of(tokenizer_of("byte-level", "deepseek"), rendered.token_ids)
        assert "<think>a</think>b" in text
