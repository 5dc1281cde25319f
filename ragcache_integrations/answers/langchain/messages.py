"""Messages within answers: a served answer has messages of its own, as if a model had written them.

LangGraph's ``add_messages`` takes a message with a known id for a new version of that one. So a
message that is served again has to have another id, or the answer is missing in the conversation.
An id that refers to a message of the input has to stay.
"""

from __future__ import annotations

import re
import uuid
from collections.abc import Collection, Iterable, Iterator, Mapping, MutableMapping
from typing import Any, TypeGuard

from langchain_core.documents import Document
from langchain_core.messages import AIMessage, BaseMessage, RemoveMessage
from langchain_core.messages.ai import UsageMetadata
from pydantic import BaseModel

from ragcache_integrations.answers.entries import copy_answer
from ragcache_integrations.answers.finish import attributes_of, forget_usage

__all__ = ["chosen_names", "messages_in", "nameless", "names_in", "renewed"]

_MOST_DEPTH = 16
_REMOVE_ALL = "__remove_all__"
_KINDS = frozenset(
    (
        *("ai", "assistant", "human", "user", "system", "developer", "tool", "function"),
        *("AIMessageChunk", "HumanMessageChunk", "SystemMessageChunk", "ToolMessageChunk"),
    )
)
"""Roles and types of messages that are written as dicts."""
_CALL_NAMES = ("id", "call_id", "tool_call_id", "tool_use_id")
_FIELDS_WITH_IDS = (
    *("content", "additional_kwargs", "tool_calls", "invalid_tool_calls", "tool_call_chunks"),
    "tool_call_id",
)
"""Fields of messages that have ids of tool calls, or parts that have."""
_GENERATED = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-|(?=\w*\d)[A-Za-z0-9]{12}")
"""In an id that was drawn at random."""
_SHORTEST = 9
"""Signs of a tool call's id, of which Mistral's has that many."""


def messages_in(value: Any) -> Iterator[BaseMessage | MutableMapping[str, Any]]:
    """Yield the messages that a value holds, at any depth, those that are dicts included."""
    return (part for part in _within(value, _MOST_DEPTH, set()) if _is_message(part))


def _within(value: Any, depth: int, seen: set[int]) -> Iterator[Any]:
    """Yield a value and the objects in it, at any depth, without looking inside messages."""
    if isinstance(value, str | bytes | int | float | Document | None) or id(value) in seen:
        return
    seen.add(id(value))
    yield value
    if depth and not _is_message(value):
        for part in _parts(value):
            yield from _within(part, depth - 1, seen)


def _is_message(value: Any) -> TypeGuard[BaseMessage | MutableMapping[str, Any]]:
    """Whether a value is a message, or a dict that LangGraph takes for one."""
    if not isinstance(value, dict) or "content" not in value:
        return isinstance(value, BaseMessage)
    kind = value.get("role") or value.get("type")
    return isinstance(kind, str) and kind in _KINDS


def _parts(value: Any) -> Iterator[Any]:
    if isinstance(value, list | tuple):
        return iter(value)
    return iter(attributes_of(value).values())


def names_in(value: Any) -> frozenset[str]:
    """Return the ids of the messages and tool calls that a value holds or refers to."""
    return frozenset(name for message in messages_in(value) for name in _names(message))


def _names(message: BaseMessage | Mapping[str, Any]) -> Iterator[str]:
    name = _id(message)
    if name is not None and name != _REMOVE_ALL:
        yield name
    yield from _calls(message)
    answered = _get(message, "tool_call_id")
    if isinstance(answered, str):
        yield answered


def _calls(message: BaseMessage | Mapping[str, Any]) -> Iterator[str]:
    """Yield the ids of a message's tool calls."""
    for field in ("tool_calls", "invalid_tool_calls"):
        for call in _get(message, field) or ():
            if isinstance(call, Mapping) and isinstance(call.get("id"), str):
                yield call["id"]


def _get(message: BaseMessage | Mapping[str, Any], name: str) -> Any:
    return message.get(name) if isinstance(message, Mapping) else getattr(message, name, None)


def _id(message: BaseMessage | Mapping[str, Any]) -> str | None:
    name = _get(message, "id")
    return name if isinstance(name, str) else None


def chosen_names(answer: Any) -> frozenset[str]:
    """Return the ids of an answer's messages that look chosen, not drawn at random.

    A node that gives its message such an id may mean to replace its earlier one.
    """
    names = map(_id, messages_in(answer))
    return frozenset(name for name in names if name is not None and not _GENERATED.search(name))


def renewed(answer: Any, own: Collection[str] = ()) -> Any:
    """Return a copy of an answer that is served again, whose messages are new ones.

    They have new ids, as do their tool calls, and report that no tokens were used.

    Args:
        answer: The answer that is kept.
        own: Ids of the input, to which the answer may refer: they stay, with their messages.
    """
    if isinstance(answer, str):
        return answer
    answer = copy_answer(answer)
    messages = [message for message in messages_in(answer) if _id(message) not in own]
    new: dict[str, str] = {}
    for message in messages:
        for call in _calls(message):
            if call not in own:
                new.setdefault(call, _other_call(call))
    for message in messages:
        _rename(message, new)
        if isinstance(message, AIMessage):
            _unused(message)
            _forget_items(message)
        elif isinstance(message, MutableMapping):
            forget_usage(message)
    for part in _within(answer, _MOST_DEPTH, set()):
        if isinstance(part, BaseModel) and not isinstance(part, BaseMessage):
            _unused_result(part)
    return answer


def nameless(answer: Any) -> Any:
    """Return a copy of an answer in which nothing of its messages is another one each time."""
    if isinstance(answer, str):
        return answer
    answer = copy_answer(answer)
    for message in messages_in(answer):
        calls = dict.fromkeys((*_calls(message), *_names(message)), "")
        if isinstance(message, BaseMessage):
            _rename(message, calls)
            message.id, message.response_metadata = None, {}
        if isinstance(message, AIMessage):
            message.usage_metadata = None
    return answer


def _rename(message: BaseMessage | MutableMapping[str, Any], new: dict[str, str]) -> None:
    if isinstance(message, RemoveMessage):
        return
    held = message if isinstance(message, MutableMapping) else message.__dict__
    name = _id(message)
    if name is not None:
        held["id"] = new.setdefault(f"message {name}", f"lc_run--{uuid.uuid4()}")
    if new:
        every = isinstance(message, MutableMapping)
        names: Iterable[str] = held if every else _FIELDS_WITH_IDS
        inner = {name: held[name] for name in names if name in held and name != "id"}
        _replace(inner, new)
        held.update(inner)


def _replace(value: Any, new: dict[str, str], depth: int = _MOST_DEPTH) -> None:
    """Replace the ids of tool calls within a message's parts."""
    if isinstance(value, list) and depth:
        for item in value:
            _replace(item, new, depth - 1)
    elif isinstance(value, dict) and depth:
        for key in list(value):
            item = value[key]
            if key in _CALL_NAMES and isinstance(item, str):
                value[key] = new.get(item, item)
            elif key != "args":
                _replace(item, new, depth - 1)
            if key in new:  # Gemini's signatures of thoughts are by the id of their call
                value[new[key]] = value.pop(key)


def _forget_items(message: AIMessage) -> None:
    """Leave out ids of items of a conversation that OpenAI keeps, as it takes each of them once."""
    if isinstance(message.content, list):
        blocks = [block for block in message.content if not _is_item(block, "rs_")]
        message.content = [
            {key: part for key, part in block.items() if key != "id"}
            if isinstance(block, dict) and _is_item(block, "msg_")
            else block
            for block in blocks
        ]
    more = message.additional_kwargs
    if _is_item(more.get("reasoning"), "rs_"):
        del more["reasoning"]
    more.pop("__openai_function_call_ids__", None)


def _is_item(block: Any, kind: str) -> bool:
    return isinstance(block, dict) and str(block.get("id", "")).startswith(kind)


def _other_call(name: str) -> str:
    """Return another id for a tool call, in the form of the one that it had."""
    start, sign, end = name.rpartition("_")
    length = min(max(len(end), _SHORTEST), 32)
    return f"{start}{sign}{uuid.uuid4().hex[:length]}"


def _unused(message: AIMessage) -> None:
    """Have a message report that nothing was used for it, and that it is no provider's response."""
    if message.usage_metadata is not None:
        # As LangChain's own cache has it: whoever adds costs up finds that there were none.
        none: dict[str, int] = {"input_tokens": 0, "output_tokens": 0, "total_tokens": 0}
        message.usage_metadata = UsageMetadata(**none, total_cost=0)  # type: ignore[typeddict-item] # as there
    # With the id of a response, OpenAI's continues the conversation in which it was given.
    message.response_metadata.pop("id", None)
    forget_usage(message.response_metadata)
    forget_usage(message.additional_kwargs)


def _unused_result(result: BaseModel) -> None:
    """Have the result of a model, which is no message, report that nothing was used for it."""
    for name in ("llm_output", "generation_info"):
        forget_usage(getattr(result, name, None))
