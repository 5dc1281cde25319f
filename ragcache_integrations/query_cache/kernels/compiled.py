"""The loops over keys and documents, compiled by numba. :mod:`.plain` does the same in NumPy.

Compiled on first use and kept on disk by numba. They keep Python's lock, as giving it away and
asking for it again among busy threads takes longer than they do; only :func:`nearest_unlocked`,
for long scans, gives it away.

A first pass sums squares in 32-bit floats and abandons a key as soon as the sum exceeds what can
still win, by more than such a sum can be off: its terms are not negative, so every order of
summation is off by less than ``(dim + 2) * 2**-24`` of it (Higham, Accuracy and Stability of
Numerical Algorithms, §3.1, §4.2). What is left is measured in 64-bit floats.
"""

from __future__ import annotations

import math

import numba
import numpy as np
import numpy.ma  # numba's first call would import it, and a child forked meanwhile would wait
from numba.core import cgutils, types
from numba.extending import intrinsic

from .layout import (
    COLUMNS,
    EXPIRES,
    PARTITION,
    SEQUENCE,
    SERVES,
    address,
)

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

# Sums may be reordered (and so vectorised); infinities and NaN keep their meaning.
_REORDERED = {"reassoc", "contract", "nsz"}
_BLOCK = 1024  # keys whose first sums are held at once
_CHUNK = 160  # dimensions between two looks at the sum
_TINY, _HUGE = 1e-30, 1e30  # squares of ordinary 32-bit numbers lie between
_FEW = 64  # are sorted soonest by insertion

_compile = numba.njit(cache=True, fastmath=_REORDERED)


@_compile
def _length(query):
    """Return the squared length; whether it is neither zero nor infinite holds for any query."""
    quick = np.float32(0)
    for i in range(query.shape[0]):
        quick += query[i] * query[i]
    if _TINY < quick < _HUGE:
        return np.float64(quick)
    square = 0.0
    for i in range(query.shape[0]):
        square += np.float64(query[i]) * np.float64(query[i])
    return square


@_compile
def prepare(query, unit):
    """Return the query's squared length and the query as it is compared; nothing to use if 0."""
    if not unit:
        return _length(query), query
    square = 0.0
    for i in range(query.shape[0]):
        square += np.float64(query[i]) * np.float64(query[i])
    if not 0.0 < square < math.inf:
        return square, query
    scaled = np.empty_like(query)
    scale = 1.0 / math.sqrt(square)
    for i in range(query.shape[0]):
        scaled[i] = np.float32(query[i] * scale)
    return square, scaled


@_compile
def signs(query, planes):
    """Return the query's products with the hyperplanes, shape (L,)."""
    count = planes.shape[0]
    products = np.empty(count, np.float32)
    fours = count - count % 4
    for plane in range(0, fours, 4):  # four at once: the query is read once for them
        first, second, third, fourth = np.float32(0), np.float32(0), np.float32(0), np.float32(0)
        for i in range(query.shape[0]):
            value = query[i]
            first += planes[plane, i] * value
            second += planes[plane + 1, i] * value
            third += planes[plane + 2, i] * value
            fourth += planes[plane + 3, i] * value
        products[plane], products[plane + 1] = first, second
        products[plane + 2], products[plane + 3] = third, fourth
    for plane in range(fours, count):
        total = np.float32(0)
        for i in range(query.shape[0]):
            total += planes[plane, i] * query[i]
        products[plane] = total
    return products


@_compile
def _square(query, head, tail):
    total = 0.0
    for i in range(head.shape[0]):
        difference = np.float64(head[i]) - np.float64(query[i])
        total += difference * difference
    for i in range(tail.shape[0]):
        difference = np.float64(tail[i]) - np.float64(query[head.shape[0] + i])
        total += difference * difference
    return total


@_compile
def _could_win(total, bar):
    """Whether a sum does not exceed what can still win. An overflowed sum decides nothing."""
    return total <= bar or total == math.inf


@_compile
def _rest(query, slot, head, tails, total, bar):
    """Add the other dimensions' squares to a sum, as long as it could win."""
    tail = tails.shape[1]
    done = 0
    while done < tail and _could_win(total, bar):
        stop = min(done + _CHUNK, tail)
        part = np.float32(0)
        for i in range(done, stop):
            difference = tails[slot, i] - query[head + i]
            part += difference * difference
        total += part
        done = stop
    return total


@_compile
def _insert(slot, square, meta, slots, squares):
    """Put a key among the best so far; the newest first among equals."""
    place = slots.shape[0] - 1
    last = place
    while place >= 0 and (
        slots[place] < 0
        or square < squares[place]
        or (square == squares[place] and meta[slot, SEQUENCE] > meta[slots[place], SEQUENCE])
    ):
        if place < last:
            squares[place + 1], slots[place + 1] = squares[place], slots[place]
        place -= 1
    if place < last:
        squares[place + 1], slots[place + 1] = square, slot


@_compile
def _scan(query, heads, tails, meta, begin, end, partition, k, now, limit, squares, slots):
    """Put the nearest of some slots among the best so far."""
    head, dim = heads.shape[1], query.shape[0]
    last = squares.shape[0] - 1
    # By how much a sum of 32-bit squares may be off, of itself and by underflow.
    relative, absolute = 1.0 + (dim + 8) * 2.0**-23, dim * 2.0**-148
    squared_limit = limit * limit * (1 + 2.0**-50)
    near = np.empty(min(_BLOCK, end - begin), np.int64)
    sums = np.empty(min(_BLOCK, end - begin), np.float32)
    for block in range(begin, end, _BLOCK):
        count, first = 0, 0
        bar = min(squared_limit, squares[last]) * relative + absolute
        for slot in range(block, min(block + _BLOCK, end)):
            if (
                meta[slot, PARTITION] != partition
                or meta[slot, SERVES] < k
                or meta[slot, EXPIRES] <= now
            ):
                continue
            total = np.float32(0)
            for i in range(head):
                difference = heads[slot, i] - query[i]
                total += difference * difference
            if _could_win(total, bar):
                near[count], sums[count] = slot, total
                first = count if total < sums[first] else first
                count += 1
        if count:
            # What is likely to win goes first, and lets the others be abandoned.
            near[0], near[first] = near[first], near[0]
            sums[0], sums[first] = sums[first], sums[0]
        for index in range(count):
            bar = min(squared_limit, squares[last]) * relative + absolute
            slot = near[index]
            if _could_win(_rest(query, slot, head, tails, sums[index], bar), bar):
                square = _square(query, heads[slot], tails[slot])
                if math.sqrt(square) <= limit:
                    _insert(slot, square, meta, slots, squares)


@_compile
def _code(products):
    code = 0
    for bit in range(products.shape[0]):
        if products[bit] >= 0:
            code |= 1 << bit
    return code


@_compile
def bucket(query, planes):
    """Return the number of a query's bucket: the sides of the hyperplanes that it is on."""
    return _code(signs(query, planes))


@_compile
def _buckets(products, table, multi_probe):
    """Return the rows of the query's bucket and of its neighbours, the least certain bit first."""
    code = _code(products)
    rows = np.empty(1 + multi_probe, np.int64)
    rows[0] = table[code]
    order = np.argsort(np.abs(products))
    for probe in range(multi_probe):
        rows[1 + probe] = table[code ^ (1 << order[probe])]
    return rows


@intrinsic
def _pointer(context, address):
    """Take a number for an address."""

    def generate(context, builder, signature, arguments):
        return builder.inttoptr(arguments[0], cgutils.voidptr_t)

    return types.voidptr(types.int64), generate


def pack(unit, planes, table, per_bucket, heads, tails, meta, multi_probe, documents, lists, inner):
    """Return what the kernels have to know of a table as one array of numbers.

    By place: 0 unit, 1 multi_probe, 2 per_bucket, 3 number of hyperplanes, 4 size of the hash
    table, 5 slots, 6 and 7 dimensions of heads and tails; the addresses of 8 planes, 9 table,
    10 heads, 11 tails, 12 meta, 13 documents, 14 lists; 15 number of documents' rows, 16 inner.

    Unpacking eight arguments takes longer than a bucket's scan. The caller must keep the arrays
    alive, as the result holds only their addresses.
    """
    sizes = unit, multi_probe, per_bucket, len(planes), len(table), len(meta)
    arrays = planes, table, heads, tails, meta, documents, lists
    addresses = [address(array) for array in arrays]
    return np.array(
        [*sizes, heads.shape[1], tails.shape[1], *addresses, len(documents), inner], np.int64
    )


@_compile
def _meta(packed):
    return numba.carray(_pointer(packed[12]), (packed[5], COLUMNS), np.int64)


@_compile
def _search(query, packed, partition, k, now, limit, squares, slots):
    """Find the keys nearest to a prepared query, as many as there is room for."""
    multi_probe, per_bucket, count, head, tail = (
        packed[1],
        packed[2],
        packed[5],
        packed[6],
        packed[7],
    )
    planes = numba.carray(_pointer(packed[8]), (packed[3], head + tail), np.float32)
    table = numba.carray(_pointer(packed[9]), (packed[4],), np.int32)
    heads = numba.carray(_pointer(packed[10]), (count, head), np.float32)
    tails = numba.carray(_pointer(packed[11]), (count, tail), np.float32)
    meta = _meta(packed)
    squares[:] = math.inf
    slots[:] = -1
    if planes.shape[0] == 0:
        _scan(query, heads, tails, meta, 0, count, partition, k, now, limit, squares, slots)
        return
    products = signs(query, planes)
    if not multi_probe:
        begin = table[_code(products)] * per_bucket
        if begin >= 0:
            end = begin + per_bucket
            _scan(query, heads, tails, meta, begin, end, partition, k, now, limit, squares, slots)
        return
    for row in _buckets(products, table, multi_probe):
        if row >= 0:
            begin = row * per_bucket
            end = begin + per_bucket
            _scan(query, heads, tails, meta, begin, end, partition, k, now, limit, squares, slots)


@_compile
def nearest(query, packed, partition, k, now, limit):
    """Find the nearest key within a distance.

    Args:
        query: Shape (dim,), as it came.
        packed: From :func:`pack`.
        partition: Only keys of this cache key count.
        k: Only keys whose entries serve this many count.
        now: Only keys that end later count, in nanoseconds of the cache's clock.
        limit: The largest distance that counts.

    Returns:
        Squared length of the query, slot (-1 for none), its sequence number, squared distance.
    """
    length, prepared = prepare(query, packed[0] != 0)
    if not 0.0 < length < math.inf:
        return length, -1, -1, 0.0
    squares = np.empty(1, np.float64)
    slots = np.empty(1, np.int64)
    _search(prepared, packed, partition, k, now, limit, squares, slots)
    slot = slots[0]
    return length, slot, _meta(packed)[slot, SEQUENCE] if slot >= 0 else -1, squares[0]


@numba.njit(cache=True, nogil=True, fastmath=_REORDERED)
def nearest_unlocked(query, packed, partition, k, now, limit):
    """Version of :func:`nearest` that lets other threads run."""
    return nearest(query, packed, partition, k, now, limit)


@_compile
def answer(query, packed, partition, k, now, limit, ranked):
    """Find the nearest key as :func:`nearest` does, and rank its entry's candidates.

    Args:
        query: As for :func:`nearest`.
        packed: As for :func:`nearest`.
        partition: As for :func:`nearest`.
        k: How many candidates the entry must serve, and are ranked.
        now: As for :func:`nearest`.
        limit: As for :func:`nearest`.
        ranked: Receives the values of the k best, as :func:`rank` returns them, and then their
            positions. Shape (2 * k,); an array that is too short is left unchanged.

    Returns:
        The four results of :func:`nearest`, and the number of candidates; -1 where none was
        ranked.
    """
    length, slot, sequence, square = nearest(query, packed, partition, k, now, limit)
    if slot < 0 or square == 0.0:
        return length, slot, sequence, square, -1
    lists = numba.carray(_pointer(packed[14]), (packed[5], 2), np.int64)
    count = lists[slot, 1]
    best = min(k, count)
    if count <= 0 or 2 * best > ranked.shape[0]:
        return length, slot, sequence, square, -1
    rows = numba.carray(_pointer(lists[slot, 0]), (count,), np.int64)
    shape = packed[15], query.shape[0]
    if rows.max() >= shape[0]:  # of an entry that came after the array was looked at
        return length, slot, sequence, square, -1
    documents = numba.carray(_pointer(packed[13]), shape, np.float32)
    order, values = rank(query, packed[0] != 0, documents, rows, packed[16] != 0)
    for index in range(best):
        ranked[index], ranked[best + index] = values[index], order[index]
    return length, slot, sequence, square, count


@_compile
def neighbours(query, packed, partition, k, now, limit, count):
    """Find several of the nearest keys: their slots, and squared distances, nearest first."""
    squares = np.empty(count, np.float64)
    slots = np.empty(count, np.int64)
    _, prepared = prepare(query, packed[0] != 0)
    _search(prepared, packed, partition, k, now, limit, squares, slots)
    filled = 0
    while filled < count and slots[filled] >= 0:
        filled += 1
    return slots[:filled], squares[:filled]


@_compile
def _distances(query, documents, rows, inner):
    """Return squared distances or negative inner products, ten documents at a time.

    Their vectors lie anywhere in memory; ten streams of reads wait for it together, which takes
    three quarters of the time of four, and half of that of one.
    """
    count, dim = rows.shape[0], query.shape[0]
    last = count - 1
    totals = np.empty(count + 10, np.float64)
    for first in range(0, count, 10):
        a = documents[rows[first]]
        b = documents[rows[min(first + 1, last)]]
        c = documents[rows[min(first + 2, last)]]
        d = documents[rows[min(first + 3, last)]]
        e = documents[rows[min(first + 4, last)]]
        f = documents[rows[min(first + 5, last)]]
        g = documents[rows[min(first + 6, last)]]
        h = documents[rows[min(first + 7, last)]]
        i = documents[rows[min(first + 8, last)]]
        j = documents[rows[min(first + 9, last)]]
        sum0 = sum1 = sum2 = sum3 = sum4 = sum5 = sum6 = sum7 = sum8 = sum9 = 0.0
        if inner:
            for at in range(dim):
                value = np.float64(query[at])
                sum0 -= np.float64(a[at]) * value
                sum1 -= np.float64(b[at]) * value
                sum2 -= np.float64(c[at]) * value
                sum3 -= np.float64(d[at]) * value
                sum4 -= np.float64(e[at]) * value
                sum5 -= np.float64(f[at]) * value
                sum6 -= np.float64(g[at]) * value
                sum7 -= np.float64(h[at]) * value
                sum8 -= np.float64(i[at]) * value
                sum9 -= np.float64(j[at]) * value
        else:
            for at in range(dim):
                value = np.float64(query[at])
                sum0 += (np.float64(a[at]) - value) ** 2
                sum1 += (np.float64(b[at]) - value) ** 2
                sum2 += (np.float64(c[at]) - value) ** 2
                sum3 += (np.float64(d[at]) - value) ** 2
                sum4 += (np.float64(e[at]) - value) ** 2
                sum5 += (np.float64(f[at]) - value) ** 2
                sum6 += (np.float64(g[at]) - value) ** 2
                sum7 += (np.float64(h[at]) - value) ** 2
                sum8 += (np.float64(i[at]) - value) ** 2
                sum9 += (np.float64(j[at]) - value) ** 2
        totals[first] = sum0
        totals[first + 1] = sum1
        totals[first + 2] = sum2
        totals[first + 3] = sum3
        totals[first + 4] = sum4
        totals[first + 5] = sum5
        totals[first + 6] = sum6
        totals[first + 7] = sum7
        totals[first + 8] = sum8
        totals[first + 9] = sum9
    return totals[:count]


@_compile
def _stable_order(values):
    if values.shape[0] > _FEW:
        return np.argsort(values, kind="mergesort")
    order = np.arange(values.shape[0])
    for index in range(1, values.shape[0]):
        moved = order[index]
        place = index
        while place > 0 and values[order[place - 1]] > values[moved]:
            order[place] = order[place - 1]
            place -= 1
        order[place] = moved
    return order


@_compile
def rank(query, unit, documents, rows, inner):
    """Rank documents for a query, best first; equal ones keep their order.

    Returns:
        Positions in ``rows``; and, ascending, distances or negative inner products.
    """
    _, prepared = prepare(query, unit)
    values = _distances(prepared, documents, rows, inner)
    order = _stable_order(values)
    ranked = values[order]
    return order, ranked if inner else np.sqrt(ranked)


@numba.njit(cache=True, nogil=True, fastmath=_REORDERED)
def nearest_batch(queries, packed, partition, k, now, limit):
    """Call :func:`nearest` for each row of ``queries``; return its four results as arrays."""
    count = queries.shape[0]
    lengths, squares = np.empty(count, np.float64), np.empty(count, np.float64)
    slots, sequences = np.empty(count, np.int64), np.empty(count, np.int64)
    for row in range(count):
        lengths[row], slots[row], sequences[row], squares[row] = nearest(
            queries[row], packed, partition, k, now, limit
        )
    return lengths, slots, sequences, squares


@_compile
def exceeds(gram, least, needed, sweeps):
    """Whether the smallest ``|x|**2`` with ``rows @ x >= least`` exceeds a number.

    Ascends the dual coordinate by coordinate: ``2 least @ l - l @ gram @ l``, ``l >= 0``. Every
    value of the dual is a lower bound, so that an early end never says yes wrongly.
    """
    count = least.shape[0]
    multipliers = np.zeros(count)
    for _ in range(sweeps):
        for i in range(count):
            rest = 0.0
            for j in range(count):
                rest += gram[i, j] * multipliers[j]
            rest -= gram[i, i] * multipliers[i]
            multipliers[i] = max(0.0, (least[i] - rest) / gram[i, i])
        value = 0.0
        for i in range(count):
            product = 0.0
            for j in range(count):
                product += gram[i, j] * multipliers[j]
            value += multipliers[i] * (2 * least[i] - product)
        if value > needed:
            return True
    return False
