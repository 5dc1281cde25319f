"""The offline default embedding model as a LangChain class."""

from __future__ import annotations

import numpy as np
from langchain_core.embeddings import Embeddings
from numpy.typing import NDArray

from .minilm import MiniLM

__all__ = ["MiniLMEmbeddings"]


class MiniLMEmbeddings(Embeddings):
    """all-MiniLM-L6-v2, offline: 384 dimensions, unit length.

    Args:
        device: Where to compute, such as ``cpu`` or ``cuda``; ``None`` chooses.
        batch_size: How many texts are computed at once.
        show_progress: Show a progress bar while documents are embedded.

    Raises:
        ConfigurationError: ``batch_size`` is not a whole number of at least 1.
        MissingExtraError: On first use, where the extra ``embeddings`` is not installed.
    """

    def __init__(
        self, device: str | None = None, *, batch_size: int = 32, show_progress: bool = False
    ) -> None:
        self._model = MiniLM(device, batch_size=batch_size)
        self._show_progress = show_progress

    def embed_query(self, text: str) -> list[float]:
        """Embed one text."""
        return _row(self._model.embed(text))

    def embed_documents(self, texts: list[str]) -> list[list[float]]:
        """Embed several texts."""
        return _rows(self._model.embed_batch(texts, show_progress=self._show_progress))

    async def aembed_query(self, text: str) -> list[float]:
        """Embed one text in a worker thread."""
        return _row(await self._model.aembed(text))

    async def aembed_documents(self, texts: list[str]) -> list[list[float]]:
        """Embed several texts in a worker thread."""
        return _rows(await self._model.aembed_batch(texts, show_progress=self._show_progress))


def _row(embedding: NDArray[np.float32]) -> list[float]:
    row: list[float] = embedding.tolist()
    return row


def _rows(embeddings: NDArray[np.float32]) -> list[list[float]]:
    rows: list[list[float]] = embeddings.tolist()
    return rows
