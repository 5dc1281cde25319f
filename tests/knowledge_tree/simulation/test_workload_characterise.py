"""Does caching pay? The figures, worked out by hand where they can be."""

from __future__ import annotations

import pytest
from parts.traffic.traces import document_stream, sampled_lengths

from ragcache_integrations.errors import ConfigurationError
from ragcache_workbench.simulation.characterise import (
    ENOUGH,
    HALF,
    LEAST_HIT_RATE,
    PRECISION,
    AccessSkew,
    Characterisation,
    characterise,
)
from ragcache_workbench.simulation.simulator import simulate
from ragcache_workbench.simulation.traces import Trace, TraceRequest


@pytest.fixture(scope="module")
def trace() -> Trace:
    lengths = sampled_lengths(map(str, range(300)), low=50, high=500, seed=0)
    return document_stream(lengths, top_k=2, requests=1500, exponent=1.0, seed=0)


@pytest.fixture(scope="module")
def found(trace: Trace) -> Characterisation:
    return characterise(trace)


def test_skew_is_the_cumulative_distribution() -> None:
    skew = AccessSkew((6, 2, 1, 1))

    assert skew.documents == 4
    assert skew.accesses == 10
    assert skew.share_of_top(0.25) == 0.6
    assert skew.share_of_top(0.3) == 0.8
    assert skew.share_of_top(0) == 0
    assert skew.share_of_top(1) == 1
    assert skew.curve() == [(0, 0), (0.25, 0.6), (0.5, 0.8), (0.75, 0.9), (1, 1)]


def test_the_largest_size_finds_what_an_unlimited_one_does(
    trace: Trace, found: Characterisation
) -> None:
    unlimited = simulate(trace, gpu_blocks=10**6, block_size=32)

    assert found.unlimited.document_hit_rate == unlimited.stats.document_hit_rate
    assert found.unlimited.token_hit_rate == unlimited.stats.token_hit_rate
    assert found.unlimited.saved_share == unlimited.saved_share
    assert unlimited.stats.gpu_evicted_blocks == 0


def test_sizes_rise_from_the_longest_request(trace: Trace, found: Characterisation) -> None:
    tokens = [size.tokens for size in found.sizes]

    assert tokens == sorted(set(tokens))
    assert tokens[0] == found.longest_request_tokens
    assert found.longest_request_tokens >= max(map(trace.prompt_tokens, trace.requests))
    assert len(tokens) >= 10


@pytest.mark.parametrize(("name", "share"), [("recommended", ENOUGH), ("half", HALF)])
def test_named_sizes_are_the_smallest_that_are_enough(
    found: Characterisation, name: str, share: float
) -> None:
    size = getattr(found, name)
    wanted = share * found.unlimited.token_hit_rate
    smaller = [siz for siz in found.sizes if siz.tokens < size.tokens]

    assert size in found.sizes
    assert size.token_hit_rate >= wanted
    assert max(one.token_hit_rate for one in smaller) < wanted
    assert size.tokens <= PRECISION * smaller[-1].tokens


def test_the_tree_finds_more_than_stock_in_little_memory(found: Characterisation) -> None:
    small = found.sizes[len(found.sizes) // 3]

    assert small.document_hit_rate > small.stock_document_hit_rate
    assert small.token_hit_rate > small.stock_token_hit_rate
    assert small.saved_share > small.stock_saved_share


def test_where_nothing_repeats_caching_does_not_pay() -> None:
    requests = tuple(TraceRequest(((str(number), 100),)) for number in range(200))
    found = characterise(Trace(requests))

    assert not found.pays
    assert found.recommended is None
    assert found.half is None
    assert found.unlimited.token_hit_rate == 0 < LEAST_HIT_RATE


def test_where_nothing_is_as_long_as_a_block_caching_does_not_pay() -> None:
    found = characterise(Trace((TraceRequest((("a", 5),), 3),) * 9))

    assert len(found.sizes) == 1
    assert not found.pays


def test_one_document_for_all_is_found_by_the_smallest_cache() -> None:
    found = characterise(Trace((TraceRequest((("a", 320),)),) * 50))

    assert found.recommended == found.sizes[0]
    assert found.recommended.document_hit_rate == 0.98
    assert found.skew.counts == (50,)


def test_cache_depth_bounds_what_an_unlimited_cache_keeps(trace: Trace) -> None:
    shallow = characterise(trace, cache_depth=1)

    assert shallow.sizes[-1].tokens < trace.document_tokens + 2 * shallow.longest_request_tokens
    assert shallow.unlimited.token_hit_rate > 0


def test_prefill_times_are_the_cost_models(trace: Trace) -> None:
    times = characterise(trace, prefill_seconds=lambda cached, new: cached + 1000 * new).prefill

    assert times.new_tokens == 32
    assert times.prefix_tokens[0] == 128
    assert times.prefix_tokens[-1] == max(map(trace.prompt_tokens, trace.requests)) - 32
    assert times.uncached[0] == 1000 * (128 + 32)
    assert times.cached[0] == 128 + 1000 * 32


@pytest.mark.parametrize(
    ("trace", "sizes", "told"),
    [
        (Trace((TraceRequest(()),)), 10, "no request of the workload has a document"),
        (Trace((TraceRequest((("a", 1),)),)), 1, "sizes must be at least 2"),
    ],
)
def test_what_makes_no_sense_is_refused(trace: Trace, sizes: int, told: str) -> None:
    with pytest.raises(ConfigurationError, match=told):
        characterise(trace, sizes=sizes)
