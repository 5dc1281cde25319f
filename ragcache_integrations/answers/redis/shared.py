"""Answers that processes share in Redis.

Redis keeps the answers of a key, which is the hash of all that must be equal for an answer to be
shared: namespace, other inputs, documents, what the guard reads, and the ``tag``, which names what
no process can see of another. A lookup fetches the answers of its key, and the cache in this
process decides which may be served, as it does without Redis. What is fetched is not trusted: it
has bounds, and counts only if it is a record whose own question has the key that was asked for.
"""

from __future__ import annotations

import hashlib
import json
import logging
import math
import os
from collections import Counter
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Generic, TypeVar

from ragcache_integrations.answers.core import AnswerCore
from ragcache_integrations.answers.entries import (
    CachedAnswer,
    Group,
    Question,
    Vector,
    unit_vector,
    words_of,
)
from ragcache_integrations.answers.records import (
    AnswerCodec,
    Record,
    decode_record,
    encode_record,
)
from ragcache_integrations.core.forks import make_lock, renew_after_fork
from ragcache_integrations.core.memo import Memo
from ragcache_integrations.errors import ConfigurationError
from ragcache_integrations.query_cache.files import encode_key
from ragcache_integrations.query_cache.redis import (
    Debts,
    Link,
    RedisServer,
    Script,
    UnreachableError,
)

from .scripts import CLEAR, FORGET, INSERT, LOOK_UP, LOWER

__all__ = ["SharedAnswers"]

logger = logging.getLogger(__name__)

A = TypeVar("A")

_FORMAT = 3
"""Raised with every change that an older version would misread."""
_MOST_ANSWERS = 64
"""Of a key."""
_LARGEST_RECORD = 1 << 17
"""Bytes of an answer."""
_LARGEST_KEY = 1 << 24
"""Bytes of a key's answers, a quarter of what one operation may read."""
_MOST_FIELDS = 3 * _MOST_ANSWERS + 1 + 64
_MOST_LOWERED = 1000
"""Caps that a process remembers itself."""
_LARGEST_NUMBER = 1 << 53
_STAMP = 16  # digits
_LONGEST_CAP = 32  # characters
_ID = 16  # bytes


@dataclass(frozen=True, slots=True)
class _Call:
    """A call of a script, see :class:`~ragcache_integrations.query_cache.redis.Link`."""

    script: Script
    keys: tuple[str, ...]
    arguments: tuple[str | bytes | int, ...]

    @property
    def counted_arguments(self) -> list[str | bytes | int]:
        """Number of the keys, the keys and the arguments, as Redis reads them."""
        return [len(self.keys), *self.keys, *self.arguments]


class SharedAnswers(Generic[A]):
    """Fetches answers from Redis, and puts them there. Thread-safe.

    Where Redis is slow or gone, fetching says so after the server's ``timeout``, and nothing is
    raised.

    Args:
        server: Where Redis is.
        core: The cache of this process, which decides.
        codec: Turns answers into plain data.

    Raises:
        ConfigurationError: There is no ``tag``.
        MissingExtraError: redis-py is not installed.
    """

    def __init__(self, server: RedisServer, core: AnswerCore[A], codec: AnswerCodec[A]) -> None:
        knobs = core.knobs
        if not knobs.tag:
            msg = (
                "tag must name the chain, its prompt and its models, the same in all processes "
                f"that share answers and another one in all others, got {knobs.tag!r}"
            )
            raise ConfigurationError(msg)
        self._core = core
        self._codec = codec
        self._lasts = 0 if knobs.ttl is None else max(int(knobs.ttl * 1e6), 1)
        self._most = min(knobs.capacity, _MOST_ANSWERS)
        self._shards = server.number_of_shards
        self._own = _token()
        agreed = (_FORMAT, codec.kind, knobs.tag, self._shards)
        self._begin = f"{server.prefix}:{{answers:{_hash(json.dumps(agreed))}"
        self._link = Link(server, "answer cache", "questions are answered without it")
        # No method of this object: it is to go, and close its connections, without the collector.
        self._debts = Debts(self._link, partial(_clearing, self._begin))
        self._lock = make_lock()
        self._counts: Counter[str] = Counter()
        self._lowered: Memo[tuple[str, bytes], float] = Memo(_MOST_LOWERED)
        self._warned = False
        renew_after_fork(self)

    def _after_fork(self) -> None:
        self._own = _token()  # the settings of each child may change in another way

    def counts(self) -> dict[str, int]:
        """Return what was counted: ``failed``, ``skipped``, ``lost``, ``corrupt``, ``owed``."""
        with self._lock:
            names = ("failed", "skipped", "lost", "corrupt")
            return {name: self._counts[name] for name in names} | {"owed": len(self._debts)}

    def fetch(self, question: Question, *, near: bool) -> Group[A] | None:
        """Fetch the answers that a question may be served; one round trip.

        Args:
            question: The question.
            near: Whether answers to other words are wanted if there is none to the same ones.

        Returns:
            The answers; ``None``: Redis did not say what there is.
        """
        place = self._place(question)
        if place is None:
            return None
        limits = (self._lasts, _MOST_FIELDS, _LARGEST_KEY)
        try:
            reply = self._call(LOOK_UP, question, place, _id_of(question), int(near), *limits)
        except UnreachableError as error:
            self._count("failed" if error.called else "skipped")
            return None
        try:
            return self._take(question, place, reply)
        except (ArithmeticError, LookupError, TypeError, ValueError):
            self._note_corrupt(1)
            return None

    def insert(
        self, question: Question, embedding: Vector | None, answer: A, moment: bytes | None
    ) -> bool:
        """Put an answer into Redis, in the place of an earlier one to the same words.

        Args:
            question: What it was given to.
            embedding: The question's, of shape ``(dim,)``, or ``None``.
            answer: The answer.
            moment: That of the group that was fetched before the question was answered: if the
                group has been forgotten since, the answer is not put in. ``None`` where there was
                none, so that nobody knows.

        Returns:
            Whether it is there, as far as is known.

        Raises:
            ConfigurationError: It can't be there: plain data can't hold it, or it is too large.
        """
        unit = None if embedding is None else unit_vector(embedding)
        content = encode_record(Record(question, unit, answer), self._codec)
        place = self._place(question)
        if place is None:
            msg = "what a question depends on would mean nothing in another process"
            raise ConfigurationError(msg)
        if len(content) > _LARGEST_RECORD:
            msg = f"an answer can't be shared, as it takes more than {_LARGEST_RECORD} bytes"
            raise ConfigurationError(msg)
        if moment is None:
            return self._lose()
        name = _id_of(question)
        try:
            reply = self._call(INSERT, question, place, name, content, self._most, moment)
        except UnreachableError:
            return self._lose()
        if type(reply) is not int or not 0 <= reply < _LARGEST_NUMBER:
            return self._lose()
        self._core.count("insertions")
        self._core.count("evictions", reply)
        return True

    def lower(self, entry: CachedAnswer[A]) -> None:
        """Lower for all processes how far an answer may be served, after it was wrong."""
        question = entry.question
        place, name = self._place(question), _id_of(question)
        if place is None:
            return
        with self._lock:  # this process knows it even if Redis does not hear of it
            self._lowered[place, name] = min(entry.cap, self._lowered.get((place, name), math.inf))
        try:
            self._call(LOWER, question, place, name, repr(float(entry.cap)))
        except UnreachableError:
            self._lose()

    def clear(self, namespace: str | None = None) -> None:
        """Have all processes forget all answers, or those of a namespace.

        Where Redis can't be reached, this process gets no answers from it before a thread has
        cleared it.
        """
        shards = range(self._shards)
        owed = set(shards)
        budget = self._link.budget(patient=True)
        try:
            for shard in shards:
                call = _clearing(self._begin, shard)
                if namespace is not None:
                    call = replace(call, script=FORGET, arguments=(_token(), _hash(namespace)))
                self._link.call(call, budget)
                owed.discard(shard)
        except UnreachableError:
            pass  # the others would have to wait as long
        finally:
            self._debts.add(owed)

    def close(self) -> None:
        """Close the connections, which are opened again when needed, and try to clear no more."""
        self._debts.close()
        self._link.close()

    def _call(self, script: Script, question: Question, place: str, *arguments: Any) -> Any:
        shard = int(place[:8], 16) % self._shards
        if shard in self._debts:
            self._debts.add(())  # should nobody be trying, as after close()
            raise UnreachableError(called=False)
        keys = (_state(self._begin, shard), f"{self._begin}:{shard}}}:{place}")
        begin = (_token(), _hash(str(question.scope[0])))
        return self._link.call(_Call(script, keys, (*begin, *arguments)), self._link.budget())

    def _place(self, question: Question) -> str | None:
        """Return the hash of a question's key; ``None``: it means nothing in another process."""
        parts = replace(question, version=0)
        # The tag names the settings of the beginning; a process whose settings changed is alone.
        own = (self._own, question.version) if question.version else ()
        try:
            encoded = encode_key((self._core.key_of(parts), own))
        except ConfigurationError:
            return None
        return _hash(json.dumps(encoded, sort_keys=True))

    def _take(self, question: Question, place: str, reply: Any) -> Group[A]:
        """Return the answers that a reply holds.

        Raises:
            TypeError, ValueError: It is no answer of our script.
        """
        now, found, ended, foreign, moment = reply
        for number in (now, ended, foreign):
            if type(number) is not int or not 0 <= number < _LARGEST_NUMBER:
                msg = "numbers must be those of a server's script"
                raise ValueError(msg)
        texts = (moment, *found)
        if not all(type(text) is bytes for text in texts) or len(found) > 3 * _MOST_FIELDS:
            msg = "an answer must have an id, a record and a cap"
            raise TypeError(msg)
        answers = []
        for name, value, cap in zip(found[::3], found[1::3], found[2::3], strict=True):
            try:
                record, age, farthest = self._read(question, now, name, value, cap)
            except ValueError:
                foreign += 1
            else:
                with self._lock:
                    lowered = self._lowered.get((place, name), math.inf)
                answers.append((record, age, min(farthest, lowered)))
        self._note_corrupt(foreign)
        self._core.count("expired", ended)
        return self._core.group(question, answers, moment)

    def _read(
        self, question: Question, now: int, name: bytes, value: bytes, cap: bytes
    ) -> tuple[Record[A], float, float]:
        """Return an answer, its age in seconds and its cap.

        Raises:
            ValueError: It is none, or none of this question's key.
        """
        stamp, content = value[:_STAMP], value[_STAMP:]
        if not (len(stamp) == _STAMP and stamp.isdigit()) or len(cap) > _LONGEST_CAP:
            msg = "an answer must begin with its time"
            raise ValueError(msg)
        farthest = float(cap) if cap else math.inf
        age = (now - int(stamp)) / 1e6
        if math.isnan(farthest) or farthest < 0 or len(content) > _LARGEST_RECORD:
            msg = f"an answer must have a cap from 0, and at most {_LARGEST_RECORD} bytes"
            raise ValueError(msg)
        if age < 0 and self._lasts:
            age = math.inf  # the server's clock went back, and nobody knows how old it is
        record = decode_record(content, self._codec)
        own = replace(record.question, version=question.version)
        if self._core.key_of(own) != self._core.key_of(question) or _id_of(own) != name:
            msg = "an answer must be one of its key"
            raise ValueError(msg)
        return replace(record, question=own), max(age, 0.0), farthest

    def _lose(self) -> bool:
        self._count("lost")
        return False

    def _count(self, what: str, by: int = 1) -> None:
        with self._lock:
            self._counts[what] += by

    def _note_corrupt(self, count: int) -> None:
        """Count values that are no answers; log the first."""
        if not count:
            return
        self._count("corrupt", count)
        level = logging.DEBUG if self._warned else logging.WARNING
        self._warned = True
        logger.log(
            level,
            "The shared answer cache at %s holds or answers what no process of this version wrote. "
            "It is not used: these are misses, counted as corrupt",
            self._link.server.where,
        )


def _state(begin: str, shard: int) -> str:
    """Return the name of a shard's own key."""
    return f"{begin}:{shard}}}:state"


def _clearing(begin: str, shard: int) -> _Call:
    """Return the call that clears a shard."""
    return _Call(CLEAR, (_state(begin, shard),), (_token(),))


def _id_of(question: Question) -> bytes:
    """Return what names a question's words."""
    words = words_of(question).encode("utf-8", "surrogatepass")
    return hashlib.blake2b(words, digest_size=_ID).digest()


def _hash(text: str) -> str:
    return hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=16).hexdigest()


def _token() -> str:
    """Return a text that there has not been."""
    return os.urandom(12).hex()
