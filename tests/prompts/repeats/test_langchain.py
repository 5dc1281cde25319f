"""Documents once in LangChain: templates, histories, tools."""

from __future__ import annotations

import hashlib
import itertools
import json
from typing import Any

import pytest
from langchain_core.documents import Document
from langchain_core.messages import AIMessage, BaseMessage, HumanMessage, ToolMessage

from ragcache_integrations.engine import RAGCacheEngine
from ragcache_integrations.langchain import (
    ChatRAGCache,
    HalfTruncationHistory,
    RAGPromptTemplate,
    documents_once,
)
from ragcache_workbench.logs.requests import text_of


def words(text: str) -> int:
    return len(text.split())


def prose(name: str) -> str:
    return " ".join(f"{name}{number}" for number in range(100))


def texts(messages: list[BaseMessage]) -> list[str]:
    return [text_of(message.content, "a message") for message in messages]


def template(**knobs: Any) -> RAGPromptTemplate:
    return RAGPromptTemplate(
        system="Be brief.",
        history="{history}",
        documents="{context}",
        query="Question: {question}",
        documents_once=True,
        **knobs,
    )


def chat(turns: int, budget: int, **knobs: Any) -> tuple[list[list[BaseMessage]], Any]:
    """Prompts of a chat whose every turn finds the same document, and one of its own."""
    history = HalfTruncationHistory(budget, count_tokens=words, documents_once=True)
    prompts = []
    for turn in range(turns):
        documents = [Document(prose("same")), Document(prose(f"turn{turn}x"))]
        values = {"history": history.messages, "context": documents, "question": f"what {turn}"}
        prompts.append(template(**knobs).invoke(values).to_messages())
        history.add_messages([prompts[-1][-1], AIMessage("an answer")])
    return prompts, history


def test_a_chat_says_a_document_once_and_only_grows() -> None:
    for knobs in ({}, {"document_blocks": True}):
        prompts, history = chat(4, 100_000, **knobs)
        assert "".join(texts(prompts[-1])).count("same50") == 1
        assert texts(prompts[-1])[-1].startswith('[as above: "same0 same1')
        for before, after in itertools.pairwise(prompts):
            assert texts(after)[: len(before)] == texts(before)
            assert [m.content for m in after[: len(before)]] == [m.content for m in before]
        assert texts(history.messages) == [*texts(prompts[-1])[1:], "an answer"]


def test_a_document_comes_back_in_full_when_its_turn_is_dropped() -> None:
    prompts, history = chat(12, 1200)
    assert history.stats().truncations > 1
    for prompt in prompts:
        assert "".join(texts(prompt)).count("same50") == 1
        assert words(" ".join(texts(prompt))) < 1200 + 300
    assert "same50" in history.messages[0].text


def test_a_saved_history_says_the_same(tmp_path: Any) -> None:
    _, history = chat(8, 1200)
    saved = json.loads(json.dumps(history.to_dict()))
    again = HalfTruncationHistory.from_dict(saved, count_tokens=words)
    assert texts(again.messages) == texts(history.messages)
    view = history.messages
    history.messages = view[-3:]  # what its messages referred to is in them again
    assert "".join(texts(history.messages)).count("same50") == 1


def test_what_a_message_holds_is_not_trusted() -> None:
    shown = hashlib.sha256(b"plain").hexdigest()
    items: tuple[Any, ...] = ("x", [], [1], [{"text": 1}], [{"text": ""}], {"text": "x"})
    unreadable = [{"parts": parts, "shown": shown} for parts in items]
    other = {"parts": [{"text": "another"}], "shown": "of another text"}
    for held in (*items, *unreadable, other):
        message = HumanMessage("plain", additional_kwargs={"ragcache_parts": held})
        assert documents_once([message, message]) == [message, message]


def test_a_text_that_was_changed_is_not_brought_back() -> None:
    """Such as personal data that was redacted, or a result of a tool that was cleared."""
    values = {"history": [], "context": [Document(f"Alice. {prose('a')}")], "question": "who"}
    for knobs in ({}, {"document_blocks": True}):
        message = template(**knobs).invoke(values).to_messages()[-1]
        redacted = json.loads(json.dumps(message.content).replace("Alice", "[name]"))
        message = message.model_copy(update={"content": redacted})
        history = HalfTruncationHistory(4000, count_tokens=words, documents_once=True)
        history.add_messages([message])
        assert history.messages[0].content == redacted
    first, second = documents_once([tool(prose("a")), tool(prose("a"))])
    cleared = second.model_copy(update={"content": "[cleared]"})
    assert documents_once([cleared]) == [cleared]
    assert texts(documents_once([first, cleared, second])) == texts([first, cleared, second])


def test_a_history_counts_documents_in_blocks() -> None:
    values = {"history": [], "context": [Document(prose("a"))], "question": "who"}
    message = template(document_blocks=True).invoke(values).to_messages()[-1]
    for counted in (message, HumanMessage(message.content)):
        history = HalfTruncationHistory(4000, count_tokens=words)
        history.add_messages([counted])
        assert history.stats().kept_tokens >= 100


def tool(content: Any, **extras: Any) -> ToolMessage:
    return ToolMessage(content, tool_call_id="1", additional_kwargs=extras)


def test_results_of_tools_are_said_once_unless_they_ask_to_be_in_full() -> None:
    messages = [tool(prose("a")), AIMessage(prose("a")), tool(prose("a")), tool([prose("a")])]
    once = documents_once(messages)
    assert once[:2] == messages[:2]
    assert all(text.startswith("[as above") for text in texts(once[2:]))
    assert once[2].tool_call_id == "1"  # type: ignore[attr-defined]
    assert documents_once(once) == once
    assert texts(documents_once(once[2:])) == [prose("a"), once[3].text]
    full = tool(prose("a"), in_full=True)
    assert documents_once([messages[0], full]) == [messages[0], full]


def test_messages_with_images_stay_and_marks_for_a_cache_are_kept() -> None:
    text = {"type": "text", "text": prose("a")}
    image = {"type": "image", "url": "https://example.org/a.png"}
    with_image = tool([text, image])
    marked = tool([{**text, "cache_control": {"type": "ephemeral"}}])
    once = documents_once([tool(prose("a")), with_image, marked])
    assert once[1] == with_image
    assert once[2].content[-1]["cache_control"] == {"type": "ephemeral"}  # type: ignore[index]
    assert once[2].text.startswith("[as above")


def test_an_image_that_is_added_to_a_message_with_references_stays() -> None:
    first, second = documents_once([tool([prose("a")]), tool([prose("a")])])
    image = {"type": "image", "url": "https://example.org/a.png"}
    seen = second.model_copy(update={"content": [*second.content, image]})
    assert documents_once([first, seen]) == [first, seen]
    (alone,) = documents_once([seen])
    assert alone.content == [{"type": "text", "text": prose("a")}, image]


def test_without_the_knob_nothing_changes() -> None:
    history = HalfTruncationHistory(10_000, count_tokens=words)
    history.add_messages([tool(prose("a")), tool(prose("a"))])
    assert texts(history.messages) == [prose("a")] * 2


@pytest.mark.engine
@pytest.mark.parametrize("knobs", [{}, {"document_blocks": True}])
def test_the_kv_cache_of_every_turn_serves_the_next(
    engine: RAGCacheEngine, knobs: dict[str, Any]
) -> None:
    assert engine.reset_cache()
    model = ChatRAGCache(engine=engine, max_tokens=1)
    history = HalfTruncationHistory(100_000, count_tokens=words, documents_once=True)
    before = 0
    for turn in range(3):
        found = [Document(prose("same")[:200]), Document(prose("same")), Document(f"turn {turn}")]
        values = {"history": history.messages, "context": found, "question": f"what {turn}"}
        messages = template(**knobs).invoke(values).to_messages()
        usage = model.invoke(messages).usage_metadata
        assert usage is not None
        # All but the end of the prompt before, which is no whole block.
        assert usage["input_token_details"]["cache_read"] > before - 2 * engine.block_size
        before = usage["input_tokens"]
        history.add_messages([messages[-1], AIMessage("an answer")])
