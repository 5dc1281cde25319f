"""What may be encoded ahead: documents of ours and of both frameworks, each once."""

from __future__ import annotations

import pytest
from langchain_core.documents import Document as LangChainDocument
from llama_index.core.schema import Document as LlamaIndexDocument
from llama_index.core.schema import NodeWithScore, TextNode
from transformers import AutoTokenizer

from ragcache_integrations.core.prompt import PromptDocument, PromptRenderer
from ragcache_integrations.engine.calls import Calls
from ragcache_integrations.engine.protocol import CacheSettings
from ragcache_integrations.engine.tiny_model import default_model_path
from ragcache_integrations.errors import ConfigurationError, PromptTooLongError


@pytest.fixture(scope="module")
def calls() -> Calls:
    renderer = PromptRenderer(AutoTokenizer.from_pretrained(default_model_path()))
    return Calls(renderer, CacheSettings(reuse="anywhere"), None, 100)


def test_documents_of_both_frameworks_are_the_same_texts(calls: Calls) -> None:
    text = "Rome is the capital of Italy."
    kinds = [
        text,
        PromptDocument(text, id="rome"),
        LangChainDocument(text, metadata={"page": 3}),
        LlamaIndexDocument(text=text, metadata={"page": 3}),
        NodeWithScore(node=TextNode(text=text), score=0.5),
    ]
    tokens = []
    for kind in kinds:
        rendered = calls.render_documents(kinds)(kind)
        assert rendered is not None
        (span,) = rendered.documents
        assert (span.start, span.end) == (0, len(rendered.token_ids))
        tokens.append(rendered.token_ids)
    assert all(known == tokens[0] for known in tokens)
    once = calls.render_documents(kinds)
    assert [once(kind) is None for kind in kinds] == [False, True, True, True, True]


def test_what_is_empty_is_left_out_and_what_is_none_is_refused(calls: Calls) -> None:
    render = calls.render_documents([])
    assert render("") is None
    assert render(LangChainDocument("")) is None
    with pytest.raises(ConfigurationError, match="got int"):
        render(3)
    with pytest.raises(PromptTooLongError):
        render("word " * 200)


@pytest.mark.parametrize("single", ["a text", {"text": "a"}, PromptDocument("a"), 3, None])
def test_a_single_document_is_not_taken_for_several(calls: Calls, single: object) -> None:
    with pytest.raises(ConfigurationError, match="several documents, such as a list"):
        calls.render_documents(single)


def test_link_tokens_of_a_request_have_the_limits_of_the_engine_s(calls: Calls) -> None:
    assert calls.check(None, link_tokens=1 << 20)["link_tokens"] == 1 << 20
    with pytest.raises(ConfigurationError, match="at most 1048576, got 1000"):
        calls.check(None, link_tokens=10**30)
