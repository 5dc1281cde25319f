"""Records how long the embedding of a question takes."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

from .base import CURRENT

__all__ = ["noting_embedding"]


@contextmanager
def noting_embedding() -> Iterator[None]:
    """Add the block's time to the record of the question that this context is answering, if any."""
    begun = time.perf_counter()
    try:
        yield
    finally:
        noted = CURRENT.get()
        if noted is not None:
            seconds = time.perf_counter() - begun
            noted.embedding_seconds = (noted.embedding_seconds or 0.0) + seconds
