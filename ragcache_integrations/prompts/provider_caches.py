"""Prompt caches of hosted models, as their providers describe them.

A provider reads a prompt from its cache up to the first token that differs from a recent prompt, if
that prefix has a least length. Figures are those that the providers publish, with the date on which
they were looked up, some of them where others quote these pages: check them before a decision rests
on them. Prices are multiples of the model's price for input, because mostly that alone differs from
model to model. Everything can be replaced, for older models for example by
``replace(PROVIDERS["openai"], read_price=0.5)``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from ragcache_integrations.core.checks import check_int, check_number

__all__ = ["DAY", "PROVIDERS", "ProviderCache"]

DAY = 86_400
"""Seconds."""


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
    # As if a mark (cache_control) were at the best place; some models need 2,048 or 4,096 tokens.
    "anthropic": ProviderCache(
        name="Anthropic, 5 minutes",
        min_tokens=1024,
        step=1,
        lifetime=300,
        read_price=0.1,
        write_price=1.25,
        source="https://platform.claude.com/docs/en/build-with-claude/prompt-caching",
        read_on="2026-11-27",
    ),
    "anthropic-1h": ProviderCache(
        name="Anthropic, 1 hour",
        min_tokens=1024,
        step=1,
        lifetime=3600,
        read_price=0.1,
        write_price=2.0,
        source="https://platform.claude.com/docs/en/build-with-claude/prompt-caching",
        read_on="2026-11-27",
    ),
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
