"""The offline default embedding model as a LlamaIndex class."""

from __future__ import annotations

from typing import Any

from llama_index.core.base.embeddings.base import BaseEmbedding
from pydantic import ConfigDict, PrivateAttr

from .minilm import MiniLM, as_list, as_lists

__all__ = ["MiniLMEmbeddings"]


class MiniLMEmbeddings(BaseEmbedding):
    """The embedding model all-MiniLM-L6-v2, which needs no network.

    Embeddings have 384 dimensions and unit length.

    Attributes:
        device: Where to compute, such as ``cpu`` or ``cuda``; ``None`` takes a GPU if ONNX
            Runtime can use one, otherwise the CPU.
        embed_batch_size: The most texts that a core, or the GPU, computes at once.

    Raises:
        MissingExtraError: On first use, if the extra ``embeddings`` is not installed.
    """

    model_config = ConfigDict(extra="forbid")

    model_name: str = MiniLM.model_name
    embed_batch_size: int = 32
    device: str | None = None

    _model: MiniLM = PrivateAttr()

    def model_post_init(self, context: Any, /) -> None:
        """Make the model; its weights are loaded on first use."""
        super().model_post_init(context)
        self._model = MiniLM(self.device, batch_size=self.embed_batch_size)

    @classmethod
    def class_name(cls) -> str:
        """Name under which the class is serialised."""
        return "MiniLMEmbeddings"

    def _get_query_embedding(self, query: str) -> list[float]:
        return as_list(self._model.embed(query))

    def _get_text_embedding(self, text: str) -> list[float]:
        return as_list(self._model.embed(text))

    def _get_text_embeddings(self, texts: list[str]) -> list[list[float]]:
        return as_lists(self._model.embed_batch(texts))

    async def _aget_query_embedding(self, query: str) -> list[float]:
        return as_list(await self._model.aembed(query))

    async def _aget_text_embedding(self, text: str) -> list[float]:
        return as_list(await self._model.aembed(text))

    async def _aget_text_embeddings(self, texts: list[str]) -> list[list[float]]:
        return as_lists(await self._model.aembed_batch(texts))
