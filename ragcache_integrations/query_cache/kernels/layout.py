"""Layout of the kernels' inputs: a key's row of bookkeeping, and addresses of arrays."""

from __future__ import annotations

import ctypes
from typing import Any

from numpy.typing import NDArray

__all__ = ["COLUMNS", "EXPIRES", "FREE", "PARTITION", "SEQUENCE", "SERVES", "address"]

PARTITION = 0
"""Number of the cache key (namespace, filter) that the entry belongs to."""
SERVES = 1
"""The largest k that the entry answers."""
EXPIRES = 2
"""When the entry ends, in nanoseconds of the cache's clock."""
SEQUENCE = 3
"""Number of the insertion; distinguishes one use of the slot from the next."""
COLUMNS = 4

FREE = -1
"""The partition of a slot without an entry."""


_Byte = ctypes.c_char


def address(array: NDArray[Any]) -> int:
    """Return where an array's numbers are. ``array.ctypes`` takes three times as long.

    Args:
        array: Contiguous, and not read-only.
    """
    if not array.nbytes:  # which is no buffer
        return int(array.ctypes.data)
    return ctypes.addressof(_Byte.from_buffer(array.data))
