"""Inputs of chains, and their answers: whole, in pieces, and compared."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from langchain_core.messages import (
    AIMessage,
    AIMessageChunk,
    BaseMessage,
    BaseMessageChunk,
    message_chunk_to_message,
)
from langchain_core.runnables import AddableDict, Runnable

from ragcache_integrations.answers.copies import copy_answer
from ragcache_integrations.answers.entries import Question
from ragcache_integrations.answers.flow import plain_answer, same_text, says_same
from ragcache_integrations.errors import ConfigurationError

__all__ = [
    "Pieces",
    "as_piece",
    "is_conversation",
    "judge_outputs",
    "read_input",
    "same_output",
    "text_of",
]

_INPUT_KEYS = ("input", "question", "query")
_THOUGHTS = frozenset({"text", "thinking", "reasoning", "tool_use", "tool_call", "function_call"})
"""Types of blocks that say nothing besides a message's text and its calls of tools."""


def read_input(value: Any, key: str | None) -> tuple[str, dict[str, Any]]:
    """Return the question of an input, and its other values.

    Raises:
        ConfigurationError: There is no question.
    """
    if isinstance(value, str):
        return value, {}
    if isinstance(value, Mapping):
        names = _INPUT_KEYS if key is None else (key,)
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
    """Adds the pieces of a stream."""

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
        if isinstance(self._whole, dict):
            return {name: _unchunked(value) for name, value in self._whole.items()}
        return _unchunked(self._whole)


def _unchunked(value: Any) -> Any:
    """Return a message that came in pieces as ``invoke`` would return it."""
    return message_chunk_to_message(value) if isinstance(value, BaseMessageChunk) else value


def _sum(whole: Any, piece: Any) -> Any:
    """Add a piece of a stream to those before it.

    Raises:
        TypeError: They are no such pieces.
        ValueError: It may be all of the answer so far, as LangChain's parsers of JSON return it.
    """
    if isinstance(whole, AddableDict):
        return AddableDict({**whole, **{name: _value(whole, piece, name) for name in piece}})
    if isinstance(whole, int | float) or (
        isinstance(whole, str | list) and whole and piece[: len(whole)] == whole
    ):
        msg = f"{piece!r:.100} may be the whole answer so far"
        raise ValueError(msg)
    return whole + piece


def _value(whole: dict[str, Any], piece: dict[str, Any], name: str) -> Any:
    """Return a value of a sum of dicts, as LangChain adds them."""
    before, value = whole.get(name), piece[name]
    if before is None or value is None:
        return before if value is None else value
    try:
        return _sum(before, value)
    except TypeError:  # no value that comes in pieces
        return value


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
        names = ("answer", "output", "result", "text") if answer_key is None else (answer_key,)
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
        return bool(answer == other)
    apart = _besides_text(answer_key, answer, echoed) == _besides_text(answer_key, other, echoed)
    return apart and same_text(text, other_text)


def _besides_text(answer_key: str | None, answer: Any, echoed: Collection[str | None]) -> Any:
    """Return what an answer says besides its text."""
    if isinstance(answer, BaseMessage):
        calls = [(call["name"], call["args"]) for call in getattr(answer, "tool_calls", ())]
        blocks = answer.content if isinstance(answer.content, list) else []
        return calls, [block for block in blocks if _block_type(block) not in _THOUGHTS]
    if isinstance(answer, dict):
        messages = {
            name: _besides_text(None, value, ())
            for name, value in answer.items()
            if isinstance(value, BaseMessage) and answer_key in {None, name}
        }
        values = {
            name: plain_answer(value) if isinstance(value, str) else value
            for name, value in answer.items()
            if isinstance(value, str | int | float) and name not in {*_INPUT_KEYS, *echoed}
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
