"""Mappers run at once, as many as may, and end when they should."""

from __future__ import annotations

import asyncio
import threading
from contextlib import aclosing, closing

import pytest

from ragcache_integrations.adaptive import (
    ModelAnswer,
    ModelRequest,
    Synthesis,
    SynthesisConfig,
    SynthesisSettings,
    astream_synthesis,
    asynthesise,
    stream_synthesis,
    synthesise,
)
from tests.adaptive.askers import ScriptedAsker, documents, read, said

PAGES = documents(*(f"Page {number}." for number in range(12)))
RERANK = SynthesisConfig("map_rerank", 12)
PATIENCE = 60.0


@pytest.mark.parametrize("bound", [1, 3, 12, 40])
def test_mappers_run_at_once_up_to_the_bound(bound: int) -> None:
    together = threading.Barrier(min(bound, 12))

    def answer(request: ModelRequest) -> ModelAnswer:
        together.wait(PATIENCE)  # breaks unless so many are there at once
        return said("yes", -0.5)

    asker = ScriptedAsker(answer)
    synthesise(asker, "Q?", PAGES, RERANK, SynthesisSettings(max_concurrency=bound))
    assert asker.most_at_once == min(bound, 12)


@pytest.mark.parametrize("bound", [1, 3, 12, 40])
async def test_awaited_mappers_run_at_once_up_to_the_bound(bound: int) -> None:
    asker = ScriptedAsker()
    await asynthesise(asker, "Q?", PAGES, RERANK, SynthesisSettings(max_concurrency=bound))
    assert asker.most_at_once == min(bound, 12)


@pytest.mark.parametrize("method", ["map_reduce", "map_rerank"])
def test_answers_stay_with_their_chunks(method: Synthesis) -> None:
    """Whatever the order in which they come."""
    gates = [threading.Event() for _ in PAGES]
    gates[-1].set()

    def answer(request: ModelRequest) -> ModelAnswer:
        texts = read(request)
        if len(texts) > 1:
            return said("end")
        number = int(texts[0].split()[1].rstrip("."))
        assert gates[number].wait(PATIENCE)
        gates[number - 1].set()
        return said(f"summary {number}", -number - 1.0)

    asker = ScriptedAsker(answer)
    config = SynthesisConfig(method, 12, 30 if method == "map_reduce" else None)
    result = synthesise(asker, "Q?", PAGES, config)
    mapped = result.steps[:12]
    assert [step.text for step in mapped] == [f"summary {number}" for number in range(12)]
    assert [step.chunks for step in mapped] == [(number,) for number in range(12)]


def failing(request: ModelRequest) -> ModelAnswer:
    if read(request) == ["Page 2."]:
        raise OSError("gone")
    return said("yes", -0.5)


def test_after_a_failure_nothing_more_is_asked() -> None:
    asker = ScriptedAsker(failing)
    with pytest.raises(OSError, match="gone"):
        synthesise(asker, "Q?", PAGES, RERANK, SynthesisSettings(max_concurrency=1))
    assert len(asker.requests) == 3


class Hanging(ScriptedAsker):
    """All but one page are never answered."""

    async def aask(self, request: ModelRequest) -> ModelAnswer:
        with self._one(request):
            await asyncio.sleep(0)
            if read(request) != ["Page 2."]:
                await asyncio.Event().wait()
            return self._answer(request)


async def test_after_a_failure_the_other_mappers_are_given_up() -> None:
    asker = Hanging(failing)
    with pytest.raises(OSError, match="gone"):
        await asyncio.wait_for(asynthesise(asker, "Q?", PAGES, RERANK), PATIENCE)
    assert asker.running == 0


async def test_cancelling_gives_all_mappers_up() -> None:
    asker = Hanging()
    task = asyncio.create_task(asynthesise(asker, "Q?", PAGES, RERANK))
    while asker.running < 11:  # noqa: ASYNC110 - nothing tells
        await asyncio.sleep(0.001)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert asker.running == 0


def test_closing_a_stream_closes_the_models() -> None:
    asker = ScriptedAsker(lambda request: said("a long answer"))
    with closing(stream_synthesis(asker, "Q?", PAGES, SynthesisConfig("stuff", 3))) as pieces:
        assert next(pieces) == "a"
    assert (asker.closed_streams, asker.running) == (1, 0)


async def test_closing_an_async_stream_closes_the_models() -> None:
    asker = ScriptedAsker(lambda request: said("a long answer"))
    stream = astream_synthesis(asker, "Q?", PAGES, SynthesisConfig("stuff", 3))
    async with aclosing(stream) as pieces:
        assert await anext(pieces) == "a"
    assert (asker.closed_streams, asker.running) == (1, 0)


def test_many_questions_at_once_do_not_mix() -> None:
    asker = ScriptedAsker(lambda request: said(request.prompt.messages[-1].text[-20:], -0.5))
    wrong: list[object] = []

    def ask(number: int) -> None:
        for method in ("stuff", "map_reduce", "map_rerank"):
            config = SynthesisConfig(method, 12, 30 if method == "map_reduce" else None)
            result = synthesise(asker, f"Question {number:04}?", PAGES, config)
            if f"{number:04}?" not in result.text:
                wrong.append(result)

    threads = [threading.Thread(target=ask, args=(number,)) for number in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
    assert len(asker.requests) == 16 * (1 + 13 + 12)


def test_planning_does_not_block_the_event_loop() -> None:
    """Counting may start an engine or ask a server: it happens in another thread."""
    threads = set()

    class Counting(ScriptedAsker):
        def count_tokens(self, text: str) -> int:
            threads.add(threading.current_thread())
            return len(text)

    async def run() -> None:
        asker = Counting(context_window=5000)
        for method in ("stuff", "map_reduce", "map_rerank"):
            config = SynthesisConfig(method, 12, 30 if method == "map_reduce" else None)
            await asynthesise(asker, "Q?", PAGES, config)
            async with aclosing(astream_synthesis(asker, "Q?", PAGES, config)) as pieces:
                assert [piece async for piece in pieces]

    asyncio.run(run())
    assert threads
    assert threading.main_thread() not in threads
