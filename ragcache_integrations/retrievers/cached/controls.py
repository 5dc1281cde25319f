"""What both frameworks' cached retrievers do with their cache, apart from answering.

That includes asking questions before they come.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection, Hashable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from os import PathLike
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from tqdm import tqdm

from ragcache_integrations.core.checks import check_int, check_number, check_text, is_whole, or_none
from ragcache_integrations.core.flows import arun, run
from ragcache_integrations.errors import ConfigurationError
from ragcache_integrations.retrievers.retrieval import Embedding, Question, RetrieverStats
from ragcache_integrations.retrievers.stores import LiveState

from .core import DumpedCache, RetrieverCore

__all__ = ["CacheControls", "Wired"]

logger = logging.getLogger(__name__)


Q = TypeVar("Q")
R = TypeVar("R")

_UNIT = " questions"


def _ask_all(
    ask: Callable[[Q], R], questions: Sequence[Q], *, workers: int, show_progress: bool
) -> list[R]:
    """Ask questions, several at a time, and return the answers in the questions' order.

    Args:
        ask: Answers one question.
        questions: The questions.
        workers: How many at a time.
        show_progress: Show a progress bar.

    Raises:
        Exception: The first question's error, once all of them are done.
    """
    with ThreadPoolExecutor(workers, "ragcache-warm") as pool:
        pending = [pool.submit(ask, question) for question in questions]
        with tqdm(total=len(pending), disable=not show_progress, unit=_UNIT) as bar:
            for _ in as_completed(pending):
                bar.update()
    return [future.result() for future in pending]


async def _aask_all(
    ask: Callable[[Q], Awaitable[R]], questions: Sequence[Q], *, workers: int, show_progress: bool
) -> list[R]:
    """Async version of :func:`_ask_all`."""
    limit = asyncio.Semaphore(workers)
    with tqdm(total=len(questions), disable=not show_progress, unit=_UNIT) as bar:

        async def ask_in_turn(question: Q) -> R:
            async with limit:
                try:
                    return await ask(question)
                finally:
                    bar.update()

        answers = await asyncio.gather(*map(ask_in_turn, questions), return_exceptions=True)
    results: list[R] = []
    for answer in answers:
        if isinstance(answer, BaseException):
            raise answer
        results.append(answer)
    return results


class Wired(NamedTuple):
    """A retriever's core, and what it was made for.

    Attributes:
        core: Answers.
        requests: Makes requests for it; the framework's.
        live: The settings of what is wrapped, which an application may change.
        pickles: Whether a pickle includes the cached answers.
    """

    core: RetrieverCore[Any]
    requests: Any
    live: LiveState
    pickles: bool


class CacheControls:
    """Statistics, warming, clearing and saving; a mixin of the cached retrievers."""

    if TYPE_CHECKING:  # set by the retriever; an annotation here would be a field for pydantic
        _wired: Wired

        def _wire(self) -> Wired: ...

        def _question_of(
            self, wired: Wired, question: Any, call: dict[str, Any]
        ) -> Question[Any]: ...

    @property
    def _core(self) -> RetrieverCore[Any]:
        return self._wired.core

    def _current(self) -> Wired:
        """Return the core for what is wrapped as it is now: the application may have changed it.

        Raises:
            ConfigurationError: Other processes share the answers, which are those of what was
                wrapped before.
        """
        wired = self._wired
        changed = wired.live.change()
        if changed is None:
            return wired
        if wired.core.caches.shared:
            raise ConfigurationError(
                f"{changed} has changed since the retriever was made, and the answers in Redis are "
                "those of before: make a new retriever with another tag"
            )
        logger.warning(
            "%s has changed since the retriever was made: answers from before are not used, and "
            "changes are followed through what is there now; attach() others again",
            changed,
        )
        self._wired = self._wire()
        return self._wired

    def _ask(self, question: Any, call: dict[str, Any]) -> tuple[RetrieverCore[Any], Question[Any]]:
        """Return a question as it is asked now, and the core that has to answer it."""
        wired = self._current()
        return wired.core, self._question_of(wired, question, call)

    def stats(self) -> RetrieverStats:
        """Return the retriever's counters. It only reads memory, so coroutines may call it."""
        return self._core.stats()

    def warm(
        self,
        questions: Iterable[Any],
        *,
        workers: int = 8,
        show_progress: bool = True,
        **call: Any,
    ) -> int:
        """Fill the cache with the answers to expected questions, such as those of a log.

        For example::

            retriever.warm(Path("questions.txt").read_text().splitlines())

        Args:
            questions: The questions; duplicates are left out.
            workers: Number of concurrent searches.
            show_progress: Show a progress bar.
            **call: Arguments for each question, such as ``namespace`` in LangChain.

        Returns:
            For how many questions the store was searched; the others were in the cache.

        Raises:
            ConfigurationError: An argument is wrong; nothing was searched.
            Exception: The first error of the embedding model or the store. It is raised after all
                other questions were searched for.
        """
        wired = self._current()
        asked = self._questions_to_warm(wired, questions, workers, call)
        answers = _ask_all(wired.core.retrieve, asked, workers=workers, show_progress=show_progress)
        return sum(not answer.trace.hit for answer in answers)

    async def awarm(
        self,
        questions: Iterable[Any],
        *,
        workers: int = 8,
        show_progress: bool = True,
        **call: Any,
    ) -> int:
        """Async version of :meth:`warm`."""
        wired = self._current()
        asked = self._questions_to_warm(wired, questions, workers, call)
        answers = await _aask_all(
            wired.core.aretrieve, asked, workers=workers, show_progress=show_progress
        )
        return sum(not answer.trace.hit for answer in answers)

    def _questions_to_warm(
        self, wired: Wired, questions: Iterable[Any], workers: int, call: dict[str, Any]
    ) -> list[Question[Any]]:
        check_int("workers", workers, 1)
        if isinstance(questions, str | bytes):
            msg = f"questions must be several texts, got one: {questions!r:.100}"
            raise ConfigurationError(msg)
        if not isinstance(questions, Iterable):
            msg = f"questions must be several texts, such as a list of them, got {questions!r:.100}"
            raise ConfigurationError(msg)
        # LlamaIndex's bundles have no hash; the search of equal ones is shared anyway.
        different = {
            question if isinstance(question, str) else id(question): question
            for question in list(questions)
        }
        return [self._question_of(wired, question, call) for question in different.values()]

    def embed_question(self, question: Any, **call: Any) -> Embedding:
        """Return a question's embedding, of shape ``(dim,)``, read-only.

        That of a question which this retriever was asked before is remembered.

        Args:
            question: The question.
            **call: The arguments with which it is asked, such as ``namespace`` in LangChain.

        Raises:
            ConfigurationError: An argument cannot be used.
            EmbeddingError: The embedding model gave something unusable.
        """
        core, asked = self._ask(question, call)
        return run(core.embed(asked))

    async def aembed_question(self, question: Any, **call: Any) -> Embedding:
        """Async version of :meth:`embed_question`."""
        core, asked = self._ask(question, call)
        return await arun(core.embed(asked), core.executor)

    def forget(self, question: Any, **call: Any) -> int:
        """Forget the cached answers to a question, for instance because they were wrong.

        The next similar question searches the store. A shared cache forgets for all processes.

        Args:
            question: The question.
            **call: The arguments with which it was asked, such as ``namespace`` in LangChain.

        Returns:
            Number of forgotten answers. For a shared cache, those that Redis could be asked for.

        Raises:
            ConfigurationError: An argument cannot be used.
            EmbeddingError: The embedding model gave something unusable.
        """
        core, asked = self._ask(question, call)
        return run(core.forget(asked))

    async def aforget(self, question: Any, **call: Any) -> int:
        """Async version of :meth:`forget`."""
        core, asked = self._ask(question, call)
        return await arun(core.forget(asked), core.executor)

    def clear(
        self,
        *,
        namespace: str | None = None,
        filter: Any = None,  # noqa: A002 - as the stores' searches name it
        ids: Collection[str | int] | None = None,
        older_than: float | None = None,
        version: Hashable | None = None,
    ) -> None:
        """Forget all answers, or those that match all of the arguments.

        It only changes memory. A shared cache forgets for all processes; with arguments, as soon as
        Redis has received them. The results of searches that are still running are not cached; in a
        shared cache, this holds for those that match.

        Args:
            namespace: Answers of this tenant.
            filter: Answers that were found with exactly this filter of the store's search
                (``filter``, in Milvus ``expr``, in LlamaIndex ``filters``), or with this
                ``filter_key``.
            ids: Answers that contain one of these documents, by the ids that the store's own
                methods take. Answers whose documents carry no ids may contain any, and are
                forgotten, too; so are all if a text is no id of this kind of store.
            older_than: Answers that were found more than this many seconds ago.
            version: Answers that were found under another version of the store, by ``version=`` or
                by the last such call. So a notice of a change may arrive more than once.

        Raises:
            ConfigurationError: An argument is wrong.
        """
        or_none(check_number)("older_than", older_than, 0, unit="seconds")
        or_none(check_text)("namespace", namespace)
        part = (namespace, filter, None if ids is None else _check_ids(ids), older_than)
        if not isinstance(version, Hashable):
            msg = f"version must be a value that does not change, got {version!r:.100}"
            raise ConfigurationError(msg)
        core = self._core
        if version is not None and core.caches.is_version(version):
            return
        if part != (None, None, None, None):
            core.discard(*part)
        elif version is not None:
            core.caches.follow_version(version)
        else:
            self._current().core.caches.clear()

    async def aclear(
        self,
        *,
        namespace: str | None = None,
        filter: Any = None,  # noqa: A002
        ids: Collection[str | int] | None = None,
        older_than: float | None = None,
        version: Hashable | None = None,
    ) -> None:
        """Async version of :meth:`clear`."""
        await asyncio.to_thread(
            self.clear,
            namespace=namespace,
            filter=filter,
            ids=ids,
            older_than=older_than,
            version=version,
        )

    def save(self, path: str | PathLike[str], *, store_tag: str = "") -> None:
        """Save the cache to a file, for :meth:`load`.

        Args:
            path: The file.
            store_tag: Identifies the present content of the store, such as its version.

        Raises:
            ConfigurationError: There was no question yet, or a document or a filter cannot be
                written.
            OSError: The file cannot be written; it is unchanged.
        """
        self._core.save(path, store_tag=store_tag)

    async def asave(self, path: str | PathLike[str], *, store_tag: str = "") -> None:
        """Async version of :meth:`save`."""
        await asyncio.to_thread(self.save, path, store_tag=store_tag)

    def load(self, path: str | PathLike[str], *, store_tag: str = "") -> int:
        """Replace the cache by what :meth:`save` wrote, and return the number of answers.

        The store must have the same content as then, because the cache missed all changes since.

        Args:
            path: The file.
            store_tag: As passed to :meth:`save`.

        Raises:
            CacheFileError: The file is damaged, or comes from another model, store, ``tag`` or
                ``store_tag``. The cache is then empty.
            ConfigurationError: An argument is wrong.
            OSError: The file cannot be read.
        """
        return run(self._core.load(path, store_tag=store_tag))

    async def aload(self, path: str | PathLike[str], *, store_tag: str = "") -> int:
        """Async version of :meth:`load`."""
        core = self._core
        return await arun(core.load(path, store_tag=store_tag), core.executor)

    def _dump(self) -> DumpedCache | None:
        return self._core.dump() if self._wired.pickles else None

    def _restore(self, dumped: DumpedCache | None) -> None:
        self._core.restore(dumped)


def _check_ids(ids: object) -> list[str | int]:
    """Return ids as a list. Ids of another type would be those of no document."""
    if isinstance(ids, str):
        raise ConfigurationError(f"ids must be several ids, got one text: {ids!r:.100}")
    listed = list(ids) if isinstance(ids, Iterable) and not isinstance(ids, bytes) else None
    if listed is None or not all(isinstance(name, str) or is_whole(name) for name in listed):
        raise ConfigurationError(f"ids must be several strings, got {ids!r:.100}")
    return listed
