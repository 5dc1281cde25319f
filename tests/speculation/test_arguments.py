"""Bad input, and what is measured and derived."""

from __future__ import annotations

import math
from typing import Any

import pytest

from ragcache_integrations.engine import EngineLoad
from ragcache_integrations.errors import ConfigurationError
from ragcache_integrations.knowledge_tree import PrefillCostModel
from ragcache_integrations.speculation import Speculator
from ragcache_integrations.speculation.pool import Capacity, Pace, saturating_tokens

from .doubles import FakeEngine, prompt_of, stages_of


@pytest.mark.parametrize(
    ("knobs", "words"),
    [
        ({"max_prefill_bs": 0}, "max_prefill_bs must be a whole number of at least 1"),
        ({"max_prefill_bs": True}, "max_prefill_bs"),
        ({"max_prefill_bs": 1.5}, "max_prefill_bs"),
        ({"stage_interval": 0}, "stage_interval must be a number of seconds above 0"),
        ({"stage_interval": math.nan}, "stage_interval"),
        ({"stage_interval": "1"}, "stage_interval"),
        ({"speculate": None}, "speculate must be True or False"),
    ],
)
def test_bad_knobs(knobs: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigurationError, match=words):
        Speculator(FakeEngine(), **knobs)


def test_an_engine_that_is_none() -> None:
    with pytest.raises(ConfigurationError, match="must be a RAGCacheEngine, got str"):
        Speculator("http://localhost")  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"stages": 3}, "stages must be an iterable"),
        ({"prompt_of": "{context}"}, "prompt_of must be a function"),
        ({"options": {"max_tokens": 3}}, "options must be SamplingOptions, got dict"),
        ({"namespace": None}, "namespace must be a string"),
        ({"timeout": 0}, "timeout must be a number of seconds above 0"),
    ],
)
async def test_bad_arguments(change: dict[str, Any], words: str) -> None:
    arguments = {"stages": stages_of((0, "a")), "prompt_of": prompt_of, **change}
    speculator = Speculator(FakeEngine())
    with pytest.raises(ConfigurationError, match=words):
        await speculator.arun(**arguments)
    with pytest.raises(ConfigurationError, match=words):
        speculator.run(**arguments)
    assert speculator.stats().requests == 0


async def test_the_interval_is_at_most_the_measured_prefill_time() -> None:
    speculator = Speculator(FakeEngine())
    assert speculator.interval() is None
    await speculator.arun(stages_of((0, "a")), prompt_of)
    measured = speculator.interval()
    assert measured is not None
    assert 0 < measured < 1
    for wish in (measured / 2, 1000.0):
        wishing = Speculator(FakeEngine(), stage_interval=wish)
        assert wishing.interval() == wish
        await wishing.arun(stages_of((0, "a")), prompt_of)
        interval = wishing.interval()
        assert interval is not None
        assert interval <= wish
        assert interval <= wishing._shared.capacity.pace.prefill_seconds


def test_what_saturates_a_device() -> None:
    def seconds(tokens: int) -> float:
        return 0.01 + 1e-4 * tokens  # 80 % of the highest speed at 400 tokens, and so on

    columns = [1, 100, 200, 300, 400, 500, 100_000]
    model = PrefillCostModel([0, 1], columns, [[seconds(column) for column in columns]] * 2)
    assert saturating_tokens(model) == 400
    assert saturating_tokens(PrefillCostModel.default()) > 100


def test_room_by_memory_and_by_device() -> None:
    capacity = Capacity(None, saturating=1000)
    assert capacity.batch_size == 1  # nothing is known yet
    capacity.note_prompt(300)
    assert capacity.batch_size == 3
    free = EngineLoad(10_000, 10_000, 0, 0)
    assert capacity.has_room(free)
    assert capacity.has_room(EngineLoad(10_000, 10_000, 9, 0))  # decoding ones do not count
    assert capacity.has_room(EngineLoad(10_000, 10_000, 2, 1, prefilling_requests=1))
    assert not capacity.has_room(EngineLoad(10_000, 10_000, 2, 1, prefilling_requests=2))
    assert not capacity.has_room(EngineLoad(299, 10_000, 0, 0))
    assert capacity.has_room(EngineLoad(300, 10_000, 0, 0))
    assert not capacity.has_room(EngineLoad(599, 10_000, 0, 1))  # the waiting one needs it
    capacity.note_prompt(300_000)
    assert capacity.batch_size == 1
    assert Capacity(7, saturating=1).batch_size == 7


def test_what_was_computed_by_then() -> None:
    assert Pace().computed_in(1.0, 500) == 500  # nothing measured: all of it, to be safe
    pace = Pace(500, prefill_seconds=0.1, computed_tokens=200)
    assert pace.computed_in(0.05, 500) == 100
    assert pace.computed_in(5.0, 500) == 500
