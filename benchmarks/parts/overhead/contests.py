"""Asking our retrievers and the frameworks' own in turn."""

from __future__ import annotations

import gc
import inspect
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from parts.overhead.call_counts import CallCounter
from parts.overhead.subtraction import Stopwatch, rephrase
from parts.stats.intervals import Ratio, geometric_mean_ratio

__all__ = ["KINDS", "Contest", "Counts", "Times", "count_calls", "ratio_of", "time_calls"]

KINDS = ("miss", "hit", "rephrased")
"""A new question, the same question again, and its rephrasing, in the order they are asked."""

Call = Callable[[str], Any]
Times = dict[str, tuple[list[float], list[float]]]
"""Seconds of ours and of the framework's own, question by question, by kind."""
Counts = dict[str, tuple[int, int]]
"""Calls into our code, and files of ours that they are of, by kind."""


@dataclass(frozen=True)
class Contest:
    """Two that answer the same questions.

    Attributes:
        plain: Asks the framework's own.
        ours: Asks ours.
        stopwatch: Knows the time of embedding and search, on both sides.
    """

    plain: Call
    ours: Call
    stopwatch: Stopwatch


async def time_calls(contest: Contest, questions: Sequence[str], warm_up: int) -> Times:
    """Ask every question of both, in turn, and subtract embedding and search.

    Args:
        contest: Which calls; what they return is awaited where it is a coroutine.
        questions: Each once.
        warm_up: So many questions at the beginning are asked, but their times left out.
    """
    times: Times = {kind: ([], []) for kind in KINDS}
    gc.collect()
    for number, question in enumerate(questions):
        plain_first = number % 2 == 0
        plain = await _seconds(contest, contest.plain, question) if plain_first else 0.0
        ours = {
            kind: await _seconds(contest, contest.ours, text)
            for kind, text in zip(KINDS, _texts(question), strict=True)
        }
        if not plain_first:
            plain = await _seconds(contest, contest.plain, question)
        if number >= warm_up:
            for kind, seconds in ours.items():
                times[kind][0].append(seconds)
                times[kind][1].append(plain)
    return times


async def count_calls(counter: CallCounter, ours: Call, questions: Sequence[str]) -> Counts:
    """Count for the last question; the others warm up."""
    for question in questions[:-1]:
        for text in _texts(question):
            await _answer(ours, text)
    counts: Counts = {}
    for kind, text in zip(KINDS, _texts(questions[-1]), strict=True):
        counter.start()
        await _answer(ours, text)
        counts[kind] = counter.stop()
    return counts


def ratio_of(times: Sequence[Times], kind: str) -> Ratio:
    """Return the time of ours over the framework's: medians, over all runs."""
    return geometric_mean_ratio([run[kind] for run in times])


def _texts(question: str) -> tuple[str, str, str]:
    return question, question, rephrase(question)


async def _answer(call: Call, text: str) -> None:
    answer = call(text)
    if inspect.iscoroutine(answer):
        await answer


async def _seconds(contest: Contest, call: Call, text: str) -> float:
    before, started = contest.stopwatch.seconds, time.perf_counter()
    answer = call(text)
    if inspect.iscoroutine(answer):
        await answer
    elapsed = time.perf_counter() - started
    return elapsed - (contest.stopwatch.seconds - before)
