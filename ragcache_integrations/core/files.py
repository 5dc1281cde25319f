"""Opens and replaces files that somebody else may have put there.

A path may lead to anything: a pipe that never answers, a device, a link to a file that matters, or
more bytes than there is memory. Only regular files are opened and replaced here, and what is read
at once is bounded before it is read.
"""

from __future__ import annotations

import errno
import grp
import os
import pwd
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from io import BufferedReader
from pathlib import Path
from typing import BinaryIO
from uuid import uuid4

__all__ = [
    "check_replaceable",
    "open_own",
    "open_regular",
    "private_folder",
    "read_regular",
    "replacing",
]

StrPath = str | os.PathLike[str]

# A pipe without a writer would otherwise be waited for, before anybody can see that it is one.
_READ = os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC
_APPEND = os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOFOLLOW
_READABLE = 0o666  # as far as the umask allows it
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_PRIVATE = 0o700


def open_regular(path: StrPath, *, links: bool = True) -> BufferedReader:
    """Open a regular file for reading.

    Args:
        path: Which.
        links: Whether a symbolic link is followed.

    Raises:
        IsADirectoryError: It is a folder.
        OSError: It is a link, a pipe, a device or a socket, or it cannot be read.
    """
    # Opening a device may already do something, so it is looked at before; and again afterwards, as
    # the path may lead elsewhere by then.
    _check_regular(path, Path(path).stat(follow_symlinks=links))
    found = os.open(path, _READ if links else _READ | os.O_NOFOLLOW)
    try:
        _check_regular(path, os.fstat(found))
        return os.fdopen(found, "rb")
    except BaseException:
        os.close(found)
        raise


def read_regular(path: StrPath, most: int, *, links: bool = True) -> bytes:
    """Read a regular file.

    Args:
        path: Which.
        most: The most bytes that it may have.
        links: Whether a symbolic link is followed.

    Raises:
        OSError: As for :func:`open_regular`, or it is larger.
    """
    with open_regular(path, links=links) as file:
        size = os.fstat(file.fileno()).st_size
        content = b"" if size > most else file.read(most + 1)
        if max(size, len(content)) > most:
            raise _error(errno.EFBIG, f"it must have at most {most} bytes, but has more", path)
        return content


def open_own(path: StrPath) -> BinaryIO:
    """Open a file to append to it and to cut it; it is made where it is not there.

    Raises:
        OSError: It is a link or no regular file, has a second name (what is written to it would
            change another file), or cannot be written.
    """
    check_replaceable(path, links=False)
    found = os.open(path, _APPEND, _READABLE)
    try:
        _check_regular(path, os.fstat(found))
        _check_one_name(path, os.fstat(found))
        return os.fdopen(found, "ab+")
    except BaseException:
        os.close(found)
        raise


def check_replaceable(path: StrPath, *, links: bool = True) -> None:
    """Check that nothing but a regular file would be replaced, if there is anything.

    Raises:
        OSError: There is something else.
    """
    try:
        found = Path(path).stat(follow_symlinks=links)
    except FileNotFoundError:
        return
    _check_regular(path, found)


@contextmanager
def replacing(path: StrPath, *, links: bool = True) -> Iterator[BinaryIO]:
    """Write a file; whoever reads the path, after whatever happens, finds the old or the new one.

    A process that is killed meanwhile may leave a file ``.….tmp`` next to it.

    Args:
        path: Where to.
        links: Whether a symbolic link keeps pointing to what is replaced; refused otherwise.

    Yields:
        The new file, which takes the path where the block ends without an exception.

    Raises:
        OSError: It cannot be written, or there is something else than a regular file. The path is
            as it was, and nothing is left next to it.
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
    # The new name lasts once the directory is on the disk, too.
    directory = os.open(target.parent, os.O_RDONLY)
    try:
        os.fsync(directory)
    finally:
        os.close(directory)


def private_folder(path: StrPath) -> Path:
    """Make a folder that is this user's alone, or see that it is one.

    A folder that others can only read becomes private: nothing in it is theirs.

    Args:
        path: Where. Folders above it are made, too.

    Returns:
        The folder's real path, without links.

    Raises:
        OSError: It cannot be made, is no folder, belongs to another user, or others can write to it
            or put another one in its place.
    """
    place = Path(os.path.realpath(path))
    place.parent.mkdir(parents=True, exist_ok=True)
    with suppress(FileExistsError):
        place.mkdir(_PRIVATE)
    folder = os.open(place, _FOLDER)
    try:
        found = os.fstat(folder)
        if found.st_uid != os.geteuid():
            raise _error(errno.EPERM, "it must be this user's, but belongs to another user", place)
        if _is_writable_for_others(found):
            raise _error(errno.EPERM, "it must be this user's alone, but others can write", place)
        if stat.S_IMODE(found.st_mode) != _PRIVATE:
            os.fchmod(folder, _PRIVATE)
    finally:
        os.close(folder)
    _check_unreplaceable(place)
    return place


def _check_unreplaceable(place: Path) -> None:
    """Check that no other user but root can rename what is above a folder, and so replace it."""
    for above in reversed(place.parents):
        found = above.stat()
        own = found.st_uid == os.geteuid()
        # Nobody renames what is another user's in a folder such as /tmp.
        sticky = found.st_mode & stat.S_ISVTX
        if not (own or found.st_uid == 0) or (_is_writable_for_others(found) and not sticky):
            what = f"it must be this user's alone, but others can write to {str(above)!r}"
            raise _error(errno.EPERM, what, place)
        if own and not found.st_mode & (stat.S_IXGRP | stat.S_IXOTH):
            return  # nobody else gets any further


def _is_writable_for_others(found: os.stat_result) -> bool:
    if found.st_mode & stat.S_IWOTH:
        return True
    return bool(found.st_mode & stat.S_IWGRP) and not _is_users_own_group(found.st_gid)


def _is_users_own_group(group: int) -> bool:
    """Whether nobody else is in a group: many systems give each user one of the same name."""
    try:
        user, found = pwd.getpwuid(os.geteuid()), grp.getgrgid(group)
    except KeyError:
        return False
    own = group == user.pw_gid and found.gr_name == user.pw_name
    return own and set(found.gr_mem) <= {user.pw_name}


def _check_regular(path: StrPath, found: os.stat_result) -> None:
    if stat.S_ISREG(found.st_mode):
        return
    if stat.S_ISDIR(found.st_mode):
        raise _error(errno.EISDIR, os.strerror(errno.EISDIR), path)
    if stat.S_ISLNK(found.st_mode):
        raise _error(errno.ELOOP, "it must be a regular file, but is a symbolic link", path)
    raise _error(errno.EINVAL, "it must be a regular file, but is a pipe, device or socket", path)


def _check_one_name(path: StrPath, found: os.stat_result) -> None:
    if found.st_nlink != 1:
        raise _error(errno.EMLINK, f"it must have one name, but has {found.st_nlink}", path)


def _error(number: int, what: str, path: StrPath) -> OSError:
    return OSError(number, what, os.fspath(path))
