"""The record of pins, which outlives the engine's process."""

from __future__ import annotations

from dataclasses import replace

from ragcache_integrations.core.generation import SamplingOptions
from ragcache_integrations.core.prompt import FOREVER
from ragcache_integrations.engine.process.exchange import FEW, PinRecord
from ragcache_integrations.engine.protocol import Submit

REQUEST = Submit(7, [1, 2, 3, 4, 5], SamplingOptions(), "tenant", (("a", 1, 4),), pin=60.0)


def test_pins_come_again_for_the_time_that_is_left() -> None:
    time = 100.0
    record = PinRecord(lambda: time)
    record.note(REQUEST)
    record.note(replace(REQUEST, namespace="", pin=FOREVER))
    record.note(replace(REQUEST, namespace="plain", pin=None))
    record.note(replace(REQUEST, namespace="unpinning", pin=0.0))
    time = 110.0
    assert {(again.namespace, again.pin) for again in record.requests()} == {
        ("tenant", 50.0),
        ("", FOREVER),
    }
    record.note(replace(REQUEST, token_ids=[1, 2, 3, 4, 6], pin=20.0))
    assert [again.pin for again in record.requests()] == [20.0, FOREVER], "the same place"
    time = 130.0
    assert [again.namespace for again in record.requests()] == [""]
    record.note(REQUEST)
    record.forget(replace(REQUEST, token_ids=[1, 2, 3, 4], pin=0.0))
    record.forget(replace(REQUEST, token_ids=[1, 2, 2, 4], namespace=""))
    assert [again.namespace for again in record.requests()] == [""], "that was another place"
    record.clear()
    assert record.requests() == []


def test_pins_whose_time_is_over_are_not_kept() -> None:
    time = 100.0
    record = PinRecord(lambda: time)
    record.note(replace(REQUEST, namespace="stays", pin=FOREVER))
    for number in range(1000):
        record.note(replace(REQUEST, namespace=f"{number}", pin=10.0))
        time += 1
        assert len(record) <= 2 * FEW
    assert {again.namespace for again in record.requests()} == {
        "stays",
        *(f"{number}" for number in range(991, 1000)),
    }
