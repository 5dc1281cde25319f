"""Documents on disk: what the scheduler knows of them, and the worker's reading and writing.

Every document that is stored is written, so that it survives a restart and what the memory has no
room for. Several engines may share a folder: what another one has written is found when a request
names it, and what another one has removed is missing, as if it had never been there.
"""

from __future__ import annotations

import logging
import os
import queue
import threading
import time
from collections.abc import Callable, Collection, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from ragcache_integrations.engine.arguments import GIB
from ragcache_integrations.engine.in_vllm.kv_cache import model_identity, unsuited_for_files
from ragcache_integrations.engine.protocol import CacheSettings
from ragcache_integrations.knowledge_tree.prefill_cost import PrefillCostModel
from ragcache_integrations.resources.cache import cache_home

from .codecs import Encoded, Form, codec_of
from .files import (
    HEADER_BYTES,
    DocumentFileError,
    DocumentFolder,
    has_size,
    read_document,
    write_document,
)
from .store import DocumentStore

__all__ = [
    "DISK_CACHE_DIR",
    "DISK_CACHE_GIB",
    "DiskIndex",
    "DiskWorker",
    "open_disk",
    "open_folder",
]

logger = logging.getLogger(__name__)

DISK_CACHE_GIB, DISK_CACHE_DIR = "disk_cache_gib", "disk_cache_dir"
DOCUMENTS = "documents"
"""In the cache folder, and in the folder that the user names: it becomes this user's alone."""
QUEUED_BYTES = 256 << 20
"""Of documents that wait to be written, more or less; the next step waits until there are fewer."""
CLOSE_SECONDS = 5.0
LOOK_SECONDS = 60.0
"""How often the folder's size is looked up while documents are written: others write, too."""
TRIMMED = 0.95
"""Share of the size that may stay when files have to go that the index knows nothing of."""


def open_disk(
    scheduler: Any, settings: CacheSettings, prefill_seconds: PrefillCostModel | None
) -> tuple[DiskIndex | None, str | None]:
    """What is on disk for a scheduler, or why there is no disk although one is wanted.

    Raises:
        ValueError: The folder can't be used.
    """
    if not settings.disk_cache_gib or not hasattr(scheduler.connector, "disk"):
        return None, None
    config = scheduler.vllm_config
    reason = unsuited_for_files(config, scheduler.kv_cache_config)
    folder = None if reason else open_folder(config, settings.disk_cache_dir)
    if folder is None:
        reason = reason or "nobody knows which weights the model has: it is no folder"
        logger.warning("documents are not kept on disk: %s", reason)
        return None, reason
    form = Form.of(scheduler.kv_cache_config)
    workers = config.parallel_config.world_size
    return DiskIndex(folder, settings, form, workers, prefill_seconds), None


def open_folder(config: Any, folder: str | Path | None) -> DocumentFolder | None:
    """The folder of a model's documents; ``None`` where nobody knows which weights it has.

    Args:
        config: vLLM's ``VllmConfig``.
        folder: The folder that the user names; ``None`` for the cache folder.

    Raises:
        ValueError: The folder can't be used.
    """
    identity = model_identity(config)
    if identity is None:
        return None
    place = (cache_home() if folder is None else Path(folder).expanduser()) / DOCUMENTS
    try:
        return DocumentFolder(place, identity)
    except OSError as error:
        raise ValueError(f"disk_cache_dir must name a folder of yours: {error}") from error


@dataclass(eq=False)
class DiskIndex:
    """What is on disk, as the scheduler knows it.

    Attributes:
        folder: The model's folder.
        settings: Size and policy.
        form: What the model's documents look like.
        workers: Among which each document is divided.
        prefill_seconds: Prefill times of the model.
    """

    folder: DocumentFolder
    settings: CacheSettings
    form: Form
    workers: int
    prefill_seconds: Any = None

    def __post_init__(self) -> None:
        self._lost: set[bytes] = set()  # names of files that are bad, and may not have gone yet
        most = int(self.settings.disk_cache_gib * GIB) // self.workers
        self._store = DocumentStore(most, self.settings.policy, self.prefill_seconds)
        self._drops: dict[bytes, None] = {}  # in this order, as those that were used
        self._used: dict[bytes, None] = {}
        for name, nbytes in self.folder.files(self.form):
            self._admit(name, nbytes)

    def __contains__(self, key: object) -> bool:
        return isinstance(key, bytes) and self.folder.name(key) in self._store

    def __len__(self) -> int:
        return len(self._store)

    @property
    def version(self) -> int:
        """Changes with what it contains."""
        return self._store.version

    def fits(self, nbytes: int) -> bool:
        """Whether a document can be here at all."""
        return HEADER_BYTES + nbytes <= self._store.capacity

    def look(self, key: bytes, tokens: int) -> None:
        """See whether a document's file has come or gone: other engines may use the folder."""
        name = self.folder.name(key)
        nbytes = codec_of(key).nbytes(self.form, tokens)
        if not has_size(self.folder.file(name, 0), HEADER_BYTES + nbytes):
            self._lost.discard(name)
            self._store.discard([name])
        elif name not in self._lost and name not in self._drops:  # whose file goes soon
            self._admit(name, nbytes)

    def add(self, key: bytes, tokens: int, kept: Iterable[bytes]) -> bool:
        """Make room for a document that is about to be written.

        Args:
            key: Its key.
            tokens: Its length.
            kept: Keys of documents that are being read.

        Returns:
            Whether there is room.
        """
        staying = {self.folder.name(each) for each in kept}
        name = self.folder.name(key)
        self._lost.discard(name)  # the file is removed before it is written
        return self._admit(name, codec_of(key).nbytes(self.form, tokens), staying)

    def access(self, keys: Iterable[bytes]) -> None:
        """Documents were used in this order, whether they were read here or not."""
        names = [name for name in map(self.folder.name, keys) if name in self._store]
        self._store.access(names)
        for name in names:
            self._used.pop(name, None)
            self._used[name] = None

    def discard(self, keys: Iterable[bytes]) -> None:
        """Forget documents that one of the workers lacks; the others remove theirs."""
        names = [self.folder.name(key) for key in keys]
        self._store.discard(names)
        self._lost.update(name for name in names if self.folder.file(name, 0).exists())
        self._drops.update(dict.fromkeys(names))

    def take_drops(self) -> list[bytes]:
        """Names of documents to be removed."""
        drops, self._drops = list(self._drops), {}
        return drops

    def take_used(self) -> list[bytes]:
        """Names of documents that were used since this was last called, the latest last."""
        used, self._used = list(self._used), {}
        return used

    def _admit(self, name: bytes, nbytes: int, staying: Collection[bytes] = ()) -> bool:
        tokens = codec_of(name).tokens(self.form, nbytes)
        gone = self._store.add(name, HEADER_BYTES + nbytes, tokens, staying)
        self._drops.update(dict.fromkeys(gone or ()))
        return gone is not None


@dataclass(frozen=True, slots=True)
class _Task:
    """What the writing thread does.

    Attributes:
        run: Does it.
        key: Of the document that it writes, if it does.
        nbytes: That document's size.
    """

    run: Callable[[], None]
    key: bytes | None = None
    nbytes: int = 0


class DiskWorker:
    """Reads and writes one worker's files; writing is done by a thread.

    Args:
        folder: The model's folder.
        form: What the model's documents look like.
        gib: Largest size of all files of all models, in GiB.
        worker: Number of this worker, of which the first keeps to the size.
        workers: How many there are.
    """

    def __init__(
        self, folder: DocumentFolder, form: Form, gib: float, worker: int = 0, workers: int = 1
    ) -> None:
        self._folder = folder
        self._form = form
        self._most = int(gib * GIB)
        self._worker = worker
        self._workers = workers
        self._size = 0
        self._looked = 0.0
        self._look()
        self._tasks: queue.Queue[_Task | None] = queue.Queue()
        self._touched = 0
        self._lock = threading.Condition()
        self._queued = 0
        self._unwritten: set[bytes] = set()
        self._failed = False
        self._fault = ""
        self._thread = threading.Thread(target=self._work, name="ragcache-disk", daemon=True)
        self._thread.start()

    def read(self, key: bytes, tokens: int) -> Encoded:
        """Map a document into memory.

        Raises:
            DocumentFileError: Its file is damaged, or another one; it is removed.
            OSError: It cannot be read.
        """
        path = self._path(key)
        try:
            return read_document(path, codec_of(key), self._form, tokens)
        except DocumentFileError:
            path.unlink(missing_ok=True)
            raise

    def write(self, key: bytes, document: Encoded) -> None:
        """Write a document soon."""
        with self._lock:
            self._lock.wait_for(lambda: not self.busy)
            self._queued += document.nbytes
        writing = partial(self._write, self._path(key), document)
        self._tasks.put(_Task(writing, key, document.nbytes))

    @property
    def busy(self) -> bool:
        """Whether so much waits to be written that the next document must wait for it."""
        return self._queued >= QUEUED_BYTES

    def leave_out(self, key: bytes) -> None:
        """Count a document as one that could not be written."""
        with self._lock:
            self._unwritten.add(key)

    def remove(self, names: Sequence[bytes]) -> None:
        """Remove documents, after what is to be written before that."""
        for name in names:
            self._tasks.put(_Task(partial(self._remove, self._folder.file(name, self._worker))))

    def touch(self, names: Sequence[bytes]) -> None:
        """Note on the files which documents were used, in this order, for after a restart."""
        if names:
            self._tasks.put(_Task(partial(self._touch, names)))

    def take_unwritten(self) -> set[bytes]:
        """Keys of documents that could not be written."""
        with self._lock:
            unwritten, self._unwritten = self._unwritten, set()
        return unwritten

    def finish(self) -> tuple[set[bytes], str]:
        """Wait until all is written: keys of documents that could not be, and why not."""
        self._tasks.join()
        unwritten = self.take_unwritten()
        with self._lock:
            fault, self._fault = self._fault, ""
        return unwritten, fault

    def close(self) -> None:
        """Write what waits, for a few seconds."""
        self._tasks.put(None)
        self._thread.join(CLOSE_SECONDS)

    def _path(self, key: bytes) -> Path:
        return self._folder.file(self._folder.name(key), self._worker)

    def _work(self) -> None:
        while (task := self._tasks.get()) is not None:
            try:
                task.run()
            except Exception as error:  # noqa: BLE001 - a step waits where this thread has ended
                if not self._failed:  # a full disk would fill the log, too
                    logger.warning("a document could not be written to the disk: %s", error)
                self._failed = True
                if task.key is not None:
                    with self._lock:
                        self._unwritten.add(task.key)
                        self._fault = getattr(error, "strerror", None) or repr(error)
            if task.nbytes:
                with self._lock:
                    self._queued -= task.nbytes
                    self._lock.notify_all()
            self._tasks.task_done()

    def _touch(self, names: Sequence[bytes]) -> None:
        for name in names:
            # The kernel's own clock stands still for milliseconds, and the order is what matters.
            self._touched = max(self._touched + 1, time.time_ns())
            with suppress(OSError):  # another engine has just removed it
                os.utime(self._folder.file(name, self._worker), ns=(self._touched, self._touched))

    def _remove(self, path: Path) -> None:
        size = path.stat().st_size if path.exists() else 0
        path.unlink(missing_ok=True)
        self._size -= size * self._workers

    def _write(self, path: Path, document: Encoded) -> None:
        if has_size(path, HEADER_BYTES + document.nbytes):  # by another engine
            return
        write_document(path, document)
        self._failed = False
        self._size += path.stat().st_size * self._workers
        if self._size > self._most or time.monotonic() > self._looked + LOOK_SECONDS:
            self._look()

    def _look(self) -> None:
        """Keep to the size. The index does, too, but knows only this model's documents."""
        if self._worker:
            return
        self._size = self._folder.trim()
        if self._size > self._most:
            self._size = self._folder.trim(int(TRIMMED * self._most))
        self._looked = time.monotonic()
