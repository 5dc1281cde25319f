"""Arrays of a saved cache that nobody has saved so, and checksums that are right nevertheless."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any

import numpy as np
from hypothesis import strategies as st
from numpy.typing import NDArray

from .hostile import NUMBERS

__all__ = ["MARKS", "changed", "sealed"]

SEALED = 64  # bytes of the checksum at the end
MARKS = (b"PK\1\2", b"PK\3\4", b"PK\5\6", b"PK\6\6", b"PK\6\7")


def sealed(content: bytes) -> bytes:
    """The content with the checksum that it should have."""
    return content[:-SEALED] + hashlib.sha256(content[:-SEALED]).hexdigest().encode()


@st.composite
def changed(draw: st.DrawFn, array: NDArray[Any], others: Mapping[str, NDArray[Any]]) -> Any:
    """An array with other numbers, of another length, shape or type, or another array."""
    array = array.copy()
    match draw(st.sampled_from(["number", "number", "cut", "repeat", "type", "shape", "another"])):
        case "number" if array.size:
            for _ in range(draw(st.integers(1, 3))):
                at = draw(st.integers(0, array.size - 1))
                number = draw(st.sampled_from(NUMBERS) | st.integers(-3, 20))
                try:
                    with np.errstate(all="ignore"):
                        array.reshape(-1)[at] = number
                except (OverflowError, ValueError):
                    array.reshape(-1)[at] = 1
        case "cut":
            array = array[: draw(st.integers(0, 3))] if array.ndim else array
        case "repeat":
            array = np.concatenate([array] * draw(st.integers(2, 50))) if array.ndim else array
        case "type":
            kind = draw(st.sampled_from(["<f4", "<f8", "<i8", "|u1", "|b1"]))
            with np.errstate(all="ignore"):
                array = array.astype(kind)
        case "shape":
            array = array.reshape(draw(st.sampled_from([(-1,), (1, -1), (-1, 1), (1, 1, -1)])))
        case _:
            array = others[draw(st.sampled_from(sorted(others)))]
    return array
