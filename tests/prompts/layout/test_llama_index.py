from __future__ import annotations

import copy
from typing import Any

import pytest
from llama_index.core.base.llms.types import ChatMessage, MessageRole
from llama_index.core.llms import MockLLM
from llama_index.core.prompts import ChatPromptTemplate
from llama_index.core.prompts.prompt_utils import get_empty_prompt_txt
from llama_index.core.response_synthesizers import (
    CompactAndRefine,
    ResponseMode,
    get_response_synthesizer,
)
from llama_index.core.schema import NodeWithScore, TextNode

from ragcache_integrations.engine import RAGCacheEngine
from ragcache_integrations.errors import ConfigurationError
from ragcache_integrations.knowledge_tree import TreeStats
from ragcache_integrations.llama_index import RAGCacheLLM, RAGPromptTemplate
from ragcache_integrations.resources import load_passages

PASSAGES = [passage.text for passage in load_passages()[:40]]
NODES = [
    NodeWithScore(node=TextNode(text=" ".join(PASSAGES[n : n + 8]).strip(), id_=f"n{n}"), score=1.0)
    for n in (0, 8)
]
TEXTS = [found.node.get_content() for found in NODES]
VALUES: dict[str, Any] = {"context_str": NODES, "query_str": "What is Rome?"}


def template(**knobs: Any) -> RAGPromptTemplate:
    return RAGPromptTemplate(
        query="Query: {query_str}", documents="{context_str}", system="Answer briefly.", **knobs
    )


def test_it_takes_the_place_of_a_chat_prompt_template() -> None:
    ours = template()
    theirs = ChatPromptTemplate.from_messages(
        [("system", "Answer briefly."), ("user", "{context_str}\n\nQuery: {query_str}")]
    )
    joined = "\n\n".join(TEXTS)
    expected = theirs.format_messages(context_str=joined, query_str="What is Rome?")
    for context in (NODES, [found.node for found in NODES], joined):
        made = ours.format_messages(context_str=context, query_str="What is Rome?")
        assert [(m.role, m.content) for m in made] == [(m.role, m.content) for m in expected]
    assert ours.format(**VALUES) == theirs.format(context_str=joined, query_str="What is Rome?")
    assert sorted(ours.template_vars) == sorted(theirs.template_vars)
    assert get_empty_prompt_txt(ours).count("Query:") == 1  # what synthesizers measure


@pytest.mark.parametrize("mode", [ResponseMode.COMPACT, ResponseMode.SIMPLE_SUMMARIZE])
async def test_as_the_template_of_a_synthesizer(mode: ResponseMode) -> None:
    synthesizer = get_response_synthesizer(
        llm=MockLLM(), response_mode=mode, text_qa_template=template()
    )
    for response in (
        synthesizer.synthesize("What is Rome?", NODES),
        await synthesizer.asynthesize("What is Rome?", NODES),
    ):
        text = str(response)
        assert "Answer briefly." in text
        assert all(node in text for node in TEXTS)
        assert text.index(TEXTS[1]) < text.index("Query: What is Rome?")


def test_partials() -> None:
    prompt = RAGPromptTemplate(
        system="You serve {company}.",
        documents="{context_str}",
        query="{query_str}",
        company="ACME",
    )
    assert prompt.format_messages(**VALUES)[0].content == "You serve ACME."
    bound = prompt.partial_format(query_str="Why?")
    assert bound.format_messages(context_str="x")[1].content == "x\n\nWhy?"
    assert "query_str" not in prompt.kwargs
    mapped = RAGPromptTemplate(query="{question}", template_var_mappings={"query_str": "question"})
    assert mapped.format_messages(query_str="Why?")[0].content == "Why?"
    computed = RAGPromptTemplate(
        query="{now}: {query_str}", function_mappings={"now": lambda **_: "noon"}
    )
    assert computed.format_messages(query_str="Why?")[0].content == "noon: Why?"


def test_a_history_stands_before_the_documents_and_may_be_left_out() -> None:
    prompt = template(history="{chat_history}")
    turns = [ChatMessage("Hello"), ChatMessage("Hi", role=MessageRole.ASSISTANT)]
    messages = prompt.format_messages(**VALUES, chat_history=turns)
    assert messages[1:3] == turns
    assert [m.role.value for m in messages] == ["system", "user", "assistant", "user"]
    assert prompt.format_messages(**VALUES) == template().format_messages(**VALUES)
    with pytest.raises(ConfigurationError, match="ChatMessage objects, got a str"):
        prompt.format_messages(**VALUES, chat_history=["Hello"])


def test_marks_for_anthropic() -> None:
    prompt = template(history="{chat_history}", cache_control="5m")
    turns = [ChatMessage("Hello"), ChatMessage("Hi", role=MessageRole.ASSISTANT)]
    messages = prompt.format_messages(**VALUES, chat_history=turns)
    kinds = [[type(block).__name__ for block in message.blocks] for message in messages]
    assert kinds == [
        ["TextBlock", "CachePoint"],
        ["TextBlock"],
        ["TextBlock", "CachePoint"],
        ["TextBlock"],
    ]
    assert messages[0].content == "Answer briefly."
    assert [len(turn.blocks) for turn in turns] == [1, 1]  # as they were
    with pytest.raises(ConfigurationError, match="one of 5m, 1h or None, got '1d'"):
        template(cache_control="1d")


def test_the_key_for_openai() -> None:
    prompt = RAGPromptTemplate(system="You serve {company}.", query="{query_str}")
    bound = prompt.partial_format(company="ACME")
    assert bound.cache_key() == prompt.cache_key(company="ACME") != prompt.cache_key(company="B")
    with pytest.raises(ConfigurationError, match="no value for the variable 'company'"):
        prompt.cache_key()


def test_wrong_arguments() -> None:
    with pytest.raises(ConfigurationError, match="exactly one query, got 0"):
        RAGPromptTemplate(system="Hello")
    with pytest.raises(ConfigurationError, match=r"argument 'sistem'.*did you mean 'system'"):
        RAGPromptTemplate(query="{a}", sistem="Hello")
    with pytest.raises(ConfigurationError, match="'now' is bound to a function"):
        RAGPromptTemplate(
            system="{now}", query="{a}", function_mappings={"now": lambda **_: "noon"}
        )


def test_copies() -> None:
    prompt = template().partial_format(query_str="Why?")
    copied = copy.deepcopy(prompt)
    assert copied.format_messages(context_str="x") == prompt.format_messages(context_str="x")


@pytest.mark.engine
def test_documents_are_found_in_the_engines_cache(engine: RAGCacheEngine) -> None:
    assert engine.reset_cache()
    before = engine.stats().tree or TreeStats()
    llm = RAGCacheLLM(engine=engine, max_tokens=1, is_chat_model=True)
    synthesizer = CompactAndRefine(llm=llm, text_qa_template=template())
    for question in ("What is Rome?", "And who was its first king?"):
        llm.predict(template(), context_str=NODES, query_str=question)
        synthesizer.get_response(question, TEXTS)  # plain texts, recognised
    after = engine.stats().tree or TreeStats()
    assert after.documents - before.documents == 8
    assert after.documents_hit_gpu - before.documents_hit_gpu == 6
