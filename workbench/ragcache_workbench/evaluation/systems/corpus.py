"""The default store: documents embedded by MiniLM, once, in a FAISS index."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ragcache_integrations.core.extras import require
from ragcache_integrations.embeddings.minilm import MiniLM
from ragcache_integrations.resources.cache import build_once, cache_home
from ragcache_workbench.evaluation.datasets import EvalDocument

__all__ = ["cached_embeddings", "document_embeddings", "faiss_index"]

EMBEDDINGS = "passages.npy"
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
