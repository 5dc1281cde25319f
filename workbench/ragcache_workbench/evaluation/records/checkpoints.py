"""The progress of a run in its folder, which is checked, since the folder may be damaged."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from functools import cache
from pathlib import Path
from typing import Any, Literal, NotRequired

from pydantic import ConfigDict, TypeAdapter, with_config
from pydantic_core import from_json
from typing_extensions import TypedDict

from ragcache_integrations.core.files import open_regular, read_regular
from ragcache_integrations.errors import ConfigurationError
from ragcache_workbench.evaluation.systems import CACHE_FACTS

from .records import Pending, Record, Whole, reason

__all__ = ["FORMAT", "Checkpoint", "read_checkpoint", "read_json_file", "read_records"]

FORMAT = 1

_LARGEST_JSON = 1 << 28  # bytes of one file, except those of lines
_CACHE = re.compile(r"cache-[0-9]{1,9}-[0-9]{1,9}\.npz")


@dataclass(slots=True)
class Checkpoint:
    """The progress of a run.

    Attributes:
        records_bytes: Length of ``records.jsonl``.
        records_sha256: SHA-256 of these bytes; empty in runs of versions that had none.
        cache: Name of the query cache's file; empty if there is none.
        pending: Questions between retrieval and answer.
        sessions: For each process of the run: ``started``, the number of records ``before`` it,
            its ``environment`` if it is not the first, and ``engine``, the engine's counters.
        complete: Whether all questions were answered.
    """

    records_bytes: int = 0
    records_sha256: str = ""
    cache: str = ""
    pending: list[Pending] = field(default_factory=list)
    sessions: list[dict[str, Any]] = field(default_factory=list)
    complete: bool = False

    def as_dict(self) -> dict[str, Any]:
        """Return plain data for JSON."""
        return {"format": FORMAT, **asdict(self)}


@with_config(ConfigDict(extra="allow"))
class _Session(TypedDict):
    """A process's part, as :class:`Checkpoint` has it."""

    started: str
    before: Whole
    engine: NotRequired[dict[str, int]]
    environment: NotRequired[dict[str, Any]]


class _Saved(TypedDict):
    """The types of what :meth:`Checkpoint.as_dict` returns."""

    format: Literal[1]
    records_bytes: Whole
    records_sha256: NotRequired[str]
    cache: str
    pending: list[Pending]
    sessions: list[_Session]
    complete: bool


@cache
def _reader() -> TypeAdapter[_Saved]:
    return TypeAdapter(_Saved)


def read_checkpoint(path: Path, questions: int) -> tuple[Checkpoint, list[Record]]:
    """Read the checkpoint of a run, and the records that it covers.

    Args:
        path: The run's folder.
        questions: Number of questions of the run.

    Returns:
        The checkpoint, empty if there is none, and the records.

    Raises:
        ConfigurationError: It cannot be read, or contradicts itself or the folder.
    """
    file = path / "checkpoint.json"
    try:
        content = read_regular(file, _LARGEST_JSON, links=False)
        # This also limits how deep it is nested.
        saved: dict[str, Any] = {**_reader().validate_json(content, strict=True)}
    except FileNotFoundError:
        return Checkpoint(), []
    except (OSError, ValueError) as error:
        raise ConfigurationError(f"{file} is no checkpoint of a run: {reason(error)}") from error
    del saved["format"]
    checkpoint = Checkpoint(**saved)
    records = read_records(path, checkpoint)
    wrong = _contradiction(path, checkpoint, records, questions)
    if wrong:
        raise ConfigurationError(f"{file} is damaged: {wrong}")
    return checkpoint, records


def _contradiction(
    path: Path, checkpoint: Checkpoint, records: Sequence[Record], questions: int
) -> str:
    """Describe what is wrong with a checkpoint; empty if nothing is."""
    pending, sessions = checkpoint.pending, checkpoint.sessions
    numbers = [*(record.number for record in records), *(question.number for question in pending)]
    sequences = [record.sequence for record in records]
    sequences += [question.sequence for question in pending]
    named = bool(checkpoint.cache)
    checks = {
        "a question comes twice": (
            len(set(numbers)) < len(numbers) or len(set(sequences)) < len(sequences)
        ),
        f"there are {questions} questions, and it has others": max(numbers, default=0) >= questions,
        f"it says that all is complete, with {len(records)} answers of {questions}": (
            checkpoint.complete and (len(records) < questions or bool(pending))
        ),
        f"of a retrieval can be noted {', '.join(CACHE_FACTS)} alone": any(
            set(question.noted) - set(CACHE_FACTS) for question in pending
        ),
        f"there are {len(sessions)} sessions, and it has records of others": any(
            record.session > len(sessions) for record in records
        ),
        f"its query cache must be in cache-*.npz, got {checkpoint.cache[:100]!r}": (
            named and not _CACHE.fullmatch(checkpoint.cache)
        ),
        "its query cache is missing, or no regular file": (
            named and not _is_plain(path / checkpoint.cache)
        ),
    }
    return next((what for what, wrong in checks.items() if wrong), "")


def _is_plain(path: Path) -> bool:
    try:
        return path.is_file() and not path.is_symlink()
    except (OSError, ValueError):  # of a name that no file can have
        return False


def read_json_file(path: Path, *, links: bool = False) -> Any:
    """Return the content of a JSON file of a run.

    Args:
        path: The file.
        links: Whether it may be a symbolic link.

    Raises:
        ConfigurationError: The file cannot be read, or is no JSON.
    """
    try:
        return from_json(read_regular(path, _LARGEST_JSON, links=links))
    except (OSError, ValueError) as error:
        raise ConfigurationError(f"{path} must be a file of a run: {error}") from error


def read_records(path: Path, checkpoint: Checkpoint | None = None) -> list[Record]:
    """Read the records of a run.

    Args:
        path: The run's folder.
        checkpoint: The checkpoint whose records to read; ``None`` for all.

    Raises:
        ConfigurationError: The records cannot be read, there are too few, or they are damaged.
    """
    file = path / "records.jsonl"
    try:
        with open_regular(file, links=False) as opened:
            content = opened.read()
    except FileNotFoundError:
        content = b""
    except OSError as error:
        raise ConfigurationError(f"cannot read {file} ({error.strerror or error})") from error
    if checkpoint is not None:
        if len(content) < checkpoint.records_bytes:
            msg = f"{file} must have {checkpoint.records_bytes} bytes, but has {len(content)}"
            raise ConfigurationError(msg)
        content = content[: checkpoint.records_bytes]
        known = checkpoint.records_sha256
        if known and hashlib.sha256(content).hexdigest() != known:
            raise ConfigurationError(f"{file} is damaged: its checksum is wrong")
    try:
        return [Record.from_json(line) for line in content.split(b"\n") if line]
    except ValueError as error:
        raise ConfigurationError(f"{file} holds no records of a run: {reason(error)}") from error
