"""Embeddings that are known beforehand, and the time that is not the retrievers' own."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable
from functools import wraps
from typing import Any, ParamSpec, TypeVar

import numpy as np
from numpy.typing import NDArray

__all__ = ["Stopwatch", "rephrase", "vectors_of"]

P = ParamSpec("P")
T = TypeVar("T")

_NEAR = 0.1
"""Distance between the embeddings of a question and of its rephrasing."""


class Stopwatch:
    """Adds up the time spent in embedding models and in stores' searches, from any thread.

    Attributes:
        seconds: The time so far.
    """

    def __init__(self) -> None:
        self.seconds = 0.0

    def timed(self, function: Callable[P, T]) -> Callable[P, T]:
        """Return a function whose time is added up; it must not call another such function."""

        @wraps(function)
        def timed(*args: P.args, **kwargs: P.kwargs) -> T:
            started = time.perf_counter()
            try:
                return function(*args, **kwargs)
            finally:
                self.seconds += time.perf_counter() - started

        return timed

    def atimed(self, function: Callable[P, Awaitable[T]]) -> Callable[P, Awaitable[T]]:
        """Async version of :meth:`timed`, for coroutines that never wait for anything."""

        @wraps(function)
        async def timed(*args: P.args, **kwargs: P.kwargs) -> T:
            started = time.perf_counter()
            try:
                return await function(*args, **kwargs)
            finally:
                self.seconds += time.perf_counter() - started

        return timed


def rephrase(question: str) -> str:
    """Return other words for a question, whose embedding is close to the question's."""
    return f"Please: {question}"


def vectors_of(questions: list[str], dim: int, seed: int) -> dict[str, list[float]]:
    """Return unit vectors for questions and their rephrasings, which alone are close.

    Args:
        questions: The questions, each once.
        dim: Dimension of the vectors.
        seed: Decides them.
    """
    rng = np.random.default_rng(seed)
    vectors = _unit(rng.standard_normal((len(questions), dim)))
    offsets = _unit(rng.standard_normal((len(questions), dim)))
    near = _unit(vectors + _NEAR * offsets)
    names = [*questions, *map(rephrase, questions)]
    return dict(zip(names, np.concatenate([vectors, near]).tolist(), strict=True))


def _unit(rows: NDArray[np.float64]) -> NDArray[np.float64]:
    unit: NDArray[Any] = rows / np.linalg.norm(rows, axis=1, keepdims=True)
    return unit
