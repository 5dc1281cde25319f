"""Request traces: which documents each request brings, and when, for the simulator.

A trace holds lengths and identities only.
"""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass

import numpy as np

from ragcache_integrations.errors import ConfigurationError

__all__ = ["Trace", "TraceRequest", "zipf_ranks"]


@dataclass(frozen=True, slots=True)
class TraceRequest:
    """One request. Its prompt: the trace's system prompt, the documents in order, the question.

    Attributes:
        documents: ``(id, tokens)`` of each document; there may be none.
        question_tokens: Length of what comes after the documents, at least 1.
        question: Identifies the question's text; ``None`` for one that is asked only once.
        arrival: Second at which the request arrives.
        namespace: The tenant. Tenants share nothing.
        session: The conversation or the user; empty for none.
    """

    documents: tuple[tuple[str, int], ...]
    question_tokens: int = 32
    question: str | None = None
    arrival: float = 0.0
    namespace: str = ""
    session: str = ""


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
            raise ConfigurationError(
                "a trace needs at least one request and a system prompt of at least 0 tokens, got "
                f"{len(self.requests)} requests and {self.system_tokens} tokens"
            )
        before = -math.inf
        for number, request in enumerate(self.requests):
            lengths = [tokens for _, tokens in request.documents]
            if request.question_tokens < 1 or min(lengths, default=1) < 1:
                raise ConfigurationError(
                    "documents and questions must have at least 1 token, request "
                    f"{number} has {lengths} and {request.question_tokens}"
                )
            if not before <= request.arrival < math.inf:
                raise ConfigurationError(
                    "arrivals must be finite seconds that never go back, request "
                    f"{number} arrives at {request.arrival} after {before}"
                )
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
