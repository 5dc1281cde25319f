"""Asks a retriever questions before they come."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from typing import TypeVar

from tqdm import tqdm

__all__ = ["ask_all", "ask_all_async"]

Q = TypeVar("Q")
R = TypeVar("R")

_UNIT = " questions"


def ask_all(
    ask: Callable[[Q], R], questions: Sequence[Q], *, workers: int, show_progress: bool
) -> list[R]:
    """Ask questions, several at a time, and return the answers in the questions' order.

    Args:
        ask: Answers one question.
        questions: The questions.
        workers: How many at a time.
        show_progress: Show a progress bar.

    Raises:
        Exception: The first question's error, once all of them are done.
    """
    with ThreadPoolExecutor(workers, "ragcache-warm") as pool:
        pending = [pool.submit(ask, question) for question in questions]
        with tqdm(total=len(pending), disable=not show_progress, unit=_UNIT) as bar:
            for _ in as_completed(pending):
                bar.update()
    return [future.result() for future in pending]


async def ask_all_async(
    ask: Callable[[Q], Awaitable[R]], questions: Sequence[Q], *, workers: int, show_progress: bool
) -> list[R]:
    """Async version of :func:`ask_all`."""
    limit = asyncio.Semaphore(workers)
    with tqdm(total=len(questions), disable=not show_progress, unit=_UNIT) as bar:

        async def ask_in_turn(question: Q) -> R:
            async with limit:
                try:
                    return await ask(question)
                finally:
                    bar.update()

        answers = await asyncio.gather(*map(ask_in_turn, questions), return_exceptions=True)
    results: list[R] = []
    for answer in answers:
        if isinstance(answer, BaseException):
            raise answer
        results.append(answer)
    return results
