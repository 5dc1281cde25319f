"""Embeddings of texts, kept in the user's cache folder so that a benchmark starts fast again."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from ragcache_integrations.embeddings.minilm import MiniLM
from ragcache_integrations.resources.cache import build_once, cache_home

__all__ = ["Embedder"]

BATCH = 64


class Embedder:
    """MiniLM embeddings; what was embedded once is read from the cache folder.

    Args:
        show_progress: Show progress bars where embedding takes long.
    """

    def __init__(self, *, show_progress: bool = False) -> None:
        self._model = MiniLM(batch_size=BATCH)
        self._show_progress = show_progress

    def __call__(self, texts: Sequence[str]) -> NDArray[np.float32]:
        """Embed texts.

        Returns:
            Shape (len(texts), 384), every row of unit length up to rounding to 32 bits.
        """
        # In one order, so that the same texts are found again in any.
        distinct = sorted(set(texts), key=lambda text: (len(text), text))
        content = json.dumps([self._model.model_name, distinct]).encode()
        name = f"embeddings-{hashlib.sha256(content).hexdigest()[:24]}"

        def build(folder: Path) -> None:
            wide = self._model.embed_batch(distinct, show_progress=self._show_progress).astype(
                np.float64
            )
            wide /= np.linalg.norm(wide, axis=1, keepdims=True)
            np.savez(folder / "rows.npz", rows=wide.astype(np.float32))

        folder = build_once(cache_home() / "benchmarks" / name, build)
        with np.load(folder / "rows.npz") as stored:
            rows = stored["rows"]
        places = {text: number for number, text in enumerate(distinct)}
        return np.asarray(rows[[places[text] for text in texts]], dtype=np.float32)
