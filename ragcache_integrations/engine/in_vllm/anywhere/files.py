"""Files of documents' KV caches: one for each document and worker, in a folder for each model.

A file is in the format of safetensors, with a header of fixed size, so that a document's length
follows from the file's size and a file of another size is refused before it is parsed. It is
replaced as a whole and mapped into memory when it is read; its checksum, which is over its name,
too, finds what was damaged, renamed or copied from elsewhere. It finds accidents, not forgery: the
folder is this user's alone.

Names are keyed hashes, whose key is a random number in the folder: without that, nobody finds out
from a name whether a text that they guess is among the documents.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import secrets
import stat
import time
import zlib
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from torch import Tensor

from ragcache_integrations.core.files import (
    open_regular,
    private_folder,
    read_regular,
    replacing,
)
from ragcache_integrations.engine.protocol import KEY_BYTES

from .codecs import Codec, Encoded, Form, codec_of

__all__ = [
    "COPIED_BYTES",
    "HEADER_BYTES",
    "DocumentFileError",
    "DocumentFolder",
    "has_size",
    "read_document",
    "write_document",
]

HEADER_BYTES = 1024
"""Size of the header, with the eight bytes of its length."""
LENGTH_BYTES = 8
SECRET_BYTES = 32
SUFFIX = ".safetensors"
COPIED_BYTES = 1 << 22
"""Smaller documents are copied: a process may have no more than some 65,000 files mapped."""
LEFT_SECONDS = 600.0
"""After so long, an unfinished file is that of a process that was killed."""
DTYPES = {
    torch.float32: "F32",
    torch.float16: "F16",
    torch.bfloat16: "BF16",
    torch.int8: "I8",
    torch.uint8: "U8",
}


class DocumentFileError(ValueError):
    """A file holds something else than the document that its name says, or is damaged."""


class DocumentFolder:
    """A model's folder.

    Args:
        root: The folder of all models, which becomes this user's alone.
        identity: Of the model.

    Raises:
        OSError: The folder cannot be made, or others can write to it.
    """

    def __init__(self, root: Path, identity: bytes) -> None:
        self._root = private_folder(root)
        self.path = private_folder(self._root / identity.hex())
        self._secret = _secret(self._root / "secret")

    def name(self, key: bytes) -> bytes:
        """The name of the document with a key: a hash of it, and the name of the codec."""
        known = hashlib.blake2b(key, key=self._secret, digest_size=KEY_BYTES).digest()
        return known + key[KEY_BYTES:]

    def file(self, name: bytes, worker: int) -> Path:
        """A worker's file of a document."""
        codec = name[KEY_BYTES:].decode()
        return self.path / f"{name[:KEY_BYTES].hex()}-{worker}{codec and '.'}{codec}{SUFFIX}"

    def files(self, form: Form) -> Iterator[tuple[bytes, int]]:
        """Names and bytes of the first worker's files, without headers, the latest used last.

        Args:
            form: Of the model; files whose size is none of its documents' are left out.
        """
        found: list[tuple[int, bytes, int]] = []
        for entry in os.scandir(self.path):
            known, _, rest = entry.name.removesuffix(SUFFIX).partition("-0")
            with suppress(OSError, ValueError, KeyError):
                name = bytes.fromhex(known) + rest[1:].encode()
                status = entry.stat(follow_symlinks=False)
                nbytes = status.st_size - HEADER_BYTES
                right = codec_of(name).tokens(form, nbytes) > 0 and len(name) >= KEY_BYTES
                if right and stat.S_ISREG(status.st_mode) and entry.name == self.file(name, 0).name:
                    found.append((status.st_mtime_ns, name, nbytes))
        return ((name, nbytes) for _, name, nbytes in sorted(found))

    def trim(self, most: float = math.inf) -> int:
        """Remove files of all models until the rest fits, those first that were not used longest.

        What a process left unfinished that was killed goes, too.

        Args:
            most: Bytes that may stay.

        Returns:
            Bytes that stay.
        """
        files = sorted(self._all(), key=lambda each: each[0].st_mtime_ns)
        left = sum(status.st_size for status, _ in files)
        now = time.time()
        for status, path in files:
            unfinished = path.suffix == ".tmp" and status.st_mtime < now - LEFT_SECONDS
            if left > most or unfinished:
                with suppress(OSError):
                    path.unlink()
                left -= status.st_size
        return left

    def _all(self) -> Iterator[tuple[os.stat_result, Path]]:
        for path in self._root.glob("*/*"):
            if path.suffix in {SUFFIX, ".tmp"}:
                with suppress(OSError):
                    yield path.lstat(), path


def has_size(path: Path, size: int) -> bool:
    """Whether this is a regular file, and no link to one, of this many bytes."""
    try:
        status = path.lstat()
    except OSError:
        return False
    return stat.S_ISREG(status.st_mode) and status.st_size == size


def write_document(path: Path, document: Encoded) -> None:
    """Write a document to its file.

    Raises:
        OSError: The file cannot be written.
    """
    parts = [_as_bytes(part) for part in document.parts.values()]
    metadata = {
        "codec": document.codec.label,
        "position": str(document.position),
        "checksum": str(_checksum(path, document.position, parts)),
    }
    header: dict[str, Any] = {"__metadata__": metadata}
    at = 0
    for name, part in document.parts.items():
        offsets = [at, at := at + part.nbytes]
        header[name] = {
            "dtype": DTYPES[part.dtype],
            "shape": list(part.shape),
            "data_offsets": offsets,
        }
    text = json.dumps(header, separators=(",", ":")).encode().ljust(HEADER_BYTES - LENGTH_BYTES)
    with replacing(path, links=False) as file:
        file.write(len(text).to_bytes(LENGTH_BYTES, "little"))
        file.write(text)
        for content in parts:
            file.write(content)


def read_document(path: Path, codec: Codec, form: Form, tokens: int) -> Encoded:
    """Map a document's file into memory, or copy a small one.

    Args:
        path: The file.
        codec: How the document is kept.
        form: What the model's documents look like.
        tokens: Length of the document.

    Raises:
        DocumentFileError: It is another file, or damaged.
        OSError: It cannot be read.
    """
    with open_regular(path, links=False) as file:
        size = os.fstat(file.fileno()).st_size
        length = int.from_bytes(file.read(LENGTH_BYTES), "little")
    right = HEADER_BYTES + codec.nbytes(form, tokens)
    if size != right or length != HEADER_BYTES - LENGTH_BYTES:
        msg = f"{path} is damaged: a document of {tokens} tokens takes {right} bytes, not {size}"
        raise DocumentFileError(msg)
    shapes = {name: part.whole(form, tokens) for name, part in codec.parts(form).items()}
    try:
        with safe_open(path, "pt") as opened:
            metadata = opened.metadata() or {}
            parts = {name: opened.get_tensor(name) for name in shapes}
        position, checksum = (int(metadata[name][:20]) for name in ("position", "checksum"))
    except OSError:
        raise
    except Exception as error:
        raise DocumentFileError(f"{path} is damaged: {error}") from error
    if (found := metadata.get("codec", "an earlier version")) != codec.label:
        raise DocumentFileError(f"{path} is kept as {found[:20]!r}, not as {codec.label!r}")
    for name, part in codec.parts(form).items():
        if parts[name].shape != shapes[name] or parts[name].dtype != part.dtype:
            raise DocumentFileError(
                f"{path} is damaged: its {name} must be {part.dtype} of shape {shapes[name]}"
            )
    if position < 0 or checksum != _checksum(path, position, map(_as_bytes, parts.values())):
        raise DocumentFileError(f"{path} is damaged, or another document's: its checksum is wrong")
    if size < COPIED_BYTES:
        parts = {name: part.clone() for name, part in parts.items()}
    return Encoded(codec, parts, position)


def _as_bytes(tensor: Tensor) -> memoryview:
    return tensor.view(torch.uint8).numpy().reshape(-1).data


def _checksum(path: Path, position: int, parts: Iterable[memoryview]) -> int:
    # The fastest that finds accidents: a document's bytes are read in less time than they are
    # computed in, so the check must not take longer than reading them.
    checksum = zlib.crc32(f"{path.parent.name}/{path.name} {position}".encode())
    for part in parts:
        checksum = zlib.crc32(part, checksum)
    return checksum


def _secret(path: Path) -> bytes:
    """The key of names: a random number that the first engine writes."""
    with suppress(OSError):
        known = read_regular(path, SECRET_BYTES, links=False)
        if len(known) == SECRET_BYTES:
            return known
        path.unlink()
    made = path.with_name(f".{secrets.token_hex(8)}.tmp")
    made.write_bytes(secrets.token_bytes(SECRET_BYTES))
    try:
        with suppress(FileExistsError):
            os.link(made, path)
    finally:
        made.unlink()
    return read_regular(path, SECRET_BYTES, links=False)
