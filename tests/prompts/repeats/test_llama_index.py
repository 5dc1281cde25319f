"""Documents once in LlamaIndex: templates, memories, tools."""

from __future__ import annotations

import asyncio
import itertools
from typing import Any

from llama_index.core.base.llms.types import (
    ChatMessage,
    ImageBlock,
    MessageRole,
    TextBlock,
)
from llama_index.core.schema import TextNode

from ragcache_integrations.llama_index import (
    HalfTruncationMemory,
    RAGPromptTemplate,
    documents_once,
)


def words(text: str) -> int:
    return len(text.split())


def prose(name: str) -> str:
    return " ".join(f"{name}{number}" for number in range(100))


def texts(messages: list[ChatMessage]) -> list[str]:
    return [message.content or "" for message in messages]


def chat(turns: int, budget: int, **knobs: Any) -> tuple[list[list[ChatMessage]], Any]:
    """Prompts of a chat whose every turn finds the same node, and one of its own."""
    memory = HalfTruncationMemory(budget, count_tokens=words, documents_once=True)
    template = RAGPromptTemplate(
        system="Be brief.",
        history="{history}",
        documents="{context_str}",
        query="Question: {query_str}",
        documents_once=True,
        **knobs,
    )
    prompts = []
    for turn in range(turns):
        nodes = [TextNode(text=prose("same")), TextNode(text=prose(f"turn{turn}x"))]
        values: dict[str, Any] = {
            "history": memory.get(),
            "context_str": nodes,
            "query_str": f"what {turn}",
        }
        prompts.append(template.format_messages(**values))
        answer = ChatMessage(role=MessageRole.ASSISTANT, content="an answer")
        memory.put_messages([prompts[-1][-1], answer])
    return prompts, memory


def test_a_chat_says_a_document_once_and_only_grows() -> None:
    for knobs in ({}, {"cache_control": "5m"}):
        prompts, memory = chat(4, 100_000, **knobs)
        assert "".join(texts(prompts[-1])).count("same50") == 1
        assert texts(prompts[-1])[-1].startswith('[as above: "same0 same1')
        for before, after in itertools.pairwise(prompts):
            assert texts(after)[: len(before)] == texts(before)
        assert texts(asyncio.run(memory.aget())) == [*texts(prompts[-1])[1:], "an answer"]


def test_a_node_comes_back_in_full_when_its_turn_is_dropped() -> None:
    prompts, memory = chat(12, 1200)
    assert memory.stats().truncations > 1
    for prompt in prompts:
        assert "".join(texts(prompt)).count("same50") == 1
    again = HalfTruncationMemory.from_string(memory.to_string(), count_tokens=words)
    assert texts(again.get()) == texts(memory.get())


def test_a_text_that_was_changed_is_not_brought_back() -> None:
    """Such as personal data that was redacted, or a result of a tool that was cleared."""
    template = RAGPromptTemplate(
        documents="{context_str}", query="Question: {query_str}", documents_once=True
    )
    values: dict[str, Any] = {"context_str": [TextNode(text=f"Alice. {prose('a')}")]}
    (message,) = template.format_messages(query_str="who", **values)
    redacted = (message.content or "").replace("Alice", "[name]")
    message = message.model_copy(update={"blocks": [TextBlock(text=redacted)]})
    memory = HalfTruncationMemory(4000, count_tokens=words, documents_once=True)
    memory.put(message)
    assert texts(memory.get()) == [redacted]
    first, second = documents_once([tool(TextBlock(text=prose("a"))) for _ in range(2)])
    cleared = second.model_copy(update={"blocks": [TextBlock(text="[cleared]")]})
    assert documents_once([first, cleared, second]) == [first, cleared, second]


def tool(*blocks: Any, **extras: Any) -> ChatMessage:
    return ChatMessage(role=MessageRole.TOOL, blocks=list(blocks), additional_kwargs=extras)


def test_results_of_tools_are_said_once_unless_they_ask_to_be_in_full() -> None:
    text = TextBlock(text=prose("a"))
    messages = [tool(text, tool_call_id="1"), tool(text, tool_call_id="2")]
    once = documents_once(messages)
    assert once[0] == messages[0]
    assert texts(once)[1].startswith("[as above")
    assert once[1].additional_kwargs["tool_call_id"] == "2"
    assert documents_once(once) == once
    assert texts(documents_once(once[1:])) == [prose("a")]
    for stays in (
        tool(text, in_full=True),
        tool(text, ImageBlock(url="https://example.org/a.png")),
    ):
        assert documents_once([messages[0], stays]) == [messages[0], stays]


def test_an_image_that_is_added_to_a_message_with_references_stays() -> None:
    text, image = TextBlock(text=prose("a")), ImageBlock(url="https://example.org/a.png")
    first, second = documents_once([tool(text), tool(text)])
    seen = second.model_copy(update={"blocks": [*second.blocks, image]})
    assert documents_once([first, seen]) == [first, seen]
    (alone,) = documents_once([seen])
    assert alone.blocks == [text, image]
