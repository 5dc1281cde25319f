"""Puts a delta into the reader's distribution.

``python -m reader.teaching.ship --delta FILE`` rounds it to float16, and writes it and its facts:
its checksum, which is compared before use and names what is built of it, and its size.
"""

from __future__ import annotations

import argparse
import hashlib
import json
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors.numpy import load_file, save

__all__ = ["LARGEST", "ship"]

PLACE = Path(__file__).parents[1] / "ragcache_reader" / "model" / "delta.safetensors"
"""In this clone; an installed copy is another."""
LARGEST = 20_000_000
"""Bytes of a delta: what a wheel and the repository have room for."""


def ship(trained: Path, place: Path) -> dict[str, Any]:
    """Round a delta and write it, and its facts beside it as JSON.

    Args:
        trained: The delta: for each matrix ``NAME.up`` and ``NAME.down``, in any type of floats.
        place: Where to put it; its folder is made.

    Returns:
        Its facts, see :func:`ragcache_reader.building.facts`.

    Raises:
        ValueError: It is no such delta, has numbers that float16 does not hold, or is too large.
            Nothing is written.
    """
    matrices = load_file(trained)
    for name in sorted({name.rpartition(".")[0] for name in matrices}):
        _check(name, matrices)
    with np.errstate(over="ignore"):
        rounded = {name: matrix.astype(np.float16) for name, matrix in matrices.items()}
    for name, matrix in rounded.items():
        if not np.isfinite(matrix).all():
            msg = f"{trained} has numbers in {name} that float16 does not hold"
            raise ValueError(msg)
    content = save(rounded)
    if len(content) > LARGEST:
        msg = f"{trained} takes {len(content):,} bytes, more than {LARGEST:,}: train a lower rank"
        raise ValueError(msg)
    known = {
        "sha256": hashlib.sha256(content).hexdigest(),
        "bytes": len(content),
        "rank": max(min(matrix.shape) for matrix in rounded.values()),
        "numbers": sum(matrix.size for matrix in rounded.values()),
    }
    place.parent.mkdir(parents=True, exist_ok=True)
    _write(place, content)
    _write(place.with_suffix(".json"), f"{json.dumps(known, indent=1)}\n".encode())
    return known


def _check(name: str, matrices: dict[str, NDArray[Any]]) -> None:
    up, down = (matrices.get(f"{name}.{side}") for side in ("up", "down"))
    if up is None or down is None or up.ndim != 2 or up.shape[1:] != down.shape[:1]:
        msg = f"{name} has no two matrices .up and .down that can be multiplied"
        raise ValueError(msg)


def _write(path: Path, content: bytes) -> None:
    unfinished = path.with_name(f".{path.name}")
    unfinished.write_bytes(content)
    unfinished.replace(path)


def main() -> None:
    """Put it there."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("--delta", type=Path, required=True)
    parser.add_argument("--out", type=Path, default=PLACE, help=f"default: {PLACE}")
    options = parser.parse_args()
    print(json.dumps(ship(options.delta, options.out)))


if __name__ == "__main__":
    main()
