"""Searches as sources of stages."""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import logging
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from typing import TYPE_CHECKING, Any, cast

from .threads import run_in_thread
from .types import Document, StageOfDocuments

if TYPE_CHECKING:
    from ragcache_integrations.vector_search import StagedIndex, StagePlan

__all__ = ["Search", "stage_of_search", "stages_of_index", "stages_of_pair"]

logger = logging.getLogger(__name__)

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
    results = await run_in_thread(search)
    if inspect.isawaitable(results):
        results = await results
    return results
