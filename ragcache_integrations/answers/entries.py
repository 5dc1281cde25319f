"""Questions, answers that may be served again, those of one key, and answers as bytes.

A record is an answer as bytes, for files and for Redis. It is JSON: the question with all that its
answer depends on, its embedding, and the answer as plain data, which the framework's adapter makes
of it. How old it is, and how far it may be served, is kept elsewhere. Nothing in a record is
executed, and a record has a bound before it is parsed.
"""

from __future__ import annotations

import base64
import json
import math
from collections.abc import Callable, Hashable, Iterable, Mapping
from copy import deepcopy
from dataclasses import dataclass
from typing import Any, Generic, TypeGuard, TypeVar

import numpy as np
from numpy.typing import NDArray

from ragcache_integrations.core.archive import MALFORMED
from ragcache_integrations.core.texts import content_id
from ragcache_integrations.errors import ConfigurationError
from ragcache_integrations.query_cache.files import decode_key, encode_key
from ragcache_integrations.retrievers.keys import freeze_arguments, in_context, normalize_text
from ragcache_integrations.retrievers.retrieval import QUERY_CACHE_METADATA

__all__ = [
    "LARGEST_RECORD",
    "AnswerCodec",
    "CachedAnswer",
    "Group",
    "Question",
    "Record",
    "Vector",
    "copy_answer",
    "decode_record",
    "document_identity",
    "encode_record",
    "nearest",
    "unit_vector",
    "words_of",
]


A = TypeVar("A")


def copy_answer(answer: A) -> A:
    """Copy an answer so that no change of the copy, however deep, changes it.

    Raises:
        Exception: It can't be copied.
    """
    return answer if isinstance(answer, str) else deepcopy(answer)


Vector = NDArray[np.floating[Any]]

Documents = frozenset[tuple[str, Hashable]]
"""Documents by id, with what changes when their content does."""


@dataclass(frozen=True, slots=True)
class Question:
    """A question, with all that its answer depends on.

    Attributes:
        text: Its words.
        documents: What it is answered from.
        scope: Tenant, other inputs: plain data, in this order.
        context: The turns of the conversation before it, compared as its words are.
        form: What says whose turns these are; in another form, the same words are near ones.
        version: Which of the settings that this process had gives the answer: a number that says
            nothing to other processes.
    """

    text: str
    documents: Documents
    scope: tuple[Hashable, ...] = ("",)
    context: str = ""
    version: int = 0
    form: str = ""

    @property
    def whole(self) -> str:
        """Its words with the turns before it, as they are embedded."""
        return in_context(self.text, self.context)


@dataclass(eq=False, slots=True)
class CachedAnswer(Generic[A]):
    """An answer that may be served again.

    Attributes:
        question: What it was given to.
        answer: The answer.
        embedding: The question's, of unit length; ``None`` where only the same words count.
        since: When it was put in, by the cache's clock, in seconds.
        cap: The farthest distance at which it may be served.
        key: Where it is kept.
    """

    question: Question
    answer: A
    embedding: Vector | None
    since: float
    key: Hashable
    cap: float = math.inf


_LEAST = 1e-4
"""Distance of other words with the same embedding, as of texts that a model can't distinguish: they
are near, and not the same."""


class Group(Generic[A]):
    """The entries of a key, and their embeddings as rows of one array.

    Args:
        moment: See :attr:`moment`.

    Attributes:
        entries: By their normalised words, the oldest first.
        moment: Where they are kept elsewhere: what changes there when they are forgotten.
    """

    _SLACK = 1e-4
    """Differences of products that rounding may make."""

    def __init__(self, moment: bytes = b"") -> None:
        self.moment = moment
        self.entries: dict[str, CachedAnswer[A]] = {}
        self._embedded: list[CachedAnswer[A]] = []
        self._rows: dict[CachedAnswer[A], int] = {}
        self._keys: Vector = np.zeros((0, 0))

    def add(self, words: str, entry: CachedAnswer[A]) -> None:
        """Add an entry. Embeddings of another size than the others' are near to nothing."""
        self.entries[words] = entry
        unit, row = entry.embedding, len(self._embedded)
        if unit is None or (row and unit.size != self._keys.shape[1]):
            return
        if not row:
            self._keys = np.zeros((4, unit.size), unit.dtype)
        elif row == len(self._keys):
            self._keys = np.concatenate([self._keys, np.zeros_like(self._keys)])
        self._keys[row] = unit
        self._embedded.append(entry)
        self._rows[entry] = row

    def remove(self, words: str) -> CachedAnswer[A] | None:
        """Remove an entry, and return it; ``None`` where there is none."""
        entry = self.entries.pop(words, None)
        row = None if entry is None else self._rows.pop(entry, None)
        if row is not None:
            last = self._embedded.pop()
            if last is not entry:
                self._keys[row] = self._keys[len(self._embedded)]
                self._embedded[row] = last
                self._rows[last] = row
        return entry

    _MOST_ASKED = 16
    """Of the nearest entries, how many are asked about."""

    def nearest(
        self, unit: Vector | None, may_answer: Callable[[CachedAnswer[A]], bool] | None = None
    ) -> tuple[CachedAnswer[A], float] | None:
        """Return the entry whose question is nearest, and its distance.

        Args:
            unit: The question's embedding, of unit length.
            may_answer: Whether an entry may answer it; ``None``: any entry.
        """
        keys = self._keys[: len(self._embedded)]
        if unit is None or not len(keys) or unit.size != keys.shape[1]:
            return None
        # The products say which are near, and the differences how near.
        products = keys @ unit
        least = products.max() - self._SLACK
        rows = np.flatnonzero(products >= least).tolist()
        if may_answer is not None:
            rows = [row for row in rows[: self._MOST_ASKED] if may_answer(self._embedded[row])]
            if not rows:
                rows = self._next_nearest(products, least, may_answer)
        return nearest([self._embedded[row] for row in rows], unit)

    def _next_nearest(
        self, products: Vector, below: float, may_answer: Callable[[CachedAnswer[A]], bool]
    ) -> list[int]:
        farther = np.flatnonzero(products < below)
        for row in farther[np.argsort(-products[farther])][: self._MOST_ASKED].tolist():
            if may_answer(self._embedded[row]):
                return [row]
        return []


def words_of(question: Question) -> str:
    """Return the words that make two questions the same; no question's are those of its turns."""
    words, context = normalize_text(question.text), normalize_text(question.context)
    return f"{len(words)} {words} {question.form} {context}"


def unit_vector(embedding: Vector) -> Vector | None:
    """Return an embedding at unit length; ``None`` where it has no direction: 0, NaN, infinity."""
    length = float(np.linalg.norm(np.asarray(embedding, np.float64)))
    return embedding / length if 0 < length < math.inf else None


def nearest(
    entries: Iterable[CachedAnswer[A]], unit: Vector | None
) -> tuple[CachedAnswer[A], float] | None:
    """Return the entry whose question is nearest, and its distance."""
    if unit is None:
        return None
    embedded = [
        (entry, entry.embedding)
        for entry in entries
        if entry.embedding is not None and entry.embedding.shape == unit.shape
    ]
    if not embedded:
        return None
    distances = np.linalg.norm(np.stack([key for _, key in embedded]) - unit, axis=1)
    place = int(distances.argmin())
    return embedded[place][0], max(_LEAST, float(distances[place]))


_VOLATILE = {
    *(QUERY_CACHE_METADATA, "score", "_score", "relevance_score", "similarity", "similarity_score"),
    *("distance", "_distance", "_relevance_distance", "rank", "rerank_score", "query_similarity"),
}
"""Names under which stores and re-rankers note how near a document is to the question."""


def document_identity(
    name: str | None,
    text: str,
    metadata: Mapping[str, Any],
    more: Mapping[str, Any] | None = None,
) -> tuple[str, Hashable] | None:
    """Return a document's id, and what changes when its text or metadata does.

    Args:
        name: Its id; ``None`` where it has none.
        text: Its text.
        metadata: Its metadata, as a prompt may hold it.
        more: What else a model may be shown of it, such as an image.

    Returns:
        ``None`` where the metadata hold what can't be compared.
    """
    text_id = content_id(text)
    held: dict[str, Any] = {key: metadata[key] for key in metadata if key not in _VOLATILE}
    if more:
        held = {"metadata": held, "more": more}
    frozen = freeze_arguments(held)
    return None if frozen.opaque else (name or text_id, (text_id, frozen.key))


# Records

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
    encoded = None
    if embedding is not None:
        encoded = base64.b64encode(embedding.astype("<f4").tobytes()).decode()
    saved = {
        "text": question.text,
        "context": question.context,
        "form": question.form,
        "scope": encode_key(question.scope),
        "documents": encode_key(question.documents),
        "embedding": encoded,
        "answer": codec.encode(record.answer),
    }
    try:
        content = json.dumps(saved).encode("ascii")
        again = codec.decode(json.loads(content)["answer"])
        same = type(again) is type(record.answer) and bool(again == record.answer)
    except Exception as error:
        raise ConfigurationError(f"an answer can't be saved: {error!r:.300}") from error
    if not same:
        kind = type(record.answer).__name__  # not its text, which is private
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


def _as_embedding(text: Any) -> Vector:
    vector = np.frombuffer(base64.b64decode(text, validate=True), "<f4").astype(np.float32)
    length = float(np.linalg.norm(vector.astype(np.float64)))
    if not math.isclose(length, 1, abs_tol=_LARGEST_DIFFERENCE):
        raise ValueError(f"a question's embedding must have length 1, got {length}")
    unit = unit_vector(vector)
    assert unit is not None  # noqa: S101 - its length is about 1
    return unit
