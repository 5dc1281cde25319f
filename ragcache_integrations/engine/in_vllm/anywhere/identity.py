"""Which model it is: what documents' KV caches depend on besides their tokens."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

__all__ = ["model_identity"]

FORMAT = "alone, 2"
"""How documents are encoded, and how they are written to files."""
SUFFIXES = (".json", ".safetensors", ".bin", ".pt", ".pth", ".gguf")
PROBES = 64
PROBE_BYTES = 4096


def model_identity(config: Any) -> bytes | None:
    """Identify a model, its numeric type and how it is divided among workers.

    Files of a folder are distinguished by name, size, time of change and samples of their content,
    because reading all of the weights would take too long. A model of the hub is identified by its
    commit.

    Args:
        config: vLLM's ``VllmConfig``.

    Returns:
        16 bytes; ``None`` if nobody knows which weights they are.
    """
    model = config.model_config
    settings = {
        "format": FORMAT,
        "architectures": model.architectures,
        "config": model.hf_text_config.to_dict(),
        "dtype": [str(model.dtype), config.cache_config.cache_dtype],
        "quantization": model.quantization,
        "random": model.seed if config.load_config.load_format == "dummy" else None,
        "workers": config.parallel_config.tensor_parallel_size,
    }
    digest = hashlib.blake2b(digest_size=16)
    digest.update(json.dumps(settings, sort_keys=True, default=str).encode())
    commit = getattr(model.hf_config, "_commit_hash", None)
    folder = Path(model.model)
    if folder.is_dir():
        for part in _probes(folder):
            digest.update(part)
    elif commit:
        digest.update(f"{model.model} {commit}".encode())
    else:
        return None
    return digest.digest()


def _probes(folder: Path) -> Iterator[bytes]:
    for path in sorted(folder.iterdir()):
        if path.suffix not in SUFFIXES or not path.is_file():
            continue
        status = path.stat()
        yield f"{path.name} {status.st_size} {status.st_mtime_ns}\n".encode()
        step = max(PROBE_BYTES, status.st_size // PROBES)
        with path.open("rb") as file:
            for place in range(0, status.st_size, step):
                file.seek(place)
                yield file.read(PROBE_BYTES)
