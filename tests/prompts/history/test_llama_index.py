"""LlamaIndex's face of a chat history."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from blockbuster import blockbuster_ctx
from llama_index.core.base.llms.types import ChatMessage, MessageRole, ToolCallBlock
from llama_index.core.chat_engine import SimpleChatEngine
from llama_index.core.llms import MockLLM
from llama_index.core.memory import BaseMemory
from llama_index.core.storage.chat_store import SimpleChatStore

from ragcache_integrations.engine import RAGCacheEngine
from ragcache_integrations.errors import ConfigurationError
from ragcache_integrations.llms.llama_index import RAGCacheLLM
from ragcache_integrations.prompts.history.llama_index import HalfTruncationMemory


def words(text: str) -> int:
    return len(text.split())


def turn(number: int) -> list[ChatMessage]:
    return [
        ChatMessage(role=MessageRole.USER, content=f"question{number} q q q q"),
        ChatMessage(role=MessageRole.ASSISTANT, content=f"reply{number} r r r r"),
    ]


def texts(messages: list[ChatMessage]) -> list[str]:
    return [message.content or "" for message in messages]


def make(budget: int = 300, **arguments: Any) -> HalfTruncationMemory:
    return HalfTruncationMemory(
        budget, **{"count_tokens": words, "summary_tokens": 10, **arguments}
    )


def test_it_is_a_memory() -> None:
    memory: BaseMemory = HalfTruncationMemory.from_defaults(chat_history=turn(0))
    assert memory.get() == memory.get_all() == turn(0)
    memory.put_messages(turn(1))
    memory.put(turn(2)[0])
    assert memory.get("whatever is asked") == [*turn(0), *turn(1), turn(2)[0]]
    memory.set(turn(5))
    assert memory.get() == turn(5)
    memory.reset()
    assert memory.get_all() == []


def test_a_conversation_survives_in_a_chat_store_with_its_summary(tmp_path: Path) -> None:
    store, llm = SimpleChatStore(), MockLLM()
    memory = make(llm=llm, chat_store=store, chat_store_key="ada")
    for number in range(40):
        memory.put_messages(turn(number))
        assert memory.settle(30)
    # Not by SimpleChatStore.persist, which fails with newer versions of pydantic.
    path = tmp_path / "chat.jsonl"
    path.write_text("\n".join(m.model_dump_json() for m in store.get_messages("ada")))
    loaded = SimpleChatStore()
    lines = path.read_text().splitlines()
    loaded.set_messages("ada", [ChatMessage.model_validate_json(line) for line in lines])
    again = make(llm=llm, chat_store=loaded, chat_store_key="ada")
    assert texts(again.get()) == texts(memory.get())
    assert texts(again.get())[0].startswith("Summary of the conversation so far:")
    assert len(again.get_all()) == 80
    assert make(llm=llm, chat_store=loaded, chat_store_key="bob").get() == []


@pytest.mark.parametrize("as_block", [True, False])
def test_tool_calls_and_their_answers_go_together(as_block: bool) -> None:
    memory = make(120)
    memory.put(ChatMessage(role="system", content="rules"))
    for number in range(30):
        call = ChatMessage(role="assistant", content="")
        if as_block:
            call.blocks = [ToolCallBlock(tool_call_id="call_0", tool_name="look", tool_kwargs={})]
        else:
            tool = {"id": "call_0", "function": {"name": "look", "arguments": "{}"}}
            call.additional_kwargs["tool_calls"] = [tool]
        answer = ChatMessage(
            role="tool", content="found " * 5, additional_kwargs={"tool_call_id": "call_0"}
        )
        memory.put_messages([*turn(number)[:1], call, answer, turn(number)[1]])
        view = memory.get()
        calls = [i for i, m in enumerate(view) if m is call or m == call]
        answers = [i for i, m in enumerate(view) if m.role == MessageRole.TOOL]
        assert [i + 1 for i in calls] == answers
    assert texts(memory.get())[0] == "rules"
    assert len(memory.get()) < 60


def test_wrong_arguments_are_refused_in_words() -> None:
    with pytest.raises(ConfigurationError, match="unknown argument 'treshold'"):
        HalfTruncationMemory(100, treshold=0.5)  # type: ignore[call-arg] # on purpose
    with pytest.raises(ConfigurationError, match="budget must be"):
        HalfTruncationMemory.from_defaults(budget=0)
    with pytest.raises(ConfigurationError, match="must be ChatMessage objects"):
        make().put("hello")  # type: ignore[arg-type] # on purpose
    with pytest.raises(ConfigurationError, match="at most 300 of the budget"):
        make().put(ChatMessage(role="user", content="w " * 300))


def test_the_async_twins_block_nothing() -> None:
    memory = make(llm=MockLLM())

    async def talk() -> tuple[list[ChatMessage], list[ChatMessage]]:
        with blockbuster_ctx(scanned_modules=["ragcache_integrations"]):
            await memory.aset(turn(0))
            for number in range(1, 30):
                await memory.aput(turn(number)[0])
                await memory.aput_messages(turn(number)[1:])
            assert await memory.asettle(30)
            found = await memory.aget(), await memory.aget_all()
            await memory.areset()
        return found

    view, everything = asyncio.run(talk())
    assert len(view) < len(everything) == 60
    assert memory.get() == []


@pytest.mark.engine
def test_a_chat_engine_goes_on_and_on(engine: RAGCacheEngine) -> None:
    llm = RAGCacheLLM(engine=engine, max_tokens=8)
    memory = HalfTruncationMemory(400, llm=llm, system="Be brief.", summary_tokens=16)
    chat = SimpleChatEngine.from_defaults(llm=llm, memory=memory, system_prompt="Be brief.")
    for number in range(15):
        chat.chat(f"question {number} " + "and so on " * 10)
        assert memory.settle(60)
    assert len(memory.get_all()) == 30
    assert memory.stats().kept_tokens <= 400
    assert memory.stats().summaries >= 1
    assert memory.stats().forced_truncations == 0
