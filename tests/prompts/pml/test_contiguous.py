"""Prompts of schemas laid out for vLLM: positions one after the other, or a reason why not."""

from __future__ import annotations

import pytest
from transformers import AutoTokenizer

from ragcache_integrations.core.prompt import PromptRenderer, RenderedPrompt
from ragcache_integrations.engine.calls import Calls
from ragcache_integrations.engine.protocol import CacheSettings
from ragcache_integrations.engine.tiny_model import default_model_path
from ragcache_integrations.errors import ConfigurationError
from ragcache_integrations.modular import CompiledSchema, Schema


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


def test_modules_are_documents_where_they_stand(schema: CompiledSchema) -> None:
    rendered = schema.render(prompt("<a/>"))
    (span,) = rendered.documents
    module = schema.modules["a"]
    assert (span.id, span.start) == ("a", module.positions[0])
    assert tuple(rendered.token_ids[span.start : span.end]) == module.token_ids
    assert rendered.token_ids[span.end :] == list(schema.tokens("Why?", None))
    (whole,) = (known for known in schema.documents() if known.documents[0].id == "a")
    assert tuple(whole.token_ids) == module.token_ids
    assert (whole.documents[0].start, whole.documents[0].end) == (0, len(module.token_ids))


def test_a_param_at_a_module_s_end_is_computed(schema: CompiledSchema) -> None:
    rendered = schema.render(prompt('<a/><room city="Bern"/>'))
    assert [span.id for span in rendered.documents] == ["a", "room"]
    city = schema.tokens("Bern", None)
    end = rendered.documents[1].end
    assert tuple(rendered.token_ids[end : end + len(city)]) == city


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ('<room city="Bern"/>', r"positions \d+ to \d+ are empty before the module 'room'"),
        ('<a/><room city="a"/>', "before the new text.* does not fill a param"),
        ('<a/><room city="Bern"/><short/><last/>', "before the module 'last'"),
        ("<a/><short/>", "before the module 'short'"),
        ('<tail what="it"/>', "module 'tail' has text after its param 'what'"),
        ("<around><within/></around>", "module 'around' has text on both sides of other modules"),
    ],
)
def test_what_leaves_positions_empty_is_refused(
    schema: CompiledSchema, content: str, words: str
) -> None:
    with pytest.raises(ConfigurationError, match=f"{words}.*ModularModel"):
        schema.render(prompt(content))


def test_what_can_be_no_document_is_not_encoded_ahead(schema: CompiledSchema) -> None:
    names = [known.documents[0].id for known in schema.documents()]
    assert names == ["a", "room", "long", "short", "around/within", "last"]


def test_tokens_to_encode_are_one_document() -> None:
    renderer = PromptRenderer(AutoTokenizer.from_pretrained(default_model_path()))
    calls = Calls(renderer, CacheSettings(reuse="anywhere"), None, 100)
    render = calls.render_documents([])
    with pytest.raises(ConfigurationError, match="one document"):
        render(RenderedPrompt([1, 2, 3], ()))
