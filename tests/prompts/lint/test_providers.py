"""What providers' prompt caches hold of recorded requests, and what it costs."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ragcache_integrations.cli import command as cli
from ragcache_integrations.errors import ConfigurationError
from ragcache_integrations.prompts import PROVIDERS, ProviderCache, ProviderCost, provider_cost
from ragcache_workbench.logs.requests import recorded_requests

CACHE = ProviderCache(
    name="a", min_tokens=10, step=4, lifetime=300, read_price=0.1, write_price=1.25
)


def words(text: str) -> int:
    return len(text.split())


def cost(
    *prompts: str, cache: ProviderCache = CACHE, per_day: float = 86_400 / 100, price: float = 1e6
) -> ProviderCost:
    requests = [request for prompt in prompts for request in recorded_requests(prompt)]
    return provider_cost(requests, cache, requests_per_day=per_day, price=price, count_tokens=words)


def shared(count: int, name: str) -> str:
    """A prompt of 30 words, the first of which are the same in all prompts."""
    return " ".join([*(f"w{n}" for n in range(count)), *(f"{name}{n}" for n in range(30 - count))])


@pytest.mark.parametrize(("same", "cached"), [(9, 0), (10, 10), (13, 10), (14, 14), (29, 26)])
def test_prefixes_are_cached_from_the_least_length_in_steps(same: int, cached: int) -> None:
    # The word at which two prompts part is not shared: a blank after the last shared one is.
    assert cost(shared(same, "a"), shared(same, "b")).cached_tokens == cached / 2


def test_what_a_day_costs() -> None:
    found = cost(shared(14, "a"), shared(14, "b"), per_day=864)
    assert found.prompt_tokens == 30
    paid = (30 * 1.25 + 14 * 0.1 + 16 * 1.25) / 2
    assert found.cost_per_day == pytest.approx(864 * paid)
    assert found.uncached_cost_per_day == 864 * 30
    assert "23.3 % of the prompts' tokens from the cache" in str(found)


def test_what_is_too_old_is_gone() -> None:
    prompts = [shared(14, "a"), *(f"{n} other" for n in range(3)), shared(14, "b")]
    every_100_s, every_60_s = 864, 1440
    assert cost(*prompts, per_day=every_100_s).cached_tokens == 0
    assert cost(*prompts, per_day=every_60_s).cached_tokens == 14 / 5
    assert cost(*prompts, per_day=100).cached_tokens == 0
    long = replace(CACHE, lifetime=3600)
    assert cost(*prompts, cache=long, per_day=every_100_s).cached_tokens == 14 / 5


def test_short_prompts_are_not_written() -> None:
    found = cost("too short", "too short")
    assert found.cost_per_day == found.uncached_cost_per_day


def test_figures_have_a_page_and_a_day() -> None:
    for cache in PROVIDERS.values():
        assert cache.source.startswith("https://")
        assert cache.read_on.startswith("2026-")
        assert cache.cached(cache.min_tokens - 1) == 0
        assert cache.cached(cache.min_tokens) == cache.min_tokens


def test_wrong_figures_are_refused() -> None:
    wrong: list[dict[str, Any]] = [{"min_tokens": 0}, {"step": 0}, {"read_price": -1}]
    for figures in wrong:
        with pytest.raises(ConfigurationError, match=next(iter(figures))):
            replace(CACHE, **figures)
    with pytest.raises(ConfigurationError, match="requests_per_day"):
        cost("a", per_day=0)


def test_the_command_says_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    log = tmp_path / "log.jsonl"
    log.write_text("\n".join(json.dumps({"prompt": shared(20, name)}) for name in "abc"))
    arguments = ["lint", str(log), "--provider", "anthropic", "--price", "3", "--json"]
    cli.main([*arguments, "--requests-per-day", "5000"])
    out = capsys.readouterr().out
    assert "Anthropic, 5 minutes: 0.0 % of the prompts' tokens from the cache" in out
    found = json.loads(out.splitlines()[-1])[str(log)]["provider"]
    assert found["cache"]["min_tokens"] == 1024
