"""What a misspelled name may have meant: the right names, with a bounded number of comparisons."""

from __future__ import annotations

import random
from difflib import SequenceMatcher, get_close_matches
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ragcache_integrations import _suggestions
from ragcache_integrations._suggestions import (
    LONGEST_NAME,
    MOST_COMPARED,
    closest_names,
    shortened,
)
from ragcache_integrations.errors import ConfigurationError, MarkupError
from ragcache_integrations.prompts.history.policy import read_settings
from ragcache_integrations.prompts.pml.prompt import Import, Prompt
from ragcache_integrations.prompts.pml.schema import Schema
from tests.prompts.pml.schemas import tokenizer


@pytest.fixture
def compared(monkeypatch: pytest.MonkeyPatch) -> set[tuple[str, str]]:
    """Every two names that are compared at a price above linear."""
    pairs: set[tuple[str, str]] = set()
    ratio = SequenceMatcher.ratio

    def counting(self: Any) -> float:
        pairs.add((self.a, self.b))
        return ratio(self)

    monkeypatch.setattr(SequenceMatcher, "ratio", counting)
    return pairs


@given(
    st.text("abc", min_size=1, max_size=8),
    st.sets(st.text("abc", min_size=1, max_size=8), max_size=MOST_COMPARED),
    st.integers(1, 4),
    st.sampled_from([0.5, 0.6, 0.75]),
)
def test_few_names_are_all_compared(name: str, known: set[str], count: int, cutoff: float) -> None:
    assert closest_names(name, known, count, cutoff) == get_close_matches(
        name, sorted(known), count, cutoff
    )


def test_the_right_one_of_very_many(compared: set[tuple[str, str]]) -> None:
    draw = random.Random(5)
    names = {"".join(draw.choices("abcdefghij", k=12)) for _ in range(9_000)} | {"embedding_model"}
    assert closest_names("embeding_model", names) == ["embedding_model"]
    assert len(compared) <= MOST_COMPARED


def test_names_made_to_be_compared_for_ever(compared: set[tuple[str, str]]) -> None:
    draw = random.Random(6)
    alike = {"".join(draw.choices("ab", k=LONGEST_NAME)) for _ in range(5_000)}
    closest_names("ab" * (LONGEST_NAME // 2), alike)
    assert 0 < len(compared) <= MOST_COMPARED


def test_long_names_are_not_compared(compared: set[tuple[str, str]]) -> None:
    known = ["a" * (LONGEST_NAME + 1), "a" * 1_000_000, "aaa"]
    assert closest_names("a" * 1_000_000, known) == []
    assert closest_names("a" * LONGEST_NAME, known) == []
    assert closest_names("aaaa", known) == ["aaa"]
    assert max(len(name) for pair in compared for name in pair) <= LONGEST_NAME


def test_names_beyond_the_first_are_not_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_suggestions, "MOST_NAMES", 3)
    assert closest_names("zebr", ["zebra", "a", "b", "c"]) == []
    assert closest_names("zebr", ["zebra", "a", "b"]) == ["zebra"]


@given(st.text(max_size=300), st.integers(10, 100))
def test_what_is_shortened_keeps_both_ends(text: str, most: int) -> None:
    short = shortened(text, most)
    assert len(short) == min(len(text), most)
    start, _, end = short.partition(" ... ") if len(text) > most else (text, "", "")
    assert text.startswith(start)
    assert text.endswith(end)


# Where names come from outside


def schema(count: int, length: int) -> Schema:
    names = (f"{number:05}".rjust(length, "a") for number in range(count))
    modules = "".join(f'<module name="{name}">x</module>' for name in names)
    return Schema.from_pml(f'<schema name="s">{modules}</schema>')


def test_a_module_that_a_large_schema_does_not_have(compared: set[tuple[str, str]]) -> None:
    large = schema(3_000, 60).compile(tokenizer())
    compared.clear()
    with pytest.raises(MarkupError, match=r"did you mean .a+\d{5}. or") as caught:
        large.assemble(Prompt("s", (Import("a" * 56 + "0000"),)))
    assert len(compared) <= MOST_COMPARED
    assert len(str(caught.value)) < 1_200


@pytest.mark.parametrize("name", ["b" * 120, "z"])
def test_names_of_a_schema_are_listed_in_few_words(name: str) -> None:
    large = schema(3_000, 120).compile(tokenizer())
    with pytest.raises(MarkupError, match="has no module") as caught:
        large.assemble(Prompt("s", (Import(name),)))
    assert len(str(caught.value)) < 1_200


def test_a_module_that_stands_in_very_many_places() -> None:
    parents = "".join(
        f'<module name="m{number}"><module name="x">x</module></module>' for number in range(3_000)
    )
    large = Schema.from_pml(f'<schema name="s">{parents}</schema>').compile(tokenizer())
    with pytest.raises(MarkupError, match="import it within 'm0' or") as caught:
        large.assemble(Prompt("s", (Import("x"),)))
    assert len(str(caught.value)) < 1_200


def test_an_unknown_argument_of_any_length() -> None:
    with pytest.raises(ConfigurationError, match=r"argument 'x+ \.\.\. x+': allowed") as caught:
        read_settings(100, {"x" * 100_000: 1})
    assert len(str(caught.value)) < 1_000
