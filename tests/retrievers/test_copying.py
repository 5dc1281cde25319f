from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from pydantic import BaseModel

from ragcache_integrations.errors import ConfigurationError
from ragcache_integrations.retrievers.copying import copy_model, freeze


class Filter(BaseModel):
    field: str
    values: list[int]


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ({"a": 1, "b": [2]}, {"b": [2], "a": 1}),
        ({"a": {"$in": {1, 2}}}, {"a": {"$in": {2, 1}}}),
        (Filter(field="a", values=[1]), Filter(field="a", values=[1])),
        ([None, "x", 1.5], [None, "x", 1.5]),
    ],
)
def test_equal_arguments_make_equal_keys(one: Any, other: Any) -> None:
    assert freeze(one) == freeze(other)
    assert hash(freeze(one)) == hash(freeze(other))


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ({"a": 1}, {"a": True}),
        ({"a": 1}, {"a": 1.0}),
        ({"a": [1]}, {"a": (1,)}),
        ({"a": [1, 2]}, {"a": [2, 1]}),
        ({"a": 1}, {"a": 1, "b": None}),
        ({1: "a"}, {True: "a"}),
        (Filter(field="a", values=[1]), {"field": "a", "values": [1]}),
        ({"a": math.nan}, {"a": float("nan")}),
        (lambda _: True, lambda _: True),
    ],
)
def test_other_arguments_make_other_keys(one: Any, other: Any) -> None:
    assert freeze(one) != freeze(other)


def test_what_cannot_be_told_from_its_like_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="hashable"):
        freeze({"filter": {"a": np.zeros(3)}})


class Document(BaseModel):
    text: str
    metadata: dict[str, Any]
    odd: Any = None


def test_changing_a_copy_leaves_the_document_alone() -> None:
    odd = object()
    document = Document(
        text="t", metadata={"tags": ["a"], "more": {"deep": [1]}, "o": odd}, odd=odd
    )
    copy = copy_model(document, text="other")
    assert copy.text == "other"
    assert copy.metadata == document.metadata
    assert copy.odd is odd
    assert copy.metadata["o"] is odd
    copy.metadata["tags"].append("b")
    copy.metadata["more"]["deep"].append(2)
    copy.metadata["new"] = 1
    assert document.text == "t"
    assert document.metadata == {"tags": ["a"], "more": {"deep": [1]}, "o": odd}
