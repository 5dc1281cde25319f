"""Searches as sources of stages; those that block are run in threads of their own."""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import inspect
import logging
import threading
from collections.abc import (
    AsyncGenerator,
    AsyncIterable,
    AsyncIterator,
    Awaitable,
    Callable,
    Iterable,
    Iterator,
    Sequence,
)
from typing import TYPE_CHECKING, Any, TypeVar, cast

from .types import Document, StageOfDocuments

if TYPE_CHECKING:
    from ragcache_integrations.vector_search import StagedIndex, StagePlan

__all__ = [
    "Search",
    "Stages",
    "iterating",
    "stage_of_search",
    "stages_of_index",
    "stages_of_pair",
]

logger = logging.getLogger(__name__)

Item = TypeVar("Item")

_END = object()

Stages = AsyncIterable[StageOfDocuments[Document]] | Iterable[StageOfDocuments[Document]]

StageSource = AsyncGenerator[StageOfDocuments[Document], None]

Search = Callable[[], Sequence[Document] | Awaitable[Sequence[Document]]]
"""A whole search, nearest first. A coroutine function, or a function: that runs in a thread."""


async def stages_of_index(
    index: StagedIndex,
    query: Any,
    k: int,
    documents_of: Callable[[tuple[str, ...]], Sequence[Document]],
    *,
    plan: StagePlan | None = None,
    filter: Any = None,  # noqa: A002 - as in StagedIndex.stages
) -> StageSource[Document]:
    """The stages of a :class:`StagedIndex`.

    Args:
        index: Is searched.
        query: Vector of shape ``(d,)``.
        k: Documents to find.
        documents_of: Gives the documents of some ids, in their order. It should take no time.
        plan: How the search is cut, best into stages of ``Speculator.interval()`` seconds; the
            index's own default where ``None``.
        filter: As in :meth:`StagedIndex.stages`.
    """
    stages = index.astages(query, k, plan=plan, filter=filter)
    async with contextlib.aclosing(stages):
        async for stage in stages:
            yield StageOfDocuments(tuple(documents_of(stage.ids)), stage.final)


async def stage_of_search(
    search: Search[Document],
) -> StageSource[Document]:
    """Any search as one final stage: nothing to guess from, the same interface.

    Args:
        search: The search.
    """
    yield StageOfDocuments(tuple(await _call(search)), final=True)


async def stages_of_pair(fast: Search[Document], slow: Search[Document]) -> StageSource[Document]:
    """A fast approximate search to guess from, and the slow one that decides.

    Both begin at once. A fast one that fails, or comes last, only means that there is no guess.

    Args:
        fast: For example over a small index of one's own.
        slow: For example of a remote store.
    """
    first = asyncio.ensure_future(_call(fast))
    last = asyncio.ensure_future(_call(slow))
    try:
        await asyncio.wait((first, last), return_when=asyncio.FIRST_COMPLETED)
        if not last.done():
            if first.exception() is None:
                yield StageOfDocuments(tuple(first.result()), final=False)
            else:
                logger.debug("no guess from the fast search: %r", first.exception())
        documents = tuple(await last)
        yield StageOfDocuments(documents, final=True)
    finally:
        running = [task for task in (first, last) if task.cancel()]
        if running:
            await asyncio.wait(running)
        for task in (first, last):
            if not task.cancelled():
                task.exception()  # seen: an error that nobody needs is not worth a warning


async def _call(search: Search[Document]) -> Sequence[Document]:
    if inspect.iscoroutinefunction(search):
        return cast("Sequence[Document]", await search())
    results = await _run_in_thread(search)
    if inspect.isawaitable(results):
        results = await results
    return results


def iterating(
    stages: Stages[Document],
) -> contextlib.AbstractAsyncContextManager[AsyncIterator[StageOfDocuments[Document]]]:
    """Iterate over stages of any source, and close it at the end."""
    iterator: Any = (
        aiter(stages) if isinstance(stages, AsyncIterable) else _iterate_in_thread(stages)
    )
    if hasattr(iterator, "aclose"):
        return contextlib.aclosing(iterator)
    return contextlib.nullcontext(iterator)


async def _iterate_in_thread(items: Iterable[Item]) -> AsyncGenerator[Item, None]:
    """Iterate in a thread of its own, which runs ahead: a search does not wait for its reader.

    When this is closed early the thread closes the iterator, which it alone touches, and ends as
    soon as the item that it is at is done. That is not waited for.
    """
    loop = asyncio.get_running_loop()
    arrived: asyncio.Queue[tuple[Any, Exception | None]] = asyncio.Queue()
    stopped = threading.Event()

    def hand_over(item: Any, error: Exception | None = None) -> None:
        try:
            loop.call_soon_threadsafe(arrived.put_nowait, (item, error))
        except RuntimeError:  # the loop was closed: nobody reads any more
            stopped.set()

    def run() -> None:
        problem: Exception | None = None
        try:
            with _closing(iter(items)) as iterator:
                for item in iterator:
                    hand_over(item)
                    if stopped.is_set():
                        break
        except Exception as error:  # noqa: BLE001 - raised again where it is awaited
            problem = error
        hand_over(_END, problem)

    context = contextvars.copy_context()
    threading.Thread(target=context.run, args=(run,), name="ragcache-search", daemon=True).start()
    try:
        while True:
            item, error = await arrived.get()
            if error is not None:
                raise error
            if item is _END:
                return
            yield item
    finally:
        stopped.set()


def _closing(iterator: Any) -> contextlib.AbstractContextManager[Iterator[Any]]:
    if hasattr(iterator, "close"):
        return contextlib.closing(iterator)
    return contextlib.nullcontext(iterator)


async def _run_in_thread(function: Callable[[], Item]) -> Item:
    """Call a function in a thread of its own. When cancelled, its end is not waited for."""

    def once() -> Iterator[Item]:
        yield function()

    async with contextlib.aclosing(_iterate_in_thread(once())) as results:
        return await anext(results)
