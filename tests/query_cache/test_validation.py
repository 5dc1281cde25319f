"""A quick look at an embedding never lets pass what a look at each number refuses."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ragcache_integrations.errors import ConfigurationError
from ragcache_integrations.query_cache.validation import check_vector, is_ordinary
from tests.support.sizes import examples

numbers = st.lists(st.floats(width=32) | st.floats() | st.just(0.0), min_size=1, max_size=8)


@examples(200)
@given(values=numbers, kind=st.sampled_from(["float16", "float32", "float64"]))
def test_what_is_ordinary_can_be_used(values: list[float], kind: str) -> None:
    with np.errstate(over="ignore"):
        array = np.array(values).astype(kind)
    if is_ordinary(array, None):
        check_vector(array)
    else:
        with np.errstate(over="ignore", invalid="ignore"):
            square = float(np.square(array, dtype=np.float64).sum())
        assert not 1e-4 < square < 1e4, "an embedding as models give them is ordinary"


@pytest.mark.parametrize(
    "array", [np.ones((2, 2)), np.array([]), np.array([1, 2]), np.array(["a"]), np.array([True])]
)
def test_what_is_no_embedding_is_not_ordinary(array: Any) -> None:
    assert not is_ordinary(array, None)


def test_the_dimension_counts() -> None:
    assert is_ordinary(np.ones(3), 3)
    assert not is_ordinary(np.ones(3), 4)
    with pytest.raises(ConfigurationError):
        check_vector(np.ones(3), 4)
