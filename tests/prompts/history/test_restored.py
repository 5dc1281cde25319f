"""Histories of both frameworks through everything that saves or copies them."""

from __future__ import annotations

import asyncio
import copy
import json
import logging
import pickle
import threading
from collections.abc import Awaitable, Callable
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
from llama_index.core.base.llms.types import (
    ChatMessage,
    ChatResponse,
    ImageBlock,
    TextBlock,
    ToolCallBlock,
)
from llama_index.core.llms import MockLLM
from llama_index.core.storage.chat_store import SimpleChatStore
from llama_index.core.workflow import (
    Context,
    JsonPickleSerializer,
    JsonSerializer,
    StartEvent,
    StopEvent,
    Workflow,
    step,
)
from workflows.context.serializers import PickleSerializer

from ragcache_integrations.engine import RAGCacheEngine
from ragcache_integrations.errors import ConfigurationError
from ragcache_integrations.langchain import ChatRAGCache, HalfTruncationHistory
from ragcache_integrations.llama_index import HalfTruncationMemory, RAGCacheLLM
from tests.support.sizes import examples

from .test_langchain import FileStore

BUDGET = 120
IMAGE = b"iVBORw0KGgo="


def words(text: str) -> int:
    return len(text.split())


def is_a_name(message: Any) -> bool:
    return "name" in (message.text if isinstance(message, BaseMessage) else message.content or "")


class Noting(MockLLM):
    """Writes a summary that depends on what it is about, when it is let."""

    @property
    def gate(self) -> threading.Event:
        return GATE

    def chat(self, messages: Any, **kwargs: Any) -> ChatResponse:
        assert self.gate.wait(30)
        asked = messages[-1].content or ""
        said = "so" if kwargs["max_tokens"] == 1 else f"before {asked.split('“')[1][:12]}"
        return ChatResponse(message=ChatMessage(role="assistant", content=said))


class NotingChat(FakeListChatModel):
    """The same for LangChain."""

    responses: list[str] = []  # noqa: RUF012 - a pydantic field

    def _call(self, messages: Any, *args: Any, **kwargs: Any) -> str:
        assert GATE.wait(30)
        asked = str(messages[-1].text)
        return "so" if kwargs["max_tokens"] == 1 else f"before {asked.split('“')[1][:12]}"


GATE = threading.Event()
GATE.set()


# LlamaIndex


def make(**arguments: Any) -> HalfTruncationMemory:
    given = {
        "llm": Noting(max_tokens=None),
        "count_tokens": words,
        "summary_tokens": 10,
        **arguments,
    }
    return HalfTruncationMemory(BUDGET, **given)


class Talk(Workflow):
    """Stands for an agent, whose context has its memory."""

    @step
    async def answer(self, event: StartEvent) -> StopEvent:
        return StopEvent(result=event.get("asked"))


async def through_context(memory: HalfTruncationMemory, serializer: Any) -> HalfTruncationMemory:
    agent = Talk()
    context: Context[Any] = Context(agent)
    await context.store.set("memory", memory)
    saved = json.loads(json.dumps(context.to_dict(serializer=serializer)))
    again = Context.from_dict(agent, saved, serializer=serializer)
    restored: HalfTruncationMemory = await again.store.get("memory")
    return restored


def given_again(memory: HalfTruncationMemory) -> HalfTruncationMemory:
    """With what JSON cannot have."""
    for name, part in (("llm", Noting(max_tokens=None)), ("count_tokens", words)):
        if name in memory.missing:
            setattr(memory, name, part)
    assert memory.missing == ()
    return memory


Way = Callable[[HalfTruncationMemory], Awaitable[HalfTruncationMemory]]


def at_once(way: Callable[[HalfTruncationMemory], HalfTruncationMemory]) -> Way:
    async def awaited(memory: HalfTruncationMemory) -> HalfTruncationMemory:
        return way(memory)

    return awaited


WAYS: dict[str, Way] = {
    "context, JSON": lambda memory: through_context(memory, JsonSerializer()),
    "context, JSON and pickle": lambda memory: through_context(memory, JsonPickleSerializer()),
    "context, pickle": lambda memory: through_context(memory, PickleSerializer()),
    "serializer": at_once(
        lambda memory: JsonSerializer().deserialize(JsonSerializer().serialize({"it": [memory]}))[
            "it"
        ][0]
    ),
    "to_dict": at_once(lambda memory: HalfTruncationMemory.from_dict(memory.to_dict())),
    "to_dict, with parts": at_once(
        lambda memory: HalfTruncationMemory.from_dict(
            memory.to_dict(), llm=Noting(max_tokens=None), count_tokens=words
        )
    ),
    "to_json": at_once(lambda memory: HalfTruncationMemory.from_json(memory.to_json())),
    "to_string": at_once(lambda memory: HalfTruncationMemory.from_string(memory.to_string())),
    "model_dump": at_once(lambda memory: HalfTruncationMemory.model_validate(memory.model_dump())),
    "model_dump, JSON": at_once(
        lambda memory: HalfTruncationMemory.model_validate(memory.model_dump(mode="json"))
    ),
    "model_dump_json": at_once(
        lambda memory: HalfTruncationMemory.model_validate_json(memory.model_dump_json())
    ),
    "pickle": at_once(lambda memory: pickle.loads(pickle.dumps(memory))),
    "deepcopy": at_once(copy.deepcopy),
    "model_copy, deep": at_once(lambda memory: memory.model_copy(deep=True)),
}

TEXT = st.one_of(
    st.sampled_from(["hello", "my name is Ada", "über “quotes” \u2028 \x00", "<|im_start|>", ""]),
    st.text(st.characters(exclude_categories=["Cs"]), max_size=20),
    st.integers(1, 15).map(lambda count: "word " * count),
)
MESSAGE = st.one_of(
    st.builds(ChatMessage, TEXT, role=st.sampled_from(["user", "assistant", "user"])),
    st.builds(
        lambda text: ChatMessage(
            role="user", blocks=[TextBlock(text=text), ImageBlock(image=IMAGE)]
        ),
        TEXT,
    ),
    st.builds(
        lambda text, more: ChatMessage(text, role="user", additional_kwargs=more),
        TEXT,
        st.dictionaries(
            st.sampled_from(["pinned", "half_truncation_start", "other"]),
            st.none() | st.booleans() | st.integers(-3, 3) | st.text("ab", max_size=3),
        ),
    ),
)
CALL = st.builds(
    lambda number, answer: [
        ChatMessage(
            role="assistant",
            blocks=[ToolCallBlock(tool_call_id=str(number), tool_name="f", tool_kwargs={"a": 1})],
        ),
        ChatMessage(answer, role="tool", additional_kwargs={"tool_call_id": str(number)}),
    ],
    st.integers(0, 3),
    TEXT,
)
SAID = st.lists(MESSAGE.map(lambda one: [one]) | CALL, max_size=14)


def put(memory: HalfTruncationMemory, messages: list[ChatMessage]) -> str:
    try:
        memory.put_messages([message.model_copy(deep=True) for message in messages])
    except ConfigurationError as error:
        return str(error)
    return ""


@pytest.mark.parametrize("name", WAYS)
@examples(15)
@given(before=SAID, after=SAID, held=st.booleans())
def test_a_memory_goes_on_as_the_original_does(
    name: str,
    before: list[list[ChatMessage]],
    after: list[list[ChatMessage]],
    held: bool,
) -> None:
    memory = make()
    for place, messages in enumerate(before):
        if held and place == len(before) // 2:
            GATE.clear()  # a summary that is begun from now on is being written when it is saved
        put(memory, messages)
        memory.get()
        assert not GATE.is_set() or memory.settle(30)
    try:
        again = given_again(asyncio.run(WAYS[name](memory)))  # type: ignore[arg-type]  # a coroutine
        assert again is not memory
    finally:
        GATE.set()
    for messages in [[], *after]:
        assert put(memory, messages) == put(again, messages)
        assert memory.settle(30)
        assert again.settle(30)
        assert again.get() == memory.get()
        assert again.get_all() == memory.get_all()
    again.reset()
    assert (memory.get_all() == []) == (not memory.stats().messages)


def talk(memory: HalfTruncationMemory, turns: int) -> HalfTruncationMemory:
    for number in range(turns):
        memory.put(ChatMessage(f"question{number} q q q q", role="user"))
        memory.put(ChatMessage(f"reply{number} r r r r", role="assistant"))
        assert memory.settle(30)
    return memory


async def test_a_memory_is_saved_without_blocking() -> None:
    memory = talk(make(), 3)
    assert await memory.ato_dict() == memory.to_dict()
    assert await memory.ato_string() == memory.to_string()


async def test_a_restored_memory_says_what_it_is_without(caplog: pytest.LogCaptureFixture) -> None:
    memory = talk(make(pin=is_a_name, engine=None), 12)
    with caplog.at_level(logging.WARNING):
        again = await through_context(memory, JsonSerializer())
    assert list(again.missing) == ["count_tokens", "llm", "pin"]
    assert "a HalfTruncationMemory was restored without its count_tokens, llm, pin" in caplog.text
    assert again.get() == memory.get()
    again.llm = Noting(max_tokens=None)
    assert list(again.missing) == ["count_tokens", "pin"]
    # What is missing is still missing when it is saved once more.
    assert len(HalfTruncationMemory.from_dict(again.to_dict()).missing) == 3
    again.count_tokens, again.pin = words, is_a_name
    assert not again.missing


def test_a_memory_without_its_model_does_not_crash() -> None:
    memory = talk(make(), 12)
    again = HalfTruncationMemory.from_dict(memory.to_dict())
    for number in range(12, 40):
        again.put(ChatMessage(f"question{number} q q q q", role="user"))
        again.put(ChatMessage(f"reply{number} r r r r", role="assistant"))
        assert again.get()
    assert len(again.get_all()) == 80


def test_a_memory_is_saved_without_what_others_said() -> None:
    store = SimpleChatStore()
    store.set_messages("bob", [ChatMessage("a secret", role="user")])
    memory = make(chat_store=store, chat_store_key="ada")
    memory.put(ChatMessage("hello", role="user"))
    for saved in (memory.to_string(), pickle.dumps(memory).decode("latin1")):
        assert "hello" in saved
        assert "a secret" not in saved
    assert "a secret" not in repr(memory)
    for again in (
        HalfTruncationMemory.from_dict(memory.to_dict()),
        pickle.loads(pickle.dumps(memory)),
        copy.deepcopy(memory),
    ):
        assert [message.content for message in again.get_all()] == ["hello"]
    assert copy.deepcopy(memory).chat_store.get_keys() == ["ada"]
    assert "hello" not in repr(memory)


class Remote(SimpleChatStore):
    """Stands for a store that is not in memory."""


def test_a_store_that_is_not_in_memory_is_given_again() -> None:
    memory = talk(make(chat_store=Remote(), chat_store_key="ada"), 12)
    again = HalfTruncationMemory.from_dict(memory.to_dict())
    assert "chat_store" in again.missing
    assert again.get() == memory.get()
    remote = Remote()
    there = again.model_copy(update={"chat_store": remote})
    assert "chat_store" not in there.missing
    assert there.get() == memory.get()
    assert remote.get_messages("ada")[:24] == memory.get_all()
    # It went on there.
    remote.add_message("ada", ChatMessage("later", role="user"))
    late = HalfTruncationMemory.from_dict(memory.to_dict(), chat_store=remote)
    assert late.get_all()[-1].content == "later"
    assert late.get()[:-1] == memory.get()
    assert pickle.loads(pickle.dumps(memory)).chat_store == memory.chat_store


def test_deep_copies_share_nothing_and_shallow_ones_the_conversation() -> None:
    memory = talk(make(), 3)
    deep, shallow = copy.deepcopy(memory), copy.copy(memory)
    deep.put(ChatMessage("only there", role="user"))
    deep.get_all()[0].additional_kwargs["changed"] = True
    assert len(memory.get_all()) == len(shallow.get_all()) == 6
    assert not memory.get_all()[0].additional_kwargs
    assert deep.chat_store is not memory.chat_store
    assert deep.llm is not memory.llm
    shallow.put(ChatMessage("for both", role="user"))
    assert memory.get() == shallow.get()
    twice = copy.deepcopy([memory, memory])
    assert twice[0] is twice[1]


def test_settings_of_a_memory_are_fixed() -> None:
    memory = talk(make(), 3)
    for name, value in (("budget", 50), ("policy", "oldest"), ("chat_store_key", "x")):
        with pytest.raises(ConfigurationError, match=rf"model_copy\(update={{'{name}': ...}}\)"):
            setattr(memory, name, value)
    with pytest.raises(ConfigurationError, match="did you mean 'budget'"):
        memory.bugdet = 50
    with pytest.raises(ConfigurationError, match="llm must be of the class LLM, got str"):
        memory.llm = "gpt"  # type: ignore[assignment] # on purpose
    with pytest.raises(ConfigurationError, match="pin must be a function, got int"):
        memory.pin = 1  # type: ignore[assignment] # on purpose
    with pytest.raises(ConfigurationError, match="budget must be a whole number"):
        memory.model_copy(update={"budget": 0})
    with pytest.raises(ConfigurationError, match="did you mean 'budget'"):
        memory.model_copy(update={"bugdet": 50})
    smaller = memory.model_copy(update={"budget": 60, "summary_tokens": 0})
    assert smaller.budget == 60
    assert smaller.get_all() == memory.get_all()
    smaller.put(ChatMessage("w " * 20, role="user"))
    assert smaller.settle(30)
    assert sum(words(one.content or "") + 4 for one in smaller.get()) <= 60
    assert memory.model_copy()._history is memory._history
    apart = memory.model_copy(update={"budget": 200}, deep=True)
    apart.put(ChatMessage("only there", role="user"))
    assert memory.chat_store is not apart.chat_store


def test_what_is_no_saved_memory_is_refused() -> None:
    memory = talk(make(), 3)
    saved = memory.to_dict()
    saved["saved"]["messages"][2]["message"] = {"role": "nobody"}
    for damaged in (saved, {"class_name": "HalfTruncationMemory"}, {**saved, "budget": "many"}):
        with pytest.raises(ConfigurationError):
            HalfTruncationMemory.from_dict(damaged)
    for nothing in (None, "", 0):
        with pytest.raises(ConfigurationError, match="saved must be a mapping, got"):
            HalfTruncationMemory.from_dict({**saved, "saved": nothing})
        with pytest.raises(ConfigurationError, match="saved must be a mapping, got"):
            HalfTruncationHistory.from_dict({"budget": 100, "saved": nothing})
    with pytest.raises(ConfigurationError, match="no JSON"):
        HalfTruncationMemory.from_string("hello")
    memory = make()
    memory.put(ChatMessage("x", role="user", additional_kwargs={"object": threading.Lock()}))
    with pytest.raises(ConfigurationError, match="message 0 cannot be written as JSON"):
        memory.to_dict()


@pytest.mark.engine
def test_a_memory_with_the_real_engine(engine: RAGCacheEngine) -> None:
    llm = RAGCacheLLM(engine=engine, max_tokens=8)
    memory = talk(HalfTruncationMemory(300, llm=llm, summary_tokens=16), 12)
    again = pickle.loads(pickle.dumps(memory))
    assert again.missing == ("llm",)
    assert again.get() == memory.get()
    again.llm = llm
    assert talk(copy.deepcopy(again), 12).stats().summaries >= 1
    assert copy.deepcopy(memory).llm is not None


# LangChain


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
