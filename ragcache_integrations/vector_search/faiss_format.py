"""Checks a file of FAISS's before FAISS reads it.

FAISS trusts its files: it makes room for as many numbers as a file declares, and follows the links
of a graph without asking whether they lead anywhere. So the file is gone through here first, as
``faiss/impl/index_write.cpp`` writes it: nothing may declare more than what is left of the file,
and all that a search goes by must fit together. What is not one of the indexes and transforms below
is refused, as nobody could check it.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Callable, Collection
from dataclasses import dataclass
from functools import partial
from typing import Any, BinaryIO, NoReturn

import numpy as np
from numpy.typing import NDArray

__all__ = ["LARGEST_BREADTH", "LARGEST_DIMENSION", "check_faiss_file"]

LARGEST_DIMENSION = 1 << 20
LARGEST_BREADTH = 1 << 20
"""``efSearch``, ``efConstruction`` and neighbours of a vector: each search makes room for them."""

_DEEPEST = 4  # indexes within indexes
_MOST_TRANSFORMS = 16
_METRICS = {0: "inner product", 1: "L2"}
_FLOAT, _INT, _WORD = np.dtype("<f4"), np.dtype("<i4"), np.dtype("<i8")
_PAIR = np.dtype([("label", "<i8"), ("place", "<i8")])
_LARGEST_WORD = (1 << 63) - 1
_HASHTABLE = 2  # the type of a direct map that is followed by its pairs
_MOST_BITS = 24  # of a product quantiser's codes, as in FAISS
# By the number of a scalar quantiser: bits for each dimension, and whether it is trained for each
# dimension (2 numbers for each), as a whole (2 numbers) or not at all.
_SCALAR = {
    0: (8, "each"),
    1: (4, "each"),
    2: (8, "whole"),
    3: (4, "whole"),
    4: (16, "none"),
    5: (8, "none"),
    6: (6, "each"),
    7: (16, "none"),
    8: (8, "none"),
}


@dataclass(frozen=True, slots=True)
class _Index:
    """What an index says of itself.

    Attributes:
        dim: Dimension of its vectors.
        count: Number of vectors.
        metric: FAISS's number of the metric.
    """

    dim: int
    count: int
    metric: int


def check_faiss_file(file: BinaryIO) -> None:
    """Check that FAISS can read an index, and search it, without reaching beyond it.

    Args:
        file: Open for reading; read from its beginning to its end.

    Raises:
        ValueError: It is damaged, or of a kind that is not known here.
    """
    parser = _Parser(file)
    parser.index()
    if parser.left:
        _refuse(f"{parser.left} bytes follow the index")


class _Parser:
    """Goes through a file.

    Attributes:
        left: Bytes left to the end of the file.
    """

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self.left = file.seek(0, os.SEEK_END)
        file.seek(0)
        self._depth = 0

    def index(self, allowed: Collection[bytes] | None = None) -> _Index:
        """Go through an index of one of the kinds allowed, or of any kind."""
        kinds: dict[bytes, Callable[[], _Index]] = {
            b"IxF2": self._flat,
            b"IxFI": self._flat,
            b"IxFl": self._flat,
            b"IHNf": self._hnsw,
            b"IwFl": partial(self._ivf, lambda index: index.dim * _FLOAT.itemsize),
            b"IwPQ": partial(self._ivf, self._product_codes),
            b"IwSq": partial(self._ivf, self._scalar_codes),
            b"IxPT": self._transformed,
        }
        kind = self._take(4)
        if allowed is not None and kind not in allowed:
            _refuse(f"an index within another must be one of {sorted(allowed)}, got {kind!r}")
        if kind not in kinds:
            known = ", ".join(name.decode() for name in kinds)
            _refuse(f"an index must be one of {known}, got {kind!r}")
        self._depth += 1
        if self._depth > _DEEPEST:
            _refuse(f"at most {_DEEPEST} indexes may be within each other")
        index = kinds[kind]()
        self._depth -= 1
        return index

    def _header(self) -> _Index:
        dim, count, _, _, trained, metric = self._numbers("<iqqqBi")
        _check("the dimension", dim, 1, LARGEST_DIMENSION)
        _check("the number of vectors", count, 0, _LARGEST_WORD)
        _check("whether it is trained", trained, 1, 1)
        if metric not in _METRICS:
            _refuse(f"the metric must be 0 or 1, got {metric}")
        return _Index(dim, count, metric)

    def _flat(self) -> _Index:
        index = self._header()
        # Its vectors are declared as so many numbers, not bytes.
        _check("the numbers in all vectors", self._vector(_FLOAT), *[index.dim * index.count] * 2)
        return index

    def _hnsw(self) -> _Index:
        index = self._header()
        self._graph(index)
        if self.index({b"IxF2", b"IxFI", b"IxFl"}) != index:
            _refuse("a graph and its vectors must be of the same dimension, number and metric")
        return index

    def _graph(self, index: _Index) -> None:
        chances = self._array(np.dtype("<f8"))
        widths = self._array(_INT).astype(np.int64)
        levels = self._array(_INT).astype(np.int64)
        offsets = self._array(_WORD)
        neighbours = self._array(_INT)
        entry, top, construction, breadth, _ = self._numbers("<iiiii")
        if len(widths) != len(chances) + 1 or len(widths) < 2:  # noqa: PLR2004 - begin and end
            _refuse("a graph must have a width for each of its levels")
        _check_widths(widths)
        if not np.isfinite(chances).all():
            _refuse("the chances of a graph's levels must be numbers")
        for name, value in (("efConstruction", construction), ("efSearch", breadth)):
            _check(name, value, 1, LARGEST_BREADTH)
        if len(levels) != index.count or len(offsets) != index.count + 1:
            _refuse(f"a graph must have levels and links of {index.count} vectors")
        if not index.count:
            if entry != -1 or len(neighbours):
                _refuse("a graph without vectors must have no entry and no links")
            return
        if levels.min() < 1 or levels.max() >= len(widths):
            _refuse(f"the levels of vectors must be from 1 and below {len(widths)}")
        ends = np.concatenate([[0], np.cumsum(widths[levels])])
        if not np.array_equal(offsets, ends) or ends[-1] != len(neighbours):
            _refuse("the links of vectors must follow each other without a gap")
        _check("the entry of a graph", entry, 0, index.count - 1)
        _check("the highest level of a graph", top, 0, int(levels[entry]) - 1)
        _check_links(neighbours, levels, offsets, widths)

    def _ivf(self, read_codes: Callable[[_Index], int]) -> _Index:
        """Go through an IVF index; a function reads how codes are made, and returns their size."""
        index = self._header()
        lists, probes = self._numbers("<QQ")
        _check("nprobe", probes, 1, _LARGEST_WORD)
        coarse = self.index({b"IxF2", b"IxFI", b"IxFl", b"IHNf"})
        if (coarse.dim, coarse.count) != (index.dim, lists) or not lists:
            _refuse(f"{lists} clusters must have as many centres, of dimension {index.dim}")
        (kind,) = self._numbers("<B")
        _check("the type of a direct map", kind, 0, _HASHTABLE)
        self._vector(_WORD)
        if kind == _HASHTABLE:
            self._vector(_PAIR)
        self._lists(index, lists, read_codes(index))
        return index

    def _product_codes(self, index: _Index) -> int:
        residual, size, dim, parts, bits = self._numbers("<BQQQQ")
        _check("by_residual", residual, 0, 1)
        _check("the bits of a code", bits, 1, _MOST_BITS)
        _check("the parts of a code", parts, 1, index.dim)
        if dim != index.dim or dim % parts or size != (parts * bits + 7) // 8:
            _refuse(f"codes of {parts} parts of {bits} bits do not fit dimension {index.dim}")
        _check("the numbers in all centroids", self._vector(_FLOAT), *[dim << bits] * 2)
        return int(size)

    def _scalar_codes(self, index: _Index) -> int:
        kind, _, _, dim, size = self._numbers("<iifQQ")
        if kind not in _SCALAR:
            _refuse(f"a scalar quantiser must be of type {min(_SCALAR)} to {max(_SCALAR)}")
        bits, training = _SCALAR[kind]
        trained = {"each": 2 * index.dim, "whole": 2, "none": 0}[training]
        numbers = self._vector(_FLOAT)
        _check("the numbers that a quantiser has learnt", numbers, trained, max(trained, numbers))
        outer, residual = self._numbers("<QB")
        _check("by_residual", residual, 0, 1)
        if dim != index.dim or {size, outer} != {(index.dim * bits + 7) // 8}:
            _refuse(f"codes of {bits} bits do not fit dimension {index.dim}")
        return int(size)

    def _lists(self, index: _Index, lists: int, size: int) -> None:
        """Go through inverted lists: codes of ``size`` bytes and their labels."""
        kind = self._take(4)
        if kind != b"ilar":
            _refuse(f"inverted lists must be of kind ilar, got {kind!r}")
        number, bytes_each = self._numbers("<QQ")
        layout = self._take(4)
        if (number, bytes_each) != (lists, size) or layout not in {b"full", b"sprs"}:
            _refuse(f"inverted lists must be {lists}, of codes of {size} bytes")
        declared = self._array(_WORD)
        if layout == b"sprs":
            if len(declared) % 2:
                _refuse("sparse lists must be pairs")
            places, declared = declared[::2], declared[1::2]
            # Ascending, so that none comes twice.
            if len(places) and (
                places[0] < 0 or places[-1] >= lists or (np.diff(places) < 1).any()
            ):
                _refuse(f"sparse lists must be numbered from 0 and below {lists}")
        elif len(declared) != lists:
            _refuse(f"{lists} lists must have as many lengths, got {len(declared)}")
        if len(declared) and (declared.min() < 0 or declared.max() > index.count):
            _refuse(f"lists must have at most {index.count} vectors")
        total = sum(declared.tolist())
        if total != index.count:
            _refuse(f"lists must have {index.count} vectors in all, got {total}")
        self._skip(total * (size + _WORD.itemsize))

    def _transformed(self) -> _Index:
        index = self._header()
        (number,) = self._numbers("<i")
        _check("the number of transforms", number, 0, _MOST_TRANSFORMS)
        dim = index.dim
        for _ in range(number):
            dim = self._transform(dim)
        inner = self.index()
        # How many vectors there are is for the inner index to say, through which they change.
        if (inner.dim, inner.metric) != (dim, index.metric):
            _refuse("transforms must end with the dimension and metric of the index after them")
        return _Index(index.dim, inner.count, index.metric)

    def _transform(self, dim: int) -> int:
        """Go through a transform of vectors of a dimension; return that of its results."""
        kind = self._take(4)
        learnt: NDArray[Any] = np.empty(0, _INT)
        numbers = biases = means = -1
        if kind in {b"LTra", b"rrot", b"Pcam"}:
            if kind == b"Pcam":
                self._numbers("<ffBi")
                for _ in range(3):
                    self._vector(_FLOAT)
            (biased,) = self._numbers("<B")
            _check("have_bias", biased, 0, 1)
            numbers, biases = self._vector(_FLOAT), self._vector(_FLOAT)
            biases = biases if biased else -1
        elif kind == b"RmDT":
            learnt = self._array(_INT)
        elif kind == b"VCnt":
            means = self._vector(_FLOAT)
        elif kind == b"VNrm":
            self._numbers("<f")
        else:
            _refuse(f"a transform must be one of LTra, rrot, Pcam, RmDT, VCnt, VNrm, got {kind!r}")
        before, after, trained = map(int, self._numbers("<iiB"))
        _check("the dimension before a transform", before, dim, dim)
        _check("the dimension after a transform", after, 1, LARGEST_DIMENSION)
        _check("whether a transform is trained", trained, 1, 1)
        fits = {
            b"RmDT": len(learnt) == after and _within(learnt, -1, before),
            b"VCnt": means == before == after,
            b"VNrm": before == after,
        }.get(kind, numbers == before * after and biases in {-1, after})
        if not fits:
            _refuse(f"the numbers of transform {kind.decode()} do not fit its dimensions")
        return after

    def _numbers(self, layout: str) -> tuple[Any, ...]:
        return struct.unpack(layout, self._take(struct.calcsize(layout)))

    def _vector(self, dtype: np.dtype[Any]) -> int:
        """Go past a vector of numbers; return how many it has."""
        (count,) = self._numbers("<Q")
        self._skip(count * dtype.itemsize)
        return int(count)

    def _array(self, dtype: np.dtype[Any]) -> NDArray[Any]:
        """Read a vector of numbers."""
        (count,) = self._numbers("<Q")
        return np.frombuffer(self._take(count * dtype.itemsize), dtype)

    def _take(self, count: int) -> bytes:
        self._claim(count)
        content = self._file.read(count)
        if len(content) != count:
            _refuse(f"{count - len(content)} bytes are missing")
        return content

    def _skip(self, count: int) -> None:
        self._claim(count)
        self._file.seek(count, os.SEEK_CUR)

    def _claim(self, count: int) -> None:
        if count > self.left:
            _refuse(f"{count} bytes are declared where {self.left} are left")
        self.left -= count


def _check_widths(widths: NDArray[np.int64]) -> None:
    """Check how many links a vector has in each level; a search makes room for the lowest's."""
    each = np.diff(widths)
    if widths[0] or each.min() < 0 or each.max() != each[0] or widths[-1] > LARGEST_BREADTH:
        _refuse(
            "the widths of a graph's levels must begin at 0, ascend, be largest in the lowest "
            f"level and at most {LARGEST_BREADTH} in all"
        )


def _check_links(
    neighbours: NDArray[np.int32],
    levels: NDArray[np.int64],
    offsets: NDArray[np.int64],
    widths: NDArray[np.int64],
) -> None:
    """Check that every link leads to a vector, and to one that has links in that level, too."""
    if not _within(neighbours, -1, len(levels)):
        _refuse(f"links must lead to one of {len(levels)} vectors")
    for level in range(1, int(levels.max())):
        high = np.flatnonzero(levels > level)  # few, and fewer in every level
        columns = np.arange(widths[level], widths[level + 1])
        linked = neighbours[offsets[high][:, None] + columns]
        if (levels[linked[linked >= 0]] <= level).any():
            _refuse(f"links of level {level} must lead to vectors of that level")


def _within(numbers: NDArray[Any], low: int, below: int) -> bool:
    return not len(numbers) or bool(low <= numbers.min() and numbers.max() < below)


def _check(name: str, value: int, low: int, high: int) -> None:
    if not low <= value <= high:
        allowed = f"{low}" if low == high else f"from {low} to {high}"
        _refuse(f"{name} must be {allowed}, got {value}")


def _refuse(what: str) -> NoReturn:
    raise ValueError(what)
