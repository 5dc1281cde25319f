"""Generated traces: popularity follows Zipf's law, or is what retrieval makes it."""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from ragcache_integrations.errors import ConfigurationError
from ragcache_workbench.simulation.traces import Trace, TraceRequest, zipf_ranks

__all__ = ["SCAN", "document_stream", "question_stream", "sampled_lengths"]

SCAN = 50
"""Requests in a row that ask for documents which come only once."""


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
    drift: float = 0.0,
    upheavals: int = 0,
    scans: float = 0.0,
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
        drift: With an exponent: by how many ranks the popularity of all questions falls with each
            request; whichever was the least popular becomes the most popular one.
        upheavals: With an exponent: how often popularity is drawn anew, evenly over the stream.
        scans: Share of the requests that ask for two documents which come only once, as long as any
            others; they come in runs of :data:`SCAN`.

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
        raise ConfigurationError(f"got {len(lengths)} lengths for {len(retrieved)} questions")
    unknown = sorted(set(itertools.chain.from_iterable(retrieved)) - tokens.keys())
    if unknown:
        msg = f"{len(unknown)} documents have no length, {unknown[0]!r} among them"
        raise ConfigurationError(msg)
    rng = np.random.default_rng(seed)
    drawn = _draw(rng, len(retrieved), requests, exponent, drift, upheavals)
    asked = [
        TraceRequest(
            documents=tuple((name, tokens[name]) for name in retrieved[number]),
            question_tokens=lengths[number],
            question=str(number),
            arrival=arrival,
        )
        for number, arrival in zip(drawn, _arrivals(rng, requests, rate), strict=True)
    ]
    if scans:
        _scan(asked, scans, list(tokens.values()), rng)
    return Trace(tuple(asked), system_tokens)


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
        raise ConfigurationError(f"lengths need 1 <= low <= high, got {low} and {high}")
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
        raise ConfigurationError(f"the exponent must be finite and at least 0, got {exponent}")
    if rate is not None and not 0 < rate < math.inf:
        msg = f"the rate must be finite and above 0 requests a second, got {rate}"
        raise ConfigurationError(msg)


def _draw(
    rng: np.random.Generator,
    items: int,
    requests: int,
    exponent: float | None,
    drift: float = 0.0,
    upheavals: int = 0,
) -> list[int]:
    if exponent is None:
        rounds = [rng.permutation(items) for _ in range(-(-requests // items))]
        drawn: list[int] = np.concatenate(rounds)[:requests].tolist()
        return drawn
    popularity = [rng.permutation(items)]
    ranks = zipf_ranks(items, requests, exponent, rng)
    popularity += [rng.permutation(items) for _ in range(upheavals)]
    return [
        int(popularity[at * len(popularity) // requests][(rank - int(at * drift)) % items])
        for at, rank in enumerate(ranks)
    ]


def _scan(
    asked: list[TraceRequest], share: float, lengths: Sequence[int], rng: np.random.Generator
) -> None:
    """Put requests for documents that come only once into a stream."""
    for begin in range(0, len(asked), SCAN):
        if rng.random() >= share:
            continue
        for at in range(begin, min(begin + SCAN, len(asked))):
            drawn = rng.choice(lengths, 2).tolist()
            once = tuple((f"once-{at}-{place}", length) for place, length in enumerate(drawn))
            asked[at] = dataclasses.replace(asked[at], documents=once, question=None)


def _arrivals(rng: np.random.Generator, requests: int, rate: float | None) -> list[float]:
    if rate is None:
        return [0.0] * requests
    arrivals: list[float] = np.cumsum(rng.exponential(1 / rate, requests)).tolist()
    return arrivals
