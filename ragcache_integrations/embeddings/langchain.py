"""The offline default embedding model as a LangChain class."""

from __future__ import annotations

from langchain_core.embeddings import Embeddings

from .minilm import MiniLM, as_list, as_lists

__all__ = ["MiniLMEmbeddings"]


class MiniLMEmbeddings(Embeddings):
    """The embedding model all-MiniLM-L6-v2, which needs no network.

    Embeddings have 384 dimensions and unit length.

    Args:
        device: Where to compute, such as ``cpu`` or ``cuda``; ``None`` takes a GPU if ONNX
            Runtime can use one, otherwise the CPU.
        batch_size: The most texts that a core, or the GPU, computes at once.
        show_progress: Show a progress bar while documents are embedded.

    Raises:
        ConfigurationError: ``batch_size`` is not a whole number of at least 1.
        MissingExtraError: On first use, if the extra ``embeddings`` is not installed.
    """

    def __init__(
        self, device: str | None = None, *, batch_size: int = 32, show_progress: bool = False
    ) -> None:
        self._model = MiniLM(device, batch_size=batch_size)
        self._show_progress = show_progress

    def embed_query(self, text: str) -> list[float]:
        """Embed one text."""
        return as_list(self._model.embed(text))

    def embed_documents(self, texts: list[str]) -> list[list[float]]:
        """Embed several texts."""
        return as_lists(self._model.embed_batch(texts, show_progress=self._show_progress))

    async def aembed_query(self, text: str) -> list[float]:
        """Embed one text in a worker thread."""
        return as_list(await self._model.aembed(text))

    async def aembed_documents(self, texts: list[str]) -> list[list[float]]:
        """Embed several texts in a worker thread."""
        return as_lists(await self._model.aembed_batch(texts, show_progress=self._show_progress))
