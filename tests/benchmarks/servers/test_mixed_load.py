"""The rounds of the soak benchmark."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest
from parts.traffic.mixed_load import KINDS, MixedLoad

from ragcache_integrations.engine import RAGCacheEngine
from ragcache_integrations.speculation import Speculator


@pytest.fixture(scope="module")
def idle(engine: RAGCacheEngine) -> Iterator[RAGCacheEngine]:
    yield engine
    engine.reset_cache()


def test_a_round_is_the_same_but_for_what_is_new(idle: RAGCacheEngine) -> None:
    load = MixedLoad(idle, Speculator(idle))
    first, second = load.round(0), load.round(1)
    assert [job.kind for job in first] == [job.kind for job in second]
    assert len(first) == sum(KINDS.values())
    for one, other in zip(first, second, strict=True):
        new = one.kind in {"new documents", "new tenant"}
        assert (one == other) != new
        if new:
            lengths = [
                sum(len(document.text.split()) for document in job.prompts[0].documents)
                for job in (one, other)
            ]
            assert lengths[0] == lengths[1]
    assert load.round(0) == first
    assert MixedLoad(idle, Speculator(idle), seed=1).round(0) != first


def test_a_server_is_asked_nothing_speculative(idle: RAGCacheEngine) -> None:
    kinds = {job.kind for job in MixedLoad(idle).round(0)}
    assert kinds == set(KINDS) - {"speculative"}


@pytest.mark.engine
def test_rounds_on_the_engine(idle: RAGCacheEngine) -> None:
    load = MixedLoad(idle, Speculator(idle))
    for _ in range(2):
        asyncio.run(load.run(0.001))
    assert (load.errors, load.first_errors, load.changed) == (0, [], 0)
    assert len(load.rounds) == 2
    assert dict(load.requests) == {kind: 2 * count for kind, count in KINDS.items()}
    for one in load.rounds:
        assert one.requests == sum(KINDS.values())
        assert 0 < one.median <= one.late


@pytest.mark.engine
def test_errors_and_changed_answers_are_counted(
    idle: RAGCacheEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    load = MixedLoad(idle)
    asyncio.run(load.run(0.001))
    real = idle.agenerate

    async def other(prompt: object, *args: object, **more: object) -> object:
        del prompt
        text = "something else entirely"
        return await real(load.round(0)[0].prompts[0].raw(text), *args, **more)  # type: ignore[arg-type]

    def broken(*_: object, **__: object) -> None:
        msg = "no"
        raise RuntimeError(msg)

    monkeypatch.setattr(idle, "agenerate", other)
    monkeypatch.setattr(idle, "generate_batch", broken)
    asyncio.run(load.run(0.001))
    assert load.errors == load.rounds[1].errors == KINDS["batch"]
    assert load.first_errors == ["batch: RuntimeError: no"]
    assert load.changed >= KINDS["short"] + KINDS["long"] + KINDS["new tenant"]
