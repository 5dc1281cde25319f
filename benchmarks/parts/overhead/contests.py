"""Asking our retrievers and the frameworks' own in turn."""

from __future__ import annotations

import gc
import inspect
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np

from parts.overhead.call_counts import CallCounter
from parts.overhead.subtraction import Stopwatch, rephrase
from parts.stats.intervals import geometric_mean_ratio
from ragcache_workbench.evaluation.scores import Interval

__all__ = ["KINDS", "Contest", "Counts", "Times", "count_calls", "ratio_of", "time_calls"]

KINDS = ("miss", "hit", "rephrased")
"""A new question, the same question again, and its rephrasing, each asked after the one before."""

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


async def time_calls(
    contest: Contest, questions: Sequence[str], warm_up: int, seed: int = 0
) -> Times:
    """Ask both in turn, and subtract embedding and search.

    Every question is asked of the framework's own and, as a new one, of ours; in the next round
    ours is asked it again and, for the first time, its rephrasing. The four calls of a round come
    in random order, so that none of them always finds the processor's caches as another left them.

    Args:
        contest: Which calls; what they return is awaited where it is a coroutine.
        questions: Each once.
        warm_up: This many questions at the beginning are asked, but their times left out.
        seed: Decides the order.
    """
    times: Times = {kind: ([], []) for kind in KINDS}
    rng = np.random.default_rng(seed)
    gc.collect()
    await _answer(contest.ours, questions[0])
    for number, (last, question) in enumerate(pairwise(questions)):
        calls = [
            ("plain", contest.plain, question),
            ("miss", contest.ours, question),
            ("hit", contest.ours, last),
            ("rephrased", contest.ours, rephrase(last)),
        ]
        seconds = {
            calls[place][0]: await _seconds(contest.stopwatch, *calls[place][1:])
            for place in rng.permutation(len(calls)).tolist()
        }
        if number >= warm_up:
            for kind in KINDS:
                times[kind][0].append(seconds[kind])
                times[kind][1].append(seconds["plain"])
    return times


async def count_calls(counter: CallCounter, ours: Call, questions: Sequence[str]) -> Counts:
    """Count for the last question; the others warm up.

    Args:
        counter: Counts.
        ours: Asks ours.
        questions: Each once.
    """
    for question in questions[:-1]:
        for text in _texts(question):
            await _answer(ours, text)
    counts: Counts = {}
    for kind, text in zip(KINDS, _texts(questions[-1]), strict=True):
        counter.start()
        await _answer(ours, text)
        counts[kind] = counter.stop()
    return counts


def ratio_of(times: Sequence[Times], kind: str) -> Interval:
    """Return the time of ours over the framework's: the ratio of medians, over all runs."""
    return geometric_mean_ratio([run[kind] for run in times])


def _texts(question: str) -> tuple[str, str, str]:
    return question, question, rephrase(question)


async def _answer(call: Call, text: str) -> None:
    answer = call(text)
    if inspect.iscoroutine(answer):
        await answer


async def _seconds(stopwatch: Stopwatch, call: Call, text: str) -> float:
    before, started = stopwatch.seconds, time.perf_counter()
    answer = call(text)
    if inspect.iscoroutine(answer):
        await answer
    elapsed = time.perf_counter() - started
    return elapsed - (stopwatch.seconds - before)
