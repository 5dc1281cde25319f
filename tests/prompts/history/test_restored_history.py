"""LangChain's histories through everything that saves or copies them."""

from __future__ import annotations

import copy
import json
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from langchain_core.language_models import BaseChatModel, FakeListChatModel
from langchain_core.messages import (
    AIMessage,
    AIMessageChunk,
    BaseMessage,
    HumanMessage,
    SystemMessage,
    ToolMessage,
)
from langchain_core.prompts import ChatPromptTemplate, MessagesPlaceholder
from langchain_core.runnables.history import RunnableWithMessageHistory

from ragcache_integrations.engine import RAGCacheEngine
from ragcache_integrations.errors import ConfigurationError
from ragcache_integrations.langchain import ChatRAGCache, HalfTruncationHistory
from tests.support.sizes import examples

from .restoring import BUDGET, GATE, TEXT, is_a_name, words
from .test_langchain import FileStore


class NotingChat(FakeListChatModel):
    """Writes a summary that depends on what it is about, when it is let."""

    responses: list[str] = []  # noqa: RUF012 - a pydantic field

    def _call(self, messages: Any, *args: Any, **kwargs: Any) -> str:
        assert GATE.wait(30)
        asked = str(messages[-1].text)
        return "so" if kwargs["max_tokens"] == 1 else f"before {asked.split('“')[1][:12]}"


def make_history(**arguments: Any) -> HalfTruncationHistory:
    given = {"llm": NotingChat(), "count_tokens": words, "summary_tokens": 10, **arguments}
    return HalfTruncationHistory(BUDGET, **given)


def through_json(history: HalfTruncationHistory) -> HalfTruncationHistory:
    return HalfTruncationHistory.from_dict(json.loads(json.dumps(history.to_dict())))


HISTORY_WAYS: dict[str, Callable[[HalfTruncationHistory], HalfTruncationHistory]] = {
    "to_dict": through_json,
    "to_dict, with parts": lambda history: HalfTruncationHistory.from_dict(
        history.to_dict(), llm=NotingChat(), count_tokens=words
    ),
    "pickle": lambda history: pickle.loads(pickle.dumps(history)),
    "deepcopy": copy.deepcopy,
}
TALK = st.lists(
    st.one_of(
        st.builds(
            lambda kind, text: [kind(text)],
            st.sampled_from([HumanMessage, AIMessage, SystemMessage, AIMessageChunk, HumanMessage]),
            TEXT.map(lambda text: text[:30]),
        ),
        st.builds(
            lambda number, text: [
                AIMessage(
                    "",
                    tool_calls=[
                        {"name": "f", "args": {"a": 1}, "id": str(number), "type": "tool_call"}
                    ],
                ),
                ToolMessage(text, tool_call_id=str(number)),
            ],
            st.integers(0, 3),
            TEXT,
        ),
    ),
    max_size=14,
)


def add(history: HalfTruncationHistory, messages: list[BaseMessage]) -> str:
    try:
        history.add_messages([message.model_copy(deep=True) for message in messages])
    except ConfigurationError as error:
        return str(error)
    return ""


@pytest.mark.parametrize("name", HISTORY_WAYS)
@examples(40)
@given(before=TALK, after=TALK, held=st.booleans())
def test_a_history_goes_on_as_the_original_does(
    name: str,
    before: list[list[BaseMessage]],
    after: list[list[BaseMessage]],
    held: bool,
) -> None:
    history = make_history()
    for place, messages in enumerate(before):
        if held and place == len(before) // 2:
            GATE.clear()
        add(history, messages)
        assert history.messages is not None
        assert not GATE.is_set() or history.settle(30)
    try:
        again = HISTORY_WAYS[name](history)
        for part, value in (("llm", NotingChat()), ("count_tokens", words)):
            if part in again.missing:
                setattr(again, part, value)
        assert again.missing == ()
    finally:
        GATE.set()
    for messages in [[], *after]:
        assert add(history, messages) == add(again, messages)
        assert history.settle(30)
        assert again.settle(30)
        assert again.messages == history.messages
        assert again.get_all() == history.get_all()


def chat(history: HalfTruncationHistory, turns: int) -> HalfTruncationHistory:
    for number in range(turns):
        history.add_messages([HumanMessage(f"question{number} q q q q"), AIMessage(f"r{number} r")])
        assert history.settle(30)
    return history


async def test_messages_can_be_set() -> None:
    history = chat(make_history(), 12)
    view = history.messages
    assert view[0].text.startswith("Summary of the conversation so far:")
    history.messages = view
    assert [message.text for message in history.messages] == [one.text for one in view]
    history.messages = history.messages[-3:]
    assert history.messages == history.get_all() == view[-3:]
    assert await history.aget_messages() == view[-3:]
    history.messages = []
    assert history.messages == []
    with pytest.raises(ConfigurationError, match="must be LangChain messages"):
        history.messages = ["hello"]  # type: ignore[list-item] # on purpose


@pytest.mark.filterwarnings("ignore:RunnableWithMessageHistory is deprecated")
def test_messages_are_set_amid_a_chain() -> None:
    histories = {"ada": chat(make_history(), 2)}
    prompt = ChatPromptTemplate.from_messages([MessagesPlaceholder("past"), ("human", "{asked}")])
    chain = RunnableWithMessageHistory(
        prompt | FakeListChatModel(responses=["well"]),
        lambda session_id: histories[session_id],
        input_messages_key="asked",
        history_messages_key="past",
    )
    histories["ada"].messages = histories["ada"].messages[-2:]
    chain.invoke({"asked": "why?"}, {"configurable": {"session_id": "ada"}})
    assert [message.text for message in histories["ada"].messages][2:] == ["why?", "well"]


async def test_a_history_is_saved_without_blocking() -> None:
    history = chat(make_history(), 3)
    assert await history.ato_dict() == history.to_dict()


def test_a_history_without_its_counter_and_model_goes_on() -> None:
    again = through_json(chat(make_history(pin=is_a_name), 12))
    assert list(again.missing) == ["count_tokens", "llm", "pin"]
    assert len(chat(again, 12).get_all()) == 48
    again.llm, again.count_tokens, again.pin = NotingChat(), words, is_a_name
    assert not again.missing
    assert isinstance(again.llm, BaseChatModel)


def test_a_history_is_saved_without_what_others_said() -> None:
    model = NotingChat()
    ada, bob = make_history(llm=model), make_history(llm=model)
    ada.add_messages([HumanMessage("hello")])
    bob.add_messages([HumanMessage("a secret")])
    for saved in (json.dumps(ada.to_dict()), pickle.dumps(ada).decode("latin1")):
        assert "hello" in saved
        assert "a secret" not in saved
    for save in HISTORY_WAYS.values():
        assert [one.text for one in save(ada).get_all()] == ["hello"]


def test_a_store_of_a_history(tmp_path: Path) -> None:
    history = chat(make_history(store=FileStore(tmp_path / "a.json")), 12)
    carried = pickle.loads(pickle.dumps(history))
    assert carried.missing == ()
    assert carried.messages == history.messages
    carried.add_messages([HumanMessage("on disk")])
    assert FileStore(tmp_path / "a.json").messages[-1].text == "on disk"
    again = through_json(history)
    assert "store" in again.missing
    assert again.get_all() == history.get_all()
    other = FileStore(tmp_path / "b.json")
    HalfTruncationHistory.from_dict(history.to_dict(), store=other).get_messages()
    assert other.messages[:24] == history.get_all()
    copied = copy.deepcopy(history)
    copied.add_messages([HumanMessage("in memory")])
    assert all(message.text != "in memory" for message in FileStore(tmp_path / "a.json").messages)


def test_copies_of_a_history() -> None:
    history = chat(make_history(), 3)
    deep, shallow = copy.deepcopy(history), copy.copy(history)
    deep.add_messages([HumanMessage("only there")])
    deep.get_all()[0].additional_kwargs["changed"] = True
    shallow.add_messages([HumanMessage("for both")])
    assert history.messages == shallow.messages
    assert len(history.get_all()) == 7
    assert not history.get_all()[0].additional_kwargs
    twice = copy.deepcopy([history, history])
    assert twice[0] is twice[1]


def test_settings_of_a_history_are_fixed() -> None:
    history = make_history()
    for name in ("budget", "policy", "system", "store", "bugdet"):
        with pytest.raises(ConfigurationError, match=f"'{name}' of a finished"):
            setattr(history, name, 1)
    with pytest.raises(ConfigurationError, match="count_tokens must be a function"):
        history.count_tokens = 1  # type: ignore[assignment] # on purpose

    class Own(HalfTruncationHistory):
        """Has something besides."""

    own = Own(100, count_tokens=words)
    own.user = "ada"
    with pytest.raises(ConfigurationError, match="'budget' of a finished Own"):
        own.budget = 1


@pytest.mark.engine
def test_a_history_with_the_real_engine(engine: RAGCacheEngine) -> None:
    model = ChatRAGCache(engine=engine, max_tokens=8)
    history = chat(HalfTruncationHistory(300, llm=model, summary_tokens=16), 20)
    again = pickle.loads(pickle.dumps(history))
    assert again.missing == ("llm",)
    assert again.messages == history.messages
    again.llm = model
    chat(again, 12)
    assert again.stats().summaries >= 1
