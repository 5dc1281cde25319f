"""Request traces: which documents each request brings, and when, for the simulator.

A trace holds lengths and identities only. Popularity follows Zipf's law over questions or over
documents, or is what the retrieval of real questions makes it.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from ragcache_integrations.errors import ConfigurationError

__all__ = [
    "Trace",
    "TraceRequest",
    "document_stream",
    "question_stream",
    "sampled_lengths",
    "zipf_ranks",
]


@dataclass(frozen=True, slots=True)
class TraceRequest:
    """One request. Its prompt: the trace's system prompt, the documents in order, the question.

    Attributes:
        documents: ``(id, tokens)`` of each document; there may be none.
        question_tokens: Length of what comes after the documents, at least 1.
        question: Identifies the question's text; ``None`` for one that is asked only once.
        arrival: Second at which the request arrives.
    """

    documents: tuple[tuple[str, int], ...]
    question_tokens: int = 32
    question: str | None = None
    arrival: float = 0.0


@dataclass(frozen=True, slots=True)
class Trace:
    """Requests in the order of arrival.

    Attributes:
        requests: At least one.
        system_tokens: Length of the text before the documents, the same for all requests.

    Raises:
        ConfigurationError: No request, a length that is too small, or arrivals that go back in
            time.
    """

    requests: tuple[TraceRequest, ...]
    system_tokens: int = 0

    def __post_init__(self) -> None:
        if not self.requests or self.system_tokens < 0:
            msg = (
                "a trace needs at least one request and a system prompt of at least 0 tokens, got "
                f"{len(self.requests)} requests and {self.system_tokens} tokens"
            )
            raise ConfigurationError(msg)
        before = -math.inf
        for number, request in enumerate(self.requests):
            lengths = [tokens for _, tokens in request.documents]
            if request.question_tokens < 1 or min(lengths, default=1) < 1:
                msg = (
                    "documents and questions must have at least 1 token, request "
                    f"{number} has {lengths} and {request.question_tokens}"
                )
                raise ConfigurationError(msg)
            if not before <= request.arrival < math.inf:
                msg = (
                    "arrivals must be finite seconds that never go back, request "
                    f"{number} arrives at {request.arrival} after {before}"
                )
                raise ConfigurationError(msg)
            before = request.arrival

    @property
    def documents(self) -> dict[str, int]:
        """Tokens of each document that was asked for, by id; the latest where they differ."""
        return dict(itertools.chain.from_iterable(request.documents for request in self.requests))

    @property
    def document_tokens(self) -> int:
        """Tokens of all documents that were asked for, each counted once."""
        return sum(self.documents.values())

    def prompt_tokens(self, request: TraceRequest) -> int:
        """Length of a request's prompt."""
        documents = sum(tokens for _, tokens in request.documents)
        return self.system_tokens + documents + request.question_tokens


def question_stream(
    retrieved: Sequence[Sequence[str]],
    tokens: Mapping[str, int],
    *,
    requests: int,
    exponent: float | None,
    seed: int,
    system_tokens: int = 64,
    question_tokens: int | Sequence[int] = 32,
    rate: float | None = None,
) -> Trace:
    """Questions that come again and again, each with the documents that retrieval gave for it.

    Args:
        retrieved: Ids of the documents of each question, in the order of the prompt.
        tokens: Length of each document.
        requests: How many to draw.
        exponent: Zipf's: the r-th most popular question is drawn with a chance proportional to
            ``r ** -exponent``, 0 draws all alike; which are popular is drawn too. ``None`` asks
            each question once, in random order, before any is asked again: documents are then as
            popular as retrieval makes them.
        seed: The same seed gives the same trace.
        system_tokens: Length of the text before the documents.
        question_tokens: Length of the questions, or of each of them.
        rate: Requests per second, arriving as a Poisson process; ``None`` for all at once.

    Raises:
        ConfigurationError: There are no questions, a document has no length, or a number is out
            of its range.
    """
    _check_stream(len(retrieved), requests, exponent, rate, "questions")
    lengths = (
        [question_tokens] * len(retrieved)
        if isinstance(question_tokens, int)
        else list(question_tokens)
    )
    if len(lengths) != len(retrieved):
        msg = f"got {len(lengths)} lengths for {len(retrieved)} questions"
        raise ConfigurationError(msg)
    unknown = sorted(set(itertools.chain.from_iterable(retrieved)) - tokens.keys())
    if unknown:
        msg = f"{len(unknown)} documents have no length, {unknown[0]!r} among them"
        raise ConfigurationError(msg)
    rng = np.random.default_rng(seed)
    drawn = _draw(rng, len(retrieved), requests, exponent)
    return Trace(
        tuple(
            TraceRequest(
                documents=tuple((name, tokens[name]) for name in retrieved[number]),
                question_tokens=lengths[number],
                question=str(number),
                arrival=arrival,
            )
            for number, arrival in zip(drawn, _arrivals(rng, requests, rate), strict=True)
        ),
        system_tokens,
    )


def document_stream(
    tokens: Mapping[str, int],
    *,
    top_k: int,
    requests: int,
    exponent: float,
    seed: int,
    system_tokens: int = 64,
    question_tokens: int = 32,
    rate: float | None = None,
) -> Trace:
    """New questions each time, over documents that are popular by Zipf's law.

    The documents of a request are drawn one after another, without one that it has already.

    Args:
        tokens: Length of each document.
        top_k: Documents per request.
        requests: How many to draw.
        exponent: As in :func:`question_stream`; 0 draws all alike.
        seed: The same seed gives the same trace.
        system_tokens: Length of the text before the documents.
        question_tokens: Length of the questions.
        rate: As in :func:`question_stream`.

    Raises:
        ConfigurationError: A number is out of its range, or there are fewer than ``top_k``
            documents.
    """
    _check_stream(len(tokens), requests, exponent, rate, "documents")
    if not 1 <= top_k <= len(tokens):
        msg = f"top_k must be from 1 to the {len(tokens)} documents, got {top_k}"
        raise ConfigurationError(msg)
    rng = np.random.default_rng(seed)
    names = list(tokens)
    chosen: list[list[int]] = [[] for _ in range(requests)]
    lacking = list(range(requests))
    popularity = rng.permutation(len(names))
    while lacking:  # drawing again what came twice is drawing without replacement
        ranks = zipf_ranks(len(names), len(lacking), exponent, rng)
        for at, rank in zip(lacking, ranks, strict=True):
            number = int(popularity[rank])
            if number not in chosen[at]:
                chosen[at].append(number)
        lacking = [at for at in lacking if len(chosen[at]) < top_k]
    return Trace(
        tuple(
            TraceRequest(
                documents=tuple((names[number], tokens[names[number]]) for number in numbers),
                question_tokens=question_tokens,
                arrival=arrival,
            )
            for numbers, arrival in zip(chosen, _arrivals(rng, requests, rate), strict=True)
        ),
        system_tokens,
    )


def sampled_lengths(
    names: Iterable[str], *, low: int = 100, high: int = 4000, seed: int
) -> dict[str, int]:
    """Lengths in tokens for documents, drawn alike from ``low`` to ``high``.

    Raises:
        ConfigurationError: ``low`` is below 1 or above ``high``.
    """
    if not 1 <= low <= high:
        msg = f"lengths need 1 <= low <= high, got {low} and {high}"
        raise ConfigurationError(msg)
    known = list(dict.fromkeys(names))
    drawn = np.random.default_rng(seed).integers(low, high, len(known), endpoint=True)
    return dict(zip(known, drawn.tolist(), strict=True))


def _check_stream(
    items: int, requests: int, exponent: float | None, rate: float | None, what: str
) -> None:
    if items < 1 or requests < 1:
        msg = f"a stream needs {what} and at least 1 request, got {items} and {requests}"
        raise ConfigurationError(msg)
    if exponent is not None and not 0 <= exponent < math.inf:
        msg = f"the exponent must be finite and at least 0, got {exponent}"
        raise ConfigurationError(msg)
    if rate is not None and not 0 < rate < math.inf:
        msg = f"the rate must be finite and above 0 requests a second, got {rate}"
        raise ConfigurationError(msg)


def _draw(rng: np.random.Generator, items: int, requests: int, exponent: float | None) -> list[int]:
    if exponent is None:
        rounds = [rng.permutation(items) for _ in range(-(-requests // items))]
        drawn: list[int] = np.concatenate(rounds)[:requests].tolist()
        return drawn
    popularity = rng.permutation(items)
    return [int(popularity[rank]) for rank in zipf_ranks(items, requests, exponent, rng)]


def zipf_ranks(items: int, count: int, exponent: float, rng: np.random.Generator) -> list[int]:
    """Draw ranks independently by Zipf's law over a finite number of items.

    Args:
        items: How many there are, at least 1.
        count: How many to draw.
        exponent: At least 0: rank r, from 0, is drawn with a chance proportional to
            ``(r + 1) ** -exponent``.
        rng: The source of chance.
    """
    weights = np.arange(1, items + 1, dtype=np.float64) ** -exponent
    ranks: list[int] = rng.choice(items, size=count, p=weights / weights.sum()).tolist()
    return ranks


def _arrivals(rng: np.random.Generator, requests: int, rate: float | None) -> list[float]:
    if rate is None:
        return [0.0] * requests
    arrivals: list[float] = np.cumsum(rng.exponential(1 / rate, requests)).tolist()
    return arrivals
