"""Which vectors of an index count in a search."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, cached_property, partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ragcache_integrations.core.extras import require

__all__ = ["Selection", "faiss", "reader"]


@cache
def faiss() -> Any:
    """Import FAISS.

    Raises:
        MissingExtraError: FAISS is not installed.
    """
    return require("faiss", feature="StagedIndex", extra="faiss")


def reader(owner: Any, attribute: str) -> Callable[[], Any]:
    """Return what reads an attribute of one of FAISS's objects, in half the time.

    SWIG's property looks up each time where the object is. Good as long as the object is.
    """
    return partial(getattr(type(owner), attribute).fget, owner.this)


class Selection:
    """Some of the vectors of an index.

    Args:
        mask: By number of the vector, 0 for those that do not count, shape (n,).
    """

    def __init__(self, mask: NDArray[np.uint8]) -> None:
        self.mask = mask

    @cached_property
    def selector(self) -> Any:
        """The same for FAISS."""
        return faiss().IDSelectorBitmap(np.packbits(self.mask, bitorder="little"))
