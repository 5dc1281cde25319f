"""LangChain's face of a chat history: real messages, a real store, the real engine."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from blockbuster import blockbuster_ctx
from hypothesis import given
from hypothesis import strategies as st
from langchain_core.chat_history import BaseChatMessageHistory
from langchain_core.language_models import FakeListChatModel
from langchain_core.messages import (
    AIMessage,
    BaseMessage,
    HumanMessage,
    SystemMessage,
    ToolMessage,
    messages_from_dict,
    messages_to_dict,
)
from langchain_core.prompts import ChatPromptTemplate, MessagesPlaceholder
from langchain_core.runnables.history import RunnableWithMessageHistory

from ragcache_integrations.engine import Generation, Message, Prompt, RAGCacheEngine
from ragcache_integrations.errors import ConfigurationError
from ragcache_integrations.llms.langchain.models import ChatRAGCache
from ragcache_integrations.prompts.history.base import MessageCounter
from ragcache_integrations.prompts.history.langchain import HalfTruncationHistory

SYSTEM = "You are brief."


class FileStore(BaseChatMessageHistory):
    """The example of LangChain's own documentation, on a file."""

    def __init__(self, path: Path) -> None:
        self._path = path

    @property
    def messages(self) -> list[BaseMessage]:  # type: ignore[override] # as LangChain's own do
        if not self._path.exists():
            return []
        return messages_from_dict(json.loads(self._path.read_text(encoding="utf-8")))

    def add_messages(self, messages: Sequence[BaseMessage]) -> None:
        kept = messages_to_dict([*self.messages, *messages])
        self._path.write_text(json.dumps(kept), encoding="utf-8")

    def clear(self) -> None:
        self._path.unlink(missing_ok=True)


def words(text: str) -> int:
    return len(text.split())


def turn(number: int, length: int = 5) -> list[BaseMessage]:
    return [
        HumanMessage(f"question{number} " + "q " * (length - 1)),
        AIMessage(f"reply{number} " + "r " * (length - 1)),
    ]


def texts(messages: Sequence[BaseMessage]) -> list[str]:
    return [str(message.text) for message in messages]


def make(budget: int = 300, **arguments: Any) -> HalfTruncationHistory:
    given = {"count_tokens": words, "summary_tokens": 10, **arguments}
    return HalfTruncationHistory(budget, **given)


def test_a_conversation_survives_in_any_store_with_its_summary(tmp_path: Path) -> None:
    llm = FakeListChatModel(responses=["they spoke of numbers"])
    store = FileStore(tmp_path / "chat.json")
    history = make(llm=llm, store=store)
    for number in range(40):
        history.add_messages(turn(number))
        assert history.settle(30)
    again = make(llm=llm, store=FileStore(tmp_path / "chat.json"))
    assert texts(again.messages) == texts(history.messages)
    assert again.messages[0].text.endswith("they spoke of numbers")
    assert texts(again.get_all()) == [t for n in range(40) for t in texts(turn(n))]
    again.clear()
    assert store.messages == again.messages == []


def test_tool_calls_and_their_answers_go_together() -> None:
    history = make(120, pin=lambda message: "forever" in str(message.text))
    history.add_messages([SystemMessage("rules"), HumanMessage("this is forever")])
    for number in range(30):
        call = {"name": "look", "args": {"for": number}, "id": "call_0", "type": "tool_call"}
        history.add_messages(
            [
                HumanMessage(f"question {number}"),
                AIMessage("", tool_calls=[call]),
                ToolMessage("found " * 5, tool_call_id="call_0"),
                AIMessage("so"),
            ]
        )
        view = history.messages
        calls = [i for i, m in enumerate(view) if isinstance(m, AIMessage) and m.tool_calls]
        answers = [i for i, m in enumerate(view) if isinstance(m, ToolMessage)]
        assert [call + 1 for call in calls] == answers
    assert texts(history.messages)[:2] == ["rules", "this is forever"]
    assert len(history.messages) < 60


def test_a_pin_in_the_message_holds_it() -> None:
    history = make(100)
    history.add_messages([HumanMessage("hold me", additional_kwargs={"pinned": True})])
    for number in range(20):
        history.add_messages(turn(number))
    assert texts(history.messages)[0] == "hold me"


def test_wrong_arguments_are_refused_in_words() -> None:
    with pytest.raises(ConfigurationError, match="nothing counts tokens"):
        HalfTruncationHistory(100)
    with pytest.raises(ConfigurationError, match="unknown argument 'treshold'"):
        HalfTruncationHistory(100, count_tokens=words, treshold=0.5)  # type: ignore[call-arg] # on purpose
    with pytest.raises(ConfigurationError, match="must be LangChain messages"):
        make().add_messages(["hello"])  # type: ignore[list-item] # on purpose
    with pytest.raises(ConfigurationError, match="result of count_tokens must be a whole number"):
        make(count_tokens=lambda text: len(text) / 4).add_messages(turn(0))
    with pytest.raises(ConfigurationError, match="the longest has 301"):
        make().add_messages([HumanMessage("w " * 297)])


async def test_the_async_twins_block_nothing(tmp_path: Path) -> None:
    llm = FakeListChatModel(responses=["so"])
    history = make(llm=llm, store=FileStore(tmp_path / "chat.json"))
    with blockbuster_ctx(scanned_modules=["ragcache_integrations"]):
        for number in range(20):
            await history.aadd_messages(turn(number))
        assert await history.asettle(30)
        view = await history.aget_messages()
        everything = await history.aget_all()
        await history.aclear()
    assert len(view) < len(everything) == 40
    assert history.messages == []


def test_concurrent_turns_of_one_conversation(tmp_path: Path) -> None:
    history = make(llm=FakeListChatModel(responses=["so"]), store=FileStore(tmp_path / "chat.json"))

    async def talk(name: int) -> None:
        for number in range(10):
            await history.aget_messages()
            await history.aadd_messages(turn(100 * name + number))

    async def all_talk() -> None:
        await asyncio.gather(*(talk(name) for name in range(5)))

    asyncio.run(all_talk())
    assert history.settle(30)
    said = texts(history.get_all())
    assert len(said) == 100
    for question, reply in zip(said[::2], said[1::2], strict=True):
        assert question.split()[0][8:] == reply.split()[0][5:]


@pytest.mark.parametrize("key", ["history", None])
def test_it_takes_the_place_of_any_history(key: str | None) -> None:
    """LangChain subtracts what was in the prompt from what it adds; the prompt must not change."""
    llm = FakeListChatModel(responses=["so it is"])
    history = make(120, llm=llm, idle_wait=0)
    chain: Any = llm
    arguments: dict[str, Any] = {}
    if key is not None:
        parts: Any = [("system", SYSTEM), MessagesPlaceholder("history"), ("human", "{question}")]
        chain = ChatPromptTemplate(parts) | llm
        arguments = {"input_messages_key": "question", "history_messages_key": "history"}
    with pytest.warns(DeprecationWarning, match="RunnableWithMessageHistory is deprecated"):
        wrapped = RunnableWithMessageHistory(chain, lambda: history, **arguments)
    for number in range(40):
        asked = f"question {number} of many"
        wrapped.invoke({"question": asked} if key else [HumanMessage(asked)])
    said = texts(history.get_all())
    assert said[::2] == [f"question {number} of many" for number in range(40)]
    assert set(said[1::2]) == {"so it is"}


class Watched:
    """An engine that remembers who asked what, and can hold the background up."""

    def __init__(self, engine: RAGCacheEngine) -> None:
        self._engine = engine
        self.turns: list[Generation] = []
        self.background: list[Generation] = []
        self.free = threading.Event()
        self.free.set()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._engine, name)

    def generate(self, *arguments: Any, **more: Any) -> Generation:
        if threading.current_thread().name != "ragcache-history":
            self.turns.append(self._engine.generate(*arguments, **more))
            return self.turns[-1]
        assert self.free.wait(60)
        self.background.append(self._engine.generate(*arguments, **more))
        return self.background[-1]


def computed(answer: Generation) -> int:
    return answer.usage.prompt_tokens - answer.usage.cached_tokens


def talk(history: HalfTruncationHistory, llm: ChatRAGCache, number: int) -> None:
    history.add_messages([HumanMessage(f"question {number} " + "and so on " * 10)])
    llm.invoke([SystemMessage(SYSTEM), *history.messages], max_tokens=1)
    history.add_messages([AIMessage(f"reply {number} " + "as it was said " * 40)])


@pytest.mark.engine
@given(st.lists(st.sampled_from(["some words", "", " é<|end|>", "\n\nlines\n"]), max_size=6))
def test_counts_are_exact_to_the_token(engine: RAGCacheEngine, said: list[str]) -> None:
    count = MessageCounter(engine.count_tokens, engine)
    roles = ("user", "assistant")
    messages = [Message("user", "one"), Message("assistant", "two")]
    before = len(engine.render(Prompt(messages=tuple(messages))).token_ids)
    messages += [Message(roles[i % 2], text) for i, text in enumerate(said)]
    after = len(engine.render(Prompt(messages=tuple(messages))).token_ids)
    assert after - before == sum(count(roles[i % 2], text) for i, text in enumerate(said))


@pytest.mark.engine
def test_summary_and_shortened_prompt_find_their_kv_caches(engine: RAGCacheEngine) -> None:
    assert engine.reset_cache()
    watched = Watched(engine)
    llm = ChatRAGCache(engine=watched)
    history = HalfTruncationHistory(1600, llm=llm, system=SYSTEM, summary_tokens=16)
    number = 0
    while not watched.background:
        talk(history, llm, number)
        assert history.settle(60)
        number += 1
    summary, prefill = watched.background
    # All but the last reply, the instruction, and what is no whole block was computed before.
    last = engine.count_tokens(str(history.get_all()[-1].text))
    assert computed(summary) < last + 100 + engine.block_size
    assert summary.usage.prompt_tokens > 1000
    # It is the prompt of the next turn, however many turns the background has left of it.
    roles = {"human": "user", "ai": "assistant", "system": "system"}
    left = [SystemMessage(SYSTEM), *history.messages]
    prompt = Prompt(messages=tuple(Message(roles[one.type], str(one.text)) for one in left))
    assert prefill.usage.prompt_tokens == len(engine.render(prompt).token_ids)
    assert len(left) >= 4
    talk(history, llm, number)
    turn_after = watched.turns[-1]
    assert computed(turn_after) < 60 + engine.block_size
    assert turn_after.usage.prompt_tokens < 0.8 * watched.turns[-2].usage.prompt_tokens


@pytest.mark.engine
def test_no_turn_waits_for_a_summary_on_the_engine(engine: RAGCacheEngine) -> None:
    watched = Watched(engine)
    watched.free.clear()
    llm = ChatRAGCache(engine=watched)
    history = HalfTruncationHistory(1600, llm=llm, system=SYSTEM, summary_tokens=16)
    for number in range(20):
        talk(history, llm, number)  # would never end if it waited
    assert not watched.background
    assert history.stats().forced_truncations
    assert all(answer.usage.prompt_tokens <= 1600 + 20 for answer in watched.turns)
    watched.free.set()
    assert history.settle(60)
    assert history.stats().summaries == 1


@pytest.mark.engine
def test_half_truncation_recomputes_a_fraction_of_drop_oldest(engine: RAGCacheEngine) -> None:
    """With real cached-token counts; the issue's 200 turns at 8,000 are in the benchmark."""
    turns = 16
    again = {}
    for policy in ("half", "oldest"):
        assert engine.reset_cache()
        watched = Watched(engine)
        llm = ChatRAGCache(engine=watched)
        history = make(
            1500, llm=llm, count_tokens=None, policy=policy, summary_tokens=0, system=SYSTEM
        )
        for number in range(turns):
            talk(history, llm, number)
            assert history.settle(60)
        count = MessageCounter(engine.count_tokens, engine)
        new = sum(count("user", str(message.text)) for message in history.get_all()[:-1])
        again[policy] = sum(map(computed, watched.turns + watched.background)) - new
        # Whatever is no whole block is computed with the next turn again.
        again[policy] -= turns * engine.block_size // 2
    assert again["half"] < 0.3 * again["oldest"]
