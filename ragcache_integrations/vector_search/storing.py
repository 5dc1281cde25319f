"""An index in a folder, with its documents.

``manifest.json`` names the two files that belong together, and their SHA-256. Every save writes
files of new names and then replaces the manifest, so that whoever reads the folder, after whatever
happens, finds the old index or the new one. Nothing of a damaged file is ever interpreted; that
finds accidents, not forgery.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, BinaryIO
from uuid import uuid4

import numpy as np

from ragcache_integrations._files import replacing
from ragcache_integrations.errors import ConfigurationError, IndexFileError
from ragcache_integrations.query_cache.archive import MALFORMED
from ragcache_integrations.vector_search.documents import Documents
from ragcache_integrations.vector_search.opened import Opened, open_index
from ragcache_integrations.vector_search.selection import faiss

__all__ = ["load_index", "save_index"]

_FORMAT = 1
_MANIFEST = "manifest.json"
_BLOCK = 1 << 20
# What FAISS does not write: how the index is set to search.
_SETTINGS = {
    "ivf": ("max_codes", "parallel_mode"),
    "hnsw": ("hnsw.search_bounded_queue", "hnsw.check_relative_distance"),
    "flat": (),
}

Folder = str | os.PathLike[str]


def save_index(directory: Folder, opened: Opened, documents: Documents) -> None:
    """Write an index and its documents to a folder.

    Raises:
        ConfigurationError: The metadata cannot be written. The folder is as it was.
        OSError: It cannot be written. What the folder held is as it was.
    """
    folder = _folder(directory)
    text = json.dumps(
        {
            "ids": list(documents.labels),
            "labels": list(documents.labels.values()),
            "end": documents.end,
            "metadata": _writable(documents.metadata),
            "settings": {name: _get(opened.inner, name) for name in _SETTINGS[opened.kind]},
        }
    )
    folder.mkdir(parents=True, exist_ok=True)
    before = _named(folder)
    files = {}
    try:
        for part, suffix in (("index", "faiss"), ("documents", "json")):
            name = f"{part}-{uuid4().hex}.{suffix}"
            files[part] = {"name": name, "sha256": ""}
            digest = hashlib.sha256()
            with replacing(folder / name) as file:

                def write(block: bytes, into: Any = file, count: Any = digest) -> int:
                    count.update(block)
                    return int(into.write(block))

                if part == "index":
                    faiss().write_index(opened.whole, faiss().PyCallbackIOWriter(write, _BLOCK))
                else:
                    write(text.encode())
            files[part]["sha256"] = digest.hexdigest()
        with replacing(folder / _MANIFEST) as file:
            file.write(json.dumps({"format": _FORMAT, "files": files}, indent=2).encode())
    except BaseException:
        _remove(folder, [one["name"] for one in files.values()])
        raise
    _remove(folder, before)


def load_index(directory: Folder) -> tuple[Opened, Documents]:
    """Read what :func:`save_index` wrote.

    Raises:
        IndexFileError: The folder holds something else, or it is damaged.
        OSError: It cannot be read.
    """
    folder = _folder(directory)
    while True:
        names = _named(folder)
        try:
            return _load(folder)
        except FileNotFoundError as error:
            if _named(folder) != names:  # another save came between
                continue
            msg = f"{folder} must be the folder of a saved index, {error.filename} is missing"
            raise IndexFileError(msg) from error


def _load(folder: Path) -> tuple[Opened, Documents]:
    try:
        manifest = json.loads((folder / _MANIFEST).read_bytes())
        version, files = manifest["format"], manifest["files"]
        paths = {part: folder / Path(files[part]["name"]).name for part in ("index", "documents")}
        checksums = {part: files[part]["sha256"] for part in paths}
    except MALFORMED as error:
        msg = f"{folder / _MANIFEST} is damaged: {error!r}"
        raise IndexFileError(msg) from error
    if version != _FORMAT:
        msg = f"{folder} must hold an index of format {_FORMAT}, got format {version!r}"
        raise IndexFileError(msg)
    with contextlib.ExitStack() as opening:
        # Both at once: a save that comes now takes them away, but not from us.
        opened = {part: opening.enter_context(path.open("rb")) for part, path in paths.items()}
        for part, file in opened.items():
            if hashlib.file_digest(file, "sha256").hexdigest() != checksums[part]:
                msg = f"{paths[part]} is damaged: its checksum is wrong"
                raise IndexFileError(msg)
            file.seek(0)
        try:
            return _read(opened["index"], opened["documents"])
        except MALFORMED as error:
            msg = f"{folder} is malformed, though its checksums are right: {error!r}"
            raise IndexFileError(msg) from error


def _read(index: BinaryIO, documents: BinaryIO) -> tuple[Opened, Documents]:
    read = json.loads(documents.read())
    opened = open_index(faiss().read_index(faiss().PyCallbackIOReader(index.read, _BLOCK)))
    for name, value in read["settings"].items():
        _set(opened.inner, name, value)
    ids, labels = read["ids"], np.array(read["labels"], np.int64)
    metadata = [read["metadata"].get(one) for one in ids]
    return opened, Documents(labels, ids, metadata, opened.inner.ntotal, read["end"])


def _folder(directory: object) -> Path:
    if not isinstance(directory, str | os.PathLike):
        msg = f"directory must be a string or a path, got {directory!r}"
        raise ConfigurationError(msg)
    return Path(directory)


def _named(folder: Path) -> list[str]:
    """Return the names of the files that the manifest names, as far as it can be read."""
    try:
        files = json.loads((folder / _MANIFEST).read_bytes())["files"]
        return [Path(one["name"]).name for one in files.values()]
    except (OSError, *MALFORMED):
        return []


def _remove(folder: Path, names: list[str]) -> None:
    for name in names:
        with contextlib.suppress(OSError):
            (folder / name).unlink()


def _writable(metadata: Mapping[str, Mapping[str, Any]]) -> dict[str, dict[str, Any]]:
    """Return metadata as JSON gives them back.

    Raises:
        ConfigurationError: JSON cannot hold them, or makes something else of them.
    """
    for name, one in metadata.items():
        try:
            # JSON makes lists of tuples and strings of numbers, without a word.
            fits, reason = json.loads(json.dumps(dict(one))) == dict(one), ""
        except (TypeError, ValueError, RecursionError) as error:
            fits, reason = False, f": {error}"
        if not fits:
            msg = f"metadata must be JSON to be saved, those of {name!r} are not{reason}"
            raise ConfigurationError(msg)
    return {name: dict(one) for name, one in metadata.items()}


def _get(index: Any, name: str) -> Any:
    for one in name.split("."):
        index = getattr(index, one)
    return index


def _set(index: Any, name: str, value: Any) -> None:
    *path, last = name.split(".")
    setattr(_get(index, ".".join(path)) if path else index, last, value)
