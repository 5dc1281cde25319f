"""LlamaIndex's histories through everything that saves or copies them."""

from __future__ import annotations

import asyncio
import copy
import json
import logging
import pickle
import threading
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
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
from ragcache_integrations.langchain import HalfTruncationHistory
from ragcache_integrations.llama_index import HalfTruncationMemory, RAGCacheLLM
from tests.support.sizes import examples

from .restoring import BUDGET, GATE, TEXT, is_a_name, words

IMAGE = b"iVBORw0KGgo="


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
    saved["saved"]["messages"][2] = {"role": "nobody"}
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
