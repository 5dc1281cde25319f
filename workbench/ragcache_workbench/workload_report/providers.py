"""What the prompt caches of hosted models would hold of some traffic, and what it would cost."""

from __future__ import annotations

from dataclasses import dataclass

from ragcache_integrations.core.checks import check_number
from ragcache_integrations.prompts.provider_caches import DAY, PROVIDERS, ProviderCache
from ragcache_workbench.simulation import Trace, TraceRequest

__all__ = ["REQUESTS_PER_DAY", "ProviderShare", "provider_shares"]

REQUESTS_PER_DAY = 1000.0
"""Where nobody says how many there are; the linter's default, too."""


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
    window = cache.lifetime * per_day / DAY
    latest: dict[tuple[int, object], tuple[int, int]] = {}
    total = cached = 0
    paid = 0.0
    for number, request in enumerate(trace.requests):
        tokens = trace.prompt_tokens(request)
        shared = trace.system_tokens + _shared_tokens(request, number, window, latest)
        # The request before this one is recent, or none is.
        held = min(tokens, cache.cached(shared)) if min(number, window) >= 1 else 0
        total, cached = total + tokens, cached + held
        paid += cache.billed(tokens, held)
    return ProviderShare(cache, cached / total, paid / total)


def _shared_tokens(
    request: TraceRequest,
    number: int,
    window: float,
    latest: dict[tuple[int, object], tuple[int, int]],
) -> int:
    """Tokens after the system's text that a prompt has in common with a recent one, at most.

    Args:
        request: The request.
        number: Its place in the trace.
        window: How many of the latest requests are recent.
        latest: Of each beginning of a prompt, named by the number of the beginning without its last
            part and by that part: its own number, and the last request that had it. This request is
            added.
    """
    parts: list[tuple[object, int]] = [(document, document[1]) for document in request.documents]
    if request.question is not None:
        parts.append((request.question, request.question_tokens))
    shared = parent = 0
    is_recent = True
    for part, tokens in ((request.namespace, 0), *parts):
        known = latest.get((parent, part))
        is_recent = is_recent and known is not None and number - known[1] <= window
        shared += tokens if is_recent else 0
        name = len(latest) + 1 if known is None else known[0]
        latest[parent, part] = name, number
        parent = name
    return shared
