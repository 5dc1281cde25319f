"""The loops over keys and documents in NumPy, where numba is missing. See :mod:`.compiled`."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .layout import EXPIRES, PARTITION, SEQUENCE, SERVES

__all__ = [
    "answer",
    "bucket",
    "exceeds",
    "nearest",
    "nearest_batch",
    "nearest_unlocked",
    "neighbours",
    "pack",
    "prepare",
    "rank",
    "signs",
]

Vectors = NDArray[np.float32]
Packed = tuple[Any, ...]

# Rows whose differences are held at once; bounds the memory of a lookup that no shortlist helps.
_BLOCK = 4096
_UNIT, _META = 0, 6  # places in a packed table


def prepare(query: Vectors, unit: bool) -> tuple[float, Vectors]:
    """Return the query's squared length and the query as it is compared; nothing to use if 0."""
    wide = query.astype(np.float64)
    square = float(wide @ wide)
    if not unit or not 0.0 < square < math.inf:
        return square, query
    return square, (wide * (1.0 / math.sqrt(square))).astype(np.float32)


def signs(query: Vectors, planes: Vectors) -> Vectors:
    """Return the query's products with the hyperplanes, shape (L,)."""
    with np.errstate(over="ignore", invalid="ignore"):
        return np.asarray(planes @ query)


def bucket(query: Vectors, planes: Vectors) -> int:
    """Return the number of a query's bucket: the sides of the hyperplanes that it is on."""
    return int((signs(query, planes) >= 0) @ (1 << np.arange(len(planes), dtype=np.int64)))


def _slots(query: Vectors, packed: Packed) -> NDArray[np.intp]:
    """Return the slots to scan."""
    _, planes, table, per_bucket, _, _, meta, multi_probe, *_ = packed
    if not len(planes):
        return np.arange(len(meta))
    products = signs(query, planes)
    code = bucket(query, planes)
    flips = np.argsort(np.abs(products), kind="stable")[:multi_probe]
    rows = [table[code], *(table[code ^ (1 << int(bit))] for bit in flips)]
    ranges = [np.arange(row * per_bucket, (row + 1) * per_bucket) for row in rows if row >= 0]
    return np.concatenate(ranges) if ranges else np.empty(0, np.intp)


def pack(*arguments: Any) -> Packed:
    """Return what the kernels have to know of a table.

    Args:
        *arguments: Whether keys are of unit length; the hyperplanes, shape (L, dim), none where all
            keys are in one bucket; by hash of a bucket, its number, -1 where it has no keys, shape
            (2**L,); slots of a bucket; the keys' first dimensions, shape (slots, head), and their
            other dimensions; bookkeeping by slot, see :mod:`.layout`; how many neighbouring buckets
            are searched, too. What is needed to rank an entry's documents follows.
    """
    return arguments


def neighbours(
    query: Vectors, packed: Packed, partition: int, k: int, now: int, limit: float, count: int
) -> tuple[NDArray[np.intp], NDArray[np.float64]]:
    """Find several of the nearest keys: their slots, and squared distances, nearest first.

    Args:
        query: Shape (dim,), as it came.
        packed: From :func:`pack`.
        partition: Only keys of this cache key count.
        k: Only keys whose entries serve this many count.
        now: Only keys that end later count, in nanoseconds of the cache's clock.
        limit: The largest distance that counts.
        count: The most keys returned.
    """
    unit, _, _, _, heads, tails, meta, *_ = packed
    _, prepared = prepare(query, unit)
    slots = _slots(prepared, packed)
    rows = meta[slots]
    slots = slots[
        (rows[:, PARTITION] == partition) & (rows[:, SERVES] >= k) & (rows[:, EXPIRES] > now)
    ]
    slots = _shortlist(prepared, heads, tails, slots, limit, count)
    squares = np.empty(slots.size)
    for begin in range(0, slots.size, _BLOCK):
        block = slots[begin : begin + _BLOCK]
        squares[begin : begin + _BLOCK] = _squares(prepared, heads, tails, block)
    within = np.sqrt(squares) <= limit
    slots, squares = slots[within], squares[within]
    order = np.lexsort((-meta[slots, SEQUENCE], squares))[:count]
    return slots[order], squares[order]


def nearest(
    query: Vectors, packed: Packed, partition: int, k: int, now: int, limit: float
) -> tuple[float, int, int, float]:
    """Find the nearest key within a distance. The arguments are those of :func:`neighbours`.

    Returns:
        Squared length of the query, slot (-1 for none), its sequence number, squared distance.
    """
    length, _ = prepare(query, packed[_UNIT])
    if not 0.0 < length < math.inf:
        return length, -1, -1, 0.0
    slots, squares = neighbours(query, packed, partition, k, now, limit, 1)
    if not slots.size:
        return length, -1, -1, 0.0
    sequence = int(packed[_META][slots[0], SEQUENCE])
    return length, int(slots[0]), sequence, float(squares[0])


nearest_unlocked = nearest


def answer(query: Vectors, *arguments: Any) -> tuple[float, int, int, float, int]:
    """Rank nothing: without compiled loops a separate call of :func:`rank` costs no more."""
    return *nearest(query, *arguments[:-1]), -1


def rank(
    query: Vectors, unit: bool, documents: Vectors, rows: NDArray[np.int64], inner: bool
) -> tuple[NDArray[np.intp], NDArray[np.float64]]:
    """Rank documents for a query, best first; equal ones keep their order.

    Returns:
        Positions in ``rows``; and, ascending, distances or negative inner products.
    """
    _, prepared = prepare(query, unit)
    wide, chosen = prepared.astype(np.float64), documents[rows].astype(np.float64)
    scores = -(chosen * wide).sum(axis=1) if inner else ((chosen - wide) ** 2).sum(axis=1)
    order = np.argsort(scores, kind="stable")
    ranked = scores[order]
    return order, ranked if inner else np.sqrt(ranked)


def nearest_batch(
    queries: Vectors, *arguments: Any
) -> tuple[NDArray[np.float64], NDArray[np.int64], NDArray[np.int64], NDArray[np.float64]]:
    """Call :func:`nearest` for each row of ``queries``; return its four results as arrays."""
    results = np.array([nearest(query, *arguments) for query in queries]).reshape(-1, 4)
    lengths, slots, sequences, squares = results.T
    return lengths, slots.astype(np.int64), sequences.astype(np.int64), squares


def exceeds(
    gram: NDArray[np.float64], least: NDArray[np.float64], needed: float, sweeps: int
) -> bool:
    """Whether the smallest ``|x|**2`` with ``rows @ x >= least`` exceeds a number.

    Ascends the dual coordinate by coordinate: ``2 least @ l - l @ gram @ l``, ``l >= 0``. Every
    value of the dual is a lower bound, so that an early end never says yes wrongly.

    Args:
        gram: ``rows @ rows.T``, shape (n, n).
        least: The bound of each row, shape (n,).
        needed: The number to exceed.
        sweeps: How often each coordinate is improved.
    """
    multipliers = np.zeros(len(least))
    for _ in range(sweeps):
        for i in range(len(least)):
            rest = gram[i] @ multipliers - gram[i, i] * multipliers[i]
            multipliers[i] = max(0.0, (least[i] - rest) / gram[i, i])
        if multipliers @ (2 * least - gram @ multipliers) > needed:
            return True
    return False


def _squares(
    query: Vectors, heads: Vectors, tails: Vectors, slots: NDArray[np.intp]
) -> NDArray[np.float64]:
    wide, head = query.astype(np.float64), heads.shape[1]
    first = ((heads[slots] - wide[:head]) ** 2).sum(axis=1)
    rest = ((tails[slots] - wide[head:]) ** 2).sum(axis=1)
    return np.asarray(first + rest)


def _shortlist(
    query: Vectors,
    heads: Vectors,
    tails: Vectors,
    slots: NDArray[np.intp],
    limit: float,
    count: int,
) -> NDArray[np.intp]:
    """Drop slots whose first dimensions show that they are too far to be among the nearest."""
    if slots.size <= count or not math.isfinite(limit):
        return slots
    head = heads.shape[1]
    with np.errstate(over="ignore"):
        sums = ((heads[slots] - query[:head]) ** 2).sum(axis=1, dtype=np.float64)
    dim = head + tails.shape[1]
    # No key may be dropped whose true distance is at most the limit. Its exact squares in the first
    # dimensions sum to at most limit**2, as no square is negative. What was computed exceeds that
    # by little, with u = 2**-24:
    # - A difference of 32-bit floats is rounded once and its square once more: within (1 + u)**3.
    #   Here sums are of 64 bits and add next to nothing. The compiled kernels, whose bound this is,
    #   sum in 32 bits, which adds less than (dim + 2) * u (see there). (dim + 8) * 2**-23 is twice
    #   (dim + 8) * u, which leaves room for terms in u**2 and for rounding ``limit * limit``.
    # - A square too small for an ordinary 32-bit float is off by at most 2**-150, half of the
    #   smallest one there is, so all of them by dim * 2**-150; four times that is allowed for.
    # Sums that overflowed say nothing, so their keys stay. A key kept without need costs time
    # alone: all that are left are measured in 64-bit floats.
    bar = limit * limit * (1 + (dim + 8) * 2.0**-23) + dim * 2.0**-148
    kept: NDArray[np.intp] = slots[(sums <= bar) | ~np.isfinite(sums)]
    return kept
