"""Renders a part of a prompt so that equal values give equal bytes.

A KV cache is looked up by its exact tokens: if one key of a JSON object moves, or one blank between
two parts changes, everything after it is computed again.
"""

from __future__ import annotations

import datetime as dt
import json
import math
import string
import uuid
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pydantic import BaseModel

from ragcache_integrations.core.checks import check_type
from ragcache_integrations.core.prompt import (
    LiteralText,
    MarkedText,
    Part,
    Prompt,
    PromptDocument,
    part_text,
)
from ragcache_integrations.core.texts import join_neighbours
from ragcache_integrations.errors import ConfigurationError

__all__ = [
    "DOCUMENT_SEPARATOR",
    "TextTemplate",
    "Variable",
    "completion_text",
    "merge_texts",
    "stable_json",
    "template_fields",
    "value_text",
]

DOCUMENT_SEPARATOR = "\n\n"
MESSAGE_SEPARATOR = "\n\n"

_MOMENTS = (dt.datetime, dt.time, uuid.UUID)


def stable_json(value: object) -> str:
    """Write a value as JSON with sorted keys, the same for equal values.

    Args:
        value: Mappings, lists, tuples, pydantic models, strings, numbers, booleans, ``None``.

    Raises:
        ConfigurationError: It holds other objects, such as a set, which has no order, or a NaN.
    """
    return json.dumps(_plain(value), sort_keys=True, ensure_ascii=False, allow_nan=False)


def value_text(value: object) -> str:
    """Write the value of a variable: text as it is, collections as :func:`stable_json`.

    Raises:
        ConfigurationError: It is a set, or an object whose text would contain its memory address.
    """
    if isinstance(value, str):
        return value
    if isinstance(value, Mapping | list | tuple | set | frozenset | BaseModel):
        return stable_json(value)
    kind = type(value)
    if kind.__str__ is object.__str__ and kind.__repr__ is object.__repr__:
        msg = f"a {kind.__name__} cannot be written as text: pass a string, or define __str__"
        raise ConfigurationError(msg)
    return str(value)


def _plain(value: object) -> Any:
    if isinstance(value, float) and not math.isfinite(value):
        raise ConfigurationError(f"JSON has no {value}: pass a finite number or None")
    if value is None or isinstance(value, str | bool | int | float):
        return value
    if isinstance(value, BaseModel):
        return _plain(value.model_dump(mode="json"))
    if isinstance(value, Mapping):
        for key in value:
            if not isinstance(key, str):
                msg = f"keys must be strings, so that they can be sorted, got {key!r}"
                raise ConfigurationError(msg)
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    if isinstance(value, set | frozenset):
        raise ConfigurationError("a set has no order, so its text would change: pass a sorted list")
    msg = f"cannot write a {type(value).__name__} as JSON: pass strings, numbers, lists, mappings"
    raise ConfigurationError(msg)


@dataclass(frozen=True, slots=True)
class Variable:
    """A place in a template that is filled for each request."""

    name: str


class TextTemplate:
    r"""Text with ``{variables}``, in Python's format syntax; ``{{`` and ``}}`` are braces.

    White space at its ends is removed and line ends become ``\n``, so that the same template gives
    the same bytes, no matter which editor it was written in.

    Args:
        text: The template. Variables are names: no attributes, indices, conversions or formats.

    Raises:
        ConfigurationError: ``text`` is no string, or a replacement field is no plain name.
    """

    def __init__(self, text: str) -> None:
        check_type("a template", text, str, "a string")
        self.text = text.replace("\r\n", "\n").replace("\r", "\n").strip()
        self.pieces = _parse(self.text)

    @property
    def variables(self) -> tuple[str, ...]:
        """Names in the order in which they first occur."""
        names = (piece.name for piece in self.pieces if isinstance(piece, Variable))
        return tuple(dict.fromkeys(names))

    def render(self, values: Mapping[str, object], *, fixed: bool = False) -> tuple[Part, ...]:
        """Fill the variables in.

        Args:
            values: By name; superfluous ones are ignored. Documents lose the white space at their
                ends, and have a blank line between them; empty ones are left out.
            fixed: Whether the text has to be the same in every request.

        Returns:
            Text and documents, without white space at the ends; no text is empty.

        Raises:
            ConfigurationError: A value is missing, has no stable text, or the text is ``fixed``
                and the value a time or a random id.
        """
        filled: list[Part] = []
        for piece in self.pieces:
            if isinstance(piece, str):
                filled.append(piece)
                continue
            if piece.name not in values:
                msg = f"no value for the variable {piece.name!r}, only for {sorted(values)}"
                raise ConfigurationError(msg)
            value = values[piece.name]
            if fixed and isinstance(value, _MOMENTS):
                raise ConfigurationError(
                    f"{piece.name!r} is a {type(value).__name__}, which is new in every request, "
                    "in a part that must not change: put it into the query, or declare the part "
                    'as changes="request"'
                )
            documents = _as_documents(value)
            filled += [value_text(value)] if documents is None else _join_documents(documents)
        return _strip_ends(merge_texts(filled))


def _parse(text: str) -> tuple[str | Variable, ...]:
    pieces: list[str | Variable] = []
    for literal, name, spec, conversion in template_fields(text):
        if literal:
            pieces.append(literal)
        if name is None:
            continue
        if not name.isidentifier() or spec or conversion:
            msg = f"a variable must be a plain name such as {{question}}, got {{{name}}}"
            raise ConfigurationError(msg)
        pieces.append(Variable(name))
    return tuple(pieces)


def template_fields(text: str) -> list[tuple[str, str | None, str | None, str | None]]:
    """Cut a template in Python's format syntax.

    Returns:
        Texts, each with the name, the format and the conversion of the field after it.

    Raises:
        ConfigurationError: Its braces don't match.
    """
    try:
        return list(string.Formatter().parse(text))
    except ValueError as error:
        msg = f"a template's braces do not match ({error}): write {{{{ and }}}} for braces"
        raise ConfigurationError(msg) from error


def _as_documents(value: object) -> Sequence[PromptDocument] | None:
    if isinstance(value, PromptDocument):
        return (value,)
    if isinstance(value, list | tuple) and any(isinstance(item, PromptDocument) for item in value):
        for item in value:
            check_type("documents", item, PromptDocument, "documents or strings")
        return value
    return None


def _join_documents(documents: Sequence[PromptDocument]) -> list[Part]:
    pieces: list[Part] = []
    for document in documents:
        text = document.text.strip()
        if not text:
            continue
        pieces += [DOCUMENT_SEPARATOR] if pieces else []
        pieces.append(document if text == document.text else PromptDocument(text, document.id))
    return pieces


def merge_texts(pieces: Iterable[Part]) -> list[Part]:
    """Join neighbouring texts, except literal ones; leave out empty ones."""
    return join_neighbours(
        filter(None, pieces), _is_plain, lambda texts: "".join(map(part_text, texts))
    )


def completion_text(prompt: Prompt) -> MarkedText:
    """A conversation as text for a model that reads no messages; literal texts stay literal."""
    pieces: list[Part] = []
    for message in prompt.messages:
        pieces += [MESSAGE_SEPARATOR] if pieces else []
        for part in message.parts:
            pieces += part.parts if isinstance(part, MarkedText) else (part,)
    return MarkedText(merge_texts(pieces))


def _is_plain(piece: Part) -> bool:
    return isinstance(piece, str) and not isinstance(piece, LiteralText)


def _strip_ends(pieces: list[Part]) -> tuple[Part, ...]:
    if pieces and isinstance(pieces[0], str):
        pieces[0] = pieces[0].lstrip()
    if pieces and isinstance(pieces[-1], str):
        pieces[-1] = pieces[-1].rstrip()
    return tuple(piece for piece in pieces if piece)
