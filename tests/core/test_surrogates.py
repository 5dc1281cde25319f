"""Halves of characters: joined where they are two, replaced where they are one."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ragcache_integrations.core.texts import without_surrogates


@pytest.mark.parametrize(
    ("text", "whole"),
    [
        ("plain é🗼", "plain é🗼"),
        ("\ud83d\ude00", "😀"),
        ("a\ud800", "a\ufffd"),
        ("\ude00\ud83d", "\ufffd\ufffd"),
        ("", ""),
    ],
)
def test_halves_of_characters(text: str, whole: str) -> None:
    assert without_surrogates(text) == whole


@given(st.text(st.characters(categories=["Cs", "Ll", "So"])))
def test_what_comes_back_can_be_written(text: str) -> None:
    without_surrogates(text).encode()
