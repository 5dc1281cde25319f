"""One request: its stages, its guesses, and the generation that becomes the answer."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Generic, cast

from ragcache_integrations.engine import (
    AsyncGenerationStream,
    GenerationChunk,
    Prompt,
    SamplingOptions,
)
from ragcache_integrations.errors import ConfigurationError, GenerationTimeoutError

from .pool import Capacity, PrefillPool
from .sources import Stages, iterating
from .types import (
    Document,
    EventKind,
    SpeculationEvent,
    SpeculationReport,
    SpeculativeEngine,
    StageOfDocuments,
)

__all__ = ["Guess", "Request", "Shared"]

logger = logging.getLogger(__name__)

POLL_SECONDS = 0.01
"""How often the engine is asked again where others than this speculator keep it busy."""


@dataclass(frozen=True)
class Shared:
    """What all requests of a speculator have in common."""

    engine: SpeculativeEngine
    pool: PrefillPool
    capacity: Capacity
    speculate: bool


class Guess:
    """A prompt on its way through the engine: a guess, or what the search came to in the end.

    Attributes:
        number: From 1, in its request.
        prompt: What is asked.
        certain: Whether the documents were final when it was made.
        task: Submits it and waits for its first token.
        stream: The answer, once submitted.
        entered: Whether it was let in; not while it is held back.
        held_back: Whether it found no room.
        submitted: When it was submitted.
        first_chunk: The first token.
    """

    def __init__(self, number: int, prompt: Prompt, pool: PrefillPool, *, certain: bool) -> None:
        self.number = number
        self.prompt = prompt
        self.certain = certain
        self.task: asyncio.Task[GenerationChunk | None] | None = None
        self.stream: AsyncGenerationStream | None = None
        self.entered = False
        self.held_back = False
        self.submitted: float | None = None
        self.first_chunk: GenerationChunk | None = None
        self._pool = pool
        self._inside = False

    def enter(self, limit: int | None = None) -> bool:
        """Enter the pool if it holds fewer than ``limit``."""
        self._inside = self._pool.enter(limit)
        return self._inside

    def leave(self) -> None:
        """Leave the pool, if inside."""
        if self._inside:
            self._inside = False
            self._pool.leave()

    def give_up(self, *, retract: bool = False) -> None:
        """Abort what is running; blocks nothing. ``retract`` where it was a wrong guess."""
        if self.stream is not None:
            self.stream.abort(retract=retract)
        if self.task is not None:
            self.task.cancel()
        self.leave()

    @property
    def failed(self) -> bool:
        """Whether it came to an error."""
        task = self.task
        return task is not None and task.done() and (task.cancelled() or bool(task.exception()))


@dataclass
class _Tally:
    stages: int = 0
    guesses: int = 0
    aborted: int = 0
    held_back: int = 0
    wasted_prefill_tokens: int = 0
    confirmed: bool = False
    overlapped_seconds: float = 0.0
    search_seconds: float | None = None
    events: list[SpeculationEvent] = field(default_factory=list)


@dataclass(eq=False)
class Request(Generic[Document]):
    """Algorithm 2 of RAGCache §5.3 for one request. Belongs to one event loop.

    Args:
        shared: Of the speculator.
        prompt_of: Makes a prompt of a stage's documents.
        options: How to generate.
        namespace: Tenant.
        timeout: Seconds for the whole answer.
    """

    shared: Shared
    prompt_of: Callable[[tuple[Document, ...]], Prompt]
    options: SamplingOptions | None
    namespace: str = ""
    timeout: float | None = None
    _began: float = field(default_factory=time.perf_counter, init=False)
    _numbers: int = field(default=0, init=False)
    _tally: _Tally = field(default_factory=_Tally, init=False)
    _tasks: set[asyncio.Task[GenerationChunk | None]] = field(default_factory=set, init=False)

    # What happened

    def _note(self, what: EventKind, number: int) -> float:
        seconds = time.perf_counter() - self._began
        self._tally.events.append(SpeculationEvent(seconds, what, number))
        return seconds

    def report(self) -> SpeculationReport:
        """What happened so far."""
        counts = dict(vars(self._tally), events=tuple(self._tally.events))
        if counts["search_seconds"] is None:
            counts["search_seconds"] = time.perf_counter() - self._began
        return SpeculationReport(**counts)

    # The search

    async def find(self, stages: Stages[Document]) -> tuple[tuple[Document, ...], Guess]:
        """Search to the end, speculating meanwhile.

        Returns:
            The final documents, and their prompt, which has been submitted.

        Raises:
            GenerationTimeoutError: The timeout was over first.
            ConfigurationError: The stages ended without a final one.
        """
        current: Guess | None = None
        stage: StageOfDocuments[Document] | None = None
        scope = asyncio.timeout(self.timeout)
        try:
            async with scope, iterating(stages) as iterator:
                async for stage in iterator:
                    current = self._take(stage, current)
                    if stage.final:
                        break
                documents = self._found(stage)
            await self._settle(current)
        except BaseException as error:
            if current is not None:
                self._terminate(current)
            await self._settle(None)
            if isinstance(error, TimeoutError) and scope.expired():
                raise self._timed_out() from None
            raise
        return documents, cast("Guess", current)

    def _found(self, last: StageOfDocuments[Document] | None) -> tuple[Document, ...]:
        if last is None or not last.final:
            raise ConfigurationError("the stages ended without one whose `final` is True")
        return tuple(last.documents)

    def _take(self, stage: StageOfDocuments[Document], current: Guess | None) -> Guess | None:
        """React to a stage (algorithm 2, lines 5 to 11). Waits for nothing."""
        self._tally.stages += 1
        seconds = self._note("final stage" if stage.final else "stage", self._tally.stages)
        documents = tuple(stage.documents)
        if stage.final:
            self._tally.search_seconds = seconds
            return self._conclude(self.prompt_of(documents), current)
        if not self.shared.speculate or not documents:
            return current
        try:
            prompt = self.prompt_of(documents)
        except Exception as error:  # noqa: BLE001 - whatever: only the final documents must do
            logger.debug("no guess from stage %d: %r", self._tally.stages, error)
            return current
        if current is not None and current.prompt == prompt:
            return current
        if current is not None:
            self._terminate(current)
        return self._start(prompt, certain=False)

    def _conclude(self, prompt: Prompt, current: Guess | None) -> Guess:
        """The final documents: keep the generation that has them, or submit them."""
        if current is not None:
            if current.prompt == prompt and current.entered and not current.failed:
                self._note("confirmed", current.number)
                self._tally.confirmed = True
                if current.submitted is not None and self._tally.search_seconds is not None:
                    self._tally.overlapped_seconds = self._tally.search_seconds - current.submitted
                return current
            self._terminate(current)
        return self._start(prompt, certain=True)

    # Guesses

    def _start(self, prompt: Prompt, *, certain: bool) -> Guess:
        self._numbers += 1
        guess = Guess(self._numbers, prompt, self.shared.pool, certain=certain)
        if certain:  # at once: other requests' guesses shall see it
            guess.entered = guess.enter()
        task = asyncio.ensure_future(self._work(guess))
        guess.task = task
        self._tasks.add(task)
        task.add_done_callback(partial(self._ended, guess))
        return guess

    def _ended(self, guess: Guess, task: asyncio.Task[GenerationChunk | None]) -> None:
        """A prefill is over, or was aborted, perhaps before it began."""
        guess.leave()
        self._tasks.discard(task)
        if not task.cancelled():
            task.exception()  # a guess that failed is not worth a warning

    async def _work(self, guess: Guess) -> GenerationChunk | None:
        shared = self.shared
        try:
            if not guess.entered:
                await self._admit(guess)
            alone = len(shared.pool) == 1
            stream: AsyncGenerationStream = await shared.engine.astream(
                guess.prompt,
                self.options,
                namespace=self.namespace,
                timeout=self._time_left(),
            )
            guess.stream = stream
            guess.submitted = self._note("submitted", guess.number)
            shared.capacity.note_prompt(stream.prompt_tokens)
            chunk = await anext(stream, None)
            guess.first_chunk = chunk
            seconds = self._note("first token", guess.number) - guess.submitted
            if alone and chunk is not None and chunk.usage is not None:
                computed = chunk.usage.prompt_tokens - chunk.usage.cached_tokens
                shared.capacity.note_prefill(seconds, computed)
        except Exception:
            self._note("failed", guess.number)
            raise
        return chunk

    async def _admit(self, guess: Guess) -> None:
        """Enter the pool as soon as there is room (algorithm 2, line 9)."""
        pool, capacity = self.shared.pool, self.shared.capacity
        departures = pool.departures
        while not guess.enter(capacity.batch_size):
            self._hold_back(guess)
            await pool.departure(departures)
            departures = pool.departures
        # The engine knows the others, too: requests that came past this speculator.
        while not capacity.has_room(await self.shared.engine.aload()):
            self._hold_back(guess)
            await asyncio.sleep(POLL_SECONDS)
        guess.entered = True
        self._tally.guesses += 1

    def _hold_back(self, guess: Guess) -> None:
        if not guess.held_back:
            guess.held_back = True
            self._tally.held_back += 1
            self._note("held back", guess.number)

    def _terminate(self, guess: Guess) -> None:
        """Abort a guess whose documents are not the final ones."""
        if guess.entered and not guess.failed:
            self._note("terminated", guess.number)
            if not guess.certain:
                self._tally.aborted += 1
                self._tally.wasted_prefill_tokens += self._computed(guess)
        guess.give_up(retract=not guess.certain)

    def _computed(self, guess: Guess) -> int:
        """Prompt tokens computed for a guess, estimated where its prefill has not ended."""
        if guess.stream is None or guess.submitted is None:
            return 0
        first = guess.first_chunk
        if first is not None and first.usage is not None:
            return first.usage.prompt_tokens - first.usage.cached_tokens
        seconds = time.perf_counter() - self._began - guess.submitted
        return self.shared.capacity.pace.computed_in(seconds, guess.stream.prompt_tokens)

    async def _settle(self, current: Guess | None) -> None:
        """Wait until what was aborted has ended: a few turns of the event loop."""
        given_up = [task for task in self._tasks if current is None or task is not current.task]
        if given_up:
            await asyncio.wait(given_up)

    # Time

    def _time_left(self) -> float | None:
        if self.timeout is None:
            return None
        left = self.timeout - (time.perf_counter() - self._began)
        if left <= 0:
            raise self._timed_out()
        return left

    def _timed_out(self) -> GenerationTimeoutError:
        return GenerationTimeoutError(f"no complete answer within {self.timeout:g} s")
