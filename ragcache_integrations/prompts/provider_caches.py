"""Prompt caches of hosted models, as their providers describe them.

A provider reads a prompt from its cache up to the first token that differs from a recent prompt, if
that prefix has a least length. Figures are those that the providers publish, with the date on which
they were looked up, some of them where others quote these pages: check them before a decision rests
on them. Prices are multiples of the model's price for input, because mostly that alone differs from
model to model. Everything can be replaced, for older models for example by
``replace(PROVIDERS["openai"], read_price=0.5)``.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from ragcache_integrations.core.checks import check_int, check_number

from .lint import CountTokens, approximate_tokens, common_length

__all__ = ["DAY", "PROVIDERS", "ProviderCache", "ProviderCost", "provider_cost"]

DAY = 86_400
"""Seconds."""

MOST_COMPARED = 256
"""The most earlier requests that one is compared with, the latest ones."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProviderCache:
    """A provider's prompt cache.

    Attributes:
        name: Its name.
        min_tokens: Tokens of the shortest prefix that is cached.
        step: Cached prefixes have the least length and a multiple of this many tokens more.
        lifetime: Seconds for which a prefix is kept after its last use.
        read_price: Price of a token that is read from the cache, as a multiple of the input's.
        write_price: Price of a token that is computed in a prompt of the least length or more, as a
            multiple of the input's.
        source: The provider's page about it.
        read_on: The day on which the figures were looked up, as ``YYYY-MM-DD``.

    Raises:
        ConfigurationError: A number is out of range.
    """

    name: str
    min_tokens: int
    step: int
    lifetime: float
    read_price: float
    write_price: float
    source: str = ""
    read_on: str = ""

    def __post_init__(self) -> None:
        check_int("min_tokens", self.min_tokens, 1)
        check_int("step", self.step, 1)
        check_number("lifetime", self.lifetime, 0, unit="seconds")
        check_number("read_price", self.read_price, 0)
        check_number("write_price", self.write_price, 0)

    def cached(self, shared: int) -> int:
        """Tokens that are read from the cache if a recent prompt shares this many."""
        if shared < self.min_tokens:
            return 0
        return self.min_tokens + (shared - self.min_tokens) // self.step * self.step

    def billed(self, tokens: float, cached: float) -> float:
        """Tokens of a prompt by price: as many of uncached input would cost the same.

        Args:
            tokens: Of the prompt.
            cached: Of them, read from the cache.
        """
        write = self.write_price if tokens >= self.min_tokens else 1.0
        return cached * self.read_price + (tokens - cached) * write


# As if a mark (cache_control) were at the best place; some models need 2,048 or 4,096 tokens.
_ANTHROPIC = ProviderCache(
    name="Anthropic, 5 minutes",
    min_tokens=1024,
    step=1,
    lifetime=300,
    read_price=0.1,
    write_price=1.25,
    source="https://platform.claude.com/docs/en/build-with-claude/prompt-caching",
    read_on="2026-11-27",
)

PROVIDERS: Mapping[str, ProviderCache] = {
    # Kept for 5 to 10 minutes without use: the shorter time counts.
    "openai": ProviderCache(
        name="OpenAI",
        min_tokens=1024,
        step=128,
        lifetime=300,
        read_price=0.1,
        write_price=1.0,
        source="https://developers.openai.com/docs/guides/prompt-caching",
        read_on="2026-11-27",
    ),
    "anthropic": _ANTHROPIC,
    "anthropic-1h": replace(_ANTHROPIC, name="Anthropic, 1 hour", lifetime=3600, write_price=2.0),
    # Implicit caching, which promises nothing and names no lifetime: 5 minutes are assumed. Pro
    # models need 4,096 tokens.
    "google": ProviderCache(
        name="Google, implicit",
        min_tokens=1024,
        step=1,
        lifetime=300,
        read_price=0.1,
        write_price=1.0,
        source="https://ai.google.dev/gemini-api/docs/caching",
        read_on="2026-11-27",
    ),
}
"""The caches of providers, by the names that ``ragcache lint --provider`` takes."""


class SentText(Protocol):
    """A request that was sent to a model."""

    @property
    def text(self) -> str:
        """The whole request, in the order in which the model reads it."""


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
    requests: Sequence[SentText],
    cache: ProviderCache,
    *,
    requests_per_day: float,
    price: float,
    count_tokens: CountTokens = approximate_tokens,
) -> ProviderCost:
    """Compute what a provider's cache holds of requests, and what the prompts cost.

    The requests are taken to arrive at even intervals.

    Args:
        requests: As they were recorded, in their order, such as those that
            :func:`~ragcache_workbench.logs.read_requests` reads.
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
