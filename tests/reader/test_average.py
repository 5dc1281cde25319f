"""The mean of deltas."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray

from reader.teaching.average import average

DICE = np.random.default_rng(0)


def delta(rank: int, *names: str) -> dict[str, NDArray[np.float32]]:
    made = {}
    for name in names:
        made[f"{name}.up"] = DICE.normal(size=(12, rank)).astype(np.float32)
        made[f"{name}.down"] = DICE.normal(size=(rank, 9)).astype(np.float32)
    return made


def product(matrices: dict[str, NDArray[np.float32]], name: str) -> NDArray[np.float32]:
    return matrices[f"{name}.up"] @ matrices[f"{name}.down"]


def test_products_are_averaged_whatever_makes_them() -> None:
    first, second = delta(2, "a", "b"), delta(3, "a", "b")
    mean = average([first, second], rank=5)
    for name in ("a", "b"):
        expected = (product(first, name) + product(second, name)) / 2
        np.testing.assert_allclose(product(mean, name), expected, atol=1e-5)
    negative = {name: -matrix for name, matrix in first.items()}  # the same products
    np.testing.assert_allclose(
        product(average([first, negative]), "a"), product(first, "a"), atol=1e-5
    )


def test_a_lower_rank_keeps_what_is_largest() -> None:
    deltas = [delta(4, "a"), delta(4, "a")]
    mean = average(deltas)
    assert mean["a.up"].shape == (12, 4)
    expected = (product(deltas[0], "a") + product(deltas[1], "a")) / 2
    values = np.linalg.svd(expected, compute_uv=False)
    error = np.linalg.norm(product(mean, "a") - expected)
    assert error == pytest.approx(np.sqrt((values[4:] ** 2).sum()), rel=1e-4)


def test_other_matrices_are_refused() -> None:
    with pytest.raises(ValueError, match=r"different matrices, such as b\.down"):
        average([delta(2, "a"), delta(2, "a", "b")])
