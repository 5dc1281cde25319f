"""Rephrasings of a stream by a model, in a file next to the runs that ask them.

It has a line of JSON for each question of the stream, in its order, after a line that says which
stream and which model it is of. Lines are appended as they are made, so an interruption loses at
most the last one. The file may come from anybody: it is read within bounds, and checked.
"""

from __future__ import annotations

import fcntl
import io
import json
import os
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from typing import Annotated, BinaryIO, Literal

from pydantic import Field, TypeAdapter

from ragcache_integrations.core.blocks import Closeable
from ragcache_integrations.core.files import open_own
from ragcache_integrations.errors import ConfigurationError

from .records import Whole, reason

__all__ = ["LONGEST_TEXT", "Refusal", "Rephrasing", "RephrasingsFile", "lock"]

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


@cache
def _reader() -> TypeAdapter[Rephrasing]:
    return TypeAdapter(Rephrasing)


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
        self._file: BinaryIO | None = None
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._file = open_own(path)
            lock(self._file, str(path))
            self._read(json.dumps({"format": 1, **head}, sort_keys=True).encode())
        except OSError as error:
            self.close()
            raise self._unwritable(error) from error
        except BaseException:
            self.close()
            raise

    def append(self, rephrasing: Rephrasing) -> None:
        """Write the next rephrasing.

        Raises:
            ConfigurationError: The file is closed, or there is no room for it.
        """
        try:
            self._write(json.dumps(asdict(rephrasing)).encode())
        except OSError as error:
            raise self._unwritable(error) from error
        self.kept.append(rephrasing)

    def close(self) -> None:
        """Close the file. Idempotent."""
        file, self._file = self._file, None
        if file is not None:
            # A line that could not be written would be tried again; `append` said so.
            with suppress(OSError):
                file.close()

    @property
    def _opened(self) -> BinaryIO:
        if self._file is None:
            raise ConfigurationError(f"{self.path} is closed")
        return self._file

    def _unwritable(self, error: OSError) -> ConfigurationError:
        return ConfigurationError(
            f"cannot write rephrasings to {self.path} ({error.strerror or error})"
        )

    def _read(self, head: bytes) -> None:
        file = self._opened
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
            self.kept = [_reader().validate_json(line, strict=True) for line in lines]
        except ValueError as error:
            return reason(error)
        wrong = (
            f"line {place + 2} is not of question {place}"
            for place, kept in enumerate(self.kept)
            if kept.number != place or bool(kept.text) == bool(kept.refused)
        )
        return next(wrong, "")

    def _write(self, line: bytes) -> None:
        file = self._opened
        file.write(line + b"\n")
        file.flush()
