"""Reads logs of requests from files of any size, which may be truncated or damaged.

A line that cannot be read is skipped and counted; the others are read. Sizes are checked before
anything is parsed.
"""

from __future__ import annotations

import codecs
import gzip
import io
import itertools
import json
import re
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any, Protocol, TypeAlias, TypeVar, cast

from ragcache_integrations.errors import ConfigurationError

from .requests import RecordedRequest, export_entries, recorded_requests

__all__ = ["Log", "RequestLog", "read_log", "read_requests", "read_text"]

MAX_LINE = 16 * 2**20
"""The most characters of a line; a prompt of a million tokens has about four million."""

MAX_DOCUMENT = 64 * 2**20
"""The most characters that are read of a file with JSON values of several lines each."""

MAX_READ = 2**31
"""The most characters that are read of a file, uncompressed, including skipped lines."""

MAX_VALUES = 4_000_000
"""The most values in a JSON text; they take up to fifty times the memory of the text."""

MAX_REQUESTS = 20_000
"""The most requests that are read; for the linter a few dozen of each template are enough."""

MAX_TEXT = 32 * 2**20
"""The most characters of all requests together."""

GZIP = b"\x1f\x8b"

SHOWN = 3
"""The most skipped lines or entries whose reasons are reported."""

_LINE_BEGINS = re.compile(r"\n[ \t]*(?=[{\[])")
_VALUE_BEGINS = re.compile(r"[^\s,\]]")
_READ_ERRORS = (OSError, EOFError, zlib.error, UnicodeError)


class _Logged(Protocol):
    @property
    def text(self) -> str: ...


E = TypeVar("E", bound=_Logged)
"""What is kept of an entry."""


class Log(list[E]):
    """The entries of a log, in its order.

    Args:
        read: Returns what is needed from a line or an entry, whose name in errors is the second
            argument; raises a :class:`ConfigurationError` if it cannot be read.
        room: The most characters of all entries together.

    Attributes:
        skipped: Number of lines or entries that could not be read.
        remarks: Why the first of them could not be read, and what else was left out.
    """

    def __init__(self, read: Callable[[object, str], Iterable[E]], *, room: int = MAX_TEXT) -> None:
        super().__init__()
        self.skipped = 0
        self.remarks: list[str] = []
        self._read, self._room = read, room

    @property
    def requests(self) -> list[E]:
        """The entries themselves."""
        return self

    def add(self, value: object, where: str) -> None:
        """Take what is needed from a line or an entry, or skip it.

        Args:
            value: The line or the entry.
            where: Names it in errors.
        """
        try:
            entries = self._read(value, where)
        except ConfigurationError as error:
            message = str(error)
            self.skip(message if message.startswith(where) else f"{where}: {message}")
            return
        for entry in entries:
            self._room -= len(entry.text)
            if self._room < 0 or len(self) >= MAX_REQUESTS:
                raise _Full(f"at most {MAX_REQUESTS} are, of {MAX_TEXT} characters together")
            self.append(entry)

    def skip(self, reason: str) -> None:
        """Count a line or an entry that cannot be read."""
        self.skipped += 1
        if self.skipped <= SHOWN:
            self.remarks.append(reason)


RequestLog: TypeAlias = Log[RecordedRequest]
"""What :func:`read_requests` returns."""


class _Full(Exception):  # noqa: N818 - no error: the rest of the log is not needed
    """A limit of what is read is reached."""


def read_requests(path: Path) -> RequestLog:
    """Read a log of requests.

    Args:
        path: JSON lines, with one entry in each; or a JSON array of entries; or an object that
            holds such an array, like the exports of tracers. Encoded in UTF-8 or, with a byte-order
            mark, in UTF-16; plain or compressed with gzip.

    Raises:
        ConfigurationError: The file cannot be read, or has no requests.
    """
    return read_log(path, recorded_requests)


def read_log(path: Path, read: Callable[[object, str], Iterable[E]]) -> Log[E]:
    """Read the entries of a log; :func:`read_requests` has the forms of a file.

    Args:
        path: The file.
        read: Reads an entry; see :class:`Log`.

    Raises:
        ConfigurationError: The file cannot be read, or has no requests.
    """
    log = Log(read)
    try:
        with _open(path) as file:
            _read_file(file, log)
    except _Full as full:
        log.remarks.append(f"only the first {len(log)} requests are read: {full}")
    except _READ_ERRORS as error:
        if not log:
            raise ConfigurationError(f"cannot read {path}: {error}") from error
        log.skip(f"the file cannot be read to its end: {error}")
    if not log:
        reason = log.remarks[0] if log.remarks else "it is empty"
        raise ConfigurationError(f"{path} holds no request that can be read: {reason}")
    return log


def read_text(path: Path) -> str:
    """Read a file that holds a template.

    Raises:
        ConfigurationError: The file cannot be read, is no UTF-8, or is too long.
    """
    try:
        with _open(path) as file:
            text = file.read(MAX_LINE + 1)
    except _READ_ERRORS as error:
        raise ConfigurationError(f"cannot read {path}: {error}") from error
    if len(text) > MAX_LINE:
        raise ConfigurationError(f"{path} must have at most {MAX_LINE} characters")
    if not _is_unicode(text):
        raise ConfigurationError(f"cannot read {path}: it is not UTF-8")
    return text


@contextmanager
def _open(path: Path) -> Iterator[io.TextIOWrapper]:
    """Open a file as text, in any of the encodings, compressed or not."""
    with path.open("rb") as raw:
        zipped = raw.peek(2)[:2] == GZIP
        binary = gzip.GzipFile(fileobj=raw) if zipped else raw
        wide = binary.peek(2)[:2] in {codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE}
        yield io.TextIOWrapper(
            cast("IO[bytes]", binary),
            encoding="utf-16" if wide else "utf-8-sig",
            # Bytes that are no UTF-8 become surrogates, so that only their line is skipped.
            errors="replace" if wide else "surrogateescape",
            newline="\n",  # other line separators may be part of JSON strings
        )


def _read_file(file: io.TextIOWrapper, log: Log[Any]) -> None:
    lines = ((number, line) for number, line in _lines(file) if line is None or line.strip())
    head = list(itertools.islice(lines, 2))
    texts = [line for _, line in head if line is not None]
    if len(head) == len(texts) and _is_document(texts):
        _read_document("".join(texts) + file.read(MAX_DOCUMENT + 1), log)
        return
    for number, line in itertools.chain(head, lines):
        where = f"line {number}"
        if line is None:
            log.skip(f"{where} is longer than {MAX_LINE} characters")
            continue
        try:
            value = _parse(line)
        except ValueError as error:
            log.skip(f"{where} is no JSON: {error}")
            continue
        items = export_entries(value)
        if items is None:
            log.add(value, where)
        else:
            _add_all(items, log, f"{where}, ")


def _is_document(head: Sequence[str]) -> bool:
    """Whether the values of a file take several lines each, instead of one line each.

    Args:
        head: The first two lines that are not blank, or fewer if the file has fewer.
    """
    if not head or head[0].lstrip()[0] not in "[{":
        return False
    if head[0].strip() in {"[", "{"}:
        return True
    sound = [_is_json(line) for line in head]
    return not any(sound) or (len(head) == 1 and head[0].lstrip()[0] == "[")


def _is_json(text: str) -> bool:
    try:
        _parse(text)
    except ValueError:
        return False
    return True


def _add_all(entries: Iterable[object], log: Log[Any], before: str = "") -> None:
    for number, entry in enumerate(entries, 1):
        log.add(entry, f"{before}entry {number}")


def _read_document(text: str, log: Log[Any]) -> None:
    """Read values that take several lines each."""
    cut = len(text) > MAX_DOCUMENT
    try:
        _check_size(text)
        _add_all(_entries(text.encode("utf-8", "replace").decode(), log), log)
    except ValueError as error:
        log.skip(f"the file is no JSON: {error}")
    if cut:
        log.remarks.append(
            f"the file is read up to {MAX_DOCUMENT} characters: write one entry in each line"
        )


def _entries(text: str, log: Log[Any]) -> Iterator[object]:
    """The entries of a text, in an array, in an object, or one after the other.

    After an error the text is skipped up to the next line that begins a value. No character is
    parsed twice, except those of one line, so this takes linear time.
    """
    decoder = json.JSONDecoder()
    position = _next_value(text, 0)
    if text.startswith("[", position):
        position = _next_value(text, position + 1)
    while position < len(text):
        try:
            value, position = decoder.raw_decode(text, position)
        except json.JSONDecodeError as error:
            log.skip(f"the file is no JSON: {error}")
            begin = max(position + 1, text.rfind("\n", position, error.pos))
            match = _LINE_BEGINS.search(text, begin)
            position = match.end() if match else len(text)
            continue
        except RecursionError as error:
            raise ValueError("it is nested too deeply") from error
        items = export_entries(value)
        yield from [value] if items is None else items
        position = _next_value(text, position)


def _next_value(text: str, position: int) -> int:
    """Index at which the next value begins, or the end of the text."""
    match = _VALUE_BEGINS.search(text, position)
    return match.start() if match else len(text)


def _lines(file: io.TextIOWrapper) -> Iterator[tuple[int, str | None]]:
    """The lines and their numbers from 1; ``None`` for a line that is too long."""
    number = read = 0
    while line := file.readline(MAX_LINE + 1):
        number += 1
        read += len(line)
        long = len(line) > MAX_LINE
        yield number, None if long else line
        while long and not line.endswith("\n") and (line := file.readline(MAX_LINE)):
            read += len(line)
            if read > MAX_READ:
                break
        if read > MAX_READ:
            raise _Full(f"at most {MAX_READ} characters of a file are read")


def _parse(text: str) -> Any:
    """Parse a JSON value.

    Raises:
        ValueError: The text is no JSON, has too many values, or is nested too deeply.
    """
    if not _is_unicode(text):
        raise ValueError("it is not UTF-8")
    _check_size(text)
    try:
        return json.loads(text)
    except RecursionError as error:
        raise ValueError("it is nested too deeply") from error


def _check_size(text: str) -> None:
    if sum(map(text.count, "[{,")) > MAX_VALUES:
        raise ValueError(f"it has more than {MAX_VALUES} values")


def _is_unicode(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True
