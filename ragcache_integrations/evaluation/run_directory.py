"""A run on the disk, so that it can be read by anybody and go on after a break.

::

    config.json       settings, data set, workload, retriever, model; what the run is
    environment.json  what it ran on
    records.jsonl     a line for every question, in the order of the answers
    checkpoint.json   how far it got; see below
    cache-*.npz       the query cache as it was then
    scores.jsonl      what every answer is worth, once the run is complete
    summary.json      the figures, once the run is complete

A checkpoint is three things that belong together: the length of ``records.jsonl``, the file of the
query cache, and the questions between the two, whose documents have arrived and whose answers have
not. The first two are on the disk before ``checkpoint.json`` is replaced, at once, by one that
names them. Whatever was written after it is cut off again where a run goes on.
"""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, BinaryIO, Self

from ragcache_integrations._files import replacing
from ragcache_integrations.errors import ConfigurationError
from ragcache_integrations.evaluation.records import Pending, Record

__all__ = ["FORMAT", "Checkpoint", "RunDirectory", "read_json_file", "read_records"]

FORMAT = 1


@dataclass(slots=True)
class Checkpoint:
    """How far a run got.

    Attributes:
        records_bytes: Length of ``records.jsonl``.
        cache: Name of the query cache's file; empty where there is none.
        pending: Questions between retrieval and answer.
        sessions: For each process of the run: ``started``, the number of records ``before`` it,
            its ``environment`` where it is not the first's, and ``engine``, what the engine
            counted.
        complete: Whether all questions were answered.
    """

    records_bytes: int = 0
    cache: str = ""
    pending: list[Pending] = field(default_factory=list)
    sessions: list[dict[str, Any]] = field(default_factory=list)
    complete: bool = False

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        return {
            "format": FORMAT,
            "records_bytes": self.records_bytes,
            "cache": self.cache,
            "pending": [one.as_dict() for one in self.pending],
            "sessions": self.sessions,
            "complete": self.complete,
        }


class RunDirectory:
    """A run that is being written; one process at a time.

    Args:
        path: The folder; made where it is not there.
        config: What the run is. A folder that holds another run is refused.
        fresh: Throw away what is there and begin anew.

    Attributes:
        path: The folder.
        checkpoint: The last one that was written.
        records: All that it covers, and what was appended since.

    Raises:
        ConfigurationError: The folder holds another run or something else, another process is
            writing it, or it cannot be written to.
    """

    def __init__(self, path: Path, config: Mapping[str, Any], *, fresh: bool = False) -> None:
        self.path = path
        self.checkpoint = Checkpoint()
        self.records: list[Record] = []
        self._unwritten: list[Record] = []
        self._saves = 0
        self._file: BinaryIO | None = None
        self._lock: BinaryIO | None = None
        try:
            path.mkdir(parents=True, exist_ok=True)
            self._lock = _locked(path)
            self._open(dict(config), fresh=fresh)
        except OSError as error:
            self.close()
            msg = f"cannot write the run to {path} ({error.strerror or error}): name another --out"
            raise ConfigurationError(msg) from error
        except BaseException:
            self.close()
            raise

    def _open(self, config: dict[str, Any], *, fresh: bool) -> None:
        # As it will be read: JSON has no tuples.
        config = json.loads(json.dumps({"format": FORMAT, **config}))
        known = self.path / "config.json"
        if fresh:
            self._clear()
        if known.exists():
            _check_same(self.path, read_json_file(known), config)
            self._read_checkpoint()
        elif any(one.name != _LOCK for one in self.path.iterdir()):
            msg = f"{self.path} must be empty or hold a run, but has other files"
            raise ConfigurationError(msg)
        else:
            self.write_json("config.json", config)
        self._file = (self.path / "records.jsonl").open("ab")
        # What was written after the checkpoint is asked again, or it would count twice.
        self._file.truncate(self.checkpoint.records_bytes)
        self._tidy()

    def _read_checkpoint(self) -> None:
        path = self.path / "checkpoint.json"
        if not path.exists():
            return
        found = read_json_file(path)
        try:
            self.checkpoint = Checkpoint(
                records_bytes=found["records_bytes"],
                cache=found["cache"],
                pending=[Pending.from_dict(one) for one in found["pending"]],
                sessions=list(found["sessions"]),
                complete=bool(found["complete"]),
            )
        except (KeyError, TypeError, ValueError) as error:
            msg = f"{path} is no checkpoint of a run: {error!r}"
            raise ConfigurationError(msg) from error
        self.records = read_records(self.path, self.checkpoint.records_bytes)

    @property
    def cache_file(self) -> Path | None:
        """The query cache as it was at the checkpoint; ``None`` where there was none."""
        return self.path / self.checkpoint.cache if self.checkpoint.cache else None

    def append(self, record: Record) -> None:
        """Take a record, for the next checkpoint. Touches memory alone."""
        self.records.append(record)
        self._unwritten.append(record)

    def take_unwritten(self) -> list[Record]:
        """Return what was appended since the last call, for :meth:`commit`."""
        taken, self._unwritten = self._unwritten, []
        return taken

    def new_cache_file(self, session: int) -> Path:
        """Where to save the query cache for the next checkpoint; never where it is now."""
        self._saves += 1
        return self.path / f"cache-{session}-{self._saves}.npz"

    def commit(self, checkpoint: Checkpoint, records: Iterable[Record]) -> None:
        """Make a checkpoint the last one.

        Args:
            checkpoint: Its cache was saved. Its length of records is set here.
            records: Those that are new.
        """
        assert self._file is not None  # noqa: S101 - opened on construction
        lines = (json.dumps(one.as_dict()) + "\n" for one in records)
        self._file.writelines(line.encode("ascii") for line in lines)
        self._file.flush()
        checkpoint.records_bytes = self._file.tell()
        os.fsync(self._file.fileno())
        self.write_json("checkpoint.json", checkpoint.as_dict())
        self.checkpoint = checkpoint
        self._tidy()

    def write_json(self, name: str, content: Any) -> None:
        """Write a JSON file; whoever reads it finds the old or the new one."""
        with replacing(self.path / name) as file:
            file.write((json.dumps(content, indent=2) + "\n").encode())

    def write_json_lines(self, name: str, rows: Sequence[Mapping[str, Any]]) -> None:
        """Write a file of JSON lines, likewise."""
        with replacing(self.path / name) as file:
            file.writelines((json.dumps(row) + "\n").encode() for row in rows)

    def _tidy(self) -> None:
        """Delete caches of other checkpoints, and what a killed process was writing."""
        for pattern in ("cache-*.npz", ".*.tmp"):
            for one in self.path.glob(pattern):
                if one.name != self.checkpoint.cache:
                    one.unlink(missing_ok=True)

    def _clear(self) -> None:
        if (self.path / "config.json").exists():  # else these are not ours to delete
            for name in _FILES:
                (self.path / name).unlink(missing_ok=True)
            self._tidy()

    def close(self) -> None:
        """Let go of the folder. Idempotent."""
        for file in (self._file, self._lock):
            if file is not None:
                file.close()
        self._file = self._lock = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()


_LOCK = ".lock"
_FILES = (
    # The configuration last: without it, nothing of the folder would be known to be ours.
    *("checkpoint.json", "records.jsonl", "scores.jsonl", "summary.json", "environment.json"),
    "config.json",
)


def _locked(path: Path) -> BinaryIO:
    """Lock the folder for as long as the file is open, also if the process is killed."""
    file = (path / _LOCK).open("ab")
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        file.close()
        msg = f"the run in {path} is being written by another process"
        raise ConfigurationError(msg) from error
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
        msg = f"{path} holds another run: {differing}. Name another folder, or begin anew"
        raise ConfigurationError(msg)


def _flat(content: Any, prefix: str = "") -> dict[str, Any]:
    if not isinstance(content, Mapping):
        return {prefix: content}
    found: dict[str, Any] = {}
    for name, value in content.items():
        found |= _flat(value, f"{prefix}.{name}" if prefix else str(name))
    return found


def read_json_file(path: Path) -> Any:
    """What a JSON file of a run holds.

    Raises:
        ConfigurationError: It cannot be read, or is no JSON.
    """
    try:
        return json.loads(path.read_bytes())
    except (OSError, ValueError) as error:
        msg = f"{path} must be a file of a run: {error}"
        raise ConfigurationError(msg) from error


def read_records(path: Path, length: int | None = None) -> list[Record]:
    """The records of a run.

    Args:
        path: Its folder.
        length: So many bytes of them; all where ``None``.

    Raises:
        ConfigurationError: They cannot be read, or there are fewer.
    """
    file = path / "records.jsonl"
    try:
        content = file.read_bytes() if file.exists() else b""
    except OSError as error:
        msg = f"cannot read {file} ({error.strerror or error})"
        raise ConfigurationError(msg) from error
    if length is not None and len(content) < length:
        msg = f"{file} must have {length} bytes, but has {len(content)}"
        raise ConfigurationError(msg)
    try:
        lines = content[:length].decode("ascii").split("\n")
        return [Record.from_dict(json.loads(line)) for line in lines if line]
    except (ValueError, TypeError, KeyError) as error:
        msg = f"{file} holds no records of a run: {error!r}"
        raise ConfigurationError(msg) from error
