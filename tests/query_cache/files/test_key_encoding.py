"""Cache keys survive a file as they were, types included."""

from __future__ import annotations

import datetime as dt
import enum
import json
import math
import sys
import types
from collections.abc import Hashable
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from llama_index.core.vector_stores import FilterCondition, FilterOperator, MetadataFilters

import ragcache_integrations
from ragcache_integrations.errors import ConfigurationError
from ragcache_integrations.query_cache.files import decode_key, encode_key
from ragcache_integrations.retrievers.keys.cache_keys import freeze_arguments

PLAIN: st.SearchStrategy[Any] = st.one_of(
    st.none(), st.booleans(), st.integers(), st.floats(allow_nan=False), st.text(), st.binary()
)
ATOMS = PLAIN | st.sampled_from(
    [str, int, type(None), dict, np.float32, MetadataFilters, FilterOperator.IN, FilterCondition.OR]
)
KEYS: st.SearchStrategy[Any] = st.recursive(
    ATOMS,
    lambda inner: st.lists(inner, max_size=4).map(tuple) | st.frozensets(inner, max_size=4),
    max_leaves=12,
)
FILTERS: st.SearchStrategy[Any] = st.recursive(
    PLAIN,
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.text(max_size=3), inner, max_size=3)
        | st.sets(PLAIN, max_size=3)
    ),
    max_leaves=12,
)


def exactly(key: Hashable) -> Hashable:
    """Tell apart what Python holds equal: 1, 1.0 and True; 0.0 and -0.0."""
    if isinstance(key, tuple):
        return tuple, tuple(exactly(one) for one in key)
    if isinstance(key, frozenset):
        return frozenset, frozenset(exactly(one) for one in key)
    return type(key), key, math.copysign(1, key) if isinstance(key, float) else None


def again(key: Hashable) -> Hashable:
    return decode_key(json.loads(json.dumps(encode_key(key))))


@given(KEYS)
def test_keys_come_back_as_they_were(key: Hashable) -> None:
    assert exactly(again(key)) == exactly(key)
    assert hash(again(key)) == hash(key)


@given(FILTERS, st.text())
def test_keys_of_the_retrievers_come_back(arguments: object, namespace: str) -> None:
    key = namespace, freeze_arguments({"filter": arguments}).key
    assert exactly(again(key)) == exactly(key)


@given(KEYS, KEYS)
def test_different_keys_are_written_differently(one: Hashable, other: Hashable) -> None:
    alike = json.dumps(encode_key(one)) == json.dumps(encode_key(other))
    assert alike == (exactly(one) == exactly(other))


def test_a_frozen_filter_of_a_framework_comes_back() -> None:
    filters = MetadataFilters.from_dicts(
        [
            {"key": "year", "value": 2020, "operator": FilterOperator.GTE},
            {"key": "tags", "value": ["a", "b"], "operator": FilterOperator.IN},
        ],
        condition=FilterCondition.OR,
    )
    key = ("tenant", freeze_arguments({"filters": filters, "similarity_top_k": 4}).key, None)
    assert exactly(again(key)) == exactly(key)


class Text(str):
    __slots__ = ()


class Flag(enum.Flag):
    ONE = 1
    TWO = 2


def made_inside() -> enum.Enum:
    class Inside(enum.Enum):
        ONE = 1

    return Inside.ONE


@pytest.mark.parametrize(
    "part",
    [
        dt.date(2020, 1, 1),
        Text("text"),
        np.int64(3),
        Flag.ONE | Flag.TWO,
        made_inside(),
        type(made_inside()),
        list[int],
        len,
        1j,
    ],
    ids=repr,
)
def test_what_cannot_come_back_is_named(part: Hashable) -> None:
    with pytest.raises(ConfigurationError, match="keys hold must be None, bool") as raised:
        encode_key(("tenant", (dict, frozenset([part]))))
    assert str(raised.value).endswith(f"got {part!r}")


@pytest.mark.parametrize(
    "encoded",
    [
        {},
        [],
        ["list", 1],
        ["bytes", "xy"],
        ["bytes", 1],
        ["bytes"],
        ["type", "os", "system"],  # no type
        ["type", "ragcache_integrations", "QueryCache"],  # given by __getattr__ alone
        ["type", "builtins", "str.maketrans"],
        ["type", "builtins", ""],
        ["type", 1, "str"],
        ["enum", "builtins", "str", "upper"],
        ["enum", "builtins", "str"],
        ["tuple", ["nothing"]],
        ["frozenset", {}],
    ],
    ids=repr,
)
def test_what_was_not_written_is_refused(encoded: object) -> None:
    assert "QueryCache" not in vars(ragcache_integrations)
    with pytest.raises(ValueError):
        decode_key(encoded)


def test_reading_imports_nothing_and_runs_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    assert "antigravity" not in sys.modules
    with pytest.raises(ValueError, match="import antigravity before"):
        decode_key(["type", "antigravity", "Thing"])
    assert "antigravity" not in sys.modules

    class Lazy(types.ModuleType):
        def __getattr__(self, name: str) -> type:
            raise AssertionError(name)

    monkeypatch.setitem(sys.modules, "lazy_module", Lazy("lazy_module"))
    with pytest.raises(ValueError, match="import lazy_module before"):
        decode_key(["type", "lazy_module", "Thing"])
