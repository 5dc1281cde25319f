"""Saves arrays in one file, which is replaced atomically and checked when it is read.

The file is an ``.npz`` that NumPy can read, without pickled objects: an uncompressed zip of
``.npy`` members. The zip's comment, at the end of the file, ends with the SHA-256 of all bytes
before it, so that a damaged file is never interpreted. The checksum finds accidents, not forgery:
anybody can compute it. So the sizes that the file declares are compared with the file's own size
before anything is allocated, and the arrays together never take more memory than the file on disk.
"""

from __future__ import annotations

import errno
import hashlib
import math
import os
import re
import struct
import zipfile
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from ragcache_integrations.errors import CacheFileError, ConfigurationError

from .files import MALFORMED, check_replaceable, open_regular, replacing

__all__ = ["MALFORMED", "read_archive", "write_archive"]

_CHECKSUM = 64  # hexadecimal digits
_BLOCK = 1 << 20
_LARGEST_DIRECTORY = 1 << 16  # bytes of the zip's list of members; ours takes about 1,500
# The last record of a zip, without its comment: signature, bytes of the list and of the comment.
_END = struct.Struct("<4s8xI4xH")
_FIRST_NAME = 30  # offset of the first member's name, after its header
# The beginning of an array, and its header as NumPy writes it. NumPy would read any expression.
_BEGIN = struct.Struct("<8sH")
_HEADER = re.compile(
    rb"\{'descr': '(<f4|<f8|<i8|\|u1|\|b1)', 'fortran_order': False, "
    rb"'shape': \(((?:\d{1,18}, ?)*(?:\d{1,18})?)\), \} *\n"
)
_ANY_DTYPES = "float32, float64, int64, uint8 and bool"


def write_archive(
    path: str | os.PathLike[str], arrays: Mapping[str, NDArray[Any]], kind: str = "query cache"
) -> None:
    """Write arrays to a file, which :func:`.replacing` replaces.

    Args:
        path: The file. Only a file of this kind, or an empty one, is replaced.
        arrays: Arrays by name; no object arrays.
        kind: What the file is, such as ``query cache``, in ASCII.

    Raises:
        ConfigurationError: The path is a file of another kind.
        OSError: The file cannot be written. The path is unchanged, and nothing is left next to it.
    """
    check_replaceable(path)
    if Path(path).exists() and not _is_ours(path, kind):
        msg = f"{path} must be new or a saved {kind}, but is another file: nothing was written"
        raise ConfigurationError(msg)
    with replacing(path) as file:
        _write(file, arrays, _mark(kind))


def read_archive(
    path: str | os.PathLike[str],
    names: Collection[str] | None = None,
    kind: str = "query cache",
    most: float = math.inf,
) -> dict[str, NDArray[Any]]:
    """Read the arrays that :func:`write_archive` wrote.

    Args:
        path: The file.
        names: Names of the arrays that the file must have; ``None`` for any.
        kind: What the file must be.
        most: The most bytes that it may have.

    Raises:
        CacheFileError: The file is of another kind, too large, or damaged.
        OSError: The file cannot be read.
    """
    mark = _mark(kind)
    with _open(path, kind) as file:
        length = file.seek(0, os.SEEK_END) - _CHECKSUM
        file.seek(max(length - len(mark), 0))
        if file.read(len(mark)) != mark:
            raise CacheFileError(f"{path} must be a saved {kind}, but is another file or truncated")
        if length + _CHECKSUM > most:
            msg = f"{path} must have at most {most} bytes, but has {length + _CHECKSUM}"
            raise CacheFileError(msg)
        if file.read() != _checksum(file, length):
            raise CacheFileError(f"{path} is damaged: its checksum is wrong")
        try:
            return _read(file, length + _CHECKSUM, names, len(mark) + _CHECKSUM)
        except MALFORMED as error:
            msg = f"{path} is malformed, though its checksum is right: {error!r}"
            raise CacheFileError(msg) from error


def _mark(kind: str) -> bytes:
    """Return what comes before the checksum."""
    return f"ragcache-integrations {kind}, SHA-256 ".encode("ascii")


def _open(path: str | os.PathLike[str], kind: str) -> BinaryIO:
    try:
        return open_regular(path)
    except OSError as error:
        if error.errno != errno.EINVAL:
            raise
        raise CacheFileError(f"{path} must be a saved {kind}: {error.strerror}") from error


def _is_ours(path: str | os.PathLike[str], kind: str) -> bool:
    """Whether a file is empty or a saved cache, which may be truncated or damaged."""
    mark = _mark(kind)
    with open_regular(path) as file:
        head = file.read(_FIRST_NAME + 64)
        size = file.seek(0, os.SEEK_END)
        file.seek(max(size - _CHECKSUM - len(mark), 0))
        marked = file.read(len(mark)) == mark
    return marked or not head or (head.startswith(b"PK\3\4") and b".npy" in head[_FIRST_NAME:])


def _write(file: BinaryIO, arrays: Mapping[str, NDArray[Any]], mark: bytes) -> None:
    with zipfile.ZipFile(file, "w") as archive:
        for name, array in arrays.items():
            with archive.open(f"{name}.npy", "w", force_zip64=True) as member:
                np.save(member, array, allow_pickle=False)
        archive.comment = mark + bytes(_CHECKSUM)
    length = file.seek(-_CHECKSUM, os.SEEK_END)
    checksum = _checksum(file, length)
    file.seek(length)
    file.write(checksum)


def _read(
    file: BinaryIO, size: int, names: Collection[str] | None, comment_size: int
) -> dict[str, NDArray[Any]]:
    """Read the members after checking that they are no larger than the file.

    Raises:
        MALFORMED: A member is malformed.
    """
    file.seek(max(size - _END.size - comment_size, 0))
    signature, directory, comment = _END.unpack(file.read(_END.size))
    if signature != b"PK\5\6" or comment != comment_size or directory > _LARGEST_DIRECTORY:
        msg = f"it must end like a zip with at most {_LARGEST_DIRECTORY} bytes of member names"
        raise ValueError(msg)
    with zipfile.ZipFile(file) as archive:
        members = archive.infolist()
        actual = [info.filename.removesuffix(".npy") for info in members]
        if len(set(actual)) < len(actual) or (names is not None and set(actual) != set(names)):
            allowed = "distinct" if names is None else sorted(names)
            raise ValueError(f"its members must be {allowed}, got {actual}")
        plain = all(
            info.compress_type == zipfile.ZIP_STORED and info.header_offset >= 0 for info in members
        )
        total = sum(info.file_size for info in members)
        if not plain or total > size:
            msg = f"its members must be uncompressed, got {total} bytes in a file of {size}"
            raise ValueError(msg)
        return {name: _member(archive, info) for name, info in zip(actual, members, strict=True)}


def _member(archive: zipfile.ZipFile, info: zipfile.ZipInfo) -> NDArray[Any]:
    """Read one array after comparing its declared size with the member's."""
    with archive.open(info) as member:
        begin = member.read(_BEGIN.size)
        magic, length = _BEGIN.unpack(begin) if len(begin) == _BEGIN.size else (b"", 0)
        declared = _HEADER.fullmatch(member.read(length))
        if magic != b"\x93NUMPY\1\0" or declared is None:
            msg = f"{info.filename} must be an array of {_ANY_DTYPES}, by rows, of version 1.0"
            raise ValueError(msg)
        dtype = np.dtype(declared[1].decode())
        shape = tuple(map(int, declared[2].replace(b",", b" ").split()))
        left = info.file_size - _BEGIN.size - length
        if math.prod(shape) * dtype.itemsize != left:
            msg = f"{info.filename} must fill its {left} bytes, got {dtype} of shape {shape}"
            raise ValueError(msg)
        array = np.empty(shape, dtype)
        _fill(member, array.reshape(-1).view(np.uint8).data)
    return array


def _fill(member: Any, view: memoryview) -> None:
    while view:
        count = member.readinto(view[:_BLOCK])
        if not count:
            raise EOFError(f"{len(view)} bytes are missing")
        view = view[count:]


def _checksum(file: BinaryIO, length: int) -> bytes:
    """Hexadecimal SHA-256 of the first ``length`` bytes of a file."""
    digest = hashlib.sha256()
    file.seek(0)
    while length and (block := file.read(min(length, _BLOCK))):
        digest.update(block)
        length -= len(block)
    return digest.hexdigest().encode()
