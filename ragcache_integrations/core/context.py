"""Values of context variables for the time of a ``with`` block."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TypeVar

__all__ = ["context_value"]

V = TypeVar("V")


@contextmanager
def context_value(variable: ContextVar[V], value: V) -> Iterator[None]:
    """Set a context variable, and set it back at the end of the block."""
    token = variable.set(value)
    try:
        yield
    finally:
        variable.reset(token)
