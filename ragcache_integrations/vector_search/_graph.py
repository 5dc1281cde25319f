"""Best-first search of an HNSW graph (Malkov and Yashunin 2018, algorithm 2), compiled by numba.

What is visited, in which order, is what FAISS visits: it keeps the ``breadth`` nearest vectors seen
so far and expands the nearest of them that was not expanded yet, until none is left. The results
are the nearest of all vectors seen that count. Among equal distances it goes by places in its heap,
so the heap here moves its items in the same way. What is left to differ are the last bits of
distances, which every compiler sums in a different order.

Most of the time goes by waiting for memory, so what will be needed is asked for ahead: the vectors
of neighbours before any is measured, and the neighbours of a vector once it is kept, since most of
those kept are expanded later.

A vector that was seen is one whole number, by which it is compared in one step: its distance, in a
form that goes up with it, is the upper half, and its label the lower (see ``_pair``).

Python's lock is given away meanwhile.
"""

from __future__ import annotations

import numba
import numpy as np
import numpy.ma  # numba's first call would import it, and a child forked meanwhile would wait
from llvmlite import ir
from numba.core import cgutils, types
from numba.extending import intrinsic

__all__ = ["advance", "begin", "workspace"]

# Where numbers stand in a work array: addresses of arrays first,
_VECTORS, _NEIGHBOURS, _OFFSETS, _WIDTHS, _MARKS = 0, 1, 2, 3, 4
# then what is in the graph, and parameters of the search (see ``workspace``),
_COUNT, _DIM, _LINKS, _ENTRY, _TOP, _INNER = 5, 6, 7, 8, 9, 10
_K, _BREADTH, _ENOUGH = 11, 12, 13
# then the search at hand (see ``begin``): vectors kept, those of them that are not expanded, how
# many have been expanded so far, and how many were ever among the results.
_MARK, _ALLOWED, _HELD, _OPEN, _HOPS, _BETTER = 14, 15, 16, 17, 18, 19
_NUMBERS = 20

_REORDERED = {"reassoc", "contract", "nsz"}
_LINES = 8  # cache lines of a vector to ask for ahead; the processor goes on by itself
_LINK_LINES = 3  # of a vector's neighbours, 16 in each
_LINE_BYTES = 64

_UPPER = np.int64(-1) << 32
_LOWER = np.int64(2**32 - 1)
_LARGEST = np.int64(2**63 - 1)
_INFINITE = np.int64(0x7F800000)  # bits of an infinite distance
_LEAST = np.int64(-(2**31))


def _prefetch(lines):
    """Return a function that asks for the beginning of a row of an array."""

    @intrinsic
    def prefetch(context, array, row):
        def generate(context, builder, signature, arguments):
            made = context.make_array(array)(context, builder, arguments[0])
            stride = cgutils.unpack_tuple(builder, made.strides)[0]
            byte, number = ir.IntType(8).as_pointer(), ir.IntType(32)
            offset = builder.mul(arguments[1], stride)
            start = builder.gep(builder.bitcast(made.data, byte), [offset])
            function = cgutils.get_or_insert_function(
                builder.module,
                ir.FunctionType(ir.VoidType(), [byte, number, number, number]),
                "llvm.prefetch.p0",
            )
            for line in range(lines):
                place = builder.gep(start, [ir.Constant(ir.IntType(64), line * _LINE_BYTES)])
                # To be read, soon again, data.
                builder.call(function, [place, number(0), number(3), number(1)])
            return context.get_dummy_value()

        return types.void(array, types.int64), generate

    return prefetch


_prefetch_vector, _prefetch_links, _prefetch_one = (
    _prefetch(_LINES), _prefetch(_LINK_LINES), _prefetch(1)
)  # fmt: skip


@intrinsic
def _pointer(context, address):
    """Take a number for an address."""

    def generate(context, builder, signature, arguments):
        return builder.inttoptr(arguments[0], cgutils.voidptr_t)

    return types.voidptr(types.int64), generate


@numba.njit(cache=True)
def _key(distance):
    """Return a whole number that goes up with a distance; what is no number is infinite."""
    bits = np.int64(np.float32(distance).view(np.int32))
    if bits & 0x7FFFFFFF > _INFINITE:
        bits = _INFINITE
    return bits if bits >= 0 else _LEAST - bits


@numba.njit(cache=True)
def _distance(key):
    """Do the reverse."""
    return np.int32(key if key >= 0 else _LEAST - key).view(np.float32)


@numba.njit(cache=True)
def _pair(key, label, flip):
    """Return a distance and a label as one number; label -1 says that a vector is expanded.

    Args:
        key: The distance, see ``_key``.
        label: The label.
        flip: FAISS has two kinds of heaps, which go by labels in opposite ways among equals. So
            labels' bits are all turned over for inner products: ``_LOWER``, otherwise 0.
    """
    return (key << 32) | ((label + 1) ^ flip)


@numba.njit(cache=True)
def _label(pair, flip):
    return ((pair & _LOWER) ^ flip) - 1


@numba.njit(cache=True, fastmath=_REORDERED)
def _four_distances(vectors, rows, first, query, inner, totals):
    """Put squared distances or negative inner products of four rows where they belong.

    Their reads wait for memory together.
    """
    row1, row2, row3, row4 = rows[first], rows[first + 1], rows[first + 2], rows[first + 3]
    sum1, sum2, sum3, sum4 = np.float32(0), np.float32(0), np.float32(0), np.float32(0)
    if inner:
        for i in range(query.shape[0]):
            value = query[i]
            sum1 -= vectors[row1, i] * value
            sum2 -= vectors[row2, i] * value
            sum3 -= vectors[row3, i] * value
            sum4 -= vectors[row4, i] * value
    else:
        for i in range(query.shape[0]):
            value = query[i]
            apart1, apart2 = vectors[row1, i] - value, vectors[row2, i] - value
            apart3, apart4 = vectors[row3, i] - value, vectors[row4, i] - value
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
    for index in range(count):
        _prefetch_vector(vectors, rows[index])
    for index in range(count, count + -count % 4):
        rows[index] = rows[count - 1]
    for first in range(0, count, 4):
        _four_distances(vectors, rows, first, query, inner, totals)


@numba.njit(cache=True)
def _push(heap, count, pair):
    """Add a pair to a heap of ``count``, the farthest being on top."""
    place = count
    while place > 0:
        parent = (place - 1) >> 1
        if pair <= heap[parent]:
            break
        heap[place] = heap[parent]
        place = parent
    heap[place] = pair


@numba.njit(cache=True)
def _pop(heap, count):
    """Take the top off a heap of ``count``; there is room for one more after it."""
    pair = heap[count - 1]
    place, child = 0, 1
    while child < count:
        right = heap[child + 1]
        if child + 1 < count and right >= heap[child]:
            child += 1
        if pair > heap[child]:
            break
        heap[place] = heap[child]
        place = child
        child = 2 * place + 1
    heap[place] = pair


@numba.njit(cache=True)
def _nearest_open(heap, count, flip):
    """Return the place of the nearest that is not expanded, the last among equals."""
    best = _LARGEST
    for place in range(count):
        last = (heap[place] & _UPPER) | (_LOWER - place)
        best = min(best, last if heap[place] & _LOWER != flip else _LARGEST)
    return _LOWER - (best & _LOWER)


@numba.njit(cache=True)
def _nearer(heap, count, key):
    """Return how many of those kept are nearer than ``key``."""
    nearer = 0
    for place in range(count):
        if heap[place] >> 32 < key:
            nearer += 1
    return nearer


@numba.njit(cache=True)
def _insert(best, pair):
    """Put a vector among the results, in place of the farthest; they are in order."""
    low, high = 0, best.shape[0] - 1
    while low < high:
        middle = (low + high) >> 1
        if best[middle] < pair:
            low = middle + 1
        else:
            high = middle
    for place in range(best.shape[0] - 1, low, -1):
        best[place] = best[place - 1]
    best[low] = pair


@numba.njit(cache=True)
def _gather(neighbours, first, width, marks, mark, rows):
    """Put a vector's neighbours that were not seen into ``rows``; return their number."""
    count = 0
    for place in range(first, first + width):
        neighbour = np.int64(neighbours[place])
        if neighbour < 0:
            break
        rows[count] = neighbour
        count += marks[neighbour] != mark  # no branch, since nobody could foresee it
        marks[neighbour] = mark
    return count


@numba.njit(cache=True)
def _take(work, heap, best, rows, totals, count, allowed, neighbours, offsets, flip):
    """Take vectors into the results and the heap, if they are near enough.

    Those that do not count are no results; ``allowed`` is empty where all do.
    """
    for index in range(count):
        key, label = _key(totals[index]), rows[index]
        pair = _pair(key, label, flip)
        if key < best[-1] >> 32 and (allowed.shape[0] == 0 or allowed[label] != 0):
            _insert(best, pair)
            work[_BETTER] += 1
        held = work[_HELD]
        if held == work[_BREADTH]:
            if key >= heap[0] >> 32:
                continue
            if heap[0] & _LOWER != flip:
                work[_OPEN] -= 1
            _pop(heap, held)
            held -= 1
        _push(heap, held, pair)
        work[_HELD] = held + 1
        work[_OPEN] += 1
        _prefetch_links(neighbours, offsets[label])


@numba.njit(cache=True)
def _write(best, flip, distances, labels):
    """Write the results as FAISS does."""
    for place in range(best.shape[0]):
        distance = _distance(best[place] >> 32)
        distances[place] = -distance if flip else distance
        labels[place] = _label(best[place], flip)


@numba.njit(cache=True)
def _descend(vectors, neighbours, offsets, widths, entry, top, inner, query, rows, totals):
    """Go down from the graph's entry; return where on its lowest level, and the distance."""
    rows[0] = entry
    _distances(vectors, rows, 1, query, inner, totals)
    nearest, distance = rows[0], totals[0]
    for level in range(top, 0, -1):
        while True:
            before, count = nearest, 0
            first = offsets[before]
            for place in range(first + widths[level], first + widths[level + 1]):
                if neighbours[place] < 0:
                    break
                rows[count] = neighbours[place]
                _prefetch_one(offsets, rows[count])
                count += 1
            _distances(vectors, rows, count, query, inner, totals)
            for index in range(count):
                if totals[index] < distance:
                    nearest, distance = rows[index], totals[index]
            if nearest == before:
                break
    return nearest, distance


@numba.njit(cache=True)
def _parts(dim, width, k, breadth):
    """Return where the parts of a work array begin that come after its numbers, and its end.

    They are the results' distances and labels, the query, the rows to measure and their distances
    (of the lowest level, where a vector has the most neighbours), the nearest that count, and the
    heap of those kept.
    """
    distances = _NUMBERS
    labels = distances + (k + 1) // 2  # two 32-bit floats take the room of one number
    query = labels + k
    rows = query + (dim + 1) // 2
    totals = rows + width + 3
    best = totals + (width + 4) // 2
    heap = best + k
    return distances, labels, query, rows, totals, best, heap, heap + breadth + 1


def workspace(
    vectors, neighbours, offsets, widths, entry, top, inner, marks, k, breadth, enough
):  # fmt: skip
    """Make room for searches of a graph, one after the other.

    Everything is in one array, as unpacking many arguments would take longer than some slices do.
    The caller must keep the arrays alive, as it holds only their addresses.

    Args:
        vectors: Shape (n, d).
        neighbours: Those of all vectors and levels, one after the other, -1 for none.
        offsets: Where those of each vector begin, shape (n + 1,).
        widths: Where those of each level begin among a vector's.
        entry: The vector to begin with.
        top: Number of the highest level.
        inner: Whether to find the largest inner products instead of the smallest distances.
        marks: Shape (n,), says which vectors were seen.
        k: The number of results.
        breadth: How many vectors are kept, at least ``k``.
        enough: The search is over when this many vectors are nearer than the next (``efSearch``).

    Returns:
        The work array, and views of it: the query, shape (d,), to be written before :func:`begin`;
        distances and labels of the results, shape (k,), written by :func:`advance`.
    """
    count, dim = vectors.shape
    *starts, end = _parts.py_func(dim, int(widths[1]), k, breadth)
    work = np.zeros(end, np.int64)
    arrays = vectors, neighbours, offsets, widths, marks
    work[_VECTORS : _MARKS + 1] = [array.ctypes.data for array in arrays]
    work[_COUNT : _ENOUGH + 1] = (
        count, dim, len(neighbours), entry, top, inner, k, breadth, enough,
    )  # fmt: skip
    floats = work.view(np.float32)
    query = floats[2 * starts[2] :][:dim]
    return work, query, floats[2 * starts[0] :][:k], work[starts[1] :][:k]


def begin(work, mark, allowed):
    """Begin a search.

    Args:
        work: What :func:`workspace` gives, with the query in it.
        mark: Value in ``marks`` for vectors that were seen; no vector has it yet.
        allowed: Address of one byte per vector, 0 for those that do not count; 0 where all do.
    """
    work[_MARK] = mark
    work[_ALLOWED] = allowed
    work[_HELD] = 0


@numba.njit(cache=True, nogil=True)
def advance(work, hops):
    """Expand vectors up to a number or the end of the search; write down the results so far.

    Args:
        work: The array of a search that has begun.
        hops: Number of vectors to have expanded since the search began.

    Returns:
        The number of vectors expanded since the search began, whether the search is over, and
        whether the results have improved.
    """
    count, dim, top = work[_COUNT], work[_DIM], work[_TOP]
    inner, k, breadth, enough = work[_INNER] != 0, work[_K], work[_BREADTH], work[_ENOUGH]
    flip = _LOWER if inner else np.int64(0)
    mark = np.uint8(work[_MARK])
    vectors = numba.carray(_pointer(work[_VECTORS]), (count, dim), np.float32)
    neighbours = numba.carray(_pointer(work[_NEIGHBOURS]), (work[_LINKS],), np.int32)
    offsets = numba.carray(_pointer(work[_OFFSETS]), (count + 1,), np.int64)
    widths = numba.carray(_pointer(work[_WIDTHS]), (top + 2,), np.int64)
    marks = numba.carray(_pointer(work[_MARKS]), (count,), np.uint8)
    counted = count if work[_ALLOWED] != 0 else 0
    allowed = numba.carray(_pointer(work[_ALLOWED]), (counted,), np.uint8)
    width = widths[1]
    parts = _parts(dim, width, k, breadth)
    distances = work[parts[0] : parts[1]].view(np.float32)
    labels = work[parts[1] : parts[2]]
    query = work[parts[2] : parts[3]].view(np.float32)[:dim]
    rows = work[parts[3] : parts[4]]
    totals = work[parts[4] : parts[5]].view(np.float32)
    best = work[parts[5] : parts[6]]
    heap = work[parts[6] : parts[7]]

    if work[_HELD] == 0:
        best[:] = _pair(_INFINITE, -1, flip)
        work[_OPEN] = work[_HOPS] = work[_BETTER] = 0
        rows[0], totals[0] = _descend(
            vectors, neighbours, offsets, widths, work[_ENTRY], top, inner, query, rows, totals
        )
        marks[rows[0]] = mark
        _take(work, heap, best, rows, totals, 1, allowed, neighbours, offsets, flip)
    before = work[_BETTER]
    while work[_OPEN] > 0 and work[_HOPS] < hops:
        place = _nearest_open(heap, work[_HELD], flip)
        key = heap[place] >> 32
        # The heap has room for more only where k exceeds efSearch.
        if breadth > enough and _nearer(heap, work[_HELD], key) >= enough:
            work[_OPEN] = 0
            break
        expanded = _label(heap[place], flip)
        heap[place] = _pair(key, -1, flip)
        work[_OPEN] -= 1
        work[_HOPS] += 1
        fresh = _gather(neighbours, offsets[expanded], width, marks, mark, rows)
        for index in range(fresh):
            _prefetch_one(offsets, rows[index])
        _distances(vectors, rows, fresh, query, inner, totals)
        _take(work, heap, best, rows, totals, fresh, allowed, neighbours, offsets, flip)
    _write(best, flip, distances, labels)
    return work[_HOPS], work[_OPEN] == 0, work[_BETTER] != before
