"""Answers that arrive piece by piece."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from typing import Self

from ragcache_integrations.core.forks import make_lock
from ragcache_integrations.modular.kv.encoding import Cancelled, Patience
from ragcache_integrations.modular.kv.prefill import Prefilled

from .answers import Answer
from .generation import ModularChunk, ModularGeneration

__all__ = ["AsyncModularStream", "ModularStream", "Start"]

Start = Iterator[tuple[Answer, ModularChunk]]
"""Computes an answer while it is iterated."""


class ModularStream(Iterator[ModularChunk]):
    """An answer as an iterator of chunks, computed as they are asked for.

    Closing it, leaving its ``with`` block or dropping it ends the answer and gives its memory back.
    A stream belongs to one consumer; :meth:`abort` may be called from any thread.

    Args:
        steps: Computes the answer, a token for each step.
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
            StopIteration: The answer is complete or was given up.
            GenerationTimeoutError: The timeout is over.
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
        """The whole answer, what was iterated before included.

        Raises:
            Cancelled: It was given up before its first token.
        """
        for _ in self:
            pass
        if self._answer is None:
            raise Cancelled
        return self._answer.result()

    def abort(self) -> None:
        """Give the answer up; iterating ends. Blocks nothing."""
        self._patience.cancel()
        # Whoever is computing it right now sees to the rest.
        if self._busy.acquire(blocking=False):
            try:
                _close(self._steps)
            finally:
                self._busy.release()

    def close(self) -> None:
        """Give the answer up unless it is complete."""
        self.abort()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


class AsyncModularStream(AsyncIterator[ModularChunk]):
    """Async version of :class:`ModularStream`: computed in threads, blocks no event loop.

    Cancelling the task that waits for it gives the answer up.

    Args:
        stream: Computes the answer; nothing else may iterate it.
    """

    def __init__(self, stream: ModularStream) -> None:
        self._stream = stream

    async def __anext__(self) -> ModularChunk:
        """The next chunk; raises as :meth:`ModularStream.__next__` does."""
        try:
            chunk = await asyncio.to_thread(next, self._stream, None)
        except asyncio.CancelledError:
            self._stream.abort()
            raise
        if chunk is None:
            raise StopAsyncIteration
        return chunk

    async def aresult(self) -> ModularGeneration:
        """The whole answer, what was iterated before included."""
        async for _ in self:
            pass
        return self._stream.result()

    def abort(self) -> None:
        """Give the answer up; iterating ends. Blocks nothing."""
        self._stream.abort()

    async def aclose(self) -> None:
        """Give the answer up unless it is complete."""
        self._stream.abort()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *error: object) -> None:
        await self.aclose()


def decode(
    prefilled: Prefilled, answer: Answer, patience: Patience
) -> Iterator[tuple[Answer, ModularChunk]]:
    """Generate behind a prompt, one token at a time."""
    logits = prefilled.logits(patience)
    while True:
        patience.check()
        token, chunk = answer.take(logits)
        # Whoever stops here has seen the token, and may go on with the prompt behind it.
        prefilled.remember(token)
        yield answer, chunk
        if answer.finish_reason is not None:
            return
        logits = prefilled.logits(patience)


def _close(steps: Start) -> None:
    close = getattr(steps, "close", None)
    if close is not None:
        close()
