from __future__ import annotations

import itertools
import random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ragcache_integrations.engine import Prompt, RAGCacheEngine, SamplingOptions
from ragcache_integrations.engine.measurements import (
    _Bench,
    _completed,
    _doublings,
    _grid,
    measure_prefill,
)
from ragcache_integrations.errors import ConfigurationError, EngineError
from ragcache_integrations.knowledge_tree.prefill_cost import PrefillCostModel, PrefillFormula


def assert_rising(model: PrefillCostModel) -> None:
    """More new tokens, and more cached ones before as many new ones, never cost less."""
    for line in (*model.seconds, *zip(*model.seconds, strict=True)):
        assert all(less <= more for less, more in itertools.pairwise(line))


# On the real engine


@pytest.mark.engine
def test_a_tiny_grid(engine: RAGCacheEngine, capfd: pytest.CaptureFixture[str]) -> None:
    before = engine.stats()
    model = measure_prefill(engine, max_tokens=2 * engine.block_size + 20, repeats=1)
    assert model.cached_tokens == (0, engine.block_size, 2 * engine.block_size)
    assert model.new_tokens[0] == 8
    assert model.new_tokens[-1] == 2 * engine.block_size + 19
    assert model.seconds[0][0] > 0
    assert_rising(model)
    after = engine.stats()
    assert after.finished_requests > before.finished_requests
    assert after.failed_requests == before.failed_requests
    assert after.aborted_requests == before.aborted_requests
    load = engine.load()
    assert load.free_kv_tokens == load.total_kv_tokens
    assert capfd.readouterr() == ("", "")


@pytest.mark.engine
def test_progress_is_shown_where_wanted(
    engine: RAGCacheEngine, capfd: pytest.CaptureFixture[str]
) -> None:
    smallest = engine.block_size + 9
    measure_prefill(engine, max_tokens=smallest, repeats=1, show_progress=True)
    out, error = capfd.readouterr()
    assert out == ""
    assert "Measuring prefills: 100%" in error


@pytest.mark.engine
@pytest.mark.parametrize("max_tokens", [0, 16, 100_000, -5, 500.0, True, "many"])
def test_lengths_that_cannot_be_measured(engine: RAGCacheEngine, max_tokens: Any) -> None:
    requests = engine.stats().requests
    allowed = f"from {engine.block_size + 9} .* to {engine.max_model_len}.*got {max_tokens!r}"
    with pytest.raises(ConfigurationError, match=allowed):
        measure_prefill(engine, max_tokens=max_tokens)
    assert engine.stats().requests == requests


@pytest.mark.engine
def test_a_window_below_a_block(engine: RAGCacheEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine, "max_model_len", engine.block_size)
    words = f"nothing to measure below {engine.block_size + 9} .*window is {engine.block_size} "
    with pytest.raises(ConfigurationError, match=words):
        measure_prefill(engine)


@pytest.mark.engine
@pytest.mark.parametrize("repeats", [0, -1, 1.5, True, None])
def test_repeats_must_be_a_number(engine: RAGCacheEngine, repeats: Any) -> None:
    with pytest.raises(ConfigurationError, match=f"repeats must be .*got {repeats!r}"):
        measure_prefill(engine, repeats=repeats)


@pytest.mark.engine
def test_a_busy_engine_is_not_measured(engine: RAGCacheEngine) -> None:
    options = SamplingOptions(max_tokens=4000, ignore_eos=True)
    with engine.stream(Prompt.raw("once upon a time"), options) as stream:
        next(stream)
        with pytest.raises(EngineError, match="the engine is busy"):
            measure_prefill(engine, max_tokens=engine.block_size + 9)
        assert next(stream).token_ids  # and goes on


@pytest.mark.engine
def test_texts_are_as_long_as_asked_for_and_never_the_same(engine: RAGCacheEngine) -> None:
    bench = _Bench(engine)
    for tokens in (7, 8, 127, 1000):
        texts = [bench._text(tokens) for _ in range(5)]
        assert [engine.count_tokens(text) for text in texts] == [tokens] * 5
        assert len(set(texts)) == 5


@pytest.mark.engine
def test_a_prefix_that_is_not_cached_is_noticed(engine: RAGCacheEngine) -> None:
    bench, tokens = _Bench(engine), 2 * engine.block_size
    bench.reset()
    prefix = bench.prefill(tokens)
    assert bench.measure(prefix, tokens, 20) > 0
    bench.reset()
    with pytest.raises(EngineError, match=f"{tokens} should have been cached.*cached_tokens=0"):
        bench.measure(prefix, tokens, 20)


# The grid


@given(st.integers(1, 64), st.integers(0, 100_000))
def test_doublings_end_where_they_should(first: int, more: int) -> None:
    last = first + more
    numbers = _doublings(first, last)
    assert numbers[0] == first
    assert numbers[-1] == last
    for low, high in itertools.pairwise(numbers[:-1]):
        assert high == 2 * low
    if len(numbers) > 2:
        assert 1.5 <= numbers[-1] / numbers[-2] < 3


@given(
    st.sampled_from([16, 32, 48, 128]),
    st.integers(0, 20_000),
    st.tuples(st.floats(1e-3, 1), st.floats(1e-5, 1e-2), st.floats(0, 1e-6)),
    st.randoms(use_true_random=False),
)
def test_a_grid_is_completed_as_the_formula_goes_on(
    block_size: int, more: int, coefficients: tuple[float, float, float], noise: random.Random
) -> None:
    grid = _grid(block_size + 8 + more, block_size)
    assert all(cached % block_size == 0 for cached in grid.cached)
    formula = PrefillFormula(*coefficients)
    times = {
        (cached, new): formula(cached, new)
        for cached in grid.cached
        for new in grid.new_after(cached)
    }
    assert grid.tokens == sum(new for _, new in times) + sum(grid.cached)
    model = _completed(grid, times)
    for cached, new in itertools.product(grid.cached, grid.new):
        assert model(cached, new) == pytest.approx(formula(cached, new), rel=1e-5)

    disturbed = {node: seconds * noise.choice([1, 1, 1, 20]) for node, seconds in times.items()}
    assert_rising(_completed(grid, disturbed))


def test_a_disturbance_does_not_spread() -> None:
    grid = _grid(300, 128)
    formula = PrefillFormula(0.01, 0.001, 1e-6)
    times = {
        (cached, new): formula(cached, new)
        for cached in grid.cached
        for new in grid.new_after(cached)
    }
    quiet = _completed(grid, times)
    first, *others = _completed(grid, times | {(0, 8): 7.0}).seconds
    assert first[0] == min(quiet.seconds[0][1], quiet.seconds[1][0])
    assert first[1:] == quiet.seconds[0][1:]
    for row, undisturbed in zip(others, quiet.seconds[1:], strict=True):
        assert row == pytest.approx(undisturbed, rel=0.01)  # the fitted formula moved a little
