"""Reports a retrieval in stages to a framework's callbacks."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable, Generator
from contextlib import aclosing, closing
from typing import Any, Protocol, TypeVar

from ragcache_integrations.retrievers.retrieval import DocumentStage

__all__ = ["AsyncRun", "Run", "aobserved", "observed"]

T = TypeVar("T")


class Run(Protocol):
    """A retrieval as a framework's callbacks see it. Each method ends it."""

    def end(self, stage: DocumentStage[Any] | None) -> None:
        """Report the end of the retrieval.

        Args:
            stage: The last stage; not the final one, or ``None``, if the caller stopped early.
        """

    def fail(self, error: BaseException) -> None:
        """Report an error."""


class AsyncRun(Protocol):
    """Async version of :class:`Run`."""

    async def aend(self, stage: DocumentStage[Any] | None) -> None:
        """Async version of :meth:`Run.end`."""

    async def afail(self, error: BaseException) -> None:
        """Async version of :meth:`Run.fail`."""


R = TypeVar("R", bound=Run)
A = TypeVar("A", bound=AsyncRun)


def observed(
    start: Callable[[], R], search: Callable[[R], Generator[DocumentStage[T]]]
) -> Generator[DocumentStage[T]]:
    """Pass stages on. The run is over when the final one is there, however long it is looked at.

    Args:
        start: Begins the run; called with the first stage that is asked for.
        search: Yields the stages of a run.
    """
    run = start()
    stage: DocumentStage[T] | None = None
    try:
        with closing(search(run)) as stages:
            for stage in stages:
                if stage.final:
                    break
                yield stage
        run.end(stage)
    except GeneratorExit:
        run.end(stage)
        raise
    except BaseException as error:
        run.fail(error)
        raise
    if stage is not None:
        yield stage


async def aobserved(
    start: Callable[[], Awaitable[A]], search: Callable[[A], AsyncGenerator[DocumentStage[T]]]
) -> AsyncGenerator[DocumentStage[T]]:
    """Async version of :func:`observed`."""
    run = await start()
    stage: DocumentStage[T] | None = None
    try:
        async with aclosing(search(run)) as stages:
            async for stage in stages:
                if stage.final:
                    break
                yield stage
        await run.aend(stage)
    except GeneratorExit:
        await run.aend(stage)
        raise
    except BaseException as error:
        await run.afail(error)
        raise
    if stage is not None:
        yield stage
