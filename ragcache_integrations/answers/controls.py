"""What the answer caches of both frameworks do besides answering, and the files they save.

A process's clock says nothing to the next one. A loaded answer's age is its saved age plus the
elapsed wall-clock time. If that is negative (the clock went back), the answer keeps its saved age,
or has expired if there is a time to live.
"""

from __future__ import annotations

import json
import logging
import math
import os
import time
from collections.abc import Collection, Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from ragcache_integrations.core.archive import MALFORMED, read_archive, write_archive
from ragcache_integrations.core.checks import check_int
from ragcache_integrations.core.threads import in_thread
from ragcache_integrations.errors import CacheFileError, ConfigurationError

from .core import AnswerCore
from .entries import LARGEST_RECORD, AnswerCodec, Record, decode_record, encode_record
from .flow import AnswerFlow
from .types import AnswerStats

__all__ = ["AnswerControls", "load_answers", "save_answers"]

logger = logging.getLogger(__name__)

A = TypeVar("A")
Path = str | os.PathLike[str]

_KIND = "answer cache"
_FORMAT = 3
"""Raised with every change that an older version misreads."""
_MEMBERS = ("header", "records", "sizes", "ages", "caps")
_LARGEST_FILE = 1 << 30
_LARGEST_HEADER = 1 << 26
"""Bytes of a file's header, in which each tenant's learning takes some 30 KiB."""
_LONGEST_REASON = 500  # characters, as it may repeat what the file holds


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


# Files


def save_answers(
    core: AnswerCore[A], path: Path, codec: AnswerCodec[A], tag: str, version: int
) -> int:
    """Write the answers of a cache to a file, which is replaced atomically.

    Args:
        core: The cache.
        path: The file.
        codec: Turns answers into plain data. What it refuses is left out.
        tag: Names all that answers depend on and that is not compared: chain, prompt, models.
        version: The version of the settings, whose answers are saved.

    Returns:
        How many answers were written.

    Raises:
        ConfigurationError: An argument can't be used.
        OSError: The file can't be written. It is as it was.
    """
    _check_arguments(path, tag)
    held = core.held(version)
    records, numbers, refusals = [], [], []
    for record, age, cap in held.answers:
        try:
            records.append(encode_record(record, codec))
        except ConfigurationError as error:
            refusals.append(error)
        else:
            numbers.append((age, cap))
    if refusals:
        logger.warning(
            "%d of %d answers are not saved, the first because %s",
            *(len(refusals), len(held.answers), refusals[0]),
        )
    header = {
        "format": _FORMAT,
        "kind": codec.kind,
        "tag": tag,
        "saved_at": time.time_ns(),
        "learning": held.learning,
        "learnt_for": core.learning_settings(),
    }
    arrays: dict[str, NDArray[Any]] = {
        "header": np.frombuffer(json.dumps(header).encode("ascii"), np.uint8),
        "records": np.frombuffer(b"".join(records), np.uint8),
        "sizes": np.array(list(map(len, records)), np.int64),
        "ages": np.array([age for age, _ in numbers], np.float64),
        "caps": np.array([cap for _, cap in numbers], np.float64),
    }
    size = sum(array.nbytes for array in arrays.values()) + _LARGEST_HEADER
    if size > _LARGEST_FILE:
        msg = f"what is saved must take at most {_LARGEST_FILE} bytes, got about {size}"
        raise ConfigurationError(msg)
    write_archive(path, arrays, _KIND)
    return len(records)


def load_answers(
    core: AnswerCore[A], path: Path, codec: AnswerCodec[A], tag: str, version: int
) -> int:
    """Replace the answers of a cache by those of a file; the last used ones where not all fit.

    Args:
        core: The cache. It is as it was where anything is wrong.
        path: The file.
        codec: Turns plain data into answers.
        tag: As for :func:`save_answers`.
        version: The version of the settings that the answers count as those of.

    Returns:
        How many answers there are.

    Raises:
        CacheFileError: The file is damaged, of another kind, too large, or was saved for another
            tag.
        ConfigurationError: An argument can't be used.
        OSError: The file can't be read.
    """
    _check_arguments(path, tag)
    arrays = read_archive(path, _MEMBERS, _KIND, _LARGEST_FILE)
    try:
        header = _read_header(arrays["header"], codec.kind, tag)
        answers = list(_read_answers(core, arrays, header, codec, version))
        learning = header["learning"]
        if learning is not None and header["learnt_for"] != core.learning_settings():
            logger.info("The saved tolerance is not used: it was learnt for other settings")
            learning = None
        return core.restore(answers, learning)
    except MALFORMED as error:
        reason = str(error) if isinstance(error, ValueError) else repr(error)
        msg = f"{path} holds no answers for this cache: {reason[:_LONGEST_REASON]}"
        raise CacheFileError(msg) from error


def _check_arguments(path: object, tag: object) -> None:
    if not isinstance(path, str | os.PathLike):
        raise ConfigurationError(f"path must be a string or a path, got {path!r:.100}")
    if not isinstance(tag, str) or not tag:
        raise ConfigurationError(
            "tag must name the chain, its prompt and its models, such as 'faq 3, gpt-5, MiniLM', "
            f"got {tag!r:.100}"
        )


def _read_header(array: NDArray[Any], kind: str, tag: str) -> dict[str, Any]:
    if array.nbytes > _LARGEST_HEADER:
        msg = f"its header must have at most {_LARGEST_HEADER} bytes, got {array.nbytes}"
        raise ValueError(msg)
    header: dict[str, Any] = json.loads(array.tobytes())
    for name, expected in {"format": _FORMAT, "kind": kind, "tag": tag}.items():
        if header[name] != expected:
            raise ValueError(f"its {name} must be {expected!r}, got {header[name]!r:.200}")
    return header


def _read_answers(
    core: AnswerCore[A],
    arrays: dict[str, NDArray[Any]],
    header: dict[str, Any],
    codec: AnswerCodec[A],
    version: int,
) -> Iterator[tuple[Record[A], float, float]]:
    """Yield records with their ages and caps, in the order of their last use."""
    sizes, ages, caps = arrays["sizes"], arrays["ages"], arrays["caps"]
    records = arrays["records"]
    numbers = ((sizes, np.int64), (ages, np.float64), (caps, np.float64))
    if any(array.dtype != kind or array.shape != sizes.shape for array, kind in numbers):
        raise ValueError("its sizes, ages and caps must be as many numbers")
    if records.dtype != np.uint8 or records.ndim != 1 or sizes.ndim != 1:
        raise ValueError("its records must be bytes")
    if not (np.isfinite(ages) & (ages >= 0) & (caps >= 0)).all():
        raise ValueError("ages must be seconds from 0, and caps distances from 0")
    in_range = ((sizes > 0) & (sizes <= LARGEST_RECORD)).all()
    # In Python's numbers, which no sum exceeds.
    if not in_range or sum(sizes.tolist()) != records.size:
        msg = f"its records must have from 1 to {LARGEST_RECORD} bytes each, and no others"
        raise ValueError(msg)
    passed = (time.time_ns() - check_int("saved_at", header["saved_at"], 0)) / 1e9
    unknown = passed < 0 and core.knobs.ttl is not None
    content, ends = records.tobytes(), np.cumsum(sizes).tolist()
    for row in range(max(len(sizes) - core.knobs.capacity, 0), len(sizes)):
        age = math.inf if unknown else float(ages[row]) + max(passed, 0.0)
        record = decode_record(content[ends[row] - int(sizes[row]) : ends[row]], codec)
        question = replace(record.question, version=version)
        yield replace(record, question=question), age, float(caps[row])
