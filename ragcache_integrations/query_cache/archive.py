"""Arrays in one file that is whole or not there, and that is known to be as it was written.

An ``.npz`` as NumPy reads it, without pickled objects: an uncompressed zip of ``.npy`` members. The
zip's comment, which ends the file, ends with the SHA-256 of all bytes before it, so that nothing of
a damaged file is ever interpreted. That finds accidents, not forgery.
"""

from __future__ import annotations

import hashlib
import os
import struct
import zipfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO
from uuid import uuid4

import numpy as np
from numpy.typing import NDArray

from ragcache_integrations.errors import CacheFileError

__all__ = ["MALFORMED", "read_archive", "replacing", "write_archive"]

MALFORMED = (
    ArithmeticError,
    AttributeError,
    EOFError,
    LookupError,
    RuntimeError,
    TypeError,
    ValueError,
    struct.error,
    zipfile.BadZipFile,
)
"""What is raised where a file with a right checksum makes no sense all the same."""

_MARK = b"ragcache-integrations query cache, SHA-256 "
_CHECKSUM = 64  # hexadecimal digits
_BLOCK = 1 << 20


@contextmanager
def replacing(path: str | os.PathLike[str]) -> Iterator[BinaryIO]:
    """Write a file; whoever reads the path, after whatever happens, finds the old or the new one.

    A process that is killed meanwhile may leave a file ``.….tmp`` beside it.

    Args:
        path: Where to. A symbolic link keeps pointing to what is replaced.

    Yields:
        The new file, which takes the path where the block ends without an exception.

    Raises:
        OSError: It cannot be written. The path is as it was, and nothing is left beside it.
    """
    target = Path(os.path.realpath(path))
    temporary = target.with_name(f".{uuid4().hex}.tmp")
    file = temporary.open("xb+")
    try:
        with file:
            yield file
            file.flush()
            os.fsync(file.fileno())
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


def write_archive(path: str | os.PathLike[str], arrays: Mapping[str, NDArray[Any]]) -> None:
    """Write arrays, as :func:`replacing` does.

    Args:
        path: Where to.
        arrays: By name; no object arrays.

    Raises:
        OSError: It cannot be written. The path is as it was, and nothing is left beside it.
    """
    with replacing(path) as file:
        _write(file, arrays)


def read_archive(path: str | os.PathLike[str]) -> dict[str, NDArray[Any]]:
    """Read what :func:`write_archive` wrote.

    Raises:
        CacheFileError: It is another kind of file, or damaged.
        OSError: It cannot be read at all.
    """
    with Path(path).open("rb") as file:
        length = file.seek(0, os.SEEK_END) - _CHECKSUM
        file.seek(max(length - len(_MARK), 0))
        if file.read(len(_MARK)) != _MARK:
            msg = f"{path} must be the file of a saved query cache; it is another one, or cut short"
            raise CacheFileError(msg)
        if file.read() != _checksum(file, length):
            msg = f"{path} is damaged: its checksum is wrong"
            raise CacheFileError(msg)
        try:
            with zipfile.ZipFile(file) as archive:
                return {
                    name.removesuffix(".npy"): _member(archive, name) for name in archive.namelist()
                }
        except MALFORMED as error:
            msg = f"{path} is malformed, though its checksum is right: {error!r}"
            raise CacheFileError(msg) from error


def _write(file: BinaryIO, arrays: Mapping[str, NDArray[Any]]) -> None:
    with zipfile.ZipFile(file, "w") as archive:
        for name, array in arrays.items():
            with archive.open(f"{name}.npy", "w", force_zip64=True) as member:
                np.save(member, array, allow_pickle=False)
        archive.comment = _MARK + bytes(_CHECKSUM)
    length = file.seek(-_CHECKSUM, os.SEEK_END)
    checksum = _checksum(file, length)
    file.seek(length)
    file.write(checksum)


def _member(archive: zipfile.ZipFile, name: str) -> NDArray[Any]:
    with archive.open(name) as member:
        array = np.load(member, allow_pickle=False)
    if not isinstance(array, np.ndarray):
        msg = f"{name} must be an array, got {array!r}"
        raise TypeError(msg)
    return array


def _checksum(file: BinaryIO, length: int) -> bytes:
    """Return the digits for the first bytes of a file."""
    digest = hashlib.sha256()
    file.seek(0)
    while length and (block := file.read(min(length, _BLOCK))):
        digest.update(block)
        length -= len(block)
    return digest.hexdigest().encode()
