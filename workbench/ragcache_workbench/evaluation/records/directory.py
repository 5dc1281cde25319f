"""A run on the disk, from which it can be read and resumed.

::

    config.json       settings, data set, workload, retriever, model
    environment.json  the machine, and the command line
    records.jsonl     a line for every question, in the order of the answers
    checkpoint.json   the progress of the run; see below
    cache-*.npz       the query cache at the checkpoint
    scores.jsonl      the scores of every answer, once the run is complete
    summary.json      the figures, once the run is complete

A checkpoint is three things that belong together: the length of ``records.jsonl`` with the checksum
of these bytes, the file of the query cache, and the questions between the two, whose documents have
arrived and whose answers have not. The first two are on the disk before ``checkpoint.json`` is
replaced atomically by one that names them. Records after the checkpoint are cut off when a run is
resumed.

A folder may come from anybody: only regular files in it are read, written or replaced, and links
are not followed.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, BinaryIO

from ragcache_integrations.core.blocks import Closeable
from ragcache_integrations.core.files import check_replaceable, open_own, replacing
from ragcache_integrations.core.texts import without_surrogates
from ragcache_integrations.errors import ConfigurationError

from .checkpoints import (
    FORMAT,
    Checkpoint,
    read_checkpoint,
    read_json_file,
)
from .records import Record
from .rephrasings import lock

__all__ = ["RunDirectory"]


class RunDirectory(Closeable):
    """A run that is being written; one process at a time.

    Args:
        path: The folder; created if it does not exist.
        config: The configuration of the run. A folder that holds another run is refused.
        fresh: Whether to delete an existing run and start again.

    Attributes:
        path: The folder.
        checkpoint: The last checkpoint.
        records: The records of the checkpoint, and those appended since.

    Raises:
        ConfigurationError: The folder holds another run or other files, another process is writing
            it, or it cannot be written to.
    """

    def __init__(self, path: Path, config: Mapping[str, Any], *, fresh: bool = False) -> None:
        self.path = path
        self.checkpoint = Checkpoint()
        self.records: list[Record] = []
        self._unwritten: list[Record] = []
        self._saves = 0
        self._file: BinaryIO | None = None
        self._digest = hashlib.sha256()
        self._failed = False
        self._lock: BinaryIO | None = None
        try:
            path.mkdir(parents=True, exist_ok=True)
            self._lock = _locked(path)
            self._open(dict(config), fresh=fresh)
        except OSError as error:
            self.close()
            raise ConfigurationError(f"{_refused(path, error)}: name another --out") from error
        except BaseException:
            self.close()
            raise

    def _open(self, config: dict[str, Any], *, fresh: bool) -> None:
        # As it will be read again: JSON has no tuples.
        config = json.loads(_dumped({"format": FORMAT, **config}))
        known = self.path / "config.json"
        if fresh:
            self._clear()
        if known.is_symlink() or known.exists():
            with _or_start_over():
                _check_same(self.path, read_json_file(known), config)
                for name in _FILES:
                    check_replaceable(self.path / name, links=False)
                questions = config["workload"]["questions"]
                self.checkpoint, self.records = read_checkpoint(self.path, questions)
        # A process that was killed may have left an unfinished config.json under a passing name.
        elif any(
            file.name != _LOCK and not _UNFINISHED.fullmatch(file.name)
            for file in self.path.iterdir()
        ):
            msg = f"{self.path} must be empty or hold a run, but has other files"
            raise ConfigurationError(msg)
        else:
            self._replace("config.json", [config], indent=2)
        self._file = open_own(self.path / "records.jsonl")
        # Records after the checkpoint are cut off: their questions are asked again.
        self._file.truncate(self.checkpoint.records_bytes)
        self._file.seek(0)
        self._digest = hashlib.sha256(self._file.read())
        self._tidy()

    @property
    def cache_file(self) -> Path | None:
        """The file of the query cache at the checkpoint; ``None`` if there is none."""
        return self.path / self.checkpoint.cache if self.checkpoint.cache else None

    def append(self, record: Record) -> None:
        """Add a record to the next checkpoint, in memory only."""
        self.records.append(record)
        self._unwritten.append(record)

    def take_unwritten(self) -> list[Record]:
        """Return the records appended since the last call, for :meth:`commit`."""
        taken, self._unwritten = self._unwritten, []
        return taken

    def new_cache_file(self, session: int) -> Path:
        """Return the path of the next checkpoint's query cache, different from the current one."""
        self._saves += 1
        return self.path / f"cache-{session}-{self._saves}.npz"

    @contextmanager
    def writing(self) -> Iterator[None]:
        """Surrounds what writes into the folder of a run that has begun.

        Raises:
            ConfigurationError: The system refuses it, as where the disk is full.
        """
        try:
            yield
        except OSError as error:
            msg = f"{_refused(self.path, error)}: once that is mended, the same command resumes it"
            raise ConfigurationError(msg) from error

    def commit(self, checkpoint: Checkpoint, records: Iterable[Record]) -> None:
        """Write a checkpoint.

        Args:
            checkpoint: The checkpoint, whose query cache is already saved. The length and the
                checksum of its records are set here.
            records: The new records.

        Raises:
            ConfigurationError: The system refuses it, or has refused an earlier one: what is
                written now would follow half a record. The run is resumed from what is on disk.
        """
        assert self._file is not None  # noqa: S101 - opened on construction
        if self._failed:
            msg = f"a checkpoint of the run in {self.path} could not be written: resume it"
            raise ConfigurationError(msg)
        self._failed = True  # until all of it is written
        lines = b"".join(_dumped(record.as_dict()) + b"\n" for record in records)
        with self.writing():
            self._file.seek(0, os.SEEK_END)
            self._file.write(lines)
            self._file.flush()
            self._digest.update(lines)
            checkpoint.records_bytes = self._file.tell()
            checkpoint.records_sha256 = self._digest.hexdigest()
            os.fsync(self._file.fileno())
            self.write_json("checkpoint.json", checkpoint.as_dict())
            self.checkpoint = checkpoint
            self._tidy()
        self._failed = False

    def write_json(self, name: str, content: Any) -> None:
        """Replace a JSON file atomically: readers see the old or the new content.

        Raises:
            ConfigurationError: The system refuses it.
        """
        self.write_json_lines(name, [content], indent=2)

    def write_json_lines(self, name: str, rows: Sequence[Any], indent: int | None = None) -> None:
        """Replace a file of JSON lines, or of one indented value, as :meth:`write_json` does."""
        with self.writing():
            self._replace(name, rows, indent)

    def _replace(self, name: str, rows: Sequence[Any], indent: int | None = None) -> None:
        with replacing(self.path / name, links=False) as file:
            file.writelines(_dumped(row, indent) + b"\n" for row in rows)

    def _tidy(self) -> None:
        """Delete caches of other checkpoints, and unfinished files of a killed process."""
        for file in self.path.iterdir():
            if _PASSING.fullmatch(file.name) and file.name != self.checkpoint.cache:
                file.unlink(missing_ok=True)

    def _clear(self) -> None:
        if os.path.lexists(self.path / "config.json"):  # else these are not ours to delete
            *others, last = _FILES
            for name in others:
                (self.path / name).unlink(missing_ok=True)
            self._tidy()
            (self.path / last).unlink(missing_ok=True)

    def close(self) -> None:
        """Close the files and release the lock. Idempotent."""
        for file in (self._file, self._lock):
            if file is not None:
                # What could not be written would be tried again; `commit` said so.
                with suppress(OSError):
                    file.close()
        self._file = self._lock = None


def _dumped(content: Any, indent: int | None = None) -> bytes:
    """Return JSON without single surrogates, which an answer may have and no reader accepts."""
    return without_surrogates(json.dumps(content, indent=indent, ensure_ascii=False)).encode()


_LOCK = ".lock"
_LONGEST_SHOWN = 1000  # characters, as a file may hold values of any length
_UNFINISHED = re.compile(r"\.[0-9a-f]{32}\.tmp")  # the names that `replacing` writes under
_PASSING = re.compile(rf"cache-[0-9]+-[0-9]+\.npz|{_UNFINISHED.pattern}")
_FILES = (
    # The configuration last: without it, nothing of the folder would be known to be ours.
    *("checkpoint.json", "records.jsonl", "scores.jsonl", "summary.json", "environment.json"),
    "config.json",
)


@contextmanager
def _or_start_over() -> Iterator[None]:
    """Surrounds what reads a run that may be damaged or another one; says what to do then."""
    try:
        yield
    except ConfigurationError as error:
        msg = f"{error}. Start over with --fresh, or name another --out"
        raise ConfigurationError(msg) from error


def _refused(path: Path, error: OSError) -> str:
    what = f"{error.filename or path}: {error.strerror or error}"
    return f"cannot write the run to {path} ({what})"


def _locked(path: Path) -> BinaryIO:
    """Lock the folder for as long as the file is open, also if the process is killed."""
    file = open_own(path / _LOCK)
    try:
        lock(file, f"the run in {path}")
    except BaseException:  # as of a file system without locks
        file.close()
        raise
    return file


def _check_same(path: Path, there: Any, here: Mapping[str, Any]) -> None:
    flat_there, flat_here = _flat(there), _flat(here)
    names = sorted(
        name for name in {*flat_there, *flat_here} if flat_there.get(name) != flat_here.get(name)
    )
    if names:
        differing = ", ".join(
            f"{name} is {flat_here.get(name)!r} here and {flat_there.get(name)!r} there"
            for name in names[:5]
        )
        shown = (
            differing if len(differing) <= _LONGEST_SHOWN else f"{differing[:_LONGEST_SHOWN]}..."
        )
        raise ConfigurationError(f"{path} holds another run: {shown}")


def _flat(content: Any, prefix: str = "") -> dict[str, Any]:
    if not isinstance(content, Mapping):
        return {prefix: content}
    flat: dict[str, Any] = {}
    for name, value in content.items():
        flat |= _flat(value, f"{prefix}.{name}" if prefix else str(name))
    return flat
