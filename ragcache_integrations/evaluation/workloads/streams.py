"""Streams of questions as the papers ask them, with arrival times where they come at a rate."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np

from ragcache_integrations.errors import ConfigurationError
from ragcache_integrations.knowledge_tree.simulation import zipf_ranks

from .rephrasing import Kind, rephrase

__all__ = ["Workload", "WorkloadItem", "WorkloadKind", "make_workload"]

WorkloadKind = Literal["as_is", "uniform", "zipf"]

_RATE_LIMIT = 1e6


@dataclass(frozen=True, slots=True)
class WorkloadItem:
    """One question of the stream.

    Attributes:
        number: Its place in the stream, from 0.
        text: Its wording this time.
        question: Position of the question that it is, or is a rephrasing of.
        arrival: Second at which it arrives; 0 in a closed loop.
    """

    number: int
    text: str
    question: int
    arrival: float = 0.0


@dataclass(frozen=True, slots=True)
class Workload:
    """Questions in the order in which they are asked.

    Attributes:
        items: At least one question.
        rate: Requests per second, as a Poisson process; ``None`` for a closed loop.
    """

    items: tuple[WorkloadItem, ...]
    rate: float | None = None

    def __len__(self) -> int:
        return len(self.items)

    @property
    def digest(self) -> str:
        """The same for the same questions in the same order, whenever they arrive."""
        content = "\0".join(f"{item.question}\t{item.text}" for item in self.items)
        return hashlib.blake2b(content.encode(), digest_size=8).hexdigest()


def make_workload(
    texts: Sequence[str],
    kind: WorkloadKind = "as_is",
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
    - ``uniform``: each ``variants`` times behind different short beginnings, in random order
      (Proximity §4.2.2, MMLU and MedRAG).
    - ``zipf``: drawn independently by Zipf's law, each at least once, each time in other words
      (Proximity §4.2.2, MedRAG-Zipf).

    With ``minutes``, a trace of that length at ``rate`` (RAGCache §7 has hours): of ``zipf`` as
    many questions as arrive; the others come again, in random order, when all have been asked.

    Args:
        texts: The questions; at least one.
        kind: See above.
        length: How many are asked; by default all of ``as_is`` and ``uniform``, and of ``zipf``
            four times as many as there are questions.
        variants: For ``uniform``: how often each is asked.
        rephrasing: For ``zipf``: how far from the question its rephrasings are.
        exponent: For ``zipf``: the r-th most popular question is drawn with a chance proportional
            to ``r ** -exponent``.
        rate: Requests per second, arriving as a Poisson process; ``None`` for a closed loop.
        minutes: Length of a trace; needs ``rate`` and excludes ``length``.
        seed: The same seed gives the same stream.

    Raises:
        ConfigurationError: An argument is out of its range, or a question has not enough
            rephrasings.
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
    kind: WorkloadKind,
    questions: int,
    length: int | None,
    variants: int,
    exponent: float,
    rng: np.random.Generator,
) -> list[int]:
    if kind == "zipf":
        return _zipf(questions, length or 4 * questions, exponent, rng)
    first = np.arange(questions) if kind == "as_is" else _shuffled(questions, variants, rng)
    rounds = [first]
    while sum(map(len, rounds)) < (length or 0):
        rounds.append(_shuffled(questions, 1 if kind == "as_is" else variants, rng))
    order: list[int] = np.concatenate(rounds)[:length].tolist()
    return order


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
    """Arrivals within the minutes; none where there is no such limit."""
    if rate is None or minutes is None:
        return []
    end = 60 * minutes
    expected = rate * end
    # Ten standard deviations more than expected are never used up.
    times = _times(rate, int(expected + 10 * math.sqrt(expected) + 20), seed)
    within = [time for time in times if time < end]
    if not within:
        msg = f"no request arrives within {minutes:g} minutes at {rate:g} requests a second"
        raise ConfigurationError(msg)
    return within


def _times(rate: float | None, count: int, seed: int) -> list[float]:
    if rate is None:
        return [0.0] * count
    # Drawn apart from the order, so that the questions are the same at every rate.
    gaps = np.random.default_rng([seed, 1]).exponential(1.0, count)
    times: list[float] = (np.cumsum(gaps) / rate).tolist()
    return times


def _check(
    texts: Sequence[str],
    kind: WorkloadKind,
    length: int | None,
    variants: int,
    exponent: float,
    rate: float | None,
    minutes: float | None,
) -> None:
    if not texts:
        msg = "a workload needs at least one question, got none"
        raise ConfigurationError(msg)
    if kind not in get_args(WorkloadKind):
        msg = f"workload must be one of {', '.join(get_args(WorkloadKind))}, got {kind!r}"
        raise ConfigurationError(msg)
    if length is not None and length < 1:
        msg = f"length must be at least 1 question, or None, got {length}"
        raise ConfigurationError(msg)
    if variants < 1:
        msg = f"variants must be at least 1, got {variants}"
        raise ConfigurationError(msg)
    if not 0 <= exponent < math.inf:
        msg = f"exponent must be finite and at least 0, got {exponent}"
        raise ConfigurationError(msg)
    if rate is not None and not 0 < rate <= _RATE_LIMIT:
        msg = f"rate must be above 0 requests a second, and at most {_RATE_LIMIT:g}, got {rate}"
        raise ConfigurationError(msg)
    if minutes is None:
        return
    if not 0 < minutes < math.inf:
        msg = f"minutes must be finite and above 0, got {minutes}"
        raise ConfigurationError(msg)
    if rate is None or length is not None:
        msg = "minutes needs a rate, and excludes length: it is the trace that gives the length"
        raise ConfigurationError(msg)
