"""Arrays in one file that is whole or not there, and that is known to be as it was written.

An ``.npz`` as NumPy reads it, without pickled objects: an uncompressed zip of ``.npy`` members. The
zip's comment, which ends the file, ends with the SHA-256 of all bytes before it, so that nothing of
a damaged file is ever interpreted. That finds accidents, not forgery: anybody can compute a
checksum. So what the file says of sizes is compared with the file's own size before anything is
allocated, and the arrays together never take more memory than the file takes on the disk.
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

from ragcache_integrations.core.files import check_replaceable, open_regular, replacing
from ragcache_integrations.errors import CacheFileError, ConfigurationError

__all__ = ["MALFORMED", "read_archive", "write_archive"]

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
_LARGEST_DIRECTORY = 1 << 16  # bytes of the zip's list of members; ours takes about 1,500
# The record that ends a zip, but for its comment: signature, bytes of the list, of the comment.
_END = struct.Struct("<4s8xI4xH")
_COMMENT = len(_MARK) + _CHECKSUM
_FIRST_NAME = 30  # offset of the first member's name, behind its header
# How an array begins, and its header as NumPy writes it. NumPy itself would read any expression.
_BEGIN = struct.Struct("<8sH")
_HEADER = re.compile(
    rb"\{'descr': '(<f4|<f8|<i8|\|u1|\|b1)', 'fortran_order': False, "
    rb"'shape': \(((?:\d{1,18}, ?)*(?:\d{1,18})?)\), \} *\n"
)
_ANY_DTYPES = "float32, float64, int64, uint8 and bool"


def write_archive(path: str | os.PathLike[str], arrays: Mapping[str, NDArray[Any]]) -> None:
    """Write arrays, as :func:`.replacing` does.

    Args:
        path: Where to. Nothing but a file of this kind, or an empty one, is replaced.
        arrays: By name; no object arrays.

    Raises:
        ConfigurationError: There is a file of another kind.
        OSError: It cannot be written. The path is as it was, and nothing is left next to it.
    """
    check_replaceable(path)
    if Path(path).exists() and not _is_ours(path):
        msg = f"{path} must be new or a saved query cache, it is another file: nothing was written"
        raise ConfigurationError(msg)
    with replacing(path) as file:
        _write(file, arrays)


def read_archive(
    path: str | os.PathLike[str], names: Collection[str] | None = None
) -> dict[str, NDArray[Any]]:
    """Read what :func:`write_archive` wrote.

    Args:
        path: The file.
        names: Which arrays there must be, and no others; ``None``: any.

    Raises:
        CacheFileError: It is another kind of file, or damaged.
        OSError: It cannot be read at all.
    """
    with _opened(path) as file:
        length = file.seek(0, os.SEEK_END) - _CHECKSUM
        file.seek(max(length - len(_MARK), 0))
        if file.read(len(_MARK)) != _MARK:
            msg = f"{path} must be the file of a saved query cache; it is another one, or cut short"
            raise CacheFileError(msg)
        if file.read() != _checksum(file, length):
            msg = f"{path} is damaged: its checksum is wrong"
            raise CacheFileError(msg)
        try:
            return _read(file, length + _CHECKSUM, names)
        except MALFORMED as error:
            msg = f"{path} is malformed, though its checksum is right: {error!r}"
            raise CacheFileError(msg) from error


def _opened(path: str | os.PathLike[str]) -> BinaryIO:
    try:
        return open_regular(path)
    except OSError as error:
        if error.errno != errno.EINVAL:
            raise
        msg = f"{path} must be the file of a saved query cache: {error.strerror}"
        raise CacheFileError(msg) from error


def _is_ours(path: str | os.PathLike[str]) -> bool:
    """Whether a file is empty or a cache's, perhaps cut short or damaged."""
    with open_regular(path) as file:
        head = file.read(_FIRST_NAME + 64)
        size = file.seek(0, os.SEEK_END)
        file.seek(max(size - _CHECKSUM - len(_MARK), 0))
        marked = file.read(len(_MARK)) == _MARK
    return marked or not head or (head.startswith(b"PK\3\4") and b".npy" in head[_FIRST_NAME:])


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


def _read(file: BinaryIO, size: int, names: Collection[str] | None) -> dict[str, NDArray[Any]]:
    """Read the members, once it is known that they are no larger than the file.

    Raises:
        MALFORMED: They make no sense.
    """
    file.seek(max(size - _END.size - _COMMENT, 0))
    signature, directory, comment = _END.unpack(file.read(_END.size))
    if signature != b"PK\5\6" or comment != _COMMENT or directory > _LARGEST_DIRECTORY:
        msg = f"it must end as a zip with at most {_LARGEST_DIRECTORY} bytes that list its members"
        raise ValueError(msg)
    with zipfile.ZipFile(file) as archive:
        members = archive.infolist()
        found = [one.filename.removesuffix(".npy") for one in members]
        if len(set(found)) < len(found) or (names is not None and set(found) != set(names)):
            msg = f"its members must be {names if names is None else sorted(names)}, got {found}"
            raise ValueError(msg)
        plain = all(
            one.compress_type == zipfile.ZIP_STORED and one.header_offset >= 0 for one in members
        )
        total = sum(one.file_size for one in members)
        if not plain or total > size:
            msg = f"its members must be uncompressed, got {total} bytes in a file of {size}"
            raise ValueError(msg)
        return {name: _member(archive, one) for name, one in zip(found, members, strict=True)}


def _member(archive: zipfile.ZipFile, info: zipfile.ZipInfo) -> NDArray[Any]:
    """Read one array, whose declared size is compared with the member's before it is made."""
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
            msg = f"{len(view)} bytes are missing"
            raise EOFError(msg)
        view = view[count:]


def _checksum(file: BinaryIO, length: int) -> bytes:
    """Return the digits for the first bytes of a file."""
    digest = hashlib.sha256()
    file.seek(0)
    while length and (block := file.read(min(length, _BLOCK))):
        digest.update(block)
        length -= len(block)
    return digest.hexdigest().encode()
