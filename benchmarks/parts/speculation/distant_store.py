"""A vector store on another machine, whose answer the query cache guesses."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from functools import partial
from pathlib import Path
from typing import Any

from langchain_core.vectorstores import VectorStore

from parts.stores.langchain import STORES, LangChainStore, Table
from parts.stores.real import embedded, real
from ragcache_integrations.langchain import ApproximateCacheRetriever
from ragcache_integrations.speculation import StageOfDocuments

__all__ = ["DistantStore", "Guessing"]

TOGETHER = 8


class Guessing:
    """Our retriever in front of the store, which is asked a stream of questions in its order.

    Args:
        retriever: The retriever.
        texts: The questions.

    Attributes:
        tally: How many questions were ``asked``, how many of them the query cache ``answered``, for
            how many a guess was made (``guessed``), and how many guesses were what the store
            returned (``right``).
    """

    def __init__(self, retriever: ApproximateCacheRetriever, texts: Sequence[str]) -> None:
        self._retriever = retriever
        self._texts = texts
        self._next = 0
        self.tally: Counter[str] = Counter()

    def __len__(self) -> int:
        return len(self._texts)

    def take(self, count: int) -> list[int]:
        """Return the numbers of the next questions; counting begins again."""
        first, self._next = self._next, self._next + count
        if self._next > len(self._texts):
            msg = f"the stream has {len(self._texts)} questions, {self._next} are wanted"
            raise SystemExit(msg)
        self.tally = Counter()
        return list(range(first, self._next))

    def agreeing(self) -> float:
        """Share of the guesses that were right."""
        return self.tally["right"] / max(1, self.tally["guessed"])

    async def __call__(self, query: int) -> AsyncGenerator[StageOfDocuments[str], None]:
        """Search for a question by its number."""
        guess: tuple[str, ...] | None = None
        stages = self._retriever.astages(self._texts[query % len(self._texts)])
        async with aclosing(stages):
            async for stage in stages:
                names = tuple(document.metadata["passage"] for document in stage.documents)
                if stage.final:
                    self.tally.update(
                        asked=1,
                        answered=int(stage.trace is not None and stage.trace.hit),
                        guessed=int(guess is not None),
                        right=int(guess == names),
                    )
                guess = names
                yield StageOfDocuments(names, stage.final)

    async def ask_beforehand(self, count: int) -> None:
        """Ask the first questions, some at a time, without an answer."""
        queries = self.take(count)

        async def ask(query: int) -> None:
            async with aclosing(self(query)) as stages:
                async for _ in stages:
                    pass

        for first in range(0, count, TOGETHER):
            await asyncio.gather(*map(ask, queries[first : first + TOGETHER]))


class DistantStore:
    """PostgreSQL with pgvector, full of passages, each of whose searches takes longer.

    Questions are real ones that come again and again in other words, with near-duplicates that ask
    for something else.

    Args:
        data: Folder with more passages and questions than the bundled ones.
        address: PostgreSQL's, for SQLAlchemy.
        k: Documents to find.
        quick: A small part of the passages and questions.
    """

    def __init__(self, data: Path | None, address: str, k: int, *, quick: bool) -> None:
        self._make = partial(real, data, "medium", quick=quick)
        self._quick = quick
        asked = self._make(0)
        self._vectors = embedded([asked], quick=quick)
        self._k = k
        self._seconds = 0.0
        self._store = STORES["pgvector"](Table(self._vectors), Path(), address)
        LangChainStore(self._store, k).add(asked.passages)
        self._slow_down(self._store)

    def _slow_down(self, store: VectorStore) -> None:
        """Let every search take as much longer as is wanted at that time.

        In the class's own query, which every search ends in, by text or by vector, with vectors or
        without, in a coroutine or not; nothing public is called by all of them.
        """
        inner: Any = store._PGVectorStore__vs  # type: ignore[attr-defined]  # noqa: SLF001 - see above; mangled
        query = inner._AsyncPGVectorStore__query_collection  # noqa: SLF001 - see above

        async def slow(*positional: Any, **named: Any) -> Any:
            await asyncio.sleep(self._seconds)
            return await query(*positional, **named)

        inner._AsyncPGVectorStore__query_collection = slow  # noqa: SLF001 - see above

    def guessing(self, seed: int, beforehand: int, seconds: float, **knobs: Any) -> Guessing:
        """Return a retriever of its own, with a query cache that questions have filled.

        Args:
            seed: Draws the questions.
            beforehand: How many are asked before anything is counted.
            seconds: How much longer searches take from then on.
            **knobs: Of the retriever.
        """
        asked = self._make(seed)
        self._vectors |= embedded([asked], quick=self._quick)
        retriever = ApproximateCacheRetriever.from_vectorstore(
            self._store, k=self._k, guard=False, **knobs
        )
        guessing = Guessing(retriever, [question for question, _ in asked.questions])
        self._seconds = 0.0
        asyncio.run(guessing.ask_beforehand(beforehand))
        self._seconds = seconds
        return guessing
