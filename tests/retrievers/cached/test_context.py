"""Follow-up questions: with the turns before them they are found by these, in both frameworks."""

from __future__ import annotations

import logging
from typing import Any

import pytest
from langchain_core.messages import AIMessage, HumanMessage
from llama_index.core.chat_engine import CondenseQuestionChatEngine, ContextChatEngine
from llama_index.core.llms import ChatMessage, ImageBlock, MockLLM, TextBlock
from llama_index.core.memory import ChatMemoryBuffer
from llama_index.core.query_engine import RetrieverQueryEngine
from llama_index.core.schema import QueryBundle

from ragcache_integrations.errors import ConfigurationError
from ragcache_integrations.langchain import ApproximateCacheRetriever
from ragcache_integrations.llama_index import (
    ApproximateCacheRetriever as LlamaIndexRetriever,
)
from ragcache_integrations.llama_index import question_in_context
from ragcache_integrations.retrievers.keys import context_text, in_context
from tests.retrievers.cached.langchain.stores import in_memory_store
from tests.retrievers.cached.llama_index.indexes import index_over

FOLLOW_UP = "and in 2024?"
PARIS = [HumanMessage("paris in 2023?"), AIMessage("two million")]
BERLIN = [HumanMessage("berlin in 2023?"), AIMessage("three million")]


def test_turns_become_one_text_behind_the_question() -> None:
    assert in_context("why?", PARIS) == "why?\nparis in 2023?\ntwo million"
    chat = [ChatMessage(content="paris in 2023?"), ("assistant", "two million")]
    assert in_context("why?", chat) == in_context("why?", PARIS)
    assert context_text([{"role": "user", "content": "a"}, "b"]) == context_text("a\nb") == "a\nb"
    assert {in_context("why?", None), in_context("why?", ""), in_context("why?", [])} == {"why?"}


def test_what_is_no_text_in_a_turn_is_the_same_only_as_itself() -> None:
    def shown(image: bytes) -> str:
        blocks = [TextBlock(text="look"), ImageBlock(image=image)]
        part = {"type": "image_url", "image_url": image.decode()}
        return context_text([ChatMessage(blocks=blocks), HumanMessage(["see", part])])

    assert shown(b"one") == shown(b"one") != shown(b"two")


@pytest.mark.parametrize("turns", [3, b"paris", {"content": "paris"}, [3], [None], [{}]])
def test_what_is_no_context(turns: Any) -> None:
    with pytest.raises(ConfigurationError, match="context must be a text, or a list of texts"):
        in_context("why?", turns)


@pytest.mark.parametrize("guard", [True, False])
def test_conversations_share_an_entry_only_if_their_turns_are_alike(guard: bool) -> None:
    retriever = ApproximateCacheRetriever.from_vectorstore(
        in_memory_store(), tolerance=0.1, guard=guard
    )
    for turns in (PARIS, BERLIN, None):
        assert not retriever.explain(FOLLOW_UP, context=turns).hit
        retriever.invoke(FOLLOW_UP, context=turns)
    for turns in (PARIS, BERLIN, list(PARIS)):
        retriever.invoke(FOLLOW_UP, context=turns)
    assert (retriever.stats().hits, retriever.stats().misses) == (3, 3)


async def test_the_guard_reads_the_turns() -> None:
    retriever = ApproximateCacheRetriever.from_vectorstore(
        in_memory_store(), tolerance=2, guard=True
    )
    await retriever.ainvoke("who won?", context=["the race of 2023"])
    await retriever.ainvoke("who won?", context=["the race of 2024"])
    assert retriever.stats().hits == 0
    await retriever.ainvoke("who won?", context=["that race of 2024"])
    assert retriever.stats().hits == 1


def test_a_question_of_several_turns_finds_what_they_are_about() -> None:
    retriever = ApproximateCacheRetriever.from_vectorstore(in_memory_store(), k=1)
    texts = [document.page_content for document in retriever.invoke("it?", context=["tenant a"])]
    assert texts == [document.page_content for document in retriever.invoke("it?\ntenant a")]


async def test_chat_engines_pass_their_turns() -> None:
    retriever = LlamaIndexRetriever.from_index(index_over(count=20), tolerance=0.1)
    engines = []
    for topic in ("paris", "berlin", "paris"):
        memory = ChatMemoryBuffer.from_defaults([ChatMessage(content=topic)], token_limit=100)
        engines.append(
            ContextChatEngine.from_defaults(
                retriever.with_context(memory.get), memory=memory, llm=MockLLM(max_tokens=3)
            )
        )
    for engine in engines[:2]:
        await engine.achat(FOLLOW_UP)
    assert retriever.stats().hits == 0
    await engines[2].achat(FOLLOW_UP)
    assert retriever.stats().hits == 1


def test_a_query_engine_answers_the_question_alone() -> None:
    retriever = LlamaIndexRetriever.from_index(index_over(count=20), tolerance=0)
    engine = RetrieverQueryEngine.from_args(retriever, llm=MockLLM())
    bundle = question_in_context(FOLLOW_UP, PARIS)
    response = engine.query(bundle)
    assert FOLLOW_UP in str(response)
    assert "paris" not in str(response)
    assert retriever.explain(question_in_context(QueryBundle(FOLLOW_UP), PARIS)).hit
    assert not retriever.explain(question_in_context(FOLLOW_UP, BERLIN)).hit
    assert question_in_context(FOLLOW_UP, []) == QueryBundle(FOLLOW_UP)


def test_a_condensed_question_needs_no_turns() -> None:
    retriever = LlamaIndexRetriever.from_index(index_over(count=20), tolerance=0)
    engine = CondenseQuestionChatEngine.from_defaults(
        RetrieverQueryEngine.from_args(retriever, llm=MockLLM()),
        llm=MockLLM(),
        memory=ChatMemoryBuffer.from_defaults(token_limit=1000),
    )
    engine.chat("paris in 2023?")
    engine.chat(FOLLOW_UP)  # the model repeats its prompt, which has the turns
    assert not retriever.explain(FOLLOW_UP).hit
    assert retriever.stats().misses == 2


def test_the_turns_of_a_retriever_come_from_a_function() -> None:
    async def turns() -> list[ChatMessage]:
        return []

    retriever = LlamaIndexRetriever.from_index(index_over(count=20))
    wrong: Any
    for wrong in (turns, "paris", 3):
        with pytest.raises(ConfigurationError, match="context must be a function without"):
            retriever.with_context(wrong)


def test_a_bare_follow_up_is_warned_of_once(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING)
    retriever = ApproximateCacheRetriever.from_vectorstore(in_memory_store(), tolerance=0.1)
    for question in ("what is an answer", "android phones", "why is it so", "when did it end"):
        retriever.invoke(question)
    retriever.invoke(FOLLOW_UP, context=PARIS)
    assert caplog.records == []
    for question in ("What about Rome?", FOLLOW_UP, "why?"):
        retriever.invoke(question)
    [record] = caplog.records
    assert 'begins with "what about" came without the turns' in record.getMessage()
