"""An index in a folder, with its documents.

``manifest.json`` names the two files that belong together, and their SHA-256. Every save writes
files with new names and then replaces the manifest, so that a reader of the folder finds the old
index or the new one, even after a crash. Nothing of a damaged file is ever interpreted.

Checksums find accidents, not forgery: anybody can compute one. So FAISS reads only what
:mod:`.faiss_format` has gone through, settings are those of a list, within their ranges, and the
documents' labels are compared with the vectors that there are. Nothing is replaced or deleted but
files of this kind.

An index is saved without the vectors of deleted documents.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import os
import re
from collections.abc import Callable, Mapping
from functools import partial
from io import BufferedReader
from operator import attrgetter
from pathlib import Path
from typing import Any, BinaryIO
from uuid import uuid4

import numpy as np

from ragcache_integrations.core.archive import MALFORMED
from ragcache_integrations.core.checks import check_flag, check_int
from ragcache_integrations.core.files import open_regular, read_regular, replacing
from ragcache_integrations.errors import ConfigurationError, IndexFileError

from .documents import Documents, check_ids
from .faiss_format import check_faiss_file
from .opened import Opened, open_index
from .searches import Labels, cluster_labels, faiss

__all__ = ["compact_copy", "load_index", "rebuilt_graph", "renumber", "save_index"]


def compact_copy(opened: Opened, labels: Labels) -> Any:
    """Copy an index so that its vectors are numbered 0, 1, 2 and so on.

    Args:
        opened: The index. It is only read.
        labels: Numbers of the vectors that the copy is to hold, ascending.

    Returns:
        A FAISS index of the same kind, with the same settings and transforms.
    """
    if opened.kind == "hnsw" and len(labels) != opened.count():
        graph = rebuilt_graph(opened.inner, labels)
        # Cloned as a whole, the copy owns its transforms.
        return faiss().clone_index(opened.replaced(graph).whole)
    copy = faiss().clone_index(opened.whole)
    if opened.kind != "hnsw":
        inner = open_index(copy).inner
        gone = np.setdiff1d(opened.labels(), labels, assume_unique=True)
        if opened.kind == "ivf":
            # It would hold the old numbers; it is made again when it is needed.
            inner.set_direct_map_type(faiss().DirectMap.NoMap)
        if len(gone):
            inner.remove_ids(faiss().IDSelectorBatch(gone))
        if opened.kind == "ivf":
            renumber(inner, labels)
        copy.ntotal = inner.ntotal  # what an outer index counts for itself
    return copy


def rebuilt_graph(old: Any, labels: Labels) -> Any:
    """Build a new ``IndexHNSWFlat`` from some vectors of another, with the same settings."""
    graph = old.hnsw
    new = faiss().IndexHNSWFlat(old.d, graph.nb_neighbors(1), old.metric_type)
    new.hnsw.efConstruction = graph.efConstruction
    new.hnsw.efSearch = graph.efSearch
    new.hnsw.search_bounded_queue = graph.search_bounded_queue
    new.hnsw.check_relative_distance = graph.check_relative_distance
    if len(labels):
        new.add(old.reconstruct_batch(labels))
    return new


def renumber(ivf: Any, labels: Labels) -> None:
    """Give the vector of the n-th of ``labels``, which are ascending, the number n."""
    for numbers in cluster_labels(ivf):
        numbers[:] = np.searchsorted(labels, numbers)


_FORMAT = 1
_MANIFEST = "manifest.json"
_LARGEST_MANIFEST = 1 << 16  # bytes; ours has about 350
_LONGEST_MESSAGE = 1000  # characters, as it may repeat what a file holds
_BLOCK = 1 << 20
_NAME = re.compile(r"(index|documents)-[0-9a-f]{32}\.(faiss|json)")


# What FAISS does not write: how the index is set to search, and what checks each setting.
_SETTINGS: dict[str, dict[str, Callable[[str, Any], object]]] = {
    "ivf": {
        "max_codes": partial(check_int, low=0, high=(1 << 63) - 1),
        "parallel_mode": partial(check_int, low=0, high=3),
    },
    "hnsw": {"hnsw.search_bounded_queue": check_flag, "hnsw.check_relative_distance": check_flag},
    "flat": {},
}

Folder = str | os.PathLike[str]


def save_index(directory: Folder, opened: Opened, documents: Documents) -> None:
    """Write an index and its documents to a folder.

    Raises:
        ConfigurationError: The metadata cannot be written, the index is of a kind or has settings
            that could not be loaded, or the folder has a manifest of something else. The folder
            is as it was.
        OSError: The folder cannot be written. What the folder held is as it was.
    """
    folder = _folder(directory)
    _check_manifest(folder)
    text = json.dumps(
        {
            "ids": list(documents.labels),
            "labels": list(documents.labels.values()),
            "end": documents.end,
            "metadata": _writable(documents.metadata),
            "settings": {name: attrgetter(name)(opened.inner) for name in _SETTINGS[opened.kind]},
        }
    )
    folder.mkdir(parents=True, exist_ok=True)
    before = _file_names(folder)
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
                    _check_written(file)
                else:
                    write(text.encode())
            files[part]["sha256"] = digest.hexdigest()
        with replacing(folder / _MANIFEST, links=False) as file:
            file.write(json.dumps({"format": _FORMAT, "files": files}, indent=2).encode())
    except BaseException:
        _remove(folder, [entry["name"] for entry in files.values()])
        raise
    _remove(folder, before)


def load_index(directory: Folder) -> tuple[Opened, Documents]:
    """Read what :func:`save_index` wrote.

    Raises:
        IndexFileError: The folder holds something else, or it is damaged.
        OSError: The folder cannot be read.
    """
    folder = _folder(directory)
    while True:
        names = _file_names(folder)
        try:
            return _load(folder)
        except FileNotFoundError as error:
            if _file_names(folder) != names:  # another save came between
                continue
            msg = f"{folder} must be the folder of a saved index, {error.filename} is missing"
            raise IndexFileError(msg) from error


def _load(folder: Path) -> tuple[Opened, Documents]:
    try:
        manifest = _manifest(folder)
        version, files = manifest["format"], manifest["files"]
        paths = {part: folder / _check_name(files[part]["name"]) for part in files}
        checksums = {part: files[part]["sha256"] for part in ("index", "documents")}
    except MALFORMED as error:
        msg = f"{folder / _MANIFEST} is damaged: {error!r}"
        raise IndexFileError(msg[:_LONGEST_MESSAGE]) from error
    if version != _FORMAT:
        msg = f"{folder} must hold an index of format {_FORMAT}, got format {version!r}"
        raise IndexFileError(msg[:_LONGEST_MESSAGE])
    with contextlib.ExitStack() as opening:
        # Both at once: a save that comes now takes them away, but not from us.
        opened = {part: opening.enter_context(_open(paths[part])) for part in checksums}
        for part, file in opened.items():
            if hashlib.file_digest(file, "sha256").hexdigest() != checksums[part]:
                raise IndexFileError(f"{paths[part]} is damaged: its checksum is wrong")
            file.seek(0)
        try:
            return _read(opened["index"], opened["documents"])
        except MALFORMED as error:
            msg = f"{folder} is malformed, though its checksums are right: {error!r}"
            raise IndexFileError(msg[:_LONGEST_MESSAGE]) from error


def _open(path: Path) -> BufferedReader:
    try:
        return open_regular(path)
    except OSError as error:
        if error.errno != errno.EINVAL:
            raise
        msg = f"{path} cannot be a file of a saved index: {error.strerror}"
        raise IndexFileError(msg) from error


def _manifest(folder: Path) -> dict[str, Any]:
    """Read the manifest.

    Raises:
        MALFORMED: It is not a manifest.
        FileNotFoundError: There is no manifest.
    """
    try:
        content = read_regular(folder / _MANIFEST, _LARGEST_MANIFEST)
    except OSError as error:
        if error.errno not in {errno.EINVAL, errno.EFBIG, errno.EISDIR}:
            raise
        raise ValueError(error.strerror) from error
    manifest = json.loads(content)
    if not isinstance(manifest, dict) or not isinstance(manifest["files"], dict):
        raise TypeError("it must name a format and files")
    return manifest


def _check_name(name: Any) -> str:
    """Return a file's name, if it has the form that a save gives it."""
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise ValueError(f"the names of its files must be as a save gives them, got {name!r}")
    return name


def _check_manifest(folder: Path) -> None:
    """Check that the folder has no manifest, or a manifest of ours.

    Raises:
        ConfigurationError: The folder has another program's manifest.
    """
    try:
        for entry in _manifest(folder)["files"].values():
            _check_name(entry["name"])
    except FileNotFoundError:
        return
    except MALFORMED as error:
        raise ConfigurationError(
            f"{folder} must be new or hold an index that was saved, its {_MANIFEST} is damaged or "
            "somebody else's: nothing was written. Remove it, or name another folder"
        ) from error


def _check_written(file: BinaryIO) -> None:
    """Check that an index can be loaded again.

    Raises:
        ConfigurationError: The index cannot be loaded again.
    """
    file.flush()
    try:
        check_faiss_file(file)
    except ValueError as error:
        msg = f"index must be one that can be loaded again, this one is not: {error}"
        raise ConfigurationError(msg) from error
    file.seek(0, os.SEEK_END)


def _read(index: BinaryIO, documents: BinaryIO) -> tuple[Opened, Documents]:
    check_faiss_file(index)
    index.seek(0)
    opened = open_index(faiss().read_index(faiss().PyCallbackIOReader(index.read, _BLOCK)))
    read = json.loads(documents.read())
    known, settings = _SETTINGS[opened.kind], read["settings"]
    if set(settings) - set(known):
        msg = f"settings must be among {sorted(known)}, got {sorted(set(settings) - set(known))}"
        raise ValueError(msg)
    for name, value in settings.items():
        known[name](name, value)
        _set(opened.inner, name, value)
    ids = check_ids(read["ids"])
    labels = _labels(opened, read["labels"], check_int("end", read["end"], 0))
    metadata = [read["metadata"].get(name) for name in ids]
    if not all(each is None or isinstance(each, dict) for each in metadata):
        raise TypeError("metadata must be mappings")
    count = int(opened.inner.ntotal)
    return opened, Documents(labels, ids, metadata, count, count)


def _labels(opened: Opened, saved: Any, end: int) -> Labels:
    """Return the documents' labels, once it is known that there are such vectors.

    An inverted file whose labels have gaps, after deletions, is numbered from 0 again: no array is
    longer than there are vectors.
    """
    if not all(type(label) is int for label in saved):
        raise TypeError("labels must be whole numbers")
    labels = np.array(saved, np.int64)
    there = opened.labels()
    if opened.kind == "ivf":
        # The file's map of where vectors are is dropped: it is made again when it is needed.
        opened.inner.set_direct_map_type(faiss().DirectMap.NoMap)
    elif end != len(there):
        raise ValueError(f"end must be {len(there)}, got {end}")
    unique = len(np.unique(there)) == len(there) and len(np.unique(labels)) == len(labels)
    if not unique or not np.isin(labels, there).all():
        raise ValueError("labels must be those of the vectors, each once")
    if opened.kind == "ivf":
        renumber(opened.inner, there)
        labels = np.searchsorted(there, labels)
    return labels


def _folder(directory: object) -> Path:
    if not isinstance(directory, str | os.PathLike):
        raise ConfigurationError(f"directory must be a string or a path, got {directory!r}")
    return Path(directory)


def _file_names(folder: Path) -> list[str]:
    """Return the names of the files that the manifest names, as far as it can be read."""
    try:
        return [_check_name(entry["name"]) for entry in _manifest(folder)["files"].values()]
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
    for name, values in metadata.items():
        try:
            # JSON makes lists of tuples and strings of numbers, without a word.
            fits, reason = json.loads(json.dumps(dict(values))) == dict(values), ""
        except (TypeError, ValueError, RecursionError) as error:
            fits, reason = False, f": {error}"
        if not fits:
            msg = f"metadata must be JSON to be saved, those of {name!r} are not{reason}"
            raise ConfigurationError(msg)
    return {name: dict(values) for name, values in metadata.items()}


def _set(index: Any, name: str, value: Any) -> None:
    owner, _, last = name.rpartition(".")
    setattr(attrgetter(owner)(index) if owner else index, last, value)
