"""Averages what several runs learnt, as one delta of the same rank.

``python -m reader.teaching.average DELTA DELTA ... --out FILE``. The weights that the deltas make
are averaged, not their matrices, which are not unique. The mean of models that were tuned from the
same pretrained one often answers better than each of them (Wortsman et al. 2022, "Model soups",
https://arxiv.org/abs/2203.05482), and costs no more.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from safetensors.numpy import load_file, save_file

__all__ = ["average"]

Delta = Mapping[str, NDArray[np.floating]]


def average(deltas: Sequence[Delta], rank: int | None = None) -> dict[str, NDArray[np.float32]]:
    """The delta whose products come nearest to the mean of the deltas' products.

    Args:
        deltas: For each matrix ``NAME.up``, shaped ``(rows, rank)``, and ``NAME.down``, shaped
            ``(rank, columns)``; ranks may differ.
        rank: Rank of the mean; that of the first delta by default.

    Raises:
        ValueError: The deltas change different matrices.
    """
    names = {name.rpartition(".")[0] for name in deltas[0]}
    for delta in deltas[1:]:
        if delta.keys() != deltas[0].keys():
            differing = sorted(delta.keys() ^ deltas[0].keys())
            msg = f"the deltas change different matrices, such as {differing[0]}"
            raise ValueError(msg)
    mean: dict[str, NDArray[np.float32]] = {}
    for name in sorted(names):
        ups, downs = (
            [delta[f"{name}.{side}"].astype(np.float64) for delta in deltas]
            for side in ("up", "down")
        )
        # The product of the joined matrices is the sum of the products. Its singular values are
        # those of a small matrix between two orthogonal ones.
        left, small_left = np.linalg.qr(np.concatenate(ups, axis=1) / len(deltas))
        right, small_right = np.linalg.qr(np.concatenate(downs, axis=0).T)
        u, values, v = np.linalg.svd(small_left @ small_right.T)
        kept = ups[0].shape[1] if rank is None else rank
        roots = np.sqrt(values[:kept])
        mean[f"{name}.up"] = (left @ u[:, :kept] * roots).astype(np.float32)
        mean[f"{name}.down"] = (roots[:, None] * (v[:kept] @ right.T)).astype(np.float32)
    return mean


def main() -> None:
    """Write it."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("deltas", type=Path, nargs="+")
    parser.add_argument("--rank", type=int, help="that of the first by default")
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    options.out.parent.mkdir(parents=True, exist_ok=True)
    save_file(average([load_file(path) for path in options.deltas], options.rank), options.out)


if __name__ == "__main__":
    main()
