"""An engine that counts turns of the event loop instead of time, and stages to feed it."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import AsyncIterator, Iterator, Sequence

from ragcache_integrations.engine import (
    EngineLoad,
    Generation,
    GenerationChunk,
    Prompt,
    PromptDocument,
    SamplingOptions,
    Usage,
)
from ragcache_integrations.speculation import Speculator, StageOfDocuments

PROMPT_TOKENS = 100
TOKENS = 3
BUSY = EngineLoad(10_000, 10_000, 1, 0, prefilling_requests=1)
FULL = EngineLoad(PROMPT_TOKENS - 1, 10_000, 1, 0)


def prompt_of(documents: Sequence[str]) -> Prompt:
    return Prompt.rag("why?", [PromptDocument(text, text) for text in documents] or ["none"])


def answer_to(documents: Sequence[str]) -> str:
    return "".join(f"{number}:{prompt_of(documents)}" for number in range(TOKENS))


async def turns(number: int) -> None:
    for _ in range(number):
        await asyncio.sleep(0)


def stage(documents: str, *, final: bool = False) -> StageOfDocuments[str]:
    """A stage whose documents are letters."""
    return StageOfDocuments(tuple(documents), final)


async def stages_of(*plan: tuple[int, str]) -> AsyncIterator[StageOfDocuments[str]]:
    """Stages, each after so many turns; the last one is final."""
    for number, (wait, documents) in enumerate(plan, 1):
        await turns(wait)
        yield stage(documents, final=number == len(plan))


def stages_in_thread(*plan: str) -> Iterator[StageOfDocuments[str]]:
    for number, documents in enumerate(plan, 1):
        yield stage(documents, final=number == len(plan))


class FakeStream:
    """Brings a few chunks, the first one after the prefill."""

    def __init__(self, engine: FakeEngine, prompt: Prompt) -> None:
        self.prompt = prompt
        self.prompt_tokens = PROMPT_TOKENS
        self._engine = engine
        self._texts: list[str] = []
        self._given_up = False

    def abort(self, *, retract: bool = False) -> None:
        if self in self._engine.in_flight:
            self._engine.in_flight.remove(self)
            self._engine.aborted.append((self.prompt, retract))
        self._given_up = True

    def __aiter__(self) -> FakeStream:
        return self

    async def __anext__(self) -> GenerationChunk:
        engine = self._engine
        if self._given_up or len(self._texts) == TOKENS:
            raise StopAsyncIteration
        try:
            await turns(1 if self._texts else engine.prefill_turns)
        except asyncio.CancelledError:
            self.abort()
            raise
        if self._given_up:
            raise StopAsyncIteration
        if engine.breaks is not None:
            engine.in_flight.remove(self)
            raise engine.breaks
        self._texts.append(f"{len(self._texts)}:{self.prompt}")
        last = len(self._texts) == TOKENS
        if last:
            engine.in_flight.remove(self)
        return GenerationChunk(
            self._texts[-1],
            finish_reason="length" if last else None,
            usage=Usage(PROMPT_TOKENS, len(self._texts), 0),
        )

    async def aresult(self) -> Generation:
        async for _ in self:
            pass
        usage = Usage(PROMPT_TOKENS, len(self._texts), 0)
        return Generation("".join(self._texts), (), "length", usage)


class FakeEngine:
    """Has no state but what tests look at.

    Attributes:
        busy: What it says about its load; else it tells the truth.
        breaks: Raised by every stream that is read.
        refuses: Prompts that hold this document are refused.
    """

    def __init__(self, prefill_turns: int = 5, submit_turns: int = 1) -> None:
        self.prefill_turns = prefill_turns
        self.submit_turns = submit_turns
        self.submitted: list[Prompt] = []
        self.aborted: list[tuple[Prompt, bool]] = []
        self.in_flight: list[FakeStream] = []
        self.most_in_flight = 0
        self.busy: EngineLoad | None = None
        self.breaks: Exception | None = None
        self.refuses: str | None = None
        self.load_breaks: Exception | None = None

    async def astream(
        self,
        prompt: Prompt,
        options: SamplingOptions | None = None,
        *,
        namespace: str = "",
        timeout: float | None = None,
    ) -> FakeStream:
        await turns(self.submit_turns)
        if self.refuses in {document.id for document in prompt.documents}:
            msg = f"no {self.refuses}"
            raise ValueError(msg)
        stream = FakeStream(self, prompt)
        self.submitted.append(prompt)
        self.in_flight.append(stream)
        self.most_in_flight = max(self.most_in_flight, len(self.in_flight))
        return stream

    async def aload(self) -> EngineLoad:
        await turns(1)
        if self.load_breaks is not None:
            raise self.load_breaks
        if self.busy is not None:
            return self.busy
        pending = sum(not stream._texts for stream in self.in_flight)
        return EngineLoad(10_000, 10_000, len(self.in_flight), 0, prefilling_requests=pending)


def our_threads() -> list[threading.Thread]:
    return [one for one in threading.enumerate() if one.name.startswith("ragcache-s")]


def assert_no_threads(seconds: float = 20.0) -> None:
    """None of ours is left; they end just after what they were asked for."""
    deadline = time.monotonic() + seconds
    while left := our_threads():
        assert time.monotonic() < deadline, left
        time.sleep(0.01)


def assert_clean(engine: FakeEngine, speculator: Speculator) -> None:
    """Nothing is left of any request: no task, no stream in the engine, nobody in the pool."""
    assert asyncio.all_tasks() == {asyncio.current_task()}
    assert not engine.in_flight
    assert len(speculator._shared.pool) == 0
    assert not speculator._shared.pool._waiting
