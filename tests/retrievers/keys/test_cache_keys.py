from __future__ import annotations

import datetime as dt
import math
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from decimal import Decimal
from enum import Enum
from pathlib import PurePosixPath
from types import MappingProxyType
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from llama_index.core.vector_stores import MetadataFilter, MetadataFilters
from pydantic import BaseModel, PrivateAttr

from ragcache_integrations.query_cache.files import decode_key, encode_key
from ragcache_integrations.retrievers.keys.cache_keys import freeze_arguments


class Filter(BaseModel):
    field: str
    values: list[int]


class Hiding(BaseModel):
    _tenant: str = PrivateAttr(default="ann")


class Deciding(BaseModel):
    """A record that is code, too: what it lets through is not in its fields alone."""

    field: str = "a"

    def __call__(self, document: object) -> bool:
        return bool(document)


@dataclass
class Range:
    low: int
    high: int


class Colour(Enum):
    RED = 1


class Called(Enum):
    """Members that decide."""

    MINE = 1

    def __call__(self) -> bool:
        return True


class Computing(MetadataFilters):
    """A subclass of a known class, which computes what the store reads."""

    def __getattribute__(self, name: str) -> Any:
        return super().__getattribute__(name)


@dataclass
class Allowing:
    """A record with a method that a store may call."""

    tenant: str

    def allows(self, document: object) -> bool:
        return bool(document)


class Mutable(Enum):
    """A member made of what may be changed."""

    MINE = {"tenant": "ann"}  # noqa: RUF012 - the point


class Words(str):
    """A string that may be equal to others when it likes."""

    __slots__ = ("tenant",)


def freeze(value: Any) -> Any:
    frozen = freeze_arguments({"filter": value})
    assert frozen.opaque == ()
    return frozen.key


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ({"a": 1, "b": [2]}, {"b": [2], "a": 1}),
        ({"a": {"$in": {1, 2}}}, {"a": {"$in": {2, 1}}}),
        (Filter(field="a", values=[1]), Filter(field="a", values=[1])),
        (Range(1, 2), Range(1, 2)),
        ([None, "x", 1.5], [None, "x", 1.5]),
        ({"a": math.nan}, {"a": float("nan")}),
        (np.array([1.0, 2.0]), np.array([1.0, 2.0])),
        (np.float32(1), np.float32(1)),
        (dt.date(2026, 1, 2), dt.date(2026, 1, 2)),
        (Decimal("1.0"), Decimal("1.0")),
        (uuid.UUID(int=7), uuid.UUID(int=7)),
        (PurePosixPath("a/b"), PurePosixPath("a/b")),
        (Colour.RED, Colour.RED),
        (MappingProxyType({"a": 1}), MappingProxyType({"a": 1})),
    ],
)
def test_equal_arguments_make_equal_keys(first: Any, second: Any) -> None:
    assert freeze(first) == freeze(second)
    assert hash(freeze(first)) == hash(freeze(second))


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ({"a": 1}, {"a": True}),
        ({"a": 1}, {"a": 1.0}),
        ({"a": [1]}, {"a": (1,)}),
        ({"a": [1, 2]}, {"a": [2, 1]}),
        ({"a": 1}, {"a": 1, "b": None}),
        ({1: "a"}, {True: "a"}),
        (Filter(field="a", values=[1]), {"field": "a", "values": [1]}),
        (Range(1, 2), Range(1, 3)),
        ({"a": 0.0}, {"a": -0.0}),
        (np.zeros(3), np.zeros(4)),
        (np.zeros(3), np.zeros(3, dtype=np.float32)),
        (np.zeros((2, 3)), np.zeros((3, 2))),
        (np.int64(1), 1),
        (dt.date(2026, 1, 2), "2026-01-02"),
        (Decimal("1.0"), Decimal("1.00")),
    ],
)
def test_other_arguments_make_other_keys(first: Any, second: Any) -> None:
    assert freeze(first) != freeze(second)


def test_a_changed_field_changes_the_key() -> None:
    changing = MetadataFilters(filters=[MetadataFilter(key="tenant", value="ann")])
    before = freeze(changing)
    changing.filters[0].value = "bob"  # type: ignore[union-attr]
    assert freeze(changing) != before
    before = freeze(Mutable.MINE)
    Mutable.MINE.value["tenant"] = "bob"
    assert freeze(Mutable.MINE) != before
    hiding = Hiding()
    before = freeze(hiding)
    hiding._tenant = "bob"
    assert freeze(hiding) != before


def cyclic() -> list[Any]:
    own: list[Any] = []
    own.append(own)
    return own


@pytest.mark.parametrize(
    ("value", "path"),
    [
        (lambda _: True, "filter"),
        (test_a_changed_field_changes_the_key, "filter"),
        (object(), "filter"),
        ({"where": [1, str.upper]}, "filter['where'][1]"),
        ({"a": {1, len}}, "filter['a']"),
        ({len: 1}, "filter"),
        (Deciding(), "filter"),
        (Called.MINE, "filter"),
        (Computing(filters=[]), "filter"),
        (Allowing("ann"), "filter"),
        (Words("a"), "filter"),
        (int, "filter"),
        (np.array([object()]), "filter"),
        (type("Own", (dict,), {})(a=1), "filter"),
        (cyclic(), "filter" + "[0]" * 32),
    ],
)
def test_what_is_no_plain_data_is_opaque_and_its_place_is_said(value: Any, path: str) -> None:
    assert [place for place, _ in freeze_arguments({"filter": value}).opaque] == [path]


PLAIN = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text() | st.binary() | st.dates() | st.uuids(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner) | st.tuples(inner, inner),
)
OPAQUE_VALUES = st.sampled_from([lambda _: True, object(), Deciding(), len, Words("x")])


@given(st.dictionaries(st.text(), PLAIN))
def test_plain_arguments_have_a_key_that_can_be_saved(arguments: dict[str, Any]) -> None:
    frozen = freeze_arguments(arguments)
    assert frozen.opaque == ()
    assert frozen == freeze_arguments(dict(reversed(arguments.items())))
    assert decode_key(encode_key(frozen.key)) == frozen.key


@given(PLAIN, OPAQUE_VALUES, st.data())
def test_an_opaque_value_is_found_wherever_it_hides(
    plain: Any, hidden: Callable[..., Any], data: st.DataObject
) -> None:
    wrappers: list[Callable[[Any], Any]] = [
        lambda value: [plain, value],
        lambda value: {"a": plain, "b": value},
        lambda value: (value,),
        lambda value: MetadataFilters.model_construct(filters=[value]),
        lambda value: Range(value, plain),
    ]
    value: Any = hidden
    for wrap in data.draw(st.lists(st.sampled_from(wrappers), max_size=8)):
        value = wrap(value)
    assert freeze_arguments({"x": value}).opaque
