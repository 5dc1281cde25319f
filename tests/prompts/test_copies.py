"""Copies, pickles and changed settings of templates and relevance checks."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import pytest
from langchain_core.documents import Document
from langchain_core.language_models import FakeListChatModel
from langchain_core.runnables import ConfigurableField
from llama_index.core.llms import MockLLM
from llama_index.core.schema import NodeWithScore, QueryBundle, TextNode

from ragcache_integrations.errors import ConfigurationError
from ragcache_integrations.langchain import RAGPromptTemplate, RelevanceFilter
from ragcache_integrations.llama_index import RAGPromptTemplate as LlamaIndexTemplate
from ragcache_integrations.llama_index import RelevanceFilter as LlamaIndexFilter

COPIES = {
    "copy": copy.copy,
    "deepcopy": copy.deepcopy,
    "model_copy": lambda one: one.model_copy(),
    "model_copy, deep": lambda one: one.model_copy(deep=True),
    "pickle": lambda one: pickle.loads(pickle.dumps(one)),
}
every_copy = pytest.mark.parametrize("copied", COPIES.values(), ids=COPIES)
VALUES: dict[str, Any] = {"context": [Document("Rome is old.")], "question": "How old?"}


def template(**more: Any) -> RAGPromptTemplate:
    return RAGPromptTemplate(
        system="Be {tone}.", documents="{context}", query="{question}", **more
    ).partial(tone="brief")


def filled(prompt: RAGPromptTemplate) -> str:
    return prompt.invoke(VALUES).to_string()


def llama_index_template() -> LlamaIndexTemplate:
    return LlamaIndexTemplate(
        system="Be {tone}.", documents="{context_str}", query="{query_str}", tone="brief"
    )


def filled_llama_index(prompt: LlamaIndexTemplate) -> str:
    return prompt.format(context_str="Rome is old.", query_str="How old?")


@every_copy
def test_langchain_templates(copied: Any) -> None:
    prompt = template()
    again = copied(prompt)
    assert filled(again) == filled(prompt)
    assert again.cache_key() == prompt.cache_key()


@every_copy
def test_llama_index_templates(copied: Any) -> None:
    prompt = llama_index_template()
    assert filled_llama_index(copied(prompt)) == filled_llama_index(prompt)


def test_langchain_template_settings() -> None:
    prompt = template()
    with pytest.raises(ConfigurationError, match=r"model_copy\(update={'document_blocks': ...}\)"):
        prompt.document_blocks = True
    with pytest.raises(ConfigurationError, match="did you mean 'flow'"):
        prompt.flwo = None
    blocks = prompt.model_copy(update={"document_blocks": True}).invoke(VALUES).to_messages()
    assert blocks[-1].content[0]["type"] == "text-plain"  # type: ignore[index] # a dict
    other = prompt.model_copy(update={"parts": (("query", "{question}"),)})
    assert filled(other) == "Human: How old?"
    with pytest.raises(ConfigurationError, match="exactly one query"):
        prompt.model_copy(update={"parts": ()})
    with pytest.raises(ConfigurationError, match="unknown part"):
        prompt.model_copy(update={"parts": (("qury", "{question}"),)})
    configured = prompt.configurable_fields(cache_control=ConfigurableField("lifetime"))
    marked = configured.invoke(VALUES, {"configurable": {"lifetime": "5m"}}).to_messages()
    assert "cache_control" in str(marked[0].content)
    assert configured.invoke(VALUES) == prompt.invoke(VALUES)


def test_llama_index_template_settings() -> None:
    prompt = llama_index_template()
    with pytest.raises(ConfigurationError, match=r"model_copy\(update={'parts': ...}\)"):
        prompt.parts = ()
    other = prompt.model_copy(update={"parts": (("query", "{query_str}"),)})
    assert other.format(query_str="How old?").startswith("user: How old?")
    assert other.template_vars == ["query_str"]
    assert "Be brief" in filled_llama_index(prompt)
    with pytest.raises(ConfigurationError, match="exactly one query"):
        prompt.model_copy(update={"parts": ()})
    with pytest.raises(ConfigurationError, match="did you mean 'parts'"):
        prompt.model_copy(update={"prts": ()})
    with pytest.raises(ConfigurationError, match="cache_control"):
        prompt.model_copy(update={"cache_control": "1d"})


@every_copy
def test_langchain_relevance(copied: Any) -> None:
    check = RelevanceFilter(llm=FakeListChatModel(responses=["no", "yes"]), min_documents=0)
    again = copied(check)
    documents = [Document("a"), Document("b")]
    assert len(again.compress_documents(documents, "why?")) == 1
    assert again.min_documents == 0


@every_copy
def test_llama_index_relevance(copied: Any) -> None:
    again = copied(LlamaIndexFilter(llm=MockLLM(), min_documents=1))
    nodes = [NodeWithScore(node=TextNode(text="a"))]
    assert again.postprocess_nodes(nodes, QueryBundle("why?")) == nodes
    assert again.min_documents == 1


@pytest.mark.parametrize(
    "check",
    [
        RelevanceFilter(llm=FakeListChatModel(responses=["no"])),
        LlamaIndexFilter(llm=MockLLM()),
    ],
)
def test_relevance_settings(check: RelevanceFilter | LlamaIndexFilter) -> None:
    with pytest.raises(ConfigurationError, match=r"model_copy\(update={'mode': ...}\)"):
        check.mode = "shared"
    with pytest.raises(ConfigurationError, match="did you mean 'min_documents'"):
        check.min_document = 1
    with pytest.raises(ConfigurationError, match="min_documents must be a whole number"):
        check.model_copy(update={"min_documents": -1})
    changed = check.model_copy(update={"mode": "shared"})
    assert changed._check._settings.mode == "shared"
    assert check._check._settings.mode == "parallel"


def test_relevance_of_a_call() -> None:
    check = RelevanceFilter(llm=FakeListChatModel(responses=["no"])).configurable_fields(
        min_documents=ConfigurableField("at_least")
    )
    values = {"context": [Document("a"), Document("b")], "question": "why?"}
    assert check.invoke(values)["context"] == []
    kept = check.invoke(values, {"configurable": {"at_least": 1}})["context"]
    assert [one.page_content for one in kept] == ["a"]
