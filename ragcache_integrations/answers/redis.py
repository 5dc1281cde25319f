"""Answers that processes share in Redis.

Redis keeps the answers of a key, which is the hash of all that must be equal for an answer to be
shared: namespace, other inputs, documents, what the guard reads, and the ``tag``, which names what
no process can see of another. A lookup fetches the answers of its key, and the cache in this
process decides which may be served, as it does without Redis. What is fetched is not trusted: it
has bounds, and counts only if it is a record whose own question has the key that was asked for.

Each script that runs inside Redis is atomic, and its keys lie in one slot.

``KEYS[1]`` is a hash for each shard: ``r``, the server's ``run_id``; ``g``, a generation; and for
each namespace that was forgotten ``n`` and its hash, a value that was new then. What was put in
under other values is not there. So nothing comes back that was forgotten: neither after a restart,
nor where a replica takes over.

``KEYS[2]`` is a hash for each key of answers: ``g``, those values together; for each question ``e``
and its id hold the time of its insertion (16 digits, microseconds) and its record, ``t`` and its id
the time of its last use, ``c`` and its id the farthest distance at which it may be served.

``ARGV[1]`` is a new generation, in case there is none, and ``ARGV[2]`` the hash of the namespace.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
from dataclasses import replace
from functools import partial
from typing import Any, Generic, TypeVar

from ragcache_integrations.answers.core import AnswerCore
from ragcache_integrations.answers.entries import (
    AnswerCodec,
    CachedAnswer,
    Group,
    Question,
    Record,
    Vector,
    decode_record,
    encode_record,
    unit_vector,
    words_of,
)
from ragcache_integrations.core.forks import make_lock, renew_after_fork
from ragcache_integrations.core.memo import Memo
from ragcache_integrations.errors import ConfigurationError
from ragcache_integrations.query_cache.files import encode_key
from ragcache_integrations.query_cache.redis import (
    EVICT_OLDEST,
    Call,
    Channel,
    RedisServer,
    Script,
    UnreachableError,
    check_reply,
)

__all__ = ["SharedAnswers"]

A = TypeVar("A")

_COMMON = """
local function begin()
  local run = run_id()
  if not run then error('INFO has no run_id') end
  redis.call('DEL', KEYS[1])
  redis.call('HSET', KEYS[1], 'r', run, 'g', ARGV[1])
  redis.call('PEXPIRE', KEYS[1], WEEK)
  return ARGV[1] .. ':'
end

local function epoch()
  local run = run_id()
  local kept = redis.pcall('HMGET', KEYS[1], 'r', 'g', 'n' .. ARGV[2])
  if not run or kept.err or kept[1] ~= run or not kept[2] then return begin() end
  if #kept[2] > NAME or #(kept[3] or '') > NAME then return begin() end
  redis.call('PEXPIRE', KEYS[1], WEEK)
  return kept[2] .. ':' .. (kept[3] or '')
end
"""
_NUMBERS = {"WEEK": 7 * 24 * 3600 * 1000, "NAME": 64, "NAMESPACES": 1000}  # milliseconds, bytes


def _script(body: str) -> Script:
    return Script.of(_COMMON + body, _NUMBERS)


# ARGV: the question's id, whether all answers of the key are wanted where there is none of this id,
#   microseconds to live (0: for ever), how many fields and bytes there may be, beyond which the key
#   is deleted unread.
# Returns the time; for each answer its id, its time and record, and its cap; how many had ended,
#   and how many values were foreign; the values under which answers are put in now.
LOOK_UP = _script("""
local g, time = epoch(), now()
local bucket, id, lasts = KEYS[2], ARGV[3], tonumber(ARGV[5])
local ended, foreign = 0, 0

local function refuse()
  redis.call('UNLINK', bucket)
  return {time, {}, 0, 1, g}
end

local function drop(one)
  redis.call('HDEL', bucket, 'e' .. one, 't' .. one, 'c' .. one)
end

local function lives(one, value)
  local stamp = tonumber(string.sub(value, 1, 16))
  if not stamp or stamp ~= stamp then
    foreign = foreign + 1
  elseif lasts > 0 and time - stamp > lasts then
    ended = ended + 1
  else
    return true
  end
  drop(one)
  return false
end

local its = redis.pcall('HGET', bucket, 'g')
if not its then
  if redis.call('EXISTS', bucket) == 1 then return refuse() end
  return {time, {}, 0, 0, g}
end
if type(its) == 'table' then return refuse() end
if its ~= g then
  redis.call('UNLINK', bucket)
  return {time, {}, 0, 0, g}
end
if redis.call('HLEN', bucket) > tonumber(ARGV[6]) then return refuse() end
local size = redis.call('HSTRLEN', bucket, 'e' .. id) + redis.call('HSTRLEN', bucket, 'c' .. id)
if size > tonumber(ARGV[7]) then return refuse() end
local same = redis.call('HGET', bucket, 'e' .. id)
if same and lives(id, same) then
  local cap = redis.call('HGET', bucket, 'c' .. id) or ''
  redis.pcall('HSET', bucket, 't' .. id, string.format('%016.0f', time))  -- if there is room
  redis.call('PEXPIRE', bucket, WEEK)
  return {time, {id, same, cap}, ended, foreign, g}
end
if ARGV[4] ~= '1' then return {time, {}, ended, foreign, g} end
local fields, caps, found = redis.call('HGETALL', bucket), {}, {}
size = 0
for _, field in ipairs(fields) do size = size + #field end
if size > tonumber(ARGV[7]) then return refuse() end
for i = 1, #fields, 2 do
  if string.sub(fields[i], 1, 1) == 'c' then caps[string.sub(fields[i], 2)] = fields[i + 1] end
end
for i = 1, #fields, 2 do
  local one = string.sub(fields[i], 2)
  if string.sub(fields[i], 1, 1) == 'e' and lives(one, fields[i + 1]) then
    found[#found + 1] = one
    found[#found + 1] = fields[i + 1]
    found[#found + 1] = caps[one] or ''
  end
end
if #found > 0 then redis.call('PEXPIRE', bucket, WEEK) end
return {time, found, ended, foreign, g}
""")

# ARGV: the question's id, the record, how many answers a key may have, and the values of when the
#   question was looked up: what was forgotten since is not put in.
# Returns how many had to go, those of the least recent use; -1: it is not put in.
INSERT = _script(
    EVICT_OLDEST
    + """
local g, time = epoch(), string.format('%016.0f', now())
local bucket, id = KEYS[2], ARGV[3]
if g ~= ARGV[6] then return -1 end
redis.call('HSET', KEYS[1], 'g', string.match(g, '^[^:]*'))  -- which a full Redis refuses
if redis.pcall('HGET', bucket, 'g') ~= g then
  redis.call('UNLINK', bucket)
  redis.call('HSET', bucket, 'g', g)
end
redis.call('HSET', bucket, 'e' .. id, time .. ARGV[4], 't' .. id, time)
-- The answer before it may have been wrong. A cap that cannot be read allows the same words only.
local cap = redis.call('HGET', bucket, 'c' .. id)
if cap and not (#cap <= NAME and string.match(cap, '^[%d.e+-]+$') and (tonumber(cap) or -1) >= 0)
then
  redis.call('HSET', bucket, 'c' .. id, '0')
end
local over = evict_oldest(bucket, id, tonumber(ARGV[5]))
redis.call('PEXPIRE', bucket, WEEK)
return over
"""
)

# ARGV: the question's id, a distance. However often it runs, the smallest one remains.
LOWER = _script("""
local g = epoch()
local bucket, id = KEYS[2], ARGV[3]
if redis.pcall('HGET', bucket, 'g') ~= g then return 0 end
if redis.call('HEXISTS', bucket, 'e' .. id) == 0 then return 0 end
local cap = tonumber(redis.call('HGET', bucket, 'c' .. id) or '')
if cap and cap <= tonumber(ARGV[4]) then return 0 end
redis.call('HSET', bucket, 'c' .. id, ARGV[4])
return 1
""")

# Forgets the answers of a namespace.
FORGET = _script("""
epoch()
if redis.call('HLEN', KEYS[1]) > NAMESPACES then begin() return 1 end
redis.call('HSET', KEYS[1], 'n' .. ARGV[2], ARGV[1])
return 1
""")

CLEAR = _script("begin() return 1")

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
_STAMP = 16  # digits
_LONGEST_CAP = 32  # characters
_ID = 16  # bytes


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
            raise ConfigurationError(
                "tag must name the chain, its prompt and its models, the same in all processes "
                f"that share answers and another one in all others, got {knobs.tag!r}"
            )
        self._core = core
        self._codec = codec
        self._lasts = 0 if knobs.ttl is None else max(int(knobs.ttl * 1e6), 1)
        self._most = min(knobs.capacity, _MOST_ANSWERS)
        self._shards = server.number_of_shards
        self._own = _token()
        agreed = (_FORMAT, codec.kind, knobs.tag, self._shards)
        self._begin = f"{server.prefix}:{{answers:{_hash(json.dumps(agreed))}"
        # No method of this object: it is to go, and close its connections, without the collector.
        clearing = partial(_clearing, self._begin)
        self._channel = Channel(
            server, clearing, "answer cache", "questions are answered without it"
        )
        self._lock = make_lock()
        self._lowered: Memo[tuple[str, bytes], float] = Memo(_MOST_LOWERED)
        renew_after_fork(self)

    def _after_fork(self) -> None:
        self._own = _token()  # the settings of each child may change in another way

    def counts(self) -> dict[str, int]:
        """Return what was counted: ``failed``, ``skipped``, ``lost``, ``corrupt``, ``owed``."""
        return self._channel.counts()

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
            self._channel.count(**{error.counted_as: 1})
            return None
        try:
            return self._take(question, place, reply)
        except (ArithmeticError, LookupError, TypeError, ValueError):
            self._channel.note_corrupt(1)
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
            check_reply((reply,), ())
        except (UnreachableError, ValueError):
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
        calls = [_clearing(self._begin, shard) for shard in range(self._shards)]
        if namespace is not None:
            forgotten = _hash(namespace)
            calls = [
                replace(call, script=FORGET, arguments=[_token(), forgotten]) for call in calls
            ]
        self._channel.send(calls)

    def close(self) -> None:
        """Close the connections, which are opened again when needed, and try to clear no more."""
        self._channel.close()

    def _call(self, script: Script, question: Question, place: str, *arguments: Any) -> Any:
        shard = int(place[:8], 16) % self._shards
        keys = [_state(self._begin, shard), f"{self._begin}:{shard}}}:{place}"]
        arguments = (_token(), _hash(str(question.scope[0])), *arguments)
        (reply,) = self._channel.send([Call(shard, script, keys, list(arguments))])
        return reply

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
        check_reply((now, ended, foreign), (moment, *found))
        if len(found) > 3 * _MOST_FIELDS:
            raise ValueError("there must be no more answers than are kept")
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
        self._channel.note_corrupt(foreign)
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
            raise ValueError("an answer must begin with its time")
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
            raise ValueError("an answer must be one of its key")
        return replace(record, question=own), max(age, 0.0), farthest

    def _lose(self) -> bool:
        self._channel.count(lost=1)
        return False


def _state(begin: str, shard: int) -> str:
    """Return the name of a shard's own key."""
    return f"{begin}:{shard}}}:state"


def _clearing(begin: str, shard: int) -> Call:
    """Return the call that clears a shard."""
    return Call(shard, CLEAR, [_state(begin, shard)], [_token()], patient=True)


def _id_of(question: Question) -> bytes:
    """Return what names a question's words."""
    words = words_of(question).encode("utf-8", "surrogatepass")
    return hashlib.blake2b(words, digest_size=_ID).digest()


def _hash(text: str) -> str:
    return hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=16).hexdigest()


def _token() -> str:
    """Return a text that there has not been."""
    return os.urandom(12).hex()
