"""What a bad argument's message says, word for word: it is for people."""

from __future__ import annotations

import math
import re
import reprlib
from typing import Any

import numpy as np
import pytest

from ragcache_integrations.errors import ConfigurationError
from ragcache_integrations.query_cache import Candidate, QueryCache

GOOD: dict[str, Any] = {"dim": 2, "capacity": 10, "tolerance": 0.5}
EXACT = (
    "exact_search=True (a search of all documents by this very metric: no IVF with fewer probes "
    "than clusters, no HNSW, no MMR, no hybrid or filtered-afterwards search)"
)
READ = "vectors, to read the documents' vectors"
LONGEST = "longest, the length of the longest document vector, under metric='ip'"


def read(ids: Any) -> Any:
    return np.ones((len(ids), 2))


def whole(name: str, low: int, value: Any, high: int | None = None) -> tuple[dict[str, Any], str]:
    most = "" if high is None else f" and at most {high}"
    words = f"{name} must be a whole number of at least {low}{most}, got {value!r}"
    return {name: value}, words


def share(name: str, value: Any, also: str = "") -> tuple[dict[str, Any], str]:
    words = f"{name} must be a number above 0 and at most 1{also}, got {reprlib.repr(value)}"
    return {name: value}, words


def below_one(name: str, value: Any) -> tuple[dict[str, Any], str]:
    return {name: value}, f"{name} must be a number above 0 and below 1, got {value!r}"


def distance(name: str, value: Any, also: str = "") -> tuple[dict[str, Any], str]:
    words = f"{name} must be a number from 0 (exact match) to infinity{also}, got {value!r}"
    return {name: value}, words


AUTO = " or 'auto'"
BAD: list[tuple[dict[str, Any], str]] = [
    whole("dim", 1, 0),
    whole("dim", 1, 2.0),
    whole("capacity", 1, value=True),
    whole("capacity", 1, "10"),
    distance("tolerance", -0.1, AUTO),
    distance("tolerance", math.nan, AUTO),
    distance("tolerance", "automatic", AUTO),
    distance("tolerance", None, AUTO),
    distance("tolerance", [0.1, 0.2], AUTO),
    distance("tolerance", np.array([0.1, 0.2]), AUTO),
    ({"index": "hnsw"}, "index must be one of flat, lsh, got 'hnsw'"),
    ({"eviction": "random"}, "eviction must be one of lru, fifo, got 'random'"),
    ({"metric": "dot"}, "metric must be one of l2, cosine, ip, got 'dot'"),
    ({"metric": None}, "metric must be one of l2, cosine, ip, got None"),
    whole("num_hyperplanes", 1, 25, 24),
    whole("bucket_capacity", 1, 0),
    whole("rerank_factor", 1, 1.5),
    whole("multi_probe", 0, -1, 8),
    whole("multi_probe", 0, 9, 8),
    whole("seed", 0, -1),
    whole("max_rerank_factor", 4, 3),
    ({"exact_search": "no"}, "exact_search must be True or False, got 'no'"),
    ({"unit_vectors": 1}, "unit_vectors must be True or False, got 1"),
    share("target_recall", 0),
    share("target_recall", 1.01),
    share("target_recall", 10**400),
    below_one("max_violation", "1 %"),
    below_one("max_violation", math.nan),
    below_one("max_violation", 1),
    distance("start_tolerance", "auto"),
    distance("start_tolerance", -1),
    share("guarantee", 0, ", or 'exact'"),
    share("guarantee", "certain", ", or 'exact'"),
    share("guarantee", value=True, also=", or 'exact'"),
    (
        {"vectors": [[1.0, 0.0]]},
        "vectors must be callable with a list of ids, got [[1.0, 0.0]]",
    ),
    ({"tag": None}, "tag must be a string, got None"),
    ({"ttl": 0}, "ttl must be a number of seconds above 0, or None, got 0"),
    ({"ttl": math.inf}, "ttl must be a number of seconds above 0, or None, got inf"),
    ({"ttl": "1h"}, "ttl must be a number of seconds above 0, or None, got '1h'"),
    ({"longest": 0}, "longest must be a number above 0, or None, got 0"),
    ({"guarantee": "exact"}, f"guarantee='exact' needs {EXACT}; and {READ}"),
    ({"guarantee": 0.8, "vectors": read}, f"guarantee=0.8 needs {EXACT}"),
    ({"guarantee": 0.8, "exact_search": True}, f"guarantee=0.8 needs {READ}"),
    (
        {"guarantee": 1, "exact_search": True, "vectors": read, "metric": "ip"},
        f"guarantee=1 needs {LONGEST}",
    ),
]


@pytest.mark.parametrize(("arguments", "words"), BAD, ids=[words for _, words in BAD])
def test_a_bad_argument_is_told_and_what_is_allowed(arguments: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        QueryCache(**{**GOOD, **arguments})
    assert str(caught.value) == words


@pytest.mark.parametrize(
    "arguments",
    [
        {"tolerance": 10**400},
        {"dim": np.int64(2), "capacity": np.int32(3), "tolerance": np.float32(0.5)},
        {"tolerance": 0},
        {"tolerance": math.inf},
        {"tolerance": "auto", "start_tolerance": 0.3},
        {"index": "lsh", "num_hyperplanes": 3, "multi_probe": 3},
        {"guarantee": "exact", "exact_search": True, "vectors": read},
        {"guarantee": 1.0, "exact_search": True, "vectors": read, "max_rerank_factor": 4},
        {"guarantee": 0.5, "exact_search": np.True_, "vectors": read, "metric": "cosine"},
        {"ttl": 1e-9},
        {"ttl": 1e300},
        {"ttl": 10**12},
    ],
    ids=" ".join,
)
def test_what_is_allowed_works(arguments: dict[str, Any]) -> None:
    cache = QueryCache[str](**{**GOOD, **arguments})
    assert cache.insert([0.0, 1.0], [Candidate("a", "text")])
    hit = cache.lookup([0.0, 1.0], 1)
    assert hit is not None or arguments.get("ttl") == 1e-9
    assert cache.stats().entries == 1


class TestUnitVectors:
    """``unit_vectors=True`` is a promise, and is held to it."""

    @pytest.mark.parametrize(
        ("query", "length"), [([1.0, 1.0], "1.41421"), ([0.0, 0.9999], "0.9999"), ([0, 5], "5")]
    )
    def test_of_queries(self, query: list[float], length: str) -> None:
        cache = QueryCache[str](**GOOD, unit_vectors=True, vectors=read)
        words = f"an embedding must have length 1, as unit_vectors=True says, got {length}"
        for call in (
            lambda: cache.lookup(query, 1),
            lambda: cache.lookup(np.array(query, np.float32), 1),
            lambda: cache.lookup_batch(np.array([[1, 0], query]), 1),
            lambda: cache.insert(query, [Candidate("a", "text")]),
            lambda: cache.explain(query, 1),
            lambda: cache.delete(query),
            lambda: cache.report(query, 1, []),
        ):
            with pytest.raises(ConfigurationError, match=re.escape(words)):
                call()
        assert cache.stats().lookups == 0

    def test_of_documents(self) -> None:
        cache = QueryCache[str](**GOOD, unit_vectors=True, vectors=read)
        words = "the documents' vectors must have length 1, as unit_vectors=True says, got 1.41421"
        with pytest.raises(ConfigurationError, match=re.escape(words)):
            cache.insert([1, 0], [Candidate("a", "text")])
        assert len(cache) == 0

    def test_rounding_to_32_bits_is_forgiven(self) -> None:
        rng = np.random.default_rng(0)
        vectors = rng.normal(size=(50, 1536))
        vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
        cache = QueryCache[str](1536, 50, 0.0, unit_vectors=True)
        for vector in vectors.astype(np.float32):
            cache.insert(vector, [Candidate("a", "text")])
            assert cache.lookup(vector, 1) is not None
        assert None not in cache.lookup_batch(vectors, 1)
