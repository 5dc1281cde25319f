"""The offline default embedding model: all-MiniLM-L6-v2 from the ``ragcache-minilm`` wheel.

Framework-free; the LangChain and LlamaIndex classes over it are ``MiniLMEmbeddings`` of
:mod:`ragcache_integrations.langchain` and :mod:`ragcache_integrations.llama_index`. Nothing is
downloaded: the weights are in the wheel, and ONNX Runtime reads them there.
"""

from __future__ import annotations

import asyncio
import math
import os
import re
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from tqdm import tqdm

from ragcache_integrations.core.checks import check_int
from ragcache_integrations.core.extras import require
from ragcache_integrations.core.forks import make_executor, make_lock
from ragcache_integrations.core.threads import usable_cores
from ragcache_integrations.errors import ConfigurationError, EmbeddingError

__all__ = ["MiniLM", "as_list", "as_lists"]

_FEATURE = "The default embedding model"
_DEVICE = re.compile(r"cpu|cuda(:\d+)?")

_executor = make_executor(usable_cores(), "ragcache-embedding")


class MiniLM:
    """The all-MiniLM-L6-v2 sentence embedding model: 384 dimensions, unit length.

    The model reads the first 256 tokens of a text. The weights are loaded once, on first use. It is
    safe to use from several threads.

    Args:
        device: Where to compute, such as ``cpu``, ``cuda`` or ``cuda:1``. ``None`` takes the first
            GPU if ``onnxruntime-gpu`` is installed instead of ``onnxruntime``, otherwise the CPU.
        batch_size: The most texts that a core, or the GPU, computes at once.

    Raises:
        ConfigurationError: ``batch_size`` is not a whole number of at least 1, or ``device`` is
            none of the above; on first use, if ONNX Runtime cannot use the device.
        MissingExtraError: On first use, if the extra ``embeddings`` is not installed.
    """

    dim = 384
    max_tokens = 256
    """That the model reads of a text, its marks of beginning and end included."""
    model_name = "all-MiniLM-L6-v2"

    def __init__(self, device: str | None = None, *, batch_size: int = 32) -> None:
        self._device = _check_device(device)
        self._batch_size = check_int("batch_size", batch_size, 1)
        self._model: _Model | None = None
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
        embedding: NDArray[np.float32] = self._encode([text], show_progress=False)[0]
        return embedding

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
            raise ConfigurationError("texts must be a sequence of strings, got a single string")
        return self._encode(list(texts), show_progress=show_progress)

    async def aembed(self, text: str) -> NDArray[np.float32]:
        """Embed one text in a worker thread; otherwise as :meth:`embed`."""
        return await asyncio.to_thread(self.embed, text)

    async def aembed_batch(
        self, texts: Sequence[str], *, show_progress: bool = False
    ) -> NDArray[np.float32]:
        """Embed several texts in a worker thread; otherwise as :meth:`embed_batch`."""
        return await asyncio.to_thread(self.embed_batch, texts, show_progress=show_progress)

    @property
    def tokenizer(self) -> Any:
        """What cuts texts into tokens, a ``tokenizers.Tokenizer``. It must not be changed."""
        return self._loaded().tokenizer

    def _encode(self, texts: list[str], *, show_progress: bool) -> NDArray[np.float32]:
        for text in texts:
            _check_text(text)
        embeddings = np.empty((len(texts), self.dim), dtype=np.float32)
        if not texts:
            return embeddings
        model = self._loaded()
        tokens = [model.tokens(text) for text in texts]
        # Texts of like length are computed together, since the shorter ones are filled up.
        order = sorted(range(len(texts)), key=lambda row: -len(tokens[row]))
        size = min(self._batch_size, math.ceil(len(texts) / usable_cores()))
        batches = [order[start : start + size] for start in range(0, len(texts), size)]
        compute = map if len(batches) == 1 else _executor.map
        computed = compute(lambda rows: model.embed([tokens[row] for row in rows]), batches)
        with tqdm(desc="Embedding", total=len(texts), disable=not show_progress) as progress:
            for rows, vectors in zip(batches, computed, strict=True):
                embeddings[rows] = vectors
                progress.update(len(rows))
        if not np.isfinite(embeddings).all():
            raise EmbeddingError(f"{self.model_name} gave embeddings that are not finite")
        return embeddings

    def _loaded(self) -> _Model:
        with self._lock:
            if self._model is None:
                self._model = _Model(self._device)
            return self._model


class _Model:
    """The weights and the tokenizer, loaded. Several threads may use them at once."""

    def __init__(self, device: str | None) -> None:
        folder: Path = require("ragcache_minilm", feature=_FEATURE, extra="embeddings").path()
        tokenizers = require("tokenizers", feature=_FEATURE, extra="embeddings")
        self.tokenizer = tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json"))
        self.tokenizer.no_padding()
        self.tokenizer.enable_truncation(MiniLM.max_tokens)
        self._session = _session(folder / "model.onnx", device)

    def tokens(self, text: str) -> list[int]:
        # Not several texts in one call: that would start threads, see _session.
        ids: list[int] = self.tokenizer.encode(text).ids
        return ids

    def embed(self, tokens: Sequence[Sequence[int]]) -> NDArray[np.float32]:
        lengths = np.array([len(row) for row in tokens])
        used = np.arange(lengths.max()) < lengths[:, None]
        ids = np.zeros(used.shape, dtype=np.int64)
        ids[used] = np.concatenate(tokens)
        (embeddings,) = self._session.run(None, {"ids": ids, "mask": used.astype(np.float32)})
        rows: NDArray[np.float32] = embeddings
        return rows


def _session(path: Path, device: str | None) -> Any:
    # It would report its use over the network, from a thread for which a forked child would wait at
    # its exit for ever. Where the user's code has imported it before, that was for it to decide.
    os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")
    runtime = require("onnxruntime", feature=_FEATURE, extra="embeddings")
    options = runtime.SessionOptions()
    options.log_severity_level = 3  # errors only
    # A forked child has neither the parent's threads nor the end of what they were doing. So the
    # runtime has no threads and no pool of memory, whose lock one of them may hold; batches are
    # computed side by side in threads of ours, which is as fast.
    options.intra_op_num_threads = 1
    options.enable_cpu_mem_arena = False
    options.enable_mem_pattern = False
    has_gpu = "CUDAExecutionProvider" in runtime.get_available_providers()
    if device == "cpu" or (device is None and not has_gpu):
        providers: list[Any] = ["CPUExecutionProvider"]
    elif has_gpu:
        number = (device or "").partition(":")[2] or "0"
        providers = [("CUDAExecutionProvider", {"device_id": number}), "CPUExecutionProvider"]
    else:
        raise ConfigurationError(
            f"device={device!r} needs ONNX Runtime for GPUs: "
            "pip uninstall onnxruntime && pip install onnxruntime-gpu"
        )
    return runtime.InferenceSession(str(path), options, providers=providers)


def as_list(embedding: NDArray[np.float32]) -> list[float]:
    """An embedding as the frameworks represent it."""
    row: list[float] = embedding.tolist()
    return row


def as_lists(embeddings: NDArray[np.float32]) -> list[list[float]]:
    """Several embeddings as the frameworks represent them."""
    rows: list[list[float]] = embeddings.tolist()
    return rows


def _check_device(device: object) -> str | None:
    if device is None or (isinstance(device, str) and _DEVICE.fullmatch(device)):
        return device
    raise ConfigurationError(f"device must be cpu, cuda or cuda:NUMBER, got {device!r}")


def _check_text(text: object) -> None:
    if not isinstance(text, str):
        raise ConfigurationError(f"a text must be a string, got {type(text).__name__}")
    try:
        text.encode()
    except UnicodeEncodeError as error:
        msg = f"a text must be valid Unicode, got a lone surrogate at character {error.start}"
        raise ConfigurationError(msg) from error
