"""Metadata come back from a file as they were, whatever pandas or NumPy put there."""

from __future__ import annotations

import contextlib
import datetime as dt
import json
import math
import uuid
import zoneinfo
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st
from langchain_core.documents import Document
from langchain_core.vectorstores import InMemoryVectorStore
from llama_index.core import StorageContext, VectorStoreIndex
from llama_index.core.schema import TextNode
from llama_index.core.vector_stores import SimpleVectorStore

from ragcache_integrations.core.saved_values import decode_value, encode_value
from ragcache_integrations.errors import ConfigurationError
from ragcache_integrations.retrievers.cached.langchain.retriever import ApproximateCacheRetriever
from ragcache_integrations.retrievers.cached.llama_index.retriever import (
    ApproximateCacheRetriever as LlamaIndexRetriever,
)
from tests.retrievers.cached.langchain.stores import Words
from tests.retrievers.cached.llama_index.indexes import Words as LlamaIndexWords

BERLIN = zoneinfo.ZoneInfo("Europe/Berlin")
VALUES: list[Any] = [
    *(None, True, 3, -(10**30), 1.5, -0.0, math.nan, math.inf, -math.inf, "ä", "", b"\x00x"),
    *(np.float64(1.5), np.float32(math.nan), np.int64(3), np.bool_(1), np.str_("word")),
    *(np.datetime64("2026-01-01T00:00:00.000000001"), np.timedelta64(3, "s"), np.bytes_(b"")),
    *(np.zeros((2, 3), dtype=np.float32), np.array([]), np.array(["a", "bc"]), np.array(1.0)),
    *(dt.date(2026, 1, 1), dt.time(3, 4, 5, 6), dt.timedelta(days=-1, microseconds=3)),
    *(dt.datetime(2026, 1, 1), dt.datetime(2026, 1, 1, tzinfo=dt.UTC)),  # noqa: DTZ001 - as given
    dt.datetime(2026, 10, 25, 2, 30, fold=1, tzinfo=BERLIN),
    *(pd.Timestamp("2026-01-01 00:00:00.000000001"), pd.Timestamp("2026-01-01", tz="Asia/Tokyo")),
    *(pd.NaT, pd.NA, pd.Timedelta("1 days 00:00:00.000000001")),
    *(Decimal("1.10"), uuid.UUID(int=7), (1, (2, 3)), {1, "a"}, frozenset({1}), [1, [2]]),
    *({"a": {"b": [1, None, True]}}, {1: "x", (1, 2): {"y": math.nan}}, {}, [], (), set()),
    ["list", 1],
    ["dict", [1, 2]],
    {"float": "nan"},
]


def same(first: Any, second: Any) -> bool:
    """Whether values are equal and of one type, NaN being equal to itself."""
    if type(first) is not type(second):
        return False
    if isinstance(first, dict):
        pairs = zip(first.items(), second.items(), strict=True)
        return all(same(list(one), list(other)) for one, other in pairs)
    if isinstance(first, list | tuple):
        return len(first) == len(second) and all(map(same, first, second))
    if isinstance(first, np.ndarray | np.generic):
        return first.dtype == second.dtype and np.array_equal(
            first, second, equal_nan=first.dtype.kind in "fc"
        )
    if isinstance(first, dt.datetime) and first is not pd.NaT:
        return (repr(first), first.tzinfo) == (repr(second), second.tzinfo)
    return first is second or first == second or (first != first and second != second)  # noqa: PLR0124 - NaN


@pytest.mark.parametrize("value", VALUES, ids=range(len(VALUES)))
def test_a_value_comes_back_equal(value: Any) -> None:
    again = decode_value(json.loads(json.dumps(encode_value(value), allow_nan=False)))
    assert same(again, value)


ATOMS = st.one_of(
    st.none(), st.booleans(), st.integers(), st.floats(), st.text(), st.binary(), st.dates(),
    st.datetimes(timezones=st.none() | st.just(dt.UTC) | st.just(BERLIN)), st.times(),
    st.timedeltas(), st.decimals(allow_nan=False), st.uuids(),
)  # fmt: skip
NESTED = st.recursive(
    ATOMS,
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner) | st.lists(inner).map(tuple),
)


@given(NESTED)
def test_whatever_is_nested_comes_back_equal(value: Any) -> None:
    assert same(decode_value(json.loads(json.dumps(encode_value(value), allow_nan=False))), value)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: (
        st.lists(
            st.sampled_from(["numpy", "dict", "list", "float", "datetime", "pandas.Timestamp"])
            | inner
        )
        | st.dictionaries(st.text(max_size=3), inner)
    ),
)


@given(JSON)
def test_what_was_not_written_is_a_value_error_at_most(forged: Any) -> None:
    # Loading takes any of these for a damaged file.
    with contextlib.suppress(ValueError, TypeError, OverflowError, LookupError):
        decode_value(forged)


@pytest.mark.parametrize(
    ("value", "path"),
    [
        ({"a": [object()]}, r"metadata\['a'\]\[0\]"),
        ({"a": np.array([object()])}, r"metadata\['a'\]"),
        ({"a": print}, r"metadata\['a'\].*builtin_function"),
        ({"a": type("Own", (str,), {})("x")}, "Own would not come back"),
    ],
)
def test_what_cannot_be_saved_is_named(value: Any, path: str) -> None:
    with pytest.raises(ConfigurationError, match=path):
        encode_value(value, "metadata")


def test_what_contains_itself_is_refused() -> None:
    own: list[Any] = []
    own.append(own)
    with pytest.raises(ConfigurationError, match="cannot be saved"):
        encode_value(own)
    forged: Any = "x"
    for _ in range(100):
        forged = ["list", forged]
    with pytest.raises(ValueError, match="nested too deeply"):
        decode_value(forged)


@pytest.mark.parametrize("value", VALUES, ids=range(len(VALUES)))
def test_retrievers_of_both_frameworks_save_it(value: Any, tmp_path: Path) -> None:
    path = tmp_path / "cache"
    store = InMemoryVectorStore(Words())
    store.add_documents([Document("text", metadata={"value": value})])
    retriever = ApproximateCacheRetriever.from_vectorstore(store)
    before = retriever.invoke("question")[0].metadata
    retriever.save(path)
    assert retriever.load(path) == 1
    assert same(retriever.invoke("question")[0].metadata, before)
    context = StorageContext.from_defaults(vector_store=SimpleVectorStore())
    nodes = [TextNode(text="text", metadata={"value": "plain"})]
    index = VectorStoreIndex(nodes, storage_context=context, embed_model=LlamaIndexWords())
    for node in index.docstore.docs.values():
        node.metadata["value"] = value
    own = LlamaIndexRetriever.from_index(index)
    found = own.retrieve("question")[0].metadata
    own.save(path)
    assert own.load(path) == 1
    assert same(own.retrieve("question")[0].metadata, found)
