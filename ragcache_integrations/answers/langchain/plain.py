"""Answers of LangChain's chains as plain data, and back."""

from __future__ import annotations

from typing import Any

from langchain_core.documents import Document
from langchain_core.messages import AIMessage, BaseMessage, HumanMessage, SystemMessage, ToolMessage
from langchain_core.runnables import AddableDict

from ragcache_integrations.answers.records import AnswerCodec
from ragcache_integrations.core.saved_values import decode_value, encode_value
from ragcache_integrations.retrievers.cached.langchain.documents import (
    decode_document,
    encode_document,
)

__all__ = ["CODEC"]

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
    msg = f"a saved answer must be one that was written, got {saved!r:.100}"
    raise ValueError(msg)


CODEC: AnswerCodec[Any] = AnswerCodec("langchain", _encode, _decode)
"""Reads and writes texts, messages, documents, and dicts and lists of them and of plain values."""
