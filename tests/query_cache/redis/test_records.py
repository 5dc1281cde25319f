"""Entries and changes come back as they were; nothing else comes back."""

from __future__ import annotations

import math
import struct
import zlib

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ragcache_integrations.query_cache.entries import Part
from ragcache_integrations.query_cache.redis.link import Breaker
from ragcache_integrations.query_cache.redis.records import (
    Record,
    decode_change,
    decode_record,
    embedding_bytes,
    encode_change,
    encode_record,
)

STAMP = b"1700000000000000"
FLOATS = st.floats(width=32, allow_nan=False, allow_infinity=False)
TEXTS = st.text(max_size=9)  # no halves of characters, which many a store cannot take
NOTHING = np.empty((0, 2), dtype=np.float32)
DOCUMENTS = st.tuples(TEXTS, TEXTS, st.none() | st.floats(allow_nan=False))


@given(
    key=st.lists(FLOATS, min_size=1, max_size=5),
    documents=st.lists(DOCUMENTS, min_size=1, max_size=5),
    complete=st.booleans(),
    version=st.integers(0, 2**64 - 1),
    radius=st.floats(allow_nan=False),
)
def test_entries(
    key: list[float],
    documents: list[tuple[str, str, float | None]],
    complete: bool,
    version: int,
    radius: float,
) -> None:
    vector = np.array(key, dtype=np.float32)
    complete = complete or radius == math.inf
    record = Record(vector, tuple(documents), complete, version, radius)
    value = STAMP + encode_record(record)
    decoded = decode_record(value, len(key))
    assert decoded is not None
    back, born = decoded
    assert born == int(STAMP)
    assert (back.documents, back.complete) == (record.documents, complete)
    assert (back.version, back.radius) == (version, radius)
    assert back.key.tobytes() == vector.tobytes() == embedding_bytes(value, len(key))
    assert decode_record(value, len(key) + 1) is None
    assert embedding_bytes(value[:-1], len(key)) is None
    assert decode_record(value + b" ", len(key)) is None


def resealed(value: bytes) -> bytes:
    """Return an entry with the checksum that it should have."""
    return value[:20] + struct.pack("<I", zlib.crc32(value[24:])) + value[24:]


def test_a_right_checksum_is_not_enough() -> None:
    def entry(key: float, radius: float) -> bytes:
        vector = np.array([key, 1], dtype=np.float32)
        return STAMP + encode_record(Record(vector, (("a", "b", None),), False, 0, radius))  # noqa: FBT003

    right = entry(1, 2)
    assert decode_record(right, 2) is not None
    assert decode_record(resealed(right), 2) is not None
    assert decode_record(entry(math.nan, 2), 2) is None
    assert decode_record(entry(math.inf, 2), 2) is None
    assert decode_record(entry(1, math.nan), 2) is None
    for wrong in (b'[["a","b",1e5,7]]', b'[["a"]]', b'[["a",5,null]]', b'[["a","b","c"]]', b"[]"):
        listed = wrong.ljust(len(b'[["a","b",null]]'))
        shorter = right[: -len(b'[["a","b",null]]')]
        header = bytearray(shorter + listed)
        header[28:32] = struct.pack("<I", len(listed))
        assert decode_record(resealed(bytes(header)), 2) is None, wrong


@given(
    removed=st.lists(TEXTS, max_size=4),
    added=st.lists(st.tuples(TEXTS, FLOATS, FLOATS), max_size=4),
)
def test_changes(removed: list[str], added: list[tuple[str, float, float]]) -> None:
    ids = [one for one, *_ in added]
    vectors = np.array([numbers for _, *numbers in added], dtype=np.float32).reshape(-1, 2)
    value = encode_change(removed, ids, vectors)
    decoded = decode_change(value, 2)
    assert decoded is not None
    assert decoded[:2] == (tuple(removed), tuple(ids))
    assert decoded[2].tobytes() == vectors.tobytes()
    assert decode_change(value, 3) is None
    assert decode_change(value[:-1], 2) is None
    for place in range(len(value)):
        flipped = bytearray(value)
        flipped[place] ^= 1
        assert decode_change(bytes(flipped), 2) is None


@given(
    marks=st.frozensets(TEXTS, max_size=4),
    ids=st.none() | st.frozensets(TEXTS, max_size=4),
    before=st.none() | st.integers(0, 1 << 52),
    near=st.none() | st.tuples(st.tuples(FLOATS, FLOATS), st.floats(0, allow_nan=False)),
)
def test_parts(
    marks: frozenset[str],
    ids: frozenset[str] | None,
    before: int | None,
    near: tuple[tuple[float, float], float] | None,
) -> None:
    center = None if near is None else (np.array(near[0], dtype=np.float32), near[1])
    value = encode_change([], [], NOTHING, Part(marks, ids, before, center))
    decoded = decode_change(value, 2)
    assert decoded is not None
    removed, added, vectors, part = decoded
    assert part is not None
    assert (removed, added, len(vectors)) == ((), (), 0)
    assert (part.marks, part.ids, part.before) == (marks, ids, before)
    kept = None if part.near is None else (tuple(part.near[0].tolist()), part.near[1])
    assert kept == near
    assert decode_change(value, 3) is None


@pytest.mark.parametrize(
    "listed",
    [
        *(b"[[],[],1,null,null]", b"[[],[],[],3,null]", b'[[],[],[],null,"a"]', b"[[],[],[]]"),
        *(b"[[]]", b"[[],[],[],null,null,1]", b"[[],[],[],null,null,null,1]"),
    ],
)
def test_parts_that_are_none(listed: bytes) -> None:
    assert decode_change(change_of(b"", listed), 2) is None


@pytest.mark.parametrize(
    ("numbers", "distance"),
    [
        *(([1, 2], b"-1"), ([1, 2], b"NaN"), ([1, 2], b'"a"'), ([1, 2], b"true")),
        *(([1, 2], b"null"), ([1], b"1"), ([1, 2, 3, 4], b"1"), ([1, np.inf], b"1")),
    ],
)
def test_parts_near_no_query(numbers: list[float], distance: bytes) -> None:
    listed = b"[[],[],[],null,null," + distance + b"]"
    assert decode_change(change_of(np.array(numbers, "<f4").tobytes(), listed), 2) is None


def change_of(vectors: bytes, listed: bytes) -> bytes:
    header = struct.Struct("<4sIII")
    mark, *_ = header.unpack_from(encode_change([], [], NOTHING, Part()))
    body = vectors + listed
    return header.pack(mark, zlib.crc32(body), 2, len(listed)) + body


class TestBreaker:
    def test_it_opens_and_tries_now_and_then(self) -> None:
        now = [0.0]
        breaker = Breaker(3, 10, clock=lambda: now[0])
        assert [breaker.fail() for _ in range(2)] == [False, False]
        assert breaker.allows()
        assert not breaker.succeed()  # it was not open
        assert [breaker.fail() for _ in range(4)] == [False, False, True, False]
        assert not breaker.allows()
        now[0] = 11
        assert breaker.allows()
        assert not breaker.allows()  # one at a time
        breaker.fail()
        now[0] = 20
        assert not breaker.allows()
        now[0] = 22
        assert breaker.allows()
        assert breaker.succeed()
        assert breaker.allows()

    @pytest.mark.parametrize("failures", [1, 5])
    def test_so_many_failures_open_it(self, failures: int) -> None:
        breaker = Breaker(failures, 100)
        for _ in range(failures):
            assert breaker.allows()
            breaker.fail()
        assert not breaker.allows()
