"""Opens, reads and replaces files that other users may have created.

A path may lead to anything: a pipe that blocks for ever, a device, a link to another file, or more
bytes than there is memory. So only regular files are opened and replaced here, and sizes are
checked before files are read.
"""

from __future__ import annotations

import csv
import errno
import grp
import gzip
import io
import json
import os
import pwd
import stat
import struct
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from io import BufferedReader
from pathlib import Path
from typing import Any, BinaryIO
from uuid import uuid4

from ragcache_integrations.errors import ConfigurationError

__all__ = [
    "MALFORMED",
    "MOST_ROWS",
    "Row",
    "check_replaceable",
    "json_lines",
    "open_own",
    "open_regular",
    "private_folder",
    "read_json_lines",
    "read_regular",
    "read_text",
    "reading",
    "replacing",
    "text_of",
]

StrPath = str | os.PathLike[str]
Row = dict[str, Any]

LARGEST_FILE = 1 << 29
"""Bytes of a file, packed and unpacked, at most."""
MOST_ROWS = 1_000_000
"""Entries of a file, at most."""

MALFORMED = (
    ArithmeticError,
    AttributeError,
    EOFError,
    LookupError,
    RuntimeError,
    TypeError,
    ValueError,
    csv.Error,
    struct.error,
    zipfile.BadZipFile,
    zlib.error,
)
"""Exceptions while reading what is not in its format."""

# Without O_NONBLOCK, opening a pipe would wait for a writer, before its type can be checked.
_READ = os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC
_APPEND = os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOFOLLOW
_READABLE = 0o666  # as far as the umask allows it
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_PRIVATE = 0o700


def open_regular(path: StrPath, *, links: bool = True) -> BufferedReader:
    """Open a regular file for reading.

    Args:
        path: The file.
        links: Whether symbolic links are followed.

    Raises:
        IsADirectoryError: The path is a folder.
        OSError: It is a link, a pipe, a device or a socket, or cannot be read.
    """
    # Opening a device may have effects, so the path is checked before; and again afterwards,
    # because it may have been replaced in between.
    _check_regular(path, Path(path).stat(follow_symlinks=links))
    descriptor = os.open(path, _READ if links else _READ | os.O_NOFOLLOW)
    try:
        _check_regular(path, os.fstat(descriptor))
        return os.fdopen(descriptor, "rb")
    except BaseException:
        os.close(descriptor)
        raise


def read_regular(path: StrPath, most: int, *, links: bool = True) -> bytes:
    """Read a regular file.

    Args:
        path: The file.
        most: The most bytes that it may have.
        links: Whether symbolic links are followed.

    Raises:
        OSError: As for :func:`open_regular`, or the file is larger.
    """
    with open_regular(path, links=links) as file:
        size = os.fstat(file.fileno()).st_size
        content = b"" if size > most else file.read(most + 1)
        if max(size, len(content)) > most:
            raise _error(errno.EFBIG, f"it must have at most {most} bytes, but has more", path)
        return content


@contextmanager
def reading(what: str, expected: str = "") -> Iterator[None]:
    """Turn the errors of reading something into one that names it.

    Args:
        what: The file or data set, for the message.
        expected: Describes its format, for the message.

    Raises:
        ConfigurationError: It cannot be read, or is not in its format.
    """
    try:
        yield
    except ConfigurationError:
        raise
    except OSError as error:
        raise ConfigurationError(f"cannot read {what} ({error.strerror or error})") from error
    except MALFORMED as error:
        hint = f". Expected is {expected}" if expected else ""
        msg = f"{what} is not in its format: {_in_words(error)}{hint}"
        raise ConfigurationError(msg) from error


def _in_words(error: Exception) -> str:
    match error:
        case UnicodeDecodeError():
            return f"byte {error.start} is not UTF-8"
        case json.JSONDecodeError():
            return f"it is no JSON at line {error.lineno}, column {error.colno} ({error.msg})"
        case RecursionError():
            return "it is nested too deeply"
        case KeyError():
            return f"{error} is missing"
        case ValueError() | TypeError() if str(error):
            return f"{error!s:.300}"
        case _:
            return f"{error!r:.300}"


def read_text(path: Path, most: int = LARGEST_FILE) -> str:
    """Return the text of a file, unpacked if its name ends in ``.gz``.

    Args:
        path: The file.
        most: The most bytes that it may have, packed and unpacked.

    Raises:
        OSError: It cannot be read, or is too large.
        ValueError: It is not UTF-8, or too large when unpacked.
    """
    content = read_regular(path, most)
    if path.suffix == ".gz":
        # Not gzip.decompress(), which has no limit.
        with gzip.GzipFile(fileobj=io.BytesIO(content)) as file:
            content = file.read(most + 1)
        if len(content) > most:
            raise ValueError(f"it must have at most {most} bytes when unpacked, but has more")
    return content.decode("utf-8")


def json_lines(text: str) -> list[Row]:
    """Rows of JSON lines.

    Raises:
        TypeError: A line is no JSON object.
        ValueError: A line is no JSON, or there are too many.
    """
    if text.count("\n") > MOST_ROWS:
        raise ValueError(f"there must be at most {MOST_ROWS} lines, got more")
    # Not splitlines(): it also splits at characters that JSON may hold as they are.
    return [
        _json_line(line, number)
        for number, line in enumerate(text.split("\n"), start=1)
        if line.strip()
    ]


def _json_line(line: str, number: int) -> Row:
    try:
        row = json.loads(line)
    except json.JSONDecodeError as error:
        # The error knows this line alone, and would always say that it is the first.
        msg = f"it is no JSON at line {number}, column {error.colno} ({error.msg})"
        raise ValueError(msg) from error
    if not isinstance(row, dict):
        raise TypeError(f"a line must be a JSON object, got {row!r:.60} at line {number}")
    return row


def read_json_lines(path: Path) -> list[Row]:
    """Rows of a file of JSON lines."""
    with reading(str(path)):
        return json_lines(read_text(path))


def text_of(row: Row, name: str, usual: str | None = None) -> str:
    """Return a field that must be a text; it may be missing or empty if there is a usual value."""
    value = row.get(name, usual)
    if not isinstance(value, str) or not (value.strip() or usual is not None):
        raise ValueError(f"{name!r} must be a text that is not empty, got {value!r:.60}")
    return value


def open_own(path: StrPath) -> BinaryIO:
    """Open a file to append to it and to truncate it; a missing file is created.

    Raises:
        OSError: The path is a link or no regular file, has a second name (so that writing would
            change another file), or cannot be written.
    """
    check_replaceable(path, links=False)
    descriptor = os.open(path, _APPEND, _READABLE)
    try:
        _check_regular(path, os.fstat(descriptor))
        _check_one_name(path, os.fstat(descriptor))
        return os.fdopen(descriptor, "ab+")
    except BaseException:
        os.close(descriptor)
        raise


def check_replaceable(path: StrPath, *, links: bool = True) -> None:
    """Check that a path is free or a regular file.

    Args:
        path: The path.
        links: Whether symbolic links are followed.

    Raises:
        OSError: The path is something else.
    """
    try:
        status = Path(path).stat(follow_symlinks=links)
    except FileNotFoundError:
        return
    _check_regular(path, status)


@contextmanager
def replacing(path: StrPath, *, links: bool = True) -> Iterator[BinaryIO]:
    """Replace a file atomically: readers find the old or the new file, even after a crash.

    A process that is killed may leave a file ``.….tmp`` next to it.

    Args:
        path: The file.
        links: Whether the target of a symbolic link is replaced; otherwise links are refused.

    Yields:
        The new file, which replaces the old one if the block ends without an exception.

    Raises:
        OSError: The file cannot be written, or the path is no regular file. The path is unchanged,
            and nothing is left next to it.
    """
    check_replaceable(path, links=links)
    target = Path(os.path.realpath(path)) if links else Path(path)
    temporary = target.with_name(f".{uuid4().hex}.tmp")
    file = temporary.open("xb+")
    try:
        with file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        check_replaceable(target, links=False)
        temporary.replace(target)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    # The new name is only durable once the directory is on disk, too.
    directory = os.open(target.parent, os.O_RDONLY)
    try:
        os.fsync(directory)
    finally:
        os.close(directory)


def private_folder(path: StrPath) -> Path:
    """Create a folder that only this user can access, or check that it is one.

    A folder that others can read becomes private, since nothing in it is theirs.

    Args:
        path: The folder. Folders above it are created, too.

    Returns:
        The folder's real path, without links.

    Raises:
        OSError: The folder cannot be created, is no folder, belongs to another user, or others can
            write to it or replace it.
    """
    place = Path(os.path.realpath(path))
    place.parent.mkdir(parents=True, exist_ok=True)
    with suppress(FileExistsError):
        place.mkdir(_PRIVATE)
    folder = os.open(place, _FOLDER)
    try:
        status = os.fstat(folder)
        if status.st_uid != os.geteuid():
            raise _error(errno.EPERM, "it must be this user's, but belongs to another user", place)
        if _is_writable_for_others(status):
            raise _error(errno.EPERM, "it must be this user's alone, but others can write", place)
        if stat.S_IMODE(status.st_mode) != _PRIVATE:
            os.fchmod(folder, _PRIVATE)
    finally:
        os.close(folder)
    _check_unreplaceable(place)
    return place


def _check_unreplaceable(place: Path) -> None:
    """Check that no other user except root can rename folders above this one, and so replace it."""
    for above in reversed(place.parents):
        status = above.stat()
        own = status.st_uid == os.geteuid()
        # In a sticky folder such as /tmp, users cannot rename each other's files.
        sticky = status.st_mode & stat.S_ISVTX
        if not (own or status.st_uid == 0) or (_is_writable_for_others(status) and not sticky):
            what = f"it must be this user's alone, but others can write to {str(above)!r}"
            raise _error(errno.EPERM, what, place)
        if own and not status.st_mode & (stat.S_IXGRP | stat.S_IXOTH):
            return  # other users cannot enter this folder, so the ones below don't matter


def _is_writable_for_others(status: os.stat_result) -> bool:
    if status.st_mode & stat.S_IWOTH:
        return True
    return bool(status.st_mode & stat.S_IWGRP) and not _is_users_own_group(status.st_gid)


def _is_users_own_group(group: int) -> bool:
    """Whether a group has no other users: many systems give each user a group of the same name."""
    try:
        user, entry = pwd.getpwuid(os.geteuid()), grp.getgrgid(group)
    except KeyError:
        return False
    own = group == user.pw_gid and entry.gr_name == user.pw_name
    return own and set(entry.gr_mem) <= {user.pw_name}


def _check_regular(path: StrPath, status: os.stat_result) -> None:
    if stat.S_ISREG(status.st_mode):
        return
    if stat.S_ISDIR(status.st_mode):
        raise _error(errno.EISDIR, os.strerror(errno.EISDIR), path)
    if stat.S_ISLNK(status.st_mode):
        raise _error(errno.ELOOP, "it must be a regular file, but is a symbolic link", path)
    raise _error(errno.EINVAL, "it must be a regular file, but is a pipe, device or socket", path)


def _check_one_name(path: StrPath, status: os.stat_result) -> None:
    if status.st_nlink != 1:
        raise _error(errno.EMLINK, f"it must have one name, but has {status.st_nlink}", path)


def _error(number: int, what: str, path: StrPath) -> OSError:
    return OSError(number, what, os.fspath(path))
