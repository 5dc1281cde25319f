"""Streams: the outputs of one request as they arrive."""

from __future__ import annotations

import asyncio
import queue
import time
import weakref
from collections.abc import AsyncIterator, Callable, Iterator

from ragcache_integrations.core.blocks import AsyncCloseable, Closeable
from ragcache_integrations.core.generation import (
    Generation,
    GenerationChunk,
    Usage,
)
from ragcache_integrations.core.prompt import join_calls
from ragcache_integrations.errors import GenerationTimeoutError

from .process import Received, Supervisor, expect
from .protocol import Output, Submit

__all__ = ["AsyncGenerationStream", "GenerationStream"]


def _weakly(method: Callable[[Received], None]) -> Callable[[Received], None]:
    """Make a receiver that does not keep its stream alive.

    A stream that nobody reads any more is collected, and aborts its request.
    """
    reference = weakref.WeakMethod(method)

    def receive(received: Received) -> None:
        alive = reference()
        if alive is not None:
            alive(received)

    return receive


class _Stream:
    """What both kinds of stream share: the request, its state, and its output so far.

    Args:
        engine: Kept alive for as long as the stream; its finalizer would end the process.
        process: Computes the answer, across restarts, and counts the request and its outcome.
        request: The request, which is submitted now; its number is filled in.
        timeout: Seconds for the whole answer; ``None`` for no limit.

    Attributes:
        request_id: Number of the request in its engine.
        prompt_tokens: Length of the prompt in tokens.
    """

    def __init__(
        self, engine: object, process: Supervisor, request: Submit, timeout: float | None = None
    ) -> None:
        self._engine = engine
        self._process = process
        self._timeout = timeout
        self._deadline = None if timeout is None else time.monotonic() + timeout
        self._done = False
        self._taken: list[Output] = []
        self._taken_tokens = 0
        self.prompt_tokens = len(request.token_ids)
        self._received_tokens = 0
        self.request_id = 0
        self._open_inbox()
        self.request_id = process.register(_weakly(self._receive), request)
        process.counters.add(requests=1)
        process.exchange.send(self.request_id)

    def _open_inbox(self) -> None:
        """Make the queue that the consumer reads."""
        raise NotImplementedError

    def _receive(self, received: Received) -> None:
        """Count a message in the reading thread, then pass it to the consumer."""
        if isinstance(received, Output):
            self._received_tokens += len(received.token_ids)
            if received.finish_reason is not None:
                self._process.counters.finished(
                    Usage(self.prompt_tokens, self._received_tokens, received.cached_tokens)
                )
        else:
            self._process.counters.add(failed_requests=1)
        self._hand_over(received)

    def _hand_over(self, received: Received | None) -> None:
        """Pass a message to the consumer's thread or event loop; ``None`` ends its iteration."""
        raise NotImplementedError

    def abort(self, *, retract: bool = False) -> None:
        """Abort the request and end the iteration. Never blocks; safe from any thread.

        Args:
            retract: Whether its documents were a wrong guess: the knowledge tree then counts no
                access to them. What was computed of them stays cached.
        """
        self._abort_request(retract=retract)
        self._hand_over(None)

    def _abort_request(self, *, retract: bool = False) -> None:
        self._done = True
        if self._process.exchange.abort(self.request_id, retract=retract):
            self._process.counters.add(aborted_requests=1)

    def _take(self, received: Received) -> GenerationChunk:
        """Turn what arrived into the next chunk, or raise it."""
        self._done = isinstance(received, Exception)
        output = expect(Output, received)
        first = not self._taken_tokens
        self._taken.append(output)
        self._taken_tokens += len(output.token_ids)
        self._done = output.finish_reason is not None
        return GenerationChunk(
            text=output.text,
            token_ids=output.token_ids,
            logprobs=output.logprobs,
            finish_reason=output.finish_reason,
            usage=self._usage() if first or self._done else None,
            tool_calls=output.tool_calls,
        )

    def _usage(self) -> Usage:
        cached_tokens = self._taken[-1].cached_tokens if self._taken else 0
        return Usage(self.prompt_tokens, self._taken_tokens, cached_tokens)

    def _generation(self) -> Generation:
        taken = self._taken
        reason = taken[-1].finish_reason if taken else None
        return Generation(
            text="".join(output.text for output in taken),
            token_ids=tuple(token for output in taken for token in output.token_ids),
            finish_reason=reason or "abort",
            usage=self._usage(),
            logprobs=tuple(logprob for output in taken for logprob in output.logprobs),
            tool_calls=join_calls((piece for each in taken for piece in each.tool_calls), reason),
        )

    def _time_left(self) -> float | None:
        return None if self._deadline is None else max(0.0, self._deadline - time.monotonic())

    def _timeout_error(self) -> GenerationTimeoutError:
        self.abort()
        return GenerationTimeoutError(f"no complete answer within {self._timeout:g} s")

    def __del__(self) -> None:
        if not self._done:
            self._abort_request()


class GenerationStream(_Stream, Closeable, Iterator[GenerationChunk]):
    """An answer as an iterator of chunks.

    ::

        with engine.stream(prompt) as stream:
            for chunk in stream:
                print(chunk.text, end="")

    Closing it, leaving its ``with`` block or dropping it aborts the request. A stream belongs to
    one consumer; :meth:`abort` may be called from any thread.
    """

    def _open_inbox(self) -> None:
        self._inbox: queue.SimpleQueue[Received | None] = queue.SimpleQueue()

    def _hand_over(self, received: Received | None) -> None:
        self._inbox.put(received)

    def __next__(self) -> GenerationChunk:
        """The next chunk.

        Raises:
            EngineDeadError: The engine's process ended and is not started again, or the answer
                can't be continued in another one.
            EngineError: This process is a fork of the one that started the engine.
            EngineClosedError: The engine was closed.
            GenerationTimeoutError: The timeout is over; the request was aborted.
        """
        if self._done:
            raise StopIteration
        self._process.check_owner()
        try:
            received = self._inbox.get(timeout=self._time_left())
        except queue.Empty:
            raise self._timeout_error() from None
        if received is None:
            raise StopIteration
        return self._take(received)

    def result(self) -> Generation:
        """Read to the end and return the whole answer, including what was read before."""
        for _ in self:
            pass
        return self._generation()

    def close(self) -> None:
        """Abort the request unless it is complete."""
        if not self._done:
            self.abort()


class AsyncGenerationStream(_Stream, AsyncCloseable, AsyncIterator[GenerationChunk]):
    """Async version of :class:`GenerationStream`.

    ::

        async with await engine.astream(prompt) as stream:
            async for chunk in stream:
                print(chunk.text, end="")

    It belongs to the event loop that created it. Cancelling its consumer aborts the request.
    """

    def _open_inbox(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._inbox: asyncio.Queue[Received | None] = asyncio.Queue()

    def _hand_over(self, received: Received | None) -> None:
        try:
            self._loop.call_soon_threadsafe(self._inbox.put_nowait, received)
        except RuntimeError:  # the loop was closed under us: nobody can read this any more
            self._abort_request()

    async def __anext__(self) -> GenerationChunk:
        """The next chunk; raises as :meth:`GenerationStream.__next__` does."""
        if self._done:
            raise StopAsyncIteration
        self._process.check_owner()
        try:
            async with asyncio.timeout(self._time_left()):
                received = await self._inbox.get()
        except TimeoutError:
            raise self._timeout_error() from None
        except asyncio.CancelledError:
            self.abort()
            raise
        if received is None:
            raise StopAsyncIteration
        return self._take(received)

    async def aresult(self) -> Generation:
        """Read to the end and return the whole answer, including what was read before."""
        async for _ in self:
            pass
        return self._generation()

    async def aclose(self) -> None:
        """Abort the request unless it is complete."""
        if not self._done:
            self.abort()
