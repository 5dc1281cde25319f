"""Inputs of chains, and their answers: whole, in pieces, compared, as plain data and served again.

A served answer has messages of its own, as if a model had written them. LangGraph's
``add_messages`` takes a message with a known id for a new version of that one. So a message that is
served again has to have another id, or the answer is missing in the conversation. An id that refers
to a message of the input has to stay.
"""

from __future__ import annotations

import re
import uuid
from collections.abc import Collection, Iterable, Iterator, Mapping, MutableMapping
from typing import Any, TypeGuard

from langchain_core.documents import Document
from langchain_core.messages import (
    AIMessage,
    AIMessageChunk,
    BaseMessage,
    BaseMessageChunk,
    HumanMessage,
    RemoveMessage,
    SystemMessage,
    ToolMessage,
    message_chunk_to_message,
)
from langchain_core.messages.ai import UsageMetadata
from langchain_core.runnables import AddableDict, Runnable
from pydantic import BaseModel

from ragcache_integrations.answers import finish
from ragcache_integrations.answers.entries import AnswerCodec, Question, copy_answer
from ragcache_integrations.answers.finish import (
    ANSWER_KEYS,
    EMPTY,
    WORDS,
    attributes_of,
    forget_usage,
    gave_up,
    is_blank,
    unfinished,
)
from ragcache_integrations.answers.flow import plain_answer, same_text, says_same
from ragcache_integrations.core.saved_values import decode_value, encode_value
from ragcache_integrations.errors import ConfigurationError
from ragcache_integrations.retrievers.cached.langchain.retriever import (
    decode_document,
    encode_document,
)

__all__ = [
    "CODEC",
    "INPUT_KEYS",
    "WATCHED",
    "Pieces",
    "as_piece",
    "chosen_names",
    "is_conversation",
    "judge_outputs",
    "nameless",
    "names_in",
    "read_input",
    "renewed",
    "same_output",
    "why_ended_early",
    "why_no_message",
    "why_none",
]

WATCHED = ("langchain", "langgraph")
"""Beginnings of the names of modules whose objects a chain is made of."""
INPUT_KEYS = ("input", "question", "query")
"""Names under which the question of an input is looked for."""
_DEEPEST_MESSAGE = 16
_REMOVE_ALL = "__remove_all__"
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


def read_input(value: Any, key: str | None) -> tuple[str, dict[str, Any]]:
    """Return the question of an input, and its other values.

    Raises:
        ConfigurationError: There is no question.
    """
    if isinstance(value, str):
        return value, {}
    if isinstance(value, Mapping):
        names = INPUT_KEYS if key is None else (key,)
        for name in names:
            if isinstance(value.get(name), str):
                return value[name], {other: value[other] for other in value if other != name}
        msg = (
            f"the input must have the question as a string under {' or '.join(map(repr, names))}, "
            f"got a dict with {', '.join(map(repr, value)) or 'nothing'}; name it with input_key="
        )
    else:
        msg = f"the input must be a question or a dict with one, got {value!r:.100}"
    raise ConfigurationError(msg)


def is_conversation(value: object) -> bool:
    """Whether an input holds the turns before a question."""
    return isinstance(value, list) and bool(value) and isinstance(value[0], BaseMessage)


class Pieces:
    """Adds the pieces of a stream, where the sum is what ``invoke`` returns for sure.

    That is so for texts, messages and dicts of LangChain's with such values. A value that comes
    once is whole.
    """

    def __init__(self) -> None:
        self._whole: Any = None
        self._fails = False

    def add(self, piece: Any) -> None:
        """Take the next piece."""
        if self._fails:
            return
        try:
            piece = copy_answer(piece)  # the receiver may change it
            self._whole = piece if self._whole is None else _sum(self._whole, piece)
        except Exception:  # noqa: BLE001 - whatever a copy or a sum may raise
            self._fails = True

    @property
    def whole(self) -> Any:
        """The whole answer as ``invoke`` would return it; ``None`` where there is none."""
        if self._fails:
            return None
        if isinstance(self._whole, AddableDict):
            return {name: _unchunked(value) for name, value in self._whole.items()}
        return _unchunked(self._whole)


def _unchunked(value: Any) -> Any:
    """Return a message that came in pieces as ``invoke`` would return it."""
    return message_chunk_to_message(value) if isinstance(value, BaseMessageChunk) else value


def _sum(whole: Any, piece: Any) -> Any:
    """Add a piece of a stream to those before it.

    Raises:
        TypeError: They are no such pieces: one may be all of the answer so far.
    """
    if isinstance(whole, BaseMessageChunk) and isinstance(piece, BaseMessageChunk):
        return whole + piece
    if (
        isinstance(whole, str)
        and isinstance(piece, str)
        and not (whole and piece.startswith(whole))
    ):
        return whole + piece
    if isinstance(whole, AddableDict) and isinstance(piece, AddableDict):
        return AddableDict({**whole, **{name: _value(whole, piece, name) for name in piece}})
    raise TypeError(f"{piece!r:.100} may be all of the answer so far")


def _value(whole: dict[str, Any], piece: dict[str, Any], name: str) -> Any:
    """Return a value of a sum of dicts, as LangChain adds them."""
    before, value = whole.get(name), piece[name]
    if before is None or value is None:
        return before if value is None else value
    return _sum(before, value)


def as_piece(answer: Any) -> Any:
    """Return an answer as a stream's only piece."""
    if type(answer) is AIMessage:
        fields = {name: getattr(answer, name) for name in answer.model_fields_set - {"type"}}
        return AIMessageChunk(**fields)
    return answer


def text_of(answer_key: str | None, answer: Any) -> str | None:
    """Return the text of an answer; ``None`` where it has none."""
    if isinstance(answer, BaseMessage):
        return str(answer.text)
    if isinstance(answer, dict):
        names = ANSWER_KEYS if answer_key is None else (answer_key,)
        values = [answer[name] for name in names if name in answer]
        return text_of(None, values[0]) if values else None
    return answer if isinstance(answer, str) else None


def same_output(
    answer_key: str | None, answer: Any, other: Any, echoed: Collection[str | None] = ()
) -> bool:
    """Whether two answers say the same: their texts, or they themselves where they have none.

    Calls of tools and images of messages must be equal, too, and without ``answer_key`` all other
    texts and numbers of a dict.

    Args:
        answer_key: Name of the text of the answer, or ``None``.
        answer: An answer.
        other: Another one.
        echoed: Names of inputs, which a chain may return with its answer.
    """
    text, other_text = text_of(answer_key, answer), text_of(answer_key, other)
    if text is None or other_text is None:
        return bool(nameless(answer) == nameless(other))
    apart = _besides_text(answer_key, answer, echoed) == _besides_text(answer_key, other, echoed)
    return apart and same_text(text, other_text)


def _besides_text(answer_key: str | None, answer: Any, echoed: Collection[str | None]) -> Any:
    """Return what an answer says besides its text."""
    if isinstance(answer, BaseMessage):
        calls = [(call["name"], call["args"]) for call in getattr(answer, "tool_calls", ())]
        blocks = answer.content if isinstance(answer.content, list) else []
        return calls, [block for block in blocks if _block_type(block) not in WORDS["compared"]]
    if isinstance(answer, dict):
        messages = {
            name: _besides_text(None, value, ())
            for name, value in answer.items()
            if isinstance(value, BaseMessage) and answer_key in {None, name}
        }
        values = {
            name: plain_answer(value) if isinstance(value, str) else value
            for name, value in answer.items()
            if isinstance(value, str | int | float) and name not in {*INPUT_KEYS, *echoed}
        }
        return messages, values if answer_key is None else {}
    return None


def _block_type(block: Any) -> Any:
    return block.get("type") if isinstance(block, dict) else "text"


def judge_outputs(
    judge: Runnable[Any, Any],
    answer_key: str | None,
    question: Question,
    answer: Any,
    other_question: Question,
    other_answer: Any,
) -> bool:
    """Whether a judge finds that the answers to two questions say the same."""
    verdict = judge.invoke(
        {
            "question": question.whole,
            "answer": text_of(answer_key, answer) or answer,
            "other_question": other_question.whole,
            "other_answer": text_of(answer_key, other_answer) or other_answer,
        }
    )
    text = text_of(None, verdict)
    return says_same(verdict if text is None else text)


def why_none(
    answer: Any, answer_key: str | None = None, inputs: Collection[Any] = ()
) -> str | None:
    """Return why what a chain, a tool or a node returned is no answer; ``None``: it is one.

    Args:
        answer: What it returned.
        answer_key: Name of the answer in a dict, if it is known.
        inputs: Names of what it was given, which it may return, too.
    """
    for message in messages_in(answer):
        if isinstance(message, AIMessage | ToolMessage):
            reason = _why_ended(message)
        else:
            reason = unfinished(message) if isinstance(message, Mapping) else None
        if reason is not None:
            return reason
    return finish.why_none(answer, _why_no_object, answer_key, inputs)


def _why_no_object(value: Any) -> str | None:
    """Return why an object of LangChain's or LangGraph's is no answer, see :func:`why_none`."""
    if isinstance(value, list) and value and isinstance(value[-1], BaseMessage):
        value = value[-1]  # of a conversation, what was said last
    elif isinstance(value, list) and value and isinstance(value[-1], Mapping):
        said = value[-1].get("content")  # of a conversation of dicts
        return gave_up(said) if isinstance(said, str) else None
    if isinstance(value, BaseMessage):
        return why_no_message(value) or ""
    if isinstance(value, Document):
        return ""
    if type(value).__name__ == "Command":  # LangGraph need not be installed
        update = attributes_of(value).get("update")
        return "" if update is None else why_none(update) or ""
    return None


def why_no_message(message: BaseMessage) -> str | None:
    """Return why a message is no answer; ``None``: it is one."""
    if isinstance(message, RemoveMessage):
        return None
    calls = getattr(message, "tool_calls", None) or message.additional_kwargs.get("audio")
    reason = _why_ended(message) or gave_up(str(message.text))
    if reason is not None or calls or not is_blank(str(message.text)):
        return reason
    blocks = message.content if isinstance(message.content, list) else []
    kinds = {block.get("type") for block in blocks if isinstance(block, dict)}
    return None if kinds - set(WORDS["thoughts"]) else EMPTY


def why_ended_early(update: object) -> str | None:
    """Return why what a step of an agent returned makes the whole no answer; ``None``: it does not.

    It may be a text, a message, or an update of a graph's state, of which the last message counts:
    those before it may be of an earlier turn.
    """
    if type(update).__name__ == "Command":  # as above
        update = attributes_of(update).get("update")
    jumps = False
    if isinstance(update, Mapping):
        jumps = update.get("jump_to") == "end"
        update = next((update[name] for name in ("messages", "output") if name in update), None)
    said = update[-1] if isinstance(update, list) and update else update
    if not isinstance(said, BaseMessage):
        return gave_up(said) if isinstance(said, str) else None
    told = said.response_metadata or getattr(said, "usage_metadata", None)
    if jumps and isinstance(said, AIMessage) and not told:
        return "its middleware ended it with a message that no model wrote"
    return None if told else gave_up(str(said.text))


def _why_ended(message: BaseMessage) -> str | None:
    """Return why a message was not finished, by what its provider reports."""
    if getattr(message, "invalid_tool_calls", None):
        return "a tool call of it can't be read"
    if isinstance(message, ToolMessage) and message.status == "error":
        return "a tool failed"
    return unfinished([message.response_metadata, message.additional_kwargs])


_MESSAGES: dict[str, type[BaseMessage]] = {
    kind.__name__: kind for kind in (AIMessage, HumanMessage, SystemMessage, ToolMessage)
}
_MAPPINGS: dict[str, type[dict[str, Any]]] = {"dict": dict, "AddableDict": AddableDict}
_MOST_DEPTH = 32


def _encode(answer: Any, depth: int = _MOST_DEPTH) -> Any:
    """Return an answer as JSON can hold it: a list of what it is, and its parts.

    Raises:
        ConfigurationError: It holds something else than values, messages and documents.
    """
    kind = type(answer)
    name = kind.__name__
    if kind is Document:
        return ["Document", encode_document(answer)]
    if _MESSAGES.get(name) is kind:
        fields = {field: getattr(answer, field) for field in answer.model_fields_set}
        return [name, encode_value(fields, "a message")]
    if depth and _MAPPINGS.get(name) is kind and all(type(key) is str for key in answer):
        return [name, {key: _encode(value, depth - 1) for key, value in answer.items()}]
    if depth and kind is list:
        return ["list", [_encode(item, depth - 1) for item in answer]]
    return ["value", encode_value(answer, "an answer")]


def _decode(saved: Any, depth: int = _MOST_DEPTH) -> Any:
    """Return the answer that :func:`_encode` wrote.

    Raises:
        ValueError: It wrote no such thing.
    """
    match saved:
        case ["Document", dict(fields)]:
            return decode_document(fields)
        case ["value", value]:
            return decode_value(value)
        case ["list", list(items)] if depth:
            return [_decode(item, depth - 1) for item in items]
        case [str(name), dict(values)] if name in _MAPPINGS and depth:
            return _MAPPINGS[name](
                {key: _decode(value, depth - 1) for key, value in values.items()}
            )
        case [str(name), dict(fields)] if name in _MESSAGES:
            return _MESSAGES[name](**decode_value(fields))
    raise ValueError(f"a saved answer must be one that was written, got {saved!r:.100}")


CODEC: AnswerCodec[Any] = AnswerCodec("langchain", _encode, _decode)
"""Reads and writes texts, messages, documents, and dicts and lists of them and of plain values."""


# Messages within answers


def messages_in(value: Any) -> Iterator[BaseMessage | MutableMapping[str, Any]]:
    """Yield the messages that a value holds, at any depth, those that are dicts included."""
    return (part for part in _within(value, _DEEPEST_MESSAGE, set()) if _is_message(part))


def _within(value: Any, depth: int, seen: set[int]) -> Iterator[Any]:
    """Yield a value and the objects in it, at any depth, without looking inside messages."""
    if isinstance(value, str | bytes | int | float | Document | None) or id(value) in seen:
        return
    seen.add(id(value))
    yield value
    if depth and not _is_message(value):
        parts = value if isinstance(value, list | tuple) else attributes_of(value).values()
        for part in parts:
            yield from _within(part, depth - 1, seen)


def _is_message(value: Any) -> TypeGuard[BaseMessage | MutableMapping[str, Any]]:
    """Whether a value is a message, or a dict that LangGraph takes for one."""
    if not isinstance(value, dict) or "content" not in value:
        return isinstance(value, BaseMessage)
    kind = value.get("role") or value.get("type")
    return isinstance(kind, str) and kind in WORDS["message_kinds"]


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
    for part in _within(answer, _DEEPEST_MESSAGE, set()):
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


def _replace(value: Any, new: dict[str, str], depth: int = _DEEPEST_MESSAGE) -> None:
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
