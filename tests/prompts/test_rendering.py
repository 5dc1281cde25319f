from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel

from ragcache_integrations.errors import ConfigurationError
from ragcache_integrations.prompts.rendering import TextTemplate, stable_json, value_text

JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=12,
)


def shuffled(value: Any) -> Any:
    """Equal, with every mapping's keys the other way round."""
    if isinstance(value, dict):
        return {key: shuffled(value[key]) for key in reversed(value)}
    if isinstance(value, list):
        return tuple(shuffled(item) for item in value)
    return value


@given(JSON)
def test_equal_values_are_equal_bytes(value: Any) -> None:
    assert stable_json(value) == stable_json(shuffled(value))
    assert json.loads(stable_json(value)) == value


class Tool(BaseModel):
    name: str
    arguments: dict[str, int]


def test_models_are_written_as_the_mappings_that_they_are() -> None:
    assert stable_json([Tool(name="a", arguments={"y": 1, "x": 2})]) == (
        '[{"arguments": {"x": 2, "y": 1}, "name": "a"}]'
    )


@pytest.mark.parametrize(
    ("value", "words"),
    [
        ({1, 2}, "a set has no order"),
        ({"a": frozenset()}, "a set has no order"),
        (float("nan"), "JSON has no nan"),
        ({1: "a"}, "keys must be strings"),
        (object(), "cannot write a object as JSON"),
    ],
)
def test_what_json_cannot_say(value: object, words: str) -> None:
    with pytest.raises(ConfigurationError, match=words):
        stable_json(value)


def test_values_as_text() -> None:
    assert value_text("as it is ") == "as it is "
    assert value_text(3) == "3"
    assert value_text({"b": 1, "a": 2}) == '{"a": 2, "b": 1}'
    with pytest.raises(ConfigurationError, match="cannot be written as text"):
        value_text(object())  # its text would be its address
    with pytest.raises(ConfigurationError, match="no order"):
        value_text({"a", "b"})


@given(st.text(st.characters(exclude_categories=["Cs"])))
def test_a_template_of_escaped_text_is_that_text(text: str) -> None:
    template = TextTemplate(text.replace("{", "{{").replace("}", "}}"))
    expected = text.replace("\r\n", "\n").replace("\r", "\n").strip()
    assert "".join(str(piece) for piece in template.render({})) == expected
    assert template.variables == ()


@given(st.text(" \n\t", max_size=4), st.text(" \n\t", max_size=4))
def test_white_space_at_the_ends_belongs_to_nobody(before: str, after: str) -> None:
    template = TextTemplate(f"{before}{{a}} and {{b}}{after}")
    assert template.render({"a": f"{before}x", "b": f"y{after}"}) == ("x and y",)


def test_templates_are_strings() -> None:
    with pytest.raises(ConfigurationError, match="must be a string, got int"):
        TextTemplate(3)  # type: ignore[arg-type] # that is the point
