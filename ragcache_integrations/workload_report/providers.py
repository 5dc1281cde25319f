"""What the prompt caches of hosted models would hold of some traffic, and what it would cost."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass

from ragcache_integrations.core.checks import check_number
from ragcache_integrations.knowledge_tree.simulation import Trace, TraceRequest
from ragcache_integrations.prompts.provider_caches import DAY, PROVIDERS, ProviderCache

__all__ = ["REQUESTS_PER_DAY", "ProviderShare", "provider_shares"]

REQUESTS_PER_DAY = 1000.0
"""Where nobody says how many there are; the linter's default, too."""

MOST_COMPARED = 256
"""The most earlier requests that one is compared with, the latest ones."""


@dataclass(frozen=True, slots=True)
class ProviderShare:
    """What a provider's cache does for some traffic.

    Attributes:
        cache: The cache.
        cached: Share of the prompts' tokens that are read from it.
        price: What the prompts cost, as a share of what they would cost if nothing were cached.
    """

    cache: ProviderCache
    cached: float
    price: float


def provider_shares(trace: Trace, requests_per_day: float) -> list[ProviderShare]:
    """Compute what each provider's cache holds of a trace, and what the prompts cost.

    Requests are taken to arrive at even intervals. A prompt is found as far as its documents are
    those of a recent one, in the same order; the last document and the question count if all before
    them is the same.

    Args:
        trace: The traffic.
        requests_per_day: How many requests like these a day has.

    Raises:
        ConfigurationError: The number is not above 0.
    """
    per_day = check_number("requests_per_day", requests_per_day, 0, above=True)
    return [_share(trace, cache, per_day) for cache in PROVIDERS.values()]


def _share(trace: Trace, cache: ProviderCache, per_day: float) -> ProviderShare:
    recent: deque[TraceRequest] = deque(
        maxlen=min(MOST_COMPARED, int(cache.lifetime * per_day / DAY))
    )
    total = cached = 0
    paid = 0.0
    for request in trace.requests:
        tokens = trace.prompt_tokens(request)
        shared = trace.system_tokens + _shared_tokens(request, recent)
        held = min(tokens, cache.cached(shared)) if recent else 0
        total, cached = total + tokens, cached + held
        paid += cache.billed(tokens, held)
        recent.append(request)
    return ProviderShare(cache, cached / total, paid / total)


def _shared_tokens(request: TraceRequest, recent: Iterable[TraceRequest]) -> int:
    """Tokens after the system's text that a prompt has in common with a recent one, at most."""
    longest = 0
    for other in recent:
        if other.namespace != request.namespace:
            continue
        shared = 0
        for document, theirs in zip(request.documents, other.documents, strict=False):
            if document != theirs:
                break
            shared += document[1]
        is_same = request.documents == other.documents and request.question is not None
        if is_same and request.question == other.question:
            shared += request.question_tokens
        longest = max(longest, shared)
    return longest
