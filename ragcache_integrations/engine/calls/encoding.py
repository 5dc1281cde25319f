"""Documents that are encoded ahead: a few at a time, however many there are."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterable, Sized
from typing import Any, TypeVar

from tqdm import tqdm

from ragcache_integrations.core.generation import Usage
from ragcache_integrations.core.prompt import RenderedPrompt

from .streams import AsyncGenerationStream, GenerationStream

__all__ = ["aencode_all", "encode_all"]

IN_FLIGHT = 32
"""Documents that the engine has at once. More would not fit into a step, and be lost to Ctrl-C."""

Document = TypeVar("Document")
Render = Callable[[Document], RenderedPrompt | None]
"""Makes tokens of a document; ``None`` for one that is empty, or that was encoded before."""


def encode_all(
    documents: Iterable[Document],
    render: Render[Document],
    start: Callable[[RenderedPrompt], GenerationStream],
    *,
    show_progress: bool,
) -> Usage:
    """Encode documents. Those that are finished stay encoded when an error ends it.

    Args:
        documents: The documents.
        render: Makes their tokens.
        start: Starts a request that encodes one.
        show_progress: Show a progress bar on standard error.
    """
    running: deque[GenerationStream] = deque()
    total = Usage(0, 0, 0)
    with _bar(documents, show_progress=show_progress) as bar:
        try:
            for document in documents:
                rendered = render(document)
                if rendered is None:
                    bar.update()
                    continue
                running.append(start(rendered))
                if len(running) == IN_FLIGHT:
                    total = _sum(total, running[0].result().usage, bar)
                    running.popleft()
            while running:
                total = _sum(total, running[0].result().usage, bar)
                running.popleft()
        finally:
            for stream in running:
                stream.abort()
    return total


async def aencode_all(
    documents: Iterable[Document],
    render: Render[Document],
    start: Callable[[RenderedPrompt], AsyncGenerationStream],
    *,
    show_progress: bool,
) -> Usage:
    """Async version of :func:`encode_all`."""
    running: deque[AsyncGenerationStream] = deque()
    total = Usage(0, 0, 0)
    with _bar(documents, show_progress=show_progress) as bar:
        try:
            for document in documents:
                rendered = await asyncio.to_thread(render, document)
                if rendered is None:
                    bar.update()
                    continue
                running.append(start(rendered))
                if len(running) == IN_FLIGHT:
                    total = _sum(total, (await running[0].aresult()).usage, bar)
                    running.popleft()
            while running:
                total = _sum(total, (await running[0].aresult()).usage, bar)
                running.popleft()
        finally:
            for stream in running:
                stream.abort()
    return total


def _bar(documents: object, *, show_progress: bool) -> tqdm[Any]:
    total = len(documents) if isinstance(documents, Sized) else None
    return tqdm(desc="Encoding", total=total, unit=" documents", disable=not show_progress)


def _sum(total: Usage, usage: Usage, bar: tqdm[Any]) -> Usage:
    bar.update()
    prompt = total.prompt_tokens + usage.prompt_tokens
    return Usage(prompt, 0, total.cached_tokens + usage.cached_tokens)
