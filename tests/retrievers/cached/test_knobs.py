from __future__ import annotations

import math
from typing import Any

import pytest
from pydantic import ValidationError

from ragcache_integrations.core.knobs import meanings
from ragcache_integrations.errors import ConfigurationError
from ragcache_integrations.retrievers.cached.knobs import CacheKnobs, read_knobs


def test_every_knob_is_documented() -> None:
    assert meanings(CacheKnobs).keys() == CacheKnobs.model_fields.keys()


def test_values_at_the_edge() -> None:
    knobs = read_knobs({"k": 1, "tolerance": 0, "capacity": 1, "embedding_memo": 0})
    assert (knobs.k, knobs.tolerance, knobs.capacity, knobs.embedding_memo) == (1, 0.0, 1, 0)
    assert read_knobs({"tolerance": math.inf}).tolerance == math.inf
    assert read_knobs({"tolerance": "auto", "guarantee": 1}).tolerance == "auto"
    assert read_knobs({"guarantee": "exact"}).guarantee == "exact"
    assert read_knobs({"guarantee": None, "max_rerank_factor": None}).guarantee is None


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        ("k", 0, "at least 1"),
        ("k", -1, "at least 1"),
        ("k", 2.0, "whole number"),
        ("tolerance", -0.1, "got -0.1"),
        ("tolerance", math.nan, "got nan"),
        ("tolerance", "0.3", "got '0.3'"),
        ("tolerance", "automatic", "or 'auto'"),
        ("capacity", 0, "at least 1"),
        ("capacity", True, "whole number"),
        ("eviction", "lfu", "'lru' or 'fifo'"),
        ("metric", "dot", "'cosine'"),
        ("rerank_factor", 0, "at least 1"),
        ("max_rerank_factor", 0, "at least 1"),
        ("cache_index", "hnsw", "'flat' or 'lsh'"),
        ("num_hyperplanes", 0, "at least 1"),
        ("bucket_capacity", 0, "at least 1"),
        ("multi_probe", -1, "at least 0"),
        ("guarantee", "most", "or 'exact'"),
        ("guarantee", 0, "or 'exact'"),
        ("guarantee", [1], "or 'exact'"),
        ("ttl", "soon", "number of seconds"),
        ("ttl", -1.0, "above 0"),
        ("ttl", math.nan, "got nan"),
        ("guard", "perhaps", "True or False"),
        ("target_recall", 1.5, "at most 1"),
        ("max_violation", 1, "below 1"),
        ("start_tolerance", -1, "got -1"),
        ("start_tolerance", "auto", "got 'auto'"),
        ("follow_changes", "perhaps", "boolean"),
        ("tag", 5, "string"),
        ("seed", -1, "at least 0"),
        ("embedding_memo", -1, "at least 0"),
        ("namespace", 5, "string"),
    ],
)
def test_a_value_that_cannot_be(name: str, value: Any, said: str) -> None:
    with pytest.raises(ConfigurationError, match=said) as caught:
        read_knobs({name: value})
    assert name in str(caught.value)
    assert "pydantic" not in str(caught.value)


def test_unknown_arguments_are_told_with_those_there_are() -> None:
    with pytest.raises(ConfigurationError, match=r"'tolerence'.*tolerance") as caught:
        read_knobs({"tolerence": 0.3, "k": 0})
    assert "k must be" in str(caught.value)


def test_knobs_do_not_change() -> None:
    with pytest.raises(ValidationError, match="frozen"):
        CacheKnobs().k = 3  # type: ignore[misc]  # the point
