"""Documents that are encoded ahead: a few at a time, however many there are."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sized
from dataclasses import dataclass
from typing import Any, TypeVar

from tqdm import tqdm

from ragcache_integrations.core.generation import Usage, plain
from ragcache_integrations.core.prompt import RenderedPrompt
from ragcache_integrations.engine.arguments import GIB
from ragcache_integrations.engine.protocol import document_key
from ragcache_integrations.errors import DocumentsNotKeptError

from .streams import AsyncGenerationStream, GenerationStream

__all__ = ["Keeping", "aencode_all", "encode_all"]

IN_FLIGHT = 32
"""Documents that the engine has at once. More would not fit into a step, and be lost to Ctrl-C."""
LOOKED_UP = 512
"""Documents after which it is looked up whether they are on disk, so that a full one ends it."""
NO_ROOM = "disk_cache_gib has no room for them, or somebody has removed their files"

Document = TypeVar("Document")
Render = Callable[[Document], RenderedPrompt | None]
"""Makes tokens of a document; ``None`` for one that is empty, or that was encoded before."""
Named = tuple[bytes, int]
"""A document's key, and its length in tokens."""
Missing = tuple[int, str]
"""How many documents are not on disk, and why; empty if nothing is known."""


@dataclass(frozen=True, slots=True)
class Keeping:
    """Where encoded documents are kept.

    Attributes:
        namespace: The tenant.
        disk_cache_gib: Room on disk in GiB; 0 where there is none.
        token_bytes: Of a token's keys and values.
    """

    namespace: str
    disk_cache_gib: float
    token_bytes: int


def encode_all(
    documents: Iterable[Document],
    render: Render[Document],
    start: Callable[[RenderedPrompt], GenerationStream],
    count_missing: Callable[[list[Named]], Missing],
    keeping: Keeping,
    *,
    show_progress: bool,
) -> Usage:
    """Encode documents. Those that are finished stay encoded when an error ends it.

    Args:
        documents: The documents.
        render: Makes their tokens.
        start: Starts a request that encodes one.
        count_missing: Looks up which are on disk.
        keeping: Where they are kept.
        show_progress: Show a progress bar on standard error.

    Raises:
        DocumentsNotKeptError: The disk does not hold them.
    """
    running: deque[GenerationStream] = deque()
    with _bar(documents, show_progress=show_progress) as bar:
        account = _Account(keeping, bar)
        try:
            for document in documents:
                rendered = render(document)
                if rendered is None:
                    bar.update()
                    continue
                account.begin(rendered)
                running.append(start(rendered))
                if len(running) == IN_FLIGHT:
                    account.finish(running[0].result().usage)
                    running.popleft()
                    if part := account.due():
                        account.check(count_missing(part))
            while running:
                account.finish(running[0].result().usage)
                running.popleft()
            for part in account.parts():
                account.check(count_missing(part))
        finally:
            for stream in running:
                stream.abort()
    return account.usage


async def aencode_all(
    documents: Iterable[Document],
    render: Render[Document],
    start: Callable[[RenderedPrompt], AsyncGenerationStream],
    count_missing: Callable[[list[Named]], Awaitable[Missing]],
    keeping: Keeping,
    *,
    show_progress: bool,
) -> Usage:
    """Async version of :func:`encode_all`."""
    running: deque[AsyncGenerationStream] = deque()
    with _bar(documents, show_progress=show_progress) as bar:
        account = _Account(keeping, bar)
        try:
            for document in documents:
                rendered = await asyncio.to_thread(render, document)
                if rendered is None:
                    bar.update()
                    continue
                account.begin(rendered)
                running.append(start(rendered))
                if len(running) == IN_FLIGHT:
                    account.finish((await running[0].aresult()).usage)
                    running.popleft()
                    if part := account.due():
                        account.check(await count_missing(part))
            while running:
                account.finish((await running[0].aresult()).usage)
                running.popleft()
            for part in account.parts():
                account.check(await count_missing(part))
        finally:
            for stream in running:
                stream.abort()
    return account.usage


class _Account:
    """What was encoded, and whether the disk holds it, where there is one."""

    def __init__(self, keeping: Keeping, bar: tqdm[Any]) -> None:
        self._keeping = keeping
        self._bar = bar
        self._salt = plain(keeping.namespace)
        self._documents: list[Named] = []
        self._tokens = 0
        self._finished = 0
        self._looked_up = 0
        self.usage = Usage(0, 0, 0)

    def begin(self, rendered: RenderedPrompt) -> None:
        """Count a document that is about to be encoded.

        Raises:
            DocumentsNotKeptError: It is too much for the disk.
        """
        tokens, gib = len(rendered.token_ids), self._keeping.disk_cache_gib
        if not gib:
            return
        self._tokens += tokens
        if self._tokens * self._keeping.token_bytes > gib * GIB:
            msg = (
                f"disk_cache_gib={gib:g} has no room for documents of more than "
                f"{self._tokens - tokens:,} tokens: the first {self._finished:,} were encoded and "
                "stay, raise it for the rest"
            )
            raise DocumentsNotKeptError(msg)
        self._documents.append((document_key(self._salt, rendered.token_ids), tokens))

    def finish(self, usage: Usage) -> None:
        """The first of the documents that were begun is encoded."""
        self._bar.update()
        self._finished += 1
        prompt = self.usage.prompt_tokens + usage.prompt_tokens
        self.usage = Usage(prompt, 0, self.usage.cached_tokens + usage.cached_tokens)

    def due(self) -> list[Named]:
        """Documents that are to be looked up now; empty for none."""
        if not self._documents or self._finished < self._looked_up + LOOKED_UP:
            return []
        begin, self._looked_up = self._looked_up, self._finished
        return self._documents[begin : self._finished]

    def parts(self) -> Iterator[list[Named]]:
        """All documents: later ones may have taken the place of earlier ones."""
        for begin in range(0, len(self._documents), LOOKED_UP):
            yield self._documents[begin : begin + LOOKED_UP]

    def check(self, missing: Missing) -> None:
        """See that none of those that were looked up is missing.

        Raises:
            DocumentsNotKeptError: One is.
        """
        count, why = missing
        if count:
            msg = (
                f"of {self._finished:,} encoded documents at least {count:,} are not on disk: "
                f"{why or NO_ROOM}. The others stay, and encoding all again adds the rest"
            )
            raise DocumentsNotKeptError(msg)


def _bar(documents: object, *, show_progress: bool) -> tqdm[Any]:
    total = len(documents) if isinstance(documents, Sized) else None
    return tqdm(desc="Encoding", total=total, unit=" documents", disable=not show_progress)
