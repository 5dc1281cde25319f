"""Streams of questions as in the papers, with arrival times if they have a request rate."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np

from ragcache_integrations.core.checks import check_choice, check_int, check_number
from ragcache_integrations.errors import ConfigurationError
from ragcache_workbench.simulation import zipf_ranks

from .query_logs import query_ranks
from .rephrasing import Kind, rephrase

__all__ = ["Workload", "WorkloadItem", "WorkloadKind", "check_workload", "make_workload"]

WorkloadKind = Literal["as_is", "uniform", "zipf"]

LOG = "tripclick"
"""The first part of ``tripclick:PATH``, which replays the order of a log."""

_RATE_LIMIT = 1e6


@dataclass(frozen=True, slots=True)
class WorkloadItem:
    """One question of the stream.

    Attributes:
        number: Its position in the stream, from 0.
        text: Its wording, which may be a rephrasing.
        question: Position of the question in the data set.
        arrival: Seconds from the start of the stream to its arrival; 0 in a closed loop.
    """

    number: int
    text: str
    question: int
    arrival: float = 0.0


@dataclass(frozen=True, slots=True)
class Workload:
    """Questions in the order in which they are asked.

    Attributes:
        items: The questions; at least one.
        rate: Requests per second, as a Poisson process; ``None`` for a closed loop.
        refused: For rephrasings by a model: how many were refused and made by rules instead, by
            the reason; ``None`` if all were made by rules, or there are none.
    """

    items: tuple[WorkloadItem, ...]
    rate: float | None = None
    refused: Mapping[str, int] | None = None

    def __len__(self) -> int:
        return len(self.items)

    @property
    def digest(self) -> str:
        """A hash of the questions and their order, without their arrival times."""
        content = "\0".join(f"{item.question}\t{item.text}" for item in self.items)
        return hashlib.blake2b(content.encode(), digest_size=8).hexdigest()


def check_workload(kind: object) -> None:
    """Check the name of a workload.

    Raises:
        ConfigurationError: It is neither a :data:`WorkloadKind` nor ``tripclick:PATH``.
    """
    if not _log_path(kind):
        names = get_args(WorkloadKind)
        check_choice("workload", kind, names, also="tripclick:PATH, with the path of a log")


def make_workload(
    texts: Sequence[str],
    kind: str = "as_is",
    *,
    length: int | None = None,
    variants: int = 4,
    rephrasing: Kind = "medium",
    exponent: float = 0.8,
    rate: float | None = None,
    minutes: float | None = None,
    seed: int = 0,
) -> Workload:
    """Make a stream out of a data set's questions.

    - ``as_is``: each once, in the data set's order.
    - ``uniform``: each ``variants`` times with different short prefixes, in random order
      (Proximity §4.2.2, MMLU and MedRAG).
    - ``zipf``: drawn independently by Zipf's law, each at least once, each time in other words
      (Proximity §4.2.2, MedRAG-Zipf).
    - ``tripclick:PATH``: in the order of a log of queries, such as TripClick's, whose r-th most
      popular query becomes the r-th of the questions in random order, in the data set's own words.
      The stream is the longest beginning of the log with as many different queries as there are
      questions (:func:`~ragcache_workbench.evaluation.workloads.query_logs.query_ranks`).

    With ``minutes``, the stream is a trace of that length at ``rate`` (RAGCache §7 has hours):
    ``zipf`` draws as many questions as arrive, a log has to have as many searches, and the other
    kinds start again in random order when all questions have been asked.

    Args:
        texts: The questions; at least one.
        kind: The kind of stream; see above.
        length: Number of questions in the stream; ``None`` for all of ``as_is``, ``uniform`` and a
            log, and for four times the number of questions of ``zipf``.
        variants: For ``uniform``: number of times that each question comes.
        rephrasing: For ``zipf``: how far from the question its rephrasings are.
        exponent: For ``zipf``: the r-th most popular question is drawn with a probability
            proportional to ``r ** -exponent``; at least 0.
        rate: Requests per second, arriving as a Poisson process; ``None`` for a closed loop.
        minutes: Length of a trace in minutes; needs ``rate`` and excludes ``length``.
        seed: The same seed gives the same stream.

    Raises:
        ConfigurationError: An argument is out of its range, or a question has not enough
            rephrasings, or a log cannot be read or is too short.
    """
    _check(texts, kind, length, variants, exponent, rate, minutes)
    arrivals = _arrivals(rate, minutes, seed)
    if minutes is not None:
        length = len(arrivals)
    rng = np.random.default_rng([seed, 0])
    order = _order(kind, len(texts), length, variants, exponent, rng)
    if len(arrivals) == 0:
        arrivals = _times(rate, len(order), seed)
    words: Kind = {"uniform": "prefixed", "zipf": rephrasing}.get(kind, "verbatim")
    taken: set[str] = set()
    return Workload(
        tuple(
            WorkloadItem(number, rephrase(texts[question], words, rng, taken), question, arrival)
            for number, (question, arrival) in enumerate(zip(order, arrivals, strict=True))
        ),
        rate,
    )


def _order(
    kind: str,
    questions: int,
    length: int | None,
    variants: int,
    exponent: float,
    rng: np.random.Generator,
) -> list[int]:
    if path := _log_path(kind):
        by_rank = rng.permutation(questions)
        replayed: list[int] = by_rank[query_ranks(path, questions, length)].tolist()
        return replayed
    if kind == "zipf":
        return _zipf(questions, length or 4 * questions, exponent, rng)
    first = np.arange(questions) if kind == "as_is" else _shuffled(questions, variants, rng)
    rounds = [first]
    while sum(map(len, rounds)) < (length or 0):
        rounds.append(_shuffled(questions, 1 if kind == "as_is" else variants, rng))
    order: list[int] = np.concatenate(rounds)[:length].tolist()
    return order


def _log_path(kind: object) -> str:
    """The path of ``tripclick:PATH``; empty for another workload."""
    name, _, path = kind.partition(":") if isinstance(kind, str) else ("", "", "")
    return path.strip() if name == LOG else ""


def _shuffled(questions: int, times: int, rng: np.random.Generator) -> np.ndarray:
    return rng.permutation(np.repeat(np.arange(questions), times))


def _zipf(questions: int, length: int, exponent: float, rng: np.random.Generator) -> list[int]:
    if length < questions:
        msg = (
            f"a Zipf stream of {length} cannot hold each of {questions} questions once: ask for a "
            "longer one, or for a smaller sample"
        )
        raise ConfigurationError(msg)
    ranks = [*range(questions), *zipf_ranks(questions, length - questions, exponent, rng)]
    by_rank = rng.permutation(questions)
    order: list[int] = rng.permutation(by_rank[ranks]).tolist()
    return order


def _arrivals(rate: float | None, minutes: float | None, seed: int) -> list[float]:
    """Arrival times within the minutes; empty without a limit."""
    if rate is None or minutes is None:
        return []
    end = 60 * minutes
    expected = rate * end
    # The number of arrivals is never ten standard deviations above its mean.
    times = _times(rate, int(expected + 10 * math.sqrt(expected) + 20), seed)
    within = [time for time in times if time < end]
    if not within:
        msg = f"no request arrives within {minutes:g} minutes at {rate:g} requests per second"
        raise ConfigurationError(msg)
    return within


def _times(rate: float | None, count: int, seed: int) -> list[float]:
    if rate is None:
        return [0.0] * count
    # From another generator than the order, so that the questions are the same at every rate.
    gaps = np.random.default_rng([seed, 1]).exponential(1.0, count)
    times: list[float] = (np.cumsum(gaps) / rate).tolist()
    return times


def _check(
    texts: Sequence[str],
    kind: str,
    length: int | None,
    variants: int,
    exponent: float,
    rate: float | None,
    minutes: float | None,
) -> None:
    if not texts:
        msg = "a workload needs at least one question, got none"
        raise ConfigurationError(msg)
    check_workload(kind)
    if length is not None:
        check_int("length", length, 1, unit="questions", also="None")
    check_int("variants", variants, 1)
    check_number("exponent", exponent, 0)
    if rate is not None:
        unit = "requests per second"
        check_number("rate", rate, 0, _RATE_LIMIT, above=True, unit=unit, also="None")
    if minutes is None:
        return
    check_number("minutes", minutes, 0, above=True, also="None")
    if rate is None or length is not None:
        msg = "minutes needs a rate, and excludes length: the trace determines the length"
        raise ConfigurationError(msg)
