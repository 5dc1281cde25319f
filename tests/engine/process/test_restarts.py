"""The engine's process dies, hangs or does not come up, and its requests are answered all the same.

The same at full size, and with figures: ``benchmarks/servers/faults.py``.
"""

from __future__ import annotations

import asyncio
import gc
import os
import signal
import tempfile
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import psutil
import pytest

from ragcache_integrations.engine import (
    Generation,
    GenerationChunk,
    Prompt,
    PromptDocument,
    RAGCacheEngine,
    SamplingOptions,
)
from ragcache_integrations.errors import (
    EngineClosedError,
    EngineDeadError,
    GenerationTimeoutError,
)
from ragcache_integrations.resources import load_passages
from tests.support import waiting
from tests.support.waiting import gone

wait_until = partial(waiting.wait_until, seconds=90.0)
pytestmark = pytest.mark.engine

SYSTEM = "Answer from the documents, and from nothing else."
REQUESTS = 30
LONG = SamplingOptions(max_tokens=150, ignore_eos=True)
SHORT = SamplingOptions(max_tokens=6)


def make_engine(**faults: Any) -> RAGCacheEngine:
    return RAGCacheEngine(
        kv_cache_gib=0.125,
        max_model_len=2048,
        dtype="float32",
        vllm_args={"enforce_eager": True, "max_num_seqs": 8},
        **faults,
    )


@pytest.fixture(scope="module")
def mortal() -> Iterator[RAGCacheEngine]:
    """Dies again and again; each of its lives is counted as the first."""
    with make_engine(max_restarts=1, restart_window=0, hang_timeout=8) as engine:
        yield engine


def question(number: int, documents: int = 2) -> Prompt:
    passages = load_passages()[number * documents : (number + 1) * documents]
    return Prompt.rag(
        f"what is document {number} about?",
        [PromptDocument(passage.text, passage.id) for passage in passages],
        system=SYSTEM,
    )


def kill(engine: RAGCacheEngine, how: signal.Signals = signal.SIGKILL) -> int:
    pid = engine.pid
    os.kill(pid, how)
    return pid


def kill_and_wait(engine: RAGCacheEngine) -> None:
    restarts = engine.stats().restarts
    kill(engine)
    wait_until(lambda: engine.stats().restarts > restarts)


def joined(chunks: list[GenerationChunk]) -> tuple[tuple[int, ...], str]:
    assert [chunk.finish_reason for chunk in chunks[:-1]] == [None] * (len(chunks) - 1)
    assert chunks[-1].finish_reason is not None
    return sum((chunk.token_ids for chunk in chunks), ()), "".join(chunk.text for chunk in chunks)


class Load:
    """Requests of every kind at once; notes what each of them was answered."""

    def __init__(self, engine: RAGCacheEngine, plan: list[tuple[Prompt, SamplingOptions]]) -> None:
        self._engine = engine
        self._plan = plan
        self.answers: list[list[tuple[tuple[int, ...], str]]] = [[] for _ in plan]
        self.errors: list[BaseException] = []
        self._threads = [
            threading.Thread(target=self._in_thread, args=(number,))
            for number in range(0, len(plan), 2)
        ]
        self._threads.append(threading.Thread(target=lambda: asyncio.run(self._in_loop())))

    def start(self) -> None:
        for thread in self._threads:
            thread.start()

    def join(self) -> None:
        for thread in self._threads:
            thread.join(120)

    def has_answered(self, count: int) -> bool:
        return sum(map(len, self.answers)) >= count

    def _in_thread(self, number: int) -> None:
        try:
            if number % 4:
                generation = self._engine.generate(*self._plan[number])
                self.answers[number].append((generation.token_ids, generation.text))
            else:
                chunks = list(self._engine.stream(*self._plan[number]))
                self.answers[number].append(joined(chunks))
        except BaseException as error:
            self.errors.append(error)

    async def _in_loop(self) -> None:
        async def ask(number: int) -> None:
            if number % 4 == 1:
                generation = await self._engine.agenerate(*self._plan[number])
                self.answers[number].append((generation.token_ids, generation.text))
            else:
                stream = await self._engine.astream(*self._plan[number])
                self.answers[number].append(joined([chunk async for chunk in stream]))

        asked = [ask(number) for number in range(1, len(self._plan), 2)]
        outcomes = await asyncio.gather(*asked, return_exceptions=True)
        self.errors += [outcome for outcome in outcomes if outcome is not None]


def test_killed_twice_under_load_every_request_is_answered_once(mortal: RAGCacheEngine) -> None:
    plan = [
        (question(number), SamplingOptions(max_tokens=40 + 9 * (number % 7), ignore_eos=True))
        for number in range(REQUESTS)
    ]
    undisturbed = [stream.result() for stream in [mortal.stream(*asked) for asked in plan]]
    assert len({answer.token_ids for answer in undisturbed}) > REQUESTS / 2
    before = mortal.stats()
    load = Load(mortal, plan)
    load.start()
    for answered in (4, 14):
        wait_until(partial(load.has_answered, answered))
        kill_and_wait(mortal)
    load.join()
    assert load.errors == []
    assert load.answers == [[(answer.token_ids, answer.text)] for answer in undisturbed]
    after = mortal.stats()
    assert after.restarts - before.restarts == 2
    assert after.requests - before.requests == REQUESTS
    assert after.finished_requests - before.finished_requests == REQUESTS
    assert after.failed_requests == before.failed_requests
    assert after.prompt_tokens - before.prompt_tokens == sum(
        answer.usage.prompt_tokens for answer in undisturbed
    )
    assert after.completion_tokens - before.completion_tokens == sum(
        answer.usage.completion_tokens for answer in undisturbed
    )
    assert after.resumed_requests > before.resumed_requests
    assert after.replayed_requests > before.replayed_requests
    assert not mortal._process.exchange._pending


def test_every_kind_of_answer_goes_on(mortal: RAGCacheEngine) -> None:
    schema = {
        "type": "array",
        "items": {"enum": ["yes", "no", "maybe"]},
        "minItems": 80,
        "maxItems": 80,
    }
    kinds = {
        "greedy": replace(LONG, logprobs=2),
        "seeded": replace(LONG, temperature=1.0, seed=5, top_k=50),
        "penalties": replace(LONG, frequency_penalty=-0.6, presence_penalty=-1, logprobs=2),
        "drawn under a penalty": replace(LONG, presence_penalty=-1, temperature=0.8, seed=3),
        "a repetition penalty": replace(LONG, repetition_penalty=0.5),
        "a stop string": replace(LONG, stop=("never said", "nor this")),
        "a grammar": SamplingOptions(max_tokens=150, json_schema=schema),
    }
    undisturbed = {name: mortal.generate(question(3), kinds[name]) for name in kinds}
    for name in ("penalties", "a repetition penalty"):
        assert undisturbed[name].token_ids != undisturbed["greedy"].token_ids
    before = mortal.stats()
    streams = {name: mortal.stream(question(3), kinds[name]) for name in kinds}
    drawn = mortal.stream(question(3), replace(LONG, temperature=1.0))
    firsts = {name: next(stream) for name, stream in streams.items()}
    first_drawn = next(drawn)
    kill(mortal)
    for name, stream in streams.items():
        answer, expected = stream.result(), undisturbed[name]
        assert answer.token_ids == expected.token_ids, name
        assert answer.text == expected.text, name
        assert answer.finish_reason == expected.finish_reason, name
        assert answer.usage == replace(expected.usage, cached_tokens=answer.usage.cached_tokens)
        usage = firsts[name].usage
        assert usage is not None
        assert answer.usage.cached_tokens == usage.cached_tokens, "told once, and kept"
        check_logprobs(answer, expected)
    assert len(drawn.result().token_ids) == 150
    assert drawn.result().text.startswith(first_drawn.text)
    assert mortal.stats().resumed_requests - before.resumed_requests == len(kinds) + 1


def check_logprobs(answer: Generation, expected: Generation) -> None:
    assert [token.token for token in answer.logprobs] == [
        token.token for token in expected.logprobs
    ]
    for logprob, other in zip(answer.logprobs, expected.logprobs, strict=True):
        assert logprob.logprob == pytest.approx(other.logprob, abs=1e-4)


def test_what_is_asked_while_there_is_no_process_waits(mortal: RAGCacheEngine) -> None:
    expected = mortal.generate(question(4), SHORT)
    given_up = mortal.stream(question(4), LONG)
    next(given_up)
    before = mortal.stats()
    kill(mortal)
    wait_until(lambda: mortal._process.restarting)
    given_up.abort()
    assert list(given_up) == []
    with pytest.raises(GenerationTimeoutError):
        mortal.generate(question(4), timeout=0.1)
    mortal.stream(question(4), LONG)  # dropped at once
    gc.collect()
    retracted = mortal.stream(question(4), LONG)
    retracted.abort(retract=True)
    waiting = mortal.stream(question(4), SHORT)
    prefilled: list[int] = []
    thread = threading.Thread(
        target=lambda: prefilled.append(mortal.prefill(question(5)).prompt_tokens)
    )
    thread.start()
    assert mortal._process.restarting
    load = mortal.load()
    assert load.running_requests + load.waiting_requests <= 2
    assert waiting.result().token_ids == expected.token_ids
    thread.join(30)
    assert len(prefilled) == 1
    after = mortal.stats()
    assert after.restarts == before.restarts + 1
    assert after.replayed_requests == before.replayed_requests, "they are not asked again"
    assert after.resumed_requests == before.resumed_requests
    assert not mortal._process.exchange._pending


def test_what_was_pinned_and_asked_for_most_is_computed_again_before(
    mortal: RAGCacheEngine, caplog: pytest.LogCaptureFixture
) -> None:
    documents = [PromptDocument(f"{name} is a city on a river. " * 20, name) for name in "ab"]

    def ask(query: str, namespace: str = "tenant") -> int:
        prompt = Prompt.rag(query, documents, system=SYSTEM)
        return mortal.generate(prompt, SHORT, namespace=namespace).usage.cached_tokens

    for number in range(4):
        ask(f"number {number}?")
    # Too seldom asked for to be computed again, but pinned.
    pinned = {name: PromptDocument(f"{name} is a hill. " * 20, name) for name in "cde"}
    for name, ttl in (("c", 500), ("d", None), ("e", None)):
        mortal.pin([pinned[name]], ttl=ttl, system=SYSTEM, namespace="tenant")
    assert mortal.unpin([pinned["e"]], system=SYSTEM, namespace="tenant")
    kill_and_wait(mortal)
    assert "pinned again after the restart: 2 of 2 pins" in caplog.text
    tree = mortal.tree()
    assert tree is not None
    nodes = {node.name: node for root in tree.roots for node in _below(root)}
    assert {"a", "b"} <= nodes.keys()
    assert "e" not in nodes
    assert nodes["c"].pinned
    assert 400 < nodes["c"].pinned_seconds <= 500
    assert nodes["d"].pinned
    assert nodes["d"].pinned_seconds is None
    assert mortal.unpin([pinned["d"]], system=SYSTEM, namespace="tenant")
    end = mortal.render(Prompt.rag("new?", documents, system=SYSTEM)).documents[-1].end
    assert ask("new?") == end // mortal.block_size * mortal.block_size > 0
    assert ask("new?", namespace="another") == 0
    assert mortal.reset_cache()
    kill_and_wait(mortal)
    assert ask("newer?") == 0, "what was to be forgotten is"
    tree = mortal.tree()
    assert tree is not None
    assert not any(node.pinned for root in tree.roots for node in _below(root))


def _below(node: Any) -> Iterator[Any]:
    yield node
    for child in node.children:
        yield from _below(child)


def test_a_process_that_stands_still_is_replaced(
    mortal: RAGCacheEngine, caplog: pytest.LogCaptureFixture
) -> None:
    expected = mortal.generate(question(6), LONG)
    stream = mortal.stream(question(6), LONG)
    next(stream)
    stopped = kill(mortal, signal.SIGSTOP)
    assert stream.result().token_ids == expected.token_ids
    assert gone(stopped)
    assert "it hung: no sign of life for 8 s" in caplog.text


def test_an_idle_process_that_dies_is_replaced_and_a_pause_is_no_hang(
    mortal: RAGCacheEngine,
) -> None:
    kill_and_wait(mortal)
    pid = mortal.pid
    os.kill(pid, signal.SIGSTOP)
    time.sleep(2)  # less than hang_timeout
    os.kill(pid, signal.SIGCONT)
    assert mortal.generate(question(6), SHORT).finish_reason == "length"
    assert mortal.pid == pid


# The end


def test_a_process_that_dies_again_and_again_is_given_up() -> None:
    with make_engine(max_restarts=1) as engine:
        stream = engine.stream(question(1), replace(LONG, max_tokens=1800))
        errors: list[BaseException] = []

        async def wait() -> None:
            try:
                await engine.agenerate(question(2), replace(LONG, max_tokens=1800))
            except EngineDeadError as error:
                errors.append(error)

        waiting = threading.Thread(target=lambda: asyncio.run(wait()))
        waiting.start()
        next(stream)
        kill_and_wait(engine)
        next(stream)
        kill(engine)
        with pytest.raises(EngineDeadError, match=r"(?s)2 times in a row.*killed by SIGKILL"):
            stream.result()
        waiting.join(30)
        assert "2 times in a row" in str(errors[0])
        assert not engine._process.restarting
        for call in (engine.load, engine.tree, engine.reset_cache):
            with pytest.raises(EngineDeadError, match="2 times in a row"):
                call()
        assert engine.stats().failed_requests == 2
    with pytest.raises(EngineClosedError):
        engine.load()


def test_a_process_that_finds_no_memory_any_more_is_given_up() -> None:
    with make_engine(max_restarts=1) as engine:
        settings = engine._process._settings
        engine._process._settings = replace(settings, kv_cache_gib=1_000_000.0)
        stream = engine.stream(question(1), LONG)
        next(stream)
        kill(engine)
        with pytest.raises(EngineDeadError, match=r"(?s)did not start again.*[Mm]emory"):
            stream.result()
        assert gone(engine.pid)


@pytest.mark.parametrize("moment", ["at once", "while it loads", "while it computes again"])
def test_closing_while_there_is_no_process_leaves_nothing(moment: str) -> None:
    gc.collect()
    threads, descriptors = set(threading.enumerate()), psutil.Process().num_fds()
    children = {process.pid for process in psutil.Process().children()}
    close_at(moment)
    gc.collect()
    assert {process.pid for process in psutil.Process().children()} <= children
    left = set(threading.enumerate()) - threads
    assert not [thread.name for thread in left if thread.name.startswith("ragcache")]
    assert psutil.Process().num_fds() <= descriptors


def close_at(moment: str) -> None:
    engine = make_engine()
    if moment == "while it computes again":
        for number in range(40):
            engine.generate_batch([question(number)] * 2, SHORT)
    streams = [engine.stream(question(number), LONG) for number in range(12)]
    next(streams[0])
    first = kill(engine)
    if moment == "while it loads":
        wait_until(lambda: engine.pid != first)
    elif moment == "while it computes again":
        wait_until(lambda: engine._process.exchange._prefills)
    engine.close()
    for stream in streams:
        with pytest.raises(EngineClosedError, match="closed during the request"):
            stream.result()
    with pytest.raises(EngineClosedError):
        engine.load()


def test_temporary_files_go_with_the_process(monkeypatch: pytest.MonkeyPatch) -> None:
    with tempfile.TemporaryDirectory() as place:  # pytest's own are too long for sockets
        monkeypatch.setattr(tempfile, "tempdir", place)

        def folders() -> set[Path]:
            return set(Path(place).glob("ragcache-engine-*"))

        with make_engine() as engine:
            engine.generate(question(0), SHORT)
            (first,) = folders()
            assert list(first.iterdir())  # of vLLM's
            kill_and_wait(engine)
            engine.generate(question(0), SHORT)
            assert len(folders() - {first}) == len(folders()) == 1
        assert not list(Path(place).iterdir())
