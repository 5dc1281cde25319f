"""The default store: documents embedded by MiniLM, in a FAISS index in memory or on the disk."""

from __future__ import annotations

import ctypes
import hashlib
import mmap
import os
import weakref
from collections.abc import Callable, Sequence
from io import BufferedReader
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ragcache_integrations.core.extras import require
from ragcache_integrations.core.files import open_regular
from ragcache_integrations.embeddings.minilm import MiniLM
from ragcache_integrations.errors import ConfigurationError
from ragcache_integrations.resources.cache import build_once, cache_home
from ragcache_workbench.evaluation.datasets import EvalDocument

__all__ = ["cached_embeddings", "document_embeddings", "faiss_index", "index_on_disk"]

EMBEDDINGS = "passages.npy"
INDEX = "vectors.faiss"
DIGEST_BYTES = 8
TRAINING_SEED = 1234


def document_embeddings(
    documents: Sequence[EvalDocument],
    *,
    among: Sequence[EvalDocument] = (),
    show_progress: bool = False,
) -> NDArray[np.float32]:
    """Embed documents, or read their embeddings from the cache folder.

    Args:
        documents: The documents.
        among: More documents, these among them. Nothing is computed if all of them were embedded
            before.
        show_progress: Whether to show a progress bar.

    Returns:
        Shape (documents, 384), each row of unit length.

    Raises:
        MissingExtraError: The embedding model is not installed.
        ConfigurationError: The cache folder cannot be written to.
    """
    texts = [document.text for document in documents]
    known = [document.text for document in among]
    if _folder(known).is_dir():
        rows = {text: row for row, text in enumerate(known)}
        return _read(_folder(known))[[rows[text] for text in texts]]
    return cached_embeddings(
        texts, lambda batch: MiniLM().embed_batch(batch, show_progress=show_progress)
    )


def cached_embeddings(
    texts: list[str], embed: Callable[[list[str]], ArrayLike]
) -> NDArray[np.float32]:
    """Embed texts by MiniLM, or read the embeddings of the same texts from the cache folder.

    Args:
        texts: The texts.
        embed: Embeds them.

    Raises:
        ConfigurationError: The cache folder cannot be written to.
    """

    def build(folder: Path) -> None:
        np.save(folder / EMBEDDINGS, np.asarray(embed(texts), np.float32))

    return _read(build_once(_folder(texts), build))


def _folder(texts: list[str]) -> Path:
    """Where the embeddings of texts are kept."""
    content = "\0".join([MiniLM.model_name, *texts]).encode("utf-8", "surrogatepass")
    return cache_home() / "embeddings" / hashlib.blake2b(content, digest_size=8).hexdigest()


def _read(folder: Path) -> NDArray[np.float32]:
    embeddings: NDArray[np.float32] = np.load(folder / EMBEDDINGS)
    return embeddings


def faiss_index(embeddings: NDArray[np.float32], search_ratio: float | None = None) -> Any:
    """Put embeddings into a FAISS index.

    Args:
        embeddings: Shape (documents, dim).
        search_ratio: Share of the clusters of an IVF index that a search scans, above 0 and at most
            1; ``None`` for a flat index.

    Raises:
        MissingExtraError: FAISS is not installed.
    """
    faiss = require("faiss", feature="The default retriever", extra="faiss")
    count, dim = embeddings.shape
    flat = faiss.IndexFlatL2(dim)
    if search_ratio is None:
        flat.add(embeddings)
        return flat
    clusters = max(1, round(count**0.5))
    index = faiss.IndexIVFFlat(flat, dim, clusters)
    index.cp.seed = TRAINING_SEED
    index.cp.min_points_per_centroid = 1  # silences a warning that does not matter here
    index.train(embeddings)
    index.add(embeddings)
    index.nprobe = max(1, round(search_ratio * clusters))
    return index


def index_on_disk(index: Any) -> Any:
    """Put a FAISS index into a file of the cache folder, and search it there.

    The file is mapped into memory, and the operating system would keep what it read once. So the
    file is released from memory before every search, as if it were much larger than the memory:
    a flat index is then read as a whole, and of an IVF index the clusters that a search scans. The
    vectors that a query cache re-ranks are read from the file, too.

    Args:
        index: A flat index, or an IVF index over flat lists. It is not changed.

    Returns:
        An index with the same vectors at the same positions.

    Raises:
        ConfigurationError: The cache folder cannot be written to, its file cannot be read or has
            another content, this system cannot release files from memory, or FAISS is older than
            1.11.
        MissingExtraError: FAISS is not installed.
    """
    faiss = require("faiss", feature="store='disk'", extra="faiss")
    if not hasattr(os, "posix_fadvise") or not hasattr(faiss, "IO_FLAG_MMAP_IFC"):
        msg = "store='disk' needs Linux, and faiss-cpu 1.11 or newer: take store='memory'"
        raise ConfigurationError(msg)
    content = faiss.serialize_index(index)
    digest = hashlib.blake2b(content, digest_size=DIGEST_BYTES).hexdigest()
    folder = cache_home() / "indexes" / digest
    file = build_once(folder, lambda unfinished: _write(unfinished / INDEX, content)) / INDEX
    is_ivf = hasattr(index, "nprobe")
    try:
        _check_written(file, content.nbytes, digest)
        # The first flag maps the lists of an IVF index alone, the second one flat vectors.
        mapped = faiss.read_index(
            str(file), faiss.IO_FLAG_MMAP if is_ivf else faiss.IO_FLAG_MMAP_IFC
        )
        pages = _Pages(file, *(_lists(faiss, mapped) if is_ivf else _vectors(mapped)))
    except (OSError, RuntimeError) as error:
        msg = f"{file} must hold the index of these vectors ({error}): delete its folder"
        raise ConfigurationError(msg) from error
    search = mapped.search

    def search_released(*args: Any, **kwargs: Any) -> Any:
        pages.release()
        return search(*args, **kwargs)

    mapped.search = search_released
    return mapped


def _write(path: Path, content: Any) -> None:
    # Not by the array's own tofile, whose error does not say that there is no room.
    path.write_bytes(content)


def _check_written(path: Path, size: int, digest: str) -> None:
    """Check that a file has what was written, before FAISS, which believes it, reads any of it.

    Raises:
        OSError: It has not, is no regular file, or cannot be read.
    """
    with open_regular(path) as file:
        same = os.fstat(file.fileno()).st_size == size and _digest(file) == digest
    if not same:
        raise OSError("it was damaged or replaced")


def _digest(file: BufferedReader) -> str:
    return hashlib.file_digest(file, lambda: hashlib.blake2b(digest_size=DIGEST_BYTES)).hexdigest()


def _vectors(index: Any) -> tuple[int, int]:
    """Address and length of a flat index's vectors in memory."""
    return int(index.get_xb()), int(index.ntotal * index.code_size)


def _lists(faiss: Any, index: Any) -> tuple[int, int]:
    """Address and length of an IVF index's lists in memory."""
    lists = faiss.downcast_InvertedLists(index.invlists)
    return int(lists.ptr), int(lists.totsize)


class _Pages:
    """The pages of memory into which a file is mapped.

    Args:
        path: The file.
        address: Where its mapped bytes begin.
        length: Number of these bytes.
    """

    def __init__(self, path: Path, address: int, length: int) -> None:
        begin = address - address % mmap.PAGESIZE
        self._range = ctypes.c_void_p(begin), ctypes.c_size_t(address + length - begin)
        with open_regular(path) as file:
            self._file = os.dup(file.fileno())
        weakref.finalize(self, os.close, self._file)
        self._madvise = ctypes.CDLL(None, use_errno=True).madvise

    def release(self) -> None:
        """Have the next access read the disk.

        Threads that are searching read their pages again.

        Raises:
            OSError: The system refused it.
        """
        # Pages that a process has mapped are not released from the system's cache, hence both.
        if self._madvise(*self._range, mmap.MADV_DONTNEED) != 0:
            error = ctypes.get_errno()
            raise OSError(error, os.strerror(error))
        os.posix_fadvise(self._file, 0, 0, os.POSIX_FADV_DONTNEED)
