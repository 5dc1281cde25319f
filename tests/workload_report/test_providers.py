"""What hosted models' prompt caches would hold of traffic."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ragcache_integrations.errors import ConfigurationError
from ragcache_integrations.prompts import PROVIDERS
from ragcache_integrations.prompts.provider_caches import provider_cost
from ragcache_workbench.logs.requests import RecordedRequest
from ragcache_workbench.simulation import Trace, TraceRequest
from ragcache_workbench.workload_report.comparisons import ProviderShare, provider_shares

LENGTHS = {"a": 700, "b": 900, "c": 1100, "d": 300}
OFTEN = 100_000.0


def request(*documents: str, question: str | None = None, namespace: str = "") -> TraceRequest:
    named = tuple((name, LENGTHS[name]) for name in documents)
    return TraceRequest(named, 1, question, namespace=namespace)


def share_of(name: str, *requests: TraceRequest, per_day: float = OFTEN) -> ProviderShare:
    shares = provider_shares(Trace(requests), per_day)
    return next(share for share in shares if share.cache == PROVIDERS[name])


def test_documents_in_the_same_order_are_read_from_the_cache() -> None:
    share = share_of("openai", request("a", "b"), request("a", "b"), request("b", "a"))
    # Of 1,600 tokens in common: 1,024 and four steps of 128.
    assert share.cached == 1536 / (3 * 1601)
    assert share.price == pytest.approx((3 * 1601 - 0.9 * 1536) / (3 * 1601))
    written = share_of("anthropic", request("a", "b"), request("a", "c"))
    assert written.cached == 0  # 700 tokens in common are too few
    assert written.price == 1.25


def test_what_is_short_old_or_another_tenant_s_is_not() -> None:
    pair = request("b", "c", namespace="x"), request("b", "c", namespace="y")
    assert share_of("google", *pair).cached == 0
    again = request("b", "c"), request("b", "c")
    assert share_of("google", *again).cached > 0.4
    assert share_of("google", *again, per_day=100).cached == 0
    assert share_of("anthropic-1h", *again, per_day=100).cached > 0.4


def test_busy_traffic_finds_what_hundreds_of_requests_ago_had() -> None:
    """A million requests a day are 3,472 in five minutes."""
    others = [request("a", question=str(number)) for number in range(1000)]
    traffic = (request("c"), *others, request("c"))
    for per_day, tokens in ((1e6, 1100), (1e308, 1100), (1e5, 0)):
        share = share_of("google", *traffic, per_day=per_day)
        assert share.cached == tokens / (2 * 1101 + 1000 * 701)


requests = st.builds(
    lambda documents, question: request(*documents, question=question),
    st.lists(st.sampled_from("abcd"), max_size=4, unique=True),
    st.sampled_from("12345"),
)


@given(st.lists(requests, min_size=1, max_size=20), st.sampled_from(sorted(PROVIDERS)))
def test_it_agrees_with_the_linter_that_reads_the_prompts(
    made: list[TraceRequest], provider: str
) -> None:
    # The linter writes the role before a message, in six characters.
    trace, cache = Trace(tuple(made), system_tokens=6), PROVIDERS[provider]
    texts = [
        "".join(name * tokens for name, tokens in each.documents) + str(each.question)
        for each in made
    ]
    recorded = [RecordedRequest("", "", "", (), text) for text in texts]
    costs = provider_cost(recorded, cache, requests_per_day=5000, price=1, count_tokens=len)
    share = next(each for each in provider_shares(trace, 5000) if each.cache == cache)
    assert share.cached == pytest.approx(costs.cached_tokens / costs.prompt_tokens)
    assert share.price == pytest.approx(costs.cost_per_day / costs.uncached_cost_per_day)


@pytest.mark.parametrize("per_day", [0, -1, float("nan"), True])
def test_a_number_of_requests_that_makes_no_sense_is_refused(per_day: float) -> None:
    with pytest.raises(ConfigurationError, match="requests_per_day"):
        provider_shares(Trace((request("a"),)), per_day)
