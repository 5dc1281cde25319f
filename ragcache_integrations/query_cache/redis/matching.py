"""Finds what answers a query among the entries of a few buckets that came from Redis.

The nearest entry, and the next ones where a proof needs them, become a small table like the one
of a cache in memory; the same code then decides and answers. Documents' vectors are read from the
store as it is now, and so are the documents: one that is gone is left out, and one that has
changed makes the entry invalid.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from operator import itemgetter
from types import ModuleType
from typing import Any, Generic, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from ragcache_integrations.query_cache.certificates import are_unit, known_radius
from ragcache_integrations.query_cache.entries import (
    ChangeLog,
    DocumentKey,
    DocumentVectors,
    Entry,
    EntryTable,
    NewEntry,
    document_keys,
    serving,
)
from ragcache_integrations.query_cache.lookup import Decisions, Look, Match, apart
from ragcache_integrations.query_cache.settings import Settings
from ragcache_integrations.query_cache.types import Candidate, Hit, Wording

from .records import (
    Record,
    decode_record,
    embedding_bytes,
)

__all__ = ["DocumentSource", "Fetched", "Known", "Matching", "Outcome"]

T = TypeVar("T")
Vectors = NDArray[np.float32]

_TOGETHER = 10  # entries that a proof may need, as in a cache in memory
_PARTITION = 0
_PREPARED = False  # a query of unit length already, where it has to be
_NOT_INNER = False  # nothing is proven under inner product
_MICROSECOND = 1000  # nanoseconds


class DocumentSource(Protocol[T]):
    """Reads documents from the store, as it holds them now."""

    def __call__(
        self, documents: Sequence[tuple[str, float | None]], /
    ) -> Sequence[Candidate[T] | None]:
        """Read some documents.

        Args:
            documents: Their ids, each once, with the score that the store gave when it found them.

        Returns:
            One for each: as it would come from a search, with id and fingerprint, or ``None``
            where the store has no such document any more.
        """


@dataclass(frozen=True, slots=True)
class Known:
    """What was known of a shard at one moment.

    Attributes:
        generation: Its name; empty where nothing is known.
        changes: Of this generation. Never changed: a newer log takes its place.
    """

    generation: bytes
    changes: ChangeLog


@dataclass(frozen=True, slots=True)
class Fetched:
    """An entry as it came from Redis, unchecked.

    Attributes:
        shard: Number of its shard.
        bucket: Name of its bucket.
        id: The entry's id in its bucket.
        value: The entry's bytes.
        known: What is known of the shard's changes.
        marks: Those of its cache key, where parts are forgotten.
    """

    shard: int
    bucket: str
    id: bytes
    value: bytes
    known: Known
    marks: frozenset[str] = frozenset()


@dataclass
class Outcome(Generic[T]):
    """The outcome of a query.

    Attributes:
        hit: The answer, if there is one.
        matched: The entry that it comes from, or that would have answered.
        distance: From the query to that entry's key.
        tolerance: Up to which distance that entry answers.
        bound: What is proven of that entry's answer.
        fresh: Whether no document newer than that entry belongs in its answer.
        reason: Why it is a hit or a miss, in words.
        served: How many of the entries examined serve at least k documents.
        corrupt: Values that are no entries.
        ended: Entries older than ``ttl``.
        outdated: Entries that changes of the store made worthless.
    """

    hit: Hit[T] | None = None
    matched: Fetched | None = None
    distance: float | None = None
    tolerance: float | None = None
    bound: float | None = None
    fresh: bool = True
    reason: str = ""
    served: int = 0
    corrupt: list[Fetched] = field(default_factory=list)
    ended: list[Fetched] = field(default_factory=list)
    outdated: list[Fetched] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class _Read(Generic[T]):
    """An entry with its documents, as far as it is worth something."""

    fetched: Fetched
    distance: float
    new: NewEntry[T]
    serves: int


class Matching(Generic[T]):
    """Decides what entries answer.

    Args:
        settings: The arguments of the cache, checked.
        kernels: The module of compiled or plain loops.
        documents: Reads documents; ``None``: answers have ids alone.

    Attributes:
        vectors: Reads the documents' vectors, and prepares queries.
        decisions: Decides whether an entry's answer is served.
    """

    def __init__(
        self, settings: Settings, kernels: ModuleType, documents: DocumentSource[T] | None
    ) -> None:
        # The table of what is near.
        self._settings = replace(settings, index="flat", capacity=_TOGETHER)
        self._kernels = kernels
        self._documents = documents
        self.decisions = Decisions[T](self._settings, kernels)
        self.vectors = DocumentVectors(self._settings, kernels)

    def find(
        self,
        query: Vectors,
        k: int,
        fetched: Sequence[Fetched],
        now: int,
        wording: Wording | None = None,
        *,
        far: bool = False,
    ) -> Outcome[T]:
        """Find what answers a query.

        Args:
            query: As it came, shape (dim,).
            k: How many documents are requested.
            fetched: Entries of one cache key.
            now: The server's time, in microseconds.
            wording: The query's words; entries whose words it does not accept are left out.
            far: Look at the nearest entry however far it is, and count those that serve.

        Raises:
            Exception: Any error of the store while documents or vectors are read.
        """
        outcome: Outcome[T] = Outcome()
        tolerance, required = self.decisions.tolerance, self._settings.required_bound
        reach = math.inf if far or required is not None else tolerance
        table: EntryTable[T] = EntryTable(self._settings, self._kernels, 0.0)
        entries = self._entries(table, query, k, fetched, now, reach, outcome)
        if wording is not None and required != 1.0:
            entries = self._accepted(entries, wording, outcome if far else None, k)
        serves = (read for read in entries if read.serves >= k)
        first = next(serves, None)
        if first is None or (first.distance > tolerance and not far):
            return outcome
        outcome.matched, outcome.distance = first.fetched, first.distance
        now_ns = now * _MICROSECOND
        slot = table.add(first.new)
        look, match = Look(table, query, k, now_ns), Match(slot, first.new.entry, first.distance)
        outcome.tolerance = self.decisions.limit_of(match.entry)
        outcome.hit, outcome.fresh, _ = self.decisions.decide(look, match)
        near = first.distance <= tolerance
        if outcome.hit is None and required is not None and near and self._settings.unit:
            for read in islice(entries, _TOGETHER - 1):
                table.add(read.new)
            outcome.hit, outcome.fresh, _ = self.decisions.decide(look, match)
        if far:
            plain = self.decisions.answer_from(look, match)
            outcome.bound = plain.recall_bound if outcome.hit is None else outcome.hit.recall_bound
            for _ in entries:  # which counts them
                pass
            outcome.reason = self.decisions.reason(
                outcome.hit, plain.recall_bound, outcome.fresh, match
            )
        return outcome

    def _accepted(
        self, entries: Iterable[_Read[T]], wording: Wording, outcome: Outcome[T] | None, k: int
    ) -> Iterator[_Read[T]]:
        """Yield the entries whose words a query accepts; say of the nearest other one why not."""
        for read in entries:
            entry = read.new.entry
            if wording.accepts(entry.text):
                yield read
            elif outcome is not None and outcome.distance is None and read.serves >= k:
                outcome.distance, outcome.tolerance = read.distance, self.decisions.limit_of(entry)
                outcome.reason = apart(read.distance, outcome.tolerance, wording, entry.text)

    def count(self, query: Vectors, k: int, fetched: Sequence[Fetched], now: int) -> int:
        """Return how many entries would answer a query, were they the nearest.

        Args:
            query: As for :meth:`find`.
            k: As for :meth:`find`.
            fetched: As for :meth:`find`.
            now: As for :meth:`find`.

        Raises:
            Exception: Any error of the store while documents or vectors are read.
        """
        table: EntryTable[T] = EntryTable(self._settings, self._kernels, 0.0)
        reach = self.decisions.tolerance
        entries = self._entries(table, query, k, fetched, now, reach, Outcome())
        return sum(
            read.serves >= k and read.distance <= self.decisions.limit_of(read.new.entry)
            for read in entries
        )

    def radius(self, key: Vectors, candidates: Sequence[Candidate[T]], *, complete: bool) -> float:
        """Return within which of a new entry's key every document is known.

        Args:
            key: Prepared, shape (dim,).
            candidates: The results of an exact search, best first.
            complete: Whether the store had no more documents.

        Raises:
            Exception: Any error of ``vectors`` other than a ``LookupError``.
        """
        if not self._settings.proves:
            return -math.inf
        names = [document_id for document_id, _ in dict.fromkeys(document_keys(candidates))]
        vectors = self.vectors.read(names, among=names)
        distances = None
        if vectors is not None:
            rows = np.arange(len(names), dtype=np.int64)
            _, distances = self._kernels.rank(key, _PREPARED, vectors, rows, _NOT_INNER)
        return known_radius(distances, key, self._settings.metric, 0.0, complete=complete)

    def _entries(
        self,
        table: EntryTable[T],
        query: Vectors,
        k: int,
        fetched: Sequence[Fetched],
        now: int,
        reach: float,
        outcome: Outcome[T],
    ) -> Iterator[_Read[T]]:
        """Yield the entries within reach that are worth something, nearest first."""
        settings, lifetime = self._settings, self._settings.lifetime
        for entry, distance in self._near(query, fetched, reach, outcome):
            decoded = decode_record(entry.value, settings.dim)
            # Nobody can have known of changes that have not been made.
            if decoded is None or decoded[0].version > entry.known.changes.version:
                outcome.corrupt.append(entry)
                continue
            record, born = decoded
            if settings.unit and not are_unit(record.key).all():
                outcome.corrupt.append(entry)
                continue
            if lifetime is not None and born * _MICROSECOND + lifetime <= now * _MICROSECOND:
                outcome.ended.append(entry)
                continue
            read = self._read(table, entry, distance, record, min(born, now) * _MICROSECOND)
            if read is None:
                outcome.outdated.append(entry)
            else:
                outcome.served += read.serves >= k
                yield read

    def _near(
        self, query: Vectors, fetched: Sequence[Fetched], reach: float, outcome: Outcome[T]
    ) -> list[tuple[Fetched, float]]:
        """Return the entries within reach with their distances, nearest first, then newest."""
        dim = self._settings.dim
        found = [(entry, embedding_bytes(entry.value, dim)) for entry in fetched]
        outcome.corrupt += [entry for entry, key in found if key is None]
        whole = [(entry, key) for entry, key in found if key is not None]
        keys = np.frombuffer(b"".join(key for _, key in whole), dtype="<f4").reshape(-1, dim)
        _, prepared = self._kernels.prepare(query, self._settings.metric == "cosine")
        with np.errstate(invalid="ignore"):  # a foreign key may be anything
            distances = np.linalg.norm(keys.astype(np.float64) - prepared, axis=1)
        near = [
            (distance, -int(entry.value[:16]), entry)
            for distance, (entry, _) in zip(distances.tolist(), whole, strict=True)
            if distance <= reach
        ]
        return [(entry, distance) for distance, _, entry in sorted(near, key=itemgetter(0, 1))]

    def _read(
        self, table: EntryTable[T], fetched: Fetched, distance: float, record: Record, born: int
    ) -> _Read[T] | None:
        """Return an entry, updated to the store's current state; ``None`` where it is outdated."""
        changes = fetched.known.changes.since(record.version)
        if changes is None:
            return None
        ids, moment = [document[0] for document in record.documents], born // _MICROSECOND
        if any(
            change.forgotten is not None
            and change.forgotten.holds(fetched.marks, ids, moment, record.key)
            for change in changes
        ):
            return None
        gone = {name for change in changes for name in change.removed}
        left = [document for document in record.documents if document[0] not in gone]
        loaded = self._load(left)
        if loaded is None:
            return None
        candidates, vectors = loaded
        if record.documents and not candidates:
            return None
        readable = None
        if vectors is not None:
            documents = document_keys(candidates)
            table.pool.acquire(tuple(dict.fromkeys(documents)), vectors)
            readable = table.rank(record.key, documents)
        entry = Entry(_PARTITION, candidates, readable, record.complete, born, 0, text=record.text)
        caught_up = fetched.known.changes.catch_up(
            entry, record.key, record.version, self._settings.metric
        )
        if caught_up is None:
            return None
        entry, newest = caught_up
        radius = -math.inf if readable is None else min(record.radius, newest)
        new = NewEntry(record.key, entry, radius, newest)
        return _Read(fetched, distance, new, serving(entry, newest))

    def _load(
        self, documents: Sequence[tuple[str, str, float | None]]
    ) -> tuple[tuple[Candidate[T], ...], Vectors | None] | None:
        """Read an entry's documents and their vectors.

        Vectors first: a document that changes meanwhile is found to be another one.

        Returns:
            What is left of the documents, and the vectors of each of these once, where they can be
            read; ``None`` where one is another document by now.
        """
        names = list(dict.fromkeys(document[:2] for document in documents))
        ids = [document_id for document_id, _ in names]
        vectors = self.vectors.read(ids, among=ids, quiet=True)
        loaded: dict[DocumentKey, Candidate[T]] = {}
        if self._documents is None:
            nothing: Any = None  # which is what T is then
            for document_id, mark, score in documents:
                loaded[document_id, mark] = Candidate(document_id, nothing, mark, score)
        else:
            scores = {(document_id, mark): score for document_id, mark, score in documents}
            read = self._documents([(name[0], scores[name]) for name in names])
            for name, candidate in zip(names, read, strict=True):
                if candidate is not None:
                    if (candidate.id, candidate.fingerprint) != name:
                        return None
                    loaded[name] = candidate
        if len(loaded) < len(names):
            return self._load([document for document in documents if document[:2] in loaded])
        if vectors is None and self._settings.vectors is not None:
            vectors = self.vectors.read(ids, among=ids)  # which says why not
        return tuple(loaded[document_id, mark] for document_id, mark, _ in documents), vectors
