"""What the answer caches of both frameworks do besides answering."""

from __future__ import annotations

import os
from collections.abc import Collection
from typing import TYPE_CHECKING, Any

from ragcache_integrations.core.threads import in_thread

from .files import load_answers, save_answers
from .flow import AnswerFlow
from .types import AnswerStats

__all__ = ["AnswerControls"]


class AnswerControls:
    """Statistics of a cache of answers, what it forgets, and its files, in both frameworks."""

    if TYPE_CHECKING:
        _flow: AnswerFlow[Any]

    def stats(self) -> AnswerStats:
        """Return what was done so far. Touches memory alone."""
        return self._flow.stats()

    def clear(self) -> None:
        """Forget all answers. What has been learnt of the tolerance is kept.

        With ``cache`` all processes forget them, as soon as Redis can be reached.
        """
        self._flow.clear()

    async def aclear(self) -> None:
        """Async version of :meth:`clear`."""
        await self._flow.aclear()

    def forget(self, ids: Collection[str] | None = None, *, namespace: str | None = None) -> int:
        """Forget the answers for which everything given holds; return how many.

        With ``cache`` all processes forget more: all answers of the namespace, regardless
        of ``ids``, or all answers if none is named. They are not counted.

        Args:
            ids: They come from one of these documents. One without an id has the hash of its text.
            namespace: They are this tenant's.

        Raises:
            ConfigurationError: An argument is something else, such as a single text for ``ids``.
        """
        return self._flow.forget(ids, namespace)

    async def aforget(
        self, ids: Collection[str] | None = None, *, namespace: str | None = None
    ) -> int:
        """Async version of :meth:`forget`."""
        return await self._flow.aforget(ids, namespace)

    def close(self) -> None:
        """Close the connections to Redis, if there are any; they are opened again when needed."""
        self._flow.close()

    async def aclose(self) -> None:
        """Async version of :meth:`close`."""
        await self._flow.aclose()

    def save(self, path: str | os.PathLike[str], *, tag: str) -> int:
        """Write the answers, and what has been learnt of the tolerance, to a file.

        Answers that plain data can't hold, such as those of your own classes, are left out, and a
        warning says how many. So are those from before a change of the chain's settings. The
        questions and answers are readable in the file: protect it as you protect them::

            cached.save("answers.npz", tag="faq 3, gpt-5, MiniLM")

        Args:
            path: The file, which is replaced atomically.
            tag: Names all that an answer depends on and that no other process can see: the chain,
                its prompt, its models, and the embedding model. :meth:`load` refuses another tag.

        Returns:
            How many answers were written.

        Raises:
            ConfigurationError: An argument can't be used, or answers are shared (``cache``).
            OSError: The file can't be written. It is as it was.
        """
        flow = self._flow
        flow.check_unshared("save")
        return save_answers(flow.core, path, flow.codec, tag, flow.code.version())

    async def asave(self, path: str | os.PathLike[str], *, tag: str) -> int:
        """Async version of :meth:`save`."""
        return await in_thread(self.save, path, tag=tag)

    def load(self, path: str | os.PathLike[str], *, tag: str) -> int:
        """Replace the answers by what :meth:`save` wrote; the last used ones where not all fit.

        An answer is still served only if the retriever finds the same documents for the question,
        in the same namespace and with the same other inputs. Answers are older by the time since
        they were saved, which counts for ``ttl``. What was learnt of the tolerance is used if it
        was learnt for the same settings.

        Args:
            path: The file.
            tag: As passed to :meth:`save`, by a cache whose chain, prompt and models are the same
                as now.

        Returns:
            How many answers there are.

        Raises:
            CacheFileError: The file is damaged, no such file, too large, or was saved with another
                tag. The cache is as it was.
            ConfigurationError: An argument can't be used, or answers are shared (``cache``).
            OSError: The file can't be read.
        """
        flow = self._flow
        flow.check_unshared("load")
        return load_answers(flow.core, path, flow.codec, tag, flow.code.version())

    async def aload(self, path: str | os.PathLike[str], *, tag: str) -> int:
        """Async version of :meth:`load`."""
        return await in_thread(self.load, path, tag=tag)
