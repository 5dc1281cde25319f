"""One cached answer as bytes, for files and for Redis, and back.

A record is JSON: the question with all that its answer depends on, its embedding, and the answer as
plain data, which the framework's adapter makes of it. How old it is, and how far it may be served,
is kept elsewhere. Nothing in a record is executed, and a record has a bound before it is parsed.
"""

from __future__ import annotations

import base64
import json
import math
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import Any, Generic, TypeGuard, TypeVar

import numpy as np

from ragcache_integrations.core.archive import MALFORMED
from ragcache_integrations.errors import ConfigurationError
from ragcache_integrations.query_cache.files import decode_key, encode_key

from .entries import Question, Vector, unit_vector

__all__ = ["LARGEST_RECORD", "AnswerCodec", "Record", "decode_record", "encode_record"]

A = TypeVar("A")

LARGEST_RECORD = 1 << 20
"""Bytes of a record."""
_LARGEST_DIFFERENCE = 1e-3
"""Of a saved embedding's length from 1."""


@dataclass(frozen=True, slots=True)
class AnswerCodec(Generic[A]):
    """Turns answers into plain data, and back.

    Attributes:
        kind: Names what kind of answers these are, such as the framework's.
        encode: Returns what JSON can hold; a ``ConfigurationError`` where it can't.
        decode: Returns the answer of that, and runs nothing that it names.
    """

    kind: str
    encode: Callable[[A], Any]
    decode: Callable[[Any], A]


@dataclass(frozen=True, slots=True)
class Record(Generic[A]):
    """What a record holds.

    Attributes:
        question: What the answer was given to; its version is not kept.
        embedding: The question's, of unit length; ``None`` where only the same words count.
        answer: The answer.
    """

    question: Question
    embedding: Vector | None
    answer: A


def encode_record(record: Record[A], codec: AnswerCodec[A]) -> bytes:
    """Return a record as bytes.

    Raises:
        ConfigurationError: It would not come back as it is, or takes more than
            :data:`LARGEST_RECORD`.
    """
    question, embedding = record.question, record.embedding
    saved = {
        "text": question.text,
        "context": question.context,
        "form": question.form,
        "scope": encode_key(question.scope),
        "documents": encode_key(question.documents),
        "embedding": None if embedding is None else _as_text(embedding),
        "answer": codec.encode(record.answer),
    }
    try:
        content = json.dumps(saved).encode("ascii")
        same = _is_same(codec.decode(json.loads(content)["answer"]), record.answer)
    except Exception as error:
        raise ConfigurationError(f"an answer can't be saved: {error!r:.300}") from error
    if not same:
        kind = type(record.answer).__name__  # what it says is nobody else's business
        msg = f"an answer can't be saved, as it would not come back as it is: it is a {kind}"
        raise ConfigurationError(msg)
    if len(content) > LARGEST_RECORD:
        msg = f"an answer can't be saved, as it takes more than {LARGEST_RECORD} bytes"
        raise ConfigurationError(msg)
    return content


def decode_record(content: bytes, codec: AnswerCodec[A]) -> Record[A]:
    """Return the record that :func:`encode_record` wrote.

    Raises:
        ValueError: It wrote no such thing.
    """
    if len(content) > LARGEST_RECORD:
        msg = f"a saved answer must have at most {LARGEST_RECORD} bytes, got {len(content)}"
        raise ValueError(msg)
    try:
        saved = json.loads(content)
        question = _question(saved)
        embedding = None if saved["embedding"] is None else _as_embedding(saved["embedding"])
        answer = codec.decode(saved["answer"])
    except MALFORMED as error:
        raise ValueError(f"a saved answer is malformed: {error!r:.300}") from error
    return Record(question, embedding, answer)


def _question(saved: Any) -> Question:
    text, context, form = saved["text"], saved["context"], saved["form"]
    scope, documents = decode_key(saved["scope"]), decode_key(saved["documents"])
    if not all(isinstance(part, str) for part in (text, context, form)):
        raise TypeError("a question, its context and its form must be texts")
    if not (isinstance(scope, tuple) and scope and isinstance(scope[0], str)):
        raise TypeError("a scope must be a tuple that begins with the namespace")
    if not (isinstance(documents, frozenset) and all(map(_is_document, documents))):
        raise TypeError("documents must be a set of pairs of an id and its content")
    return Question(text, documents, scope, context, form=form)


def _is_document(value: Hashable) -> TypeGuard[tuple[str, Hashable]]:
    return isinstance(value, tuple) and len(value) == 2 and isinstance(value[0], str)  # noqa: PLR2004 - a pair


def _as_text(embedding: Vector) -> str:
    return base64.b64encode(embedding.astype("<f4").tobytes()).decode()


def _as_embedding(text: Any) -> Vector:
    vector = np.frombuffer(base64.b64decode(text, validate=True), "<f4").astype(np.float32)
    length = float(np.linalg.norm(vector.astype(np.float64)))
    if not math.isclose(length, 1, abs_tol=_LARGEST_DIFFERENCE):
        raise ValueError(f"a question's embedding must have length 1, got {length}")
    unit = unit_vector(vector)
    assert unit is not None  # noqa: S101 - its length is about 1
    return unit


def _is_same(answer: object, other: object) -> bool:
    return type(answer) is type(other) and bool(answer == other)
