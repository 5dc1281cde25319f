"""Prompts of schemas laid out for vLLM: positions one after the other, modules as documents."""

from __future__ import annotations

import pytest
from transformers import AutoTokenizer

from ragcache_integrations.core.prompt import DocumentSpan, PromptRenderer, RenderedPrompt
from ragcache_integrations.engine.calls import Calls
from ragcache_integrations.engine.protocol import CacheSettings
from ragcache_integrations.engine.tiny_model import default_model_path
from ragcache_integrations.errors import ConfigurationError
from ragcache_integrations.prompts.pml import CompiledSchema, Schema

from .schemas import served


@pytest.fixture(scope="module")
def schema() -> CompiledSchema:
    tokenizer = AutoTokenizer.from_pretrained(default_model_path())
    return Schema.from_pml("""
<schema name="x">
  Answer.
  <module name="a">The river is long.</module>
  <module name="room">A day in <param name="city" len="2"/></module>
  <union>
    <module name="long">The mountain is high, and cold.</module>
    <module name="short">The lake.</module>
  </union>
  <module name="tail">The end of <param name="what" len="4"/> is near.</module>
  <module name="around">It begins. <module name="within">In between.</module> It ends.</module>
  <module name="last">The last.</module>
</schema>
""").compile(tokenizer)


def prompt(content: str) -> str:
    return f'<prompt schema="x">{content}Why?</prompt>'


def name_of(span: DocumentSpan) -> str:
    return span.id.removeprefix("x/").partition("@")[0]


def test_modules_are_documents_where_they_stand(schema: CompiledSchema) -> None:
    rendered = schema.render(prompt("<a/>"))
    (span,) = rendered.documents
    module = schema.modules["a"]
    assert (span.id, span.start) == ("x/a", module.positions[0])
    assert tuple(rendered.token_ids[span.start : span.end]) == module.token_ids
    assert rendered.token_ids[span.end :] == list(schema.tokens("Why?", None))
    (whole,) = (known for known in schema.documents() if known.documents[0].id == "x/a")
    assert tuple(whole.token_ids) == module.token_ids
    assert (whole.documents[0].start, whole.documents[0].end) == (0, len(module.token_ids))


def test_a_param_at_a_module_s_end_is_computed(schema: CompiledSchema) -> None:
    rendered = schema.render(prompt('<a/><room city="Bern"/>'))
    assert [span.id for span in rendered.documents] == ["x/a", "x/room"]
    city = schema.tokens("Bern", None)
    end = rendered.documents[1].end
    assert tuple(rendered.token_ids[end : end + len(city)]) == city


def test_no_position_stays_empty(schema: CompiledSchema) -> None:
    """The tokens are those of the assembly in the order of their positions."""
    for content, names in (
        ('<room city="Bern"/>', ["room"]),
        ('<a/><room city="a"/>', ["a", "room"]),
        ("<a/><room/><short/><last/>", ["a", "room", "short", "last"]),
        ('<tail what="it"/>', ["tail", "tail#2"]),
        ("<tail/>", ["tail", "tail#2"]),
        ("<around><within/></around>", ["around", "around/within", "around#2"]),
        ("<around/>", ["around", "around#2"]),
    ):
        rendered = schema.render(prompt(content))
        assert [name_of(span) for span in rendered.documents] == names
        tokens = served(schema.assemble(prompt(content)))
        assert rendered.token_ids == [tokens[position] for position in sorted(tokens)]


def test_a_piece_is_the_same_document_in_all_prompts(schema: CompiledSchema) -> None:
    ahead = {name_of(known.documents[0]): known.token_ids for known in schema.documents()}
    assert list(ahead) == [
        *("a", "room", "long", "short", "tail", "tail#2", "around", "around#2"),
        *("around/within", "last"),
    ]
    for content in ('<tail what="it"/><around/>', "<a/><tail/><around><within/></around><last/>"):
        rendered = schema.render(prompt(content))
        for span in rendered.documents:
            assert rendered.token_ids[span.start : span.end] == ahead[name_of(span)]


def test_an_id_stands_for_one_text_after_one_other(schema: CompiledSchema) -> None:
    """The knowledge tree counts an id after other text as a document that has changed."""
    ids = [
        [span.id for span in schema.render(prompt(content)).documents]
        for content in ('<tail what="it"/>', '<tail what="day"/>', "<tail/>", '<tail what="it"/>')
    ]
    assert [one[0] for one in ids] == ["x/tail"] * 4
    assert ids[0] == ids[3]
    assert len({one[1] for one in ids}) == 3


def test_tokens_to_encode_are_one_document() -> None:
    renderer = PromptRenderer(AutoTokenizer.from_pretrained(default_model_path()))
    calls = Calls(renderer, CacheSettings(reuse="anywhere"), None, 100)
    render = calls.render_documents([])
    with pytest.raises(ConfigurationError, match="one document"):
        render(RenderedPrompt([1, 2, 3], ()))
