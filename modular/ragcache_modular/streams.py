"""Answers that arrive piece by piece."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator

from ragcache_integrations.core.blocks import AsyncCloseable, Closeable
from ragcache_integrations.core.forks import make_lock
from ragcache_modular.kv.encoding import Cancelled, Patience
from ragcache_modular.kv.prefill import Prefilled

from .answers import Answer
from .generation import ModularChunk, ModularGeneration

__all__ = ["AsyncModularStream", "ModularStream", "Start"]

Start = Iterator[tuple[Answer, ModularChunk]]
"""Computes an answer while it is iterated."""


class ModularStream(Closeable, Iterator[ModularChunk]):
    """An answer as an iterator of chunks, which computes each chunk on demand.

    Use it in a ``with`` block::

        with model.stream(prompt) as stream:
            for chunk in stream:
                print(chunk.text, end="")

    Closing it, leaving its ``with`` block or deleting it ends the answer and frees its memory. A
    stream belongs to one consumer; :meth:`abort` may be called from any thread.

    Args:
        steps: Computes the answer, one token per step.
        patience: Shared with the steps, so that their deadline and :meth:`abort` end them.
    """

    def __init__(self, steps: Start, patience: Patience) -> None:
        self._steps = steps
        self._patience = patience
        self._busy = make_lock()
        self._answer: Answer | None = None

    def __next__(self) -> ModularChunk:
        """The next chunk.

        Raises:
            StopIteration: The answer is complete or was aborted.
            GenerationTimeoutError: The timeout has passed.
            RAGCacheError: The prompt cannot be served.
        """
        with self._busy:
            try:
                self._answer, chunk = next(self._steps)
            except Cancelled:
                raise StopIteration from None
            finally:
                if self._patience.cancelled:
                    _close(self._steps)
        return chunk

    def result(self) -> ModularGeneration:
        """The whole answer, including chunks that were consumed before.

        Raises:
            Cancelled: The answer was aborted before its first token.
        """
        for _ in self:
            pass
        if self._answer is None:
            raise Cancelled
        return self._answer.result()

    def abort(self) -> None:
        """Abort the answer, which ends the iteration. Never blocks."""
        self._patience.cancel()
        # A thread that is computing a token holds the lock. It sees the cancellation at the next
        # layer, and closes the steps itself.
        if self._busy.acquire(blocking=False):
            try:
                _close(self._steps)
            finally:
                self._busy.release()

    def close(self) -> None:
        """Abort the answer unless it is complete."""
        self.abort()


class AsyncModularStream(AsyncCloseable, AsyncIterator[ModularChunk]):
    """Async version of :class:`ModularStream`; it computes in threads.

    Cancelling the task that waits for a chunk aborts the answer.

    Args:
        stream: Computes the answer; it must have no other consumer.
    """

    def __init__(self, stream: ModularStream) -> None:
        self._stream = stream

    async def __anext__(self) -> ModularChunk:
        """The next chunk; the errors are those of :meth:`ModularStream.__next__`."""
        try:
            chunk = await asyncio.to_thread(next, self._stream, None)
        except asyncio.CancelledError:
            self._stream.abort()
            raise
        if chunk is None:
            raise StopAsyncIteration
        return chunk

    async def aresult(self) -> ModularGeneration:
        """Async version of :meth:`ModularStream.result`."""
        async for _ in self:
            pass
        return self._stream.result()

    def abort(self) -> None:
        """Abort the answer, which ends the iteration. Never blocks."""
        self._stream.abort()

    async def aclose(self) -> None:
        """Abort the answer unless it is complete."""
        self._stream.abort()


def decode(
    prefilled: Prefilled, answer: Answer, patience: Patience
) -> Iterator[tuple[Answer, ModularChunk]]:
    """Generate an answer to a prompt, one token at a time."""
    logits = prefilled.logits(patience)
    while True:
        patience.check()
        token, chunk = answer.take(logits)
        # Before the yield: a consumer that stops here has the token, and may continue after it.
        prefilled.remember(token)
        yield answer, chunk
        if answer.finish_reason is not None:
            return
        logits = prefilled.logits(patience)


def _close(steps: Start) -> None:
    close = getattr(steps, "close", None)
    if close is not None:
        close()
