"""Best-first search of an HNSW graph (Malkov and Yashunin 2018, algorithm 2), compiled by numba.

What is visited, in which order, is what FAISS visits: it keeps the ``breadth`` nearest vectors seen
so far and expands the nearest of them that was not expanded yet, until none is left. The results
are the nearest of all vectors seen that count. Among equal distances it goes by places in its heap,
so the heap here moves its items in the same way. What is left to differ are the last bits of
distances, which every compiler sums in an order of its own.

Python's lock is given away meanwhile.
"""

from __future__ import annotations

import numba
import numpy as np
from llvmlite import ir
from numba.core import cgutils, types
from numba.extending import intrinsic

__all__ = ["COUNTERS", "HELD", "HOPS", "OPEN", "OVER", "advance", "pack", "start"]

OPEN, HELD, HOPS, OVER = 0, 1, 2, 3
"""Places in the array of counters: vectors kept and not expanded, vectors kept, vectors expanded
so far, and whether the search is over."""
COUNTERS = 4

_REORDERED = {"reassoc", "contract", "nsz"}
_ORDINARY = {"nnan", "nsz"}  # lets the search for a minimum be vectorised
_BLOCK = 16  # places whose minimum is taken at once
_LINES = 12  # cache lines of a vector to ask for ahead
_LINE_BYTES = 64


@intrinsic
def _prefetch(context, vectors, row):
    """Ask for the beginning of a row of an array, to be there when it is needed."""

    def generate(context, builder, signature, arguments):
        array = context.make_array(vectors)(context, builder, arguments[0])
        stride = cgutils.unpack_tuple(builder, array.strides)[0]
        byte, number = ir.IntType(8).as_pointer(), ir.IntType(32)
        start = builder.gep(builder.bitcast(array.data, byte), [builder.mul(arguments[1], stride)])
        function = cgutils.get_or_insert_function(
            builder.module,
            ir.FunctionType(ir.VoidType(), [byte, number, number, number]),
            "llvm.prefetch.p0",
        )
        for line in range(_LINES):
            place = builder.gep(start, [ir.Constant(ir.IntType(64), line * _LINE_BYTES)])
            # To be read, soon again, data.
            builder.call(function, [place, number(0), number(3), number(1)])
        return context.get_dummy_value()

    return types.void(vectors, types.int64), generate


@numba.njit(cache=True, fastmath=_REORDERED)
def _four_distances(vectors, rows, first, query, inner, totals):
    """Put squared distances or negative inner products of four rows where they belong.

    Their reads wait for memory together.
    """
    one, two, three, four = rows[first], rows[first + 1], rows[first + 2], rows[first + 3]
    sum1, sum2, sum3, sum4 = np.float32(0), np.float32(0), np.float32(0), np.float32(0)
    if inner:
        for i in range(query.shape[0]):
            value = query[i]
            sum1 -= vectors[one, i] * value
            sum2 -= vectors[two, i] * value
            sum3 -= vectors[three, i] * value
            sum4 -= vectors[four, i] * value
    else:
        for i in range(query.shape[0]):
            value = query[i]
            apart1, apart2 = vectors[one, i] - value, vectors[two, i] - value
            apart3, apart4 = vectors[three, i] - value, vectors[four, i] - value
            sum1 += apart1 * apart1
            sum2 += apart2 * apart2
            sum3 += apart3 * apart3
            sum4 += apart4 * apart4
    totals[first], totals[first + 1], totals[first + 2], totals[first + 3] = sum1, sum2, sum3, sum4


@numba.njit(cache=True)
def _distances(vectors, rows, count, query, inner, totals):
    """Measure rows, always four at once, so that equal vectors are at equal distances.

    ``rows`` and ``totals`` have room for three more.
    """
    for index in range(count, count + -count % 4):
        rows[index] = rows[count - 1]
    for first in range(0, count, 4):
        _four_distances(vectors, rows, first, query, inner, totals)


@numba.njit(cache=True)
def _above(key, item, other_key, other_item, inner):
    """Whether one stands nearer to the top of a heap, the farthest being on top."""
    # FAISS has two kinds of heaps, which go by numbers in opposite ways among equals.
    first = item < other_item if inner else item > other_item
    return key > other_key or (key == other_key and first)


@numba.njit(cache=True)
def _push(keys, items, count, key, item, inner):
    """Put one more into a heap of ``count``."""
    place = count
    while place > 0:
        parent = (place - 1) >> 1
        if not _above(key, item, keys[parent], items[parent], inner):
            break
        keys[place], items[place] = keys[parent], items[parent]
        place = parent
    keys[place], items[place] = key, item


@numba.njit(cache=True)
def _pop(keys, items, count, inner):
    """Take the top off a heap of ``count``."""
    key, item = keys[count - 1], items[count - 1]
    place = 0
    while True:
        child = 2 * place + 1
        if child >= count:
            break
        right = child + 1
        if right < count and not _above(
            keys[child], items[child], keys[right], items[right], inner
        ):
            child = right
        if _above(key, item, keys[child], items[child], inner):
            break
        keys[place], items[place] = keys[child], items[child]
        place = child
    keys[place], items[place] = key, item


@numba.njit(cache=True)
def _keep(keys, items, counters, key, item, inner):
    """Keep a vector if it is among the nearest seen so far."""
    if counters[HELD] == keys.shape[0]:
        if key >= keys[0]:
            return
        if items[0] >= 0:
            counters[OPEN] -= 1
        _pop(keys, items, counters[HELD], inner)
        counters[HELD] -= 1
    _push(keys, items, counters[HELD], key, item, inner)
    counters[HELD] += 1
    counters[OPEN] += 1


@numba.njit(cache=True)
def _offer(keys, items, key, item, allowed, inner):
    """Take a vector into the results if it counts and is near enough."""
    if key < keys[0] and (allowed.shape[0] == 0 or allowed[item] != 0):
        _pop(keys, items, keys.shape[0], inner)
        _push(keys, items, keys.shape[0] - 1, key, item, inner)


@numba.njit(cache=True, fastmath=_ORDINARY)
def _nearest_open(keys, items, count):
    """Return the place of the nearest that is not expanded, the last among equals."""
    best, block = np.float32(np.inf), 0
    for first in range(0, count, _BLOCK):
        least = np.float32(np.inf)
        for place in range(first, min(first + _BLOCK, count)):
            key = keys[place] if items[place] >= 0 else np.float32(np.inf)
            least = min(least, key)
        if least <= best:
            best, block = least, first
    for place in range(min(block + _BLOCK, count) - 1, block - 1, -1):
        if items[place] >= 0 and keys[place] == best:
            return place
    return -1


@numba.njit(cache=True)
def _nearer(keys, count, key):
    """Return how many of those kept are nearer than ``key``."""
    found = 0
    for place in range(count):
        if keys[place] < key:
            found += 1
    return found


@numba.njit(cache=True, nogil=True)
def start(
    query, vectors, neighbours, offsets, widths, entry, top, inner,
    allowed, marks, mark, keys, items, best_keys, best_items, counters,
):  # fmt: skip
    """Go down from the graph's entry to its lowest level.

    Args:
        query: Shape (d,).
        vectors: Shape (n, d).
        neighbours: Those of all vectors and levels, one after the other, -1 for none.
        offsets: Where those of each vector begin, shape (n + 1,).
        widths: Where those of each level begin among a vector's.
        entry: The vector to begin with.
        top: The highest level.
        inner: Whether the largest inner products are wanted, instead of the smallest distances.
        allowed: One number per vector, 0 for those that do not count; empty where all do.
        marks: Shape (n,), says which were seen.
        mark: What stands there for those that were.
        keys: Distances of those kept, a heap.
        items: Their numbers, -1 where expanded.
        best_keys: Distances of the results, a heap.
        best_items: Their numbers.
        counters: Shape (COUNTERS,).
    """
    rows = np.empty(widths[1] + 3, np.int64)  # the lowest level has the most
    totals = np.empty(rows.shape[0], np.float32)
    rows[0] = entry
    _distances(vectors, rows, 1, query, inner, totals)
    nearest, distance = rows[0], totals[0]
    for level in range(top, 0, -1):
        while True:
            before, count = nearest, 0
            for place in range(
                offsets[before] + widths[level], offsets[before] + widths[level + 1]
            ):
                if neighbours[place] < 0:
                    break
                rows[count] = neighbours[place]
                count += 1
            _distances(vectors, rows, count, query, inner, totals)
            for index in range(count):
                if totals[index] < distance:
                    nearest, distance = rows[index], totals[index]
            if nearest == before:
                break
    counters[:] = 0
    best_keys[:] = np.inf
    best_items[:] = -1
    marks[nearest] = mark
    _offer(best_keys, best_items, distance, nearest, allowed, inner)
    _keep(keys, items, counters, distance, nearest, inner)


@numba.njit(cache=True)
def _resume(
    query, vectors, neighbours, offsets, width, inner,
    allowed, marks, mark, keys, items, best_keys, best_items, counters, enough, hops,
):  # fmt: skip
    """Expand vectors until so many are, or the search is over.

    Args:
        query: As in :func:`start`, like those that are not said here.
        vectors: See there.
        neighbours: See there.
        offsets: See there.
        width: Number of neighbours on the lowest level.
        inner: See there.
        allowed: See there.
        marks: See there.
        mark: See there.
        keys: See there.
        items: See there.
        best_keys: See there.
        best_items: See there.
        counters: See there.
        enough: The search is over when so many vectors are nearer than the next (``efSearch``).
        hops: The number in the end.
    """
    rows = np.empty(width + 3, np.int64)
    totals = np.empty(rows.shape[0], np.float32)
    while counters[OPEN] > 0 and counters[HOPS] < hops:
        place = _nearest_open(keys, items, counters[HELD])
        if place < 0:  # what is left are distances that are no numbers
            counters[OPEN] = 0
            break
        expanded = items[place]
        items[place] = -1
        counters[OPEN] -= 1
        # The heap has room for more only where k exceeds efSearch.
        if keys.shape[0] > enough and _nearer(keys, counters[HELD], keys[place]) >= enough:
            counters[OPEN] = 0
            break
        counters[HOPS] += 1
        count = 0
        for at in range(offsets[expanded], offsets[expanded] + width):
            neighbour = np.int64(neighbours[at])
            if neighbour < 0:
                break
            if marks[neighbour] != mark:
                marks[neighbour] = mark
                _prefetch(vectors, neighbour)
                rows[count] = neighbour
                count += 1
        _distances(vectors, rows, count, query, inner, totals)
        for index in range(count):
            _offer(best_keys, best_items, totals[index], rows[index], allowed, inner)
            _keep(keys, items, counters, totals[index], rows[index], inner)
    if counters[OPEN] == 0:
        counters[OVER] = 1


@numba.njit(cache=True)
def _results(keys, items, inner, distances, labels):
    """Copy distances and numbers of the results, best first."""
    distances[:], labels[:] = keys, items
    for count in range(keys.shape[0], 1, -1):
        key, item = distances[0], labels[0]
        _pop(distances, labels, count, inner)
        distances[count - 1], labels[count - 1] = key, item
    if inner:
        for place in range(keys.shape[0]):
            distances[place] = -distances[place]


@intrinsic
def _pointer(context, address):
    """Take a number for an address."""

    def generate(context, builder, signature, arguments):
        return builder.inttoptr(arguments[0], cgutils.voidptr_t)

    return types.voidptr(types.int64), generate


def pack(
    query, vectors, neighbours, offsets, width, inner,
    allowed, marks, mark, keys, items, best_keys, best_items, counters, enough, distances, labels,
):  # fmt: skip
    """Return what :func:`advance` needs of a search as one array of numbers.

    Taking so many arguments apart takes longer than many a slice. Whoever calls with the result
    holds on to the arrays whose addresses are in it.
    """
    arrays = (
        query, vectors, neighbours, offsets, allowed, marks, keys, items, best_keys, best_items,
        counters, distances, labels,
    )  # fmt: skip
    sizes = (*vectors.shape, len(neighbours), len(allowed), len(keys), len(best_keys))
    numbers = *sizes, width, inner, mark, enough, *(one.ctypes.data for one in arrays)
    return np.array(numbers, np.int64)


@numba.njit(cache=True, nogil=True)
def advance(packed, hops):
    """Go on, and leave the results so far in ``distances`` and ``labels``, -1 for none.

    Args:
        packed: What :func:`pack` gives.
        hops: When to stop, as in ``_resume``.
    """
    count, dim, links = packed[0], packed[1], packed[2]
    allowed_count, kept, wanted = packed[3], packed[4], packed[5]
    width, inner, mark, enough = packed[6], packed[7] != 0, packed[8], packed[9]
    query = numba.carray(_pointer(packed[10]), (dim,), np.float32)
    vectors = numba.carray(_pointer(packed[11]), (count, dim), np.float32)
    neighbours = numba.carray(_pointer(packed[12]), (links,), np.int32)
    offsets = numba.carray(_pointer(packed[13]), (count + 1,), np.int64)
    allowed = numba.carray(_pointer(packed[14]), (allowed_count,), np.uint8)
    marks = numba.carray(_pointer(packed[15]), (count,), np.uint16)
    keys = numba.carray(_pointer(packed[16]), (kept,), np.float32)
    items = numba.carray(_pointer(packed[17]), (kept,), np.int64)
    best_keys = numba.carray(_pointer(packed[18]), (wanted,), np.float32)
    best_items = numba.carray(_pointer(packed[19]), (wanted,), np.int64)
    counters = numba.carray(_pointer(packed[20]), (COUNTERS,), np.int64)
    distances = numba.carray(_pointer(packed[21]), (wanted,), np.float32)
    labels = numba.carray(_pointer(packed[22]), (wanted,), np.int64)
    _resume(
        query, vectors, neighbours, offsets, width, inner,
        allowed, marks, mark, keys, items, best_keys, best_items, counters, enough, hops,
    )  # fmt: skip
    _results(best_keys, best_items, inner, distances, labels)
    return counters[HOPS], counters[OVER]
