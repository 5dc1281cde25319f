"""What the prompt caches of hosted models hold of recorded requests, and what it costs."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from ragcache_integrations.core.checks import check_number
from ragcache_integrations.prompts.provider_caches import DAY, ProviderCache

from .requests import RecordedRequest
from .tokens import CountTokens, approximate_tokens, common_length

__all__ = ["ProviderCost", "provider_cost"]

MOST_COMPARED = 256
"""The most earlier requests that one is compared with, the latest ones."""


@dataclass(frozen=True, slots=True)
class ProviderCost:
    """What recorded requests cost with a provider's cache.

    Attributes:
        cache: The cache.
        prompt_tokens: Of a request, on average.
        cached_tokens: Of them, read from the cache.
        cost_per_day: Of all prompts of a day, in the currency of the price.
        uncached_cost_per_day: The same if nothing were cached.
    """

    cache: ProviderCache
    prompt_tokens: float
    cached_tokens: float
    cost_per_day: float
    uncached_cost_per_day: float

    def __str__(self) -> str:
        """One line for people to read."""
        share = 100 * self.cached_tokens / self.prompt_tokens if self.prompt_tokens else 0.0
        return (
            f"{self.cache.name}: {share:.1f} % of the prompts' tokens from the cache; "
            f"{self.cost_per_day:.2f} a day, {self.uncached_cost_per_day:.2f} without it "
            f"(figures of {self.cache.read_on or 'your own'})"
        )


def provider_cost(
    requests: Sequence[RecordedRequest],
    cache: ProviderCache,
    *,
    requests_per_day: float,
    price: float,
    count_tokens: CountTokens = approximate_tokens,
) -> ProviderCost:
    """Compute what a provider's cache holds of requests, and what the prompts cost.

    The requests are taken to arrive at even intervals.

    Args:
        requests: As they were recorded, in their order.
        cache: One of :data:`PROVIDERS`, or your own figures.
        requests_per_day: How many requests like these a day has.
        price: Of a million tokens of input.
        count_tokens: Counts the tokens of a text.

    Raises:
        ConfigurationError: A number is out of range.
    """
    per_day = check_number("requests_per_day", requests_per_day, 0, above=True)
    price = check_number("price", price, 0)
    recent: deque[str] = deque(maxlen=int(min(MOST_COMPARED, cache.lifetime * per_day / DAY)))
    total = cached = 0
    paid = 0.0
    for request in requests:
        text = request.text
        tokens = count_tokens(text)
        shared = _longest_shared(text, recent)
        held = min(tokens, cache.cached(count_tokens(text[:shared])))
        total, cached = total + tokens, cached + held
        paid += cache.billed(tokens, held)
        recent.append(text)
    count = max(1, len(requests))
    daily = per_day / count * price / 1e6
    return ProviderCost(cache, total / count, cached / count, paid * daily, total * daily)


def _longest_shared(text: str, recent: Iterable[str]) -> int:
    """Characters of the longest prefix that a text shares with a recent one."""
    longest, longer = 0, text[:1]
    for earlier in recent:
        if longer and earlier.startswith(longer):
            longest = common_length(text, earlier)
            longer = text[: longest + 1] if longest < len(text) else ""
    return longest
