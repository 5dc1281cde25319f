"""Answers in the making, with their documents."""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import queue
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from concurrent.futures import Future
from typing import Any, Generic

from ragcache_integrations.core.blocks import AsyncCloseable, Closeable
from ragcache_integrations.core.forks import make_lock
from ragcache_integrations.engine import Generation, GenerationChunk
from ragcache_integrations.errors import EngineError

from .request import Guess, Request
from .types import (
    Document,
    SpeculationReport,
    SpeculativeAnswer,
)

__all__ = ["AsyncSpeculativeStream", "SpeculativeStream"]


class AsyncSpeculativeStream(AsyncCloseable, AsyncIterator[GenerationChunk], Generic[Document]):
    """An answer over the final documents, as an async iterator of chunks.

    The search is over; what the generation has brought so far comes at once. The stream belongs to
    one consumer and to the event loop in which it was made. Closing, cancelling or dropping it
    aborts the request.

    Attributes:
        documents: The final documents.
    """

    def __init__(
        self, request: Request[Document], guess: Guess, documents: tuple[Document, ...]
    ) -> None:
        self._request = request
        self._guess = guess
        self._loop = asyncio.get_running_loop()
        self._begun = False
        self._done = False
        self.documents = documents

    @property
    def report(self) -> SpeculationReport:
        """What speculation has done so far."""
        return self._request.report()

    async def __anext__(self) -> GenerationChunk:
        """The next chunk.

        Raises:
            EngineDeadError: The engine's process ended.
            EngineClosedError: The engine was closed.
            GenerationTimeoutError: The timeout is over; the request was aborted.
            PromptTooLongError: The prompt does not fit the context window.
        """
        if self._done:
            raise StopAsyncIteration
        try:
            chunk: GenerationChunk | None = (
                await anext(self._stream, None) if self._begun else await self._first()
            )
        except BaseException:
            self.abort()
            raise
        if chunk is None:
            self._done = True
            raise StopAsyncIteration
        return chunk

    async def _first(self) -> GenerationChunk | None:
        self._begun = True
        task, ours = self._guess.task, asyncio.current_task()
        assert task is not None  # noqa: S101 - it was submitted
        assert ours is not None  # noqa: S101 - this is a coroutine
        try:
            return await task
        except asyncio.CancelledError:
            if self._done and not ours.cancelling():
                return None  # aborted by somebody else; it is not we who are cancelled
            raise

    @property
    def _stream(self) -> Any:
        return self._guess.stream

    async def aresult(self) -> SpeculativeAnswer[Document]:
        """Read to the end and return the whole answer, what was read before included."""
        async for _ in self:
            pass
        if self._stream is None:
            raise _given_up()
        generation: Generation = await self._stream.aresult()
        return SpeculativeAnswer(generation, self.documents, self.report)

    def abort(self) -> None:
        """Give the request up; iterating ends. Blocks nothing."""
        if not self._done:
            self._done = True
            self._guess.give_up()

    async def aclose(self) -> None:
        """Abort the request unless it is complete, and free all that it holds."""
        self.abort()
        task = self._guess.task
        if task is not None and not task.done():
            await asyncio.wait([task])

    def __del__(self) -> None:
        if not self._done:
            with contextlib.suppress(RuntimeError):  # the loop was closed, and its tasks with it
                self._loop.call_soon_threadsafe(self._guess.give_up)


class SpeculativeStream(Closeable, Iterator[GenerationChunk], Generic[Document]):
    """The sync twin of :class:`AsyncSpeculativeStream`.

    It is driven by a thread with an event loop of its own, which ends with the answer. Closing it,
    leaving its ``with`` block or dropping it aborts the request.

    Attributes:
        documents: The final documents.
    """

    def __init__(self, begin: Callable[[], Awaitable[AsyncSpeculativeStream[Document]]]) -> None:
        self._done = True  # nothing to end yet

        async def work(put: Callable[[Any], None]) -> SpeculativeAnswer[Document]:
            async with await begin() as stream:
                put(stream)
                async for chunk in stream:
                    put(chunk)
                return await stream.aresult()

        self._answer: SpeculativeAnswer[Document] | None = None
        self._pump = _Pump(work)
        self._done = False
        stream: AsyncSpeculativeStream[Document] | None = self._get()
        if stream is None:
            raise _given_up()
        self.documents = stream.documents
        self._report = stream._request.report  # noqa: SLF001 - the stream itself stays the thread's

    @property
    def report(self) -> SpeculationReport:
        """What speculation has done so far."""
        return self._report()

    def _get(self) -> Any:
        """What comes next; ``None`` at the end."""
        try:
            item = self._pump.get()
        except BaseException:  # Ctrl-C while waiting
            self.close()
            raise
        if not isinstance(item, Future):
            return item
        self._done = True
        self._pump.join()
        with contextlib.suppress(asyncio.CancelledError):
            self._answer = item.result()
        return None

    def __next__(self) -> GenerationChunk:
        """The next chunk; raises as :meth:`AsyncSpeculativeStream.__anext__` does."""
        chunk: GenerationChunk | None = None if self._done else self._get()
        if chunk is None:
            raise StopIteration
        return chunk

    def result(self) -> SpeculativeAnswer[Document]:
        """Read to the end and return the whole answer, what was read before included."""
        for _ in self:
            pass
        if self._answer is None:
            raise _given_up()
        return self._answer

    def abort(self) -> None:
        """Give the request up; iterating ends. Blocks nothing; safe from any thread."""
        self._done = True
        self._pump.cancel()

    def close(self) -> None:
        """Abort the request unless it is complete, and free all that it holds."""
        self.abort()
        self._pump.join()

    def __del__(self) -> None:
        if not self._done:
            self._pump.cancel()


class _Pump:
    """Runs a coroutine in an event loop of its own, in a thread, for a synchronous caller.

    Args:
        work: What to run; it is given :meth:`put`. Its result ends the output.
    """

    def __init__(self, work: Callable[[Callable[[Any], None]], Awaitable[Any]]) -> None:
        self._outputs: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self._work = work
        self._lock = make_lock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._task: asyncio.Task[Any] | None = None
        self._cancelled = False
        context = contextvars.copy_context()
        self._thread = threading.Thread(
            target=context.run, args=(self._run,), name="ragcache-speculation", daemon=True
        )
        self._thread.start()

    def get(self) -> Any:
        """The next output, or its end, a future with the result; waits for it."""
        return self._outputs.get()

    def cancel(self) -> None:
        """Cancel the coroutine. Blocks nothing; safe from any thread."""
        with self._lock:
            self._cancelled = True
            loop, task = self._loop, self._task
        if loop is not None and task is not None:
            with contextlib.suppress(RuntimeError):  # it has ended already
                loop.call_soon_threadsafe(task.cancel)

    def join(self) -> None:
        """Wait until the thread has ended."""
        if threading.current_thread() is not self._thread:
            self._thread.join()

    def _run(self) -> None:
        end: Future[Any] = Future()
        try:
            end.set_result(asyncio.run(self._main()))
        except BaseException as error:  # noqa: BLE001 - raised again where it is read
            end.set_exception(error)
        self._outputs.put(end)

    async def _main(self) -> Any:
        with self._lock:
            if self._cancelled:
                raise asyncio.CancelledError
            self._loop, self._task = asyncio.get_running_loop(), asyncio.current_task()
        return await self._work(self._outputs.put)


def _given_up() -> EngineError:
    return EngineError("the answer was aborted before it was complete")
