"""The linter takes time that is linear in its input, whatever the input.

Nothing here is timed: operations are counted, or inputs are so large that an algorithm of quadratic
time would not end.
"""

from __future__ import annotations

import difflib
import json
import sys
from collections.abc import Callable
from functools import partial
from types import FrameType
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ragcache_integrations.errors import ConfigurationError
from ragcache_integrations.prompts.lint.lint import lint_prompt
from ragcache_workbench.logs import alignment as lint_matching
from ragcache_workbench.logs import traffic as lint_traffic
from ragcache_workbench.logs.alignment import (
    common_runs,
    cutter,
    longest_block,
    matching_blocks,
)

RULES = "You are a careful assistant who answers from the context alone."

ATTACKS: dict[str, Callable[[int], str]] = {
    "brackets": lambda n: "[" * n,
    "brackets around rows": lambda n: "[" * 800 + '{"a":"b"},' * (n // 10),
    "objects in objects": lambda n: '{"a":' * (n // 5),
    "lists in lists": lambda n: '[["a",' * (n // 6),
    "unclosed strings": lambda n: '["' * (n // 2),
    "keys without values": lambda n: '{"{"' * (n // 4),
    "sound values": lambda n: '{"a":1,"b":2} ' * (n // 14),
    "braces": lambda n: "{" * n,
    "variables": lambda n: "{a} some {b} " * (n // 13),
    "digits": lambda n: "1" * n,
    "dates": lambda n: "2024-01-" * (n // 8),
    "times": lambda n: "12:30 2024-01-01T10:00 " * (n // 23),
    "months": lambda n: "jan " * (n // 4),
    "punctuation": lambda n: "-:/ " * (n // 4),
    "ids": lambda n: "123e4567-e89b-12d3-a456-426614174000 " * (n // 37),
    "blanks": lambda n: " " * n + "x",
    "blanks in brackets": lambda n: ("[" + " " * 50) * (n // 51),
    "line ends": lambda n: "\n" * n,
    "headings": lambda n: "Q:\n" * (n // 3),
    "ranks": lambda n: "1. " * (n // 3),
    "ranked lines": lambda n: "1. Some line of text that is long enough to tell.\n" * (n // 50),
    "sources": lambda n: "Document 1 (score 0.9):\n" * (n // 24),
    "one word, often": lambda n: "ab " * (n // 3),
    "different words": lambda n: " ".join(f"w{i}" for i in range(n // 6)),
    "two words": lambda n: "".join("ba"[i.bit_count() % 2] + " " for i in range(n // 2)),
    "our own marks": lambda n: "\ue000a" * (n // 2),
}


def traffic(text: str) -> list[Any]:
    return [
        [{"role": "system", "content": RULES}, {"role": "user", "content": f"{n} {text} q{n}"}]
        for n in range(3)
    ]


def calls(function: Callable[[], object]) -> int:
    """Calls of functions, written in Python or in C, that a call takes."""
    count = 0

    def note(frame: FrameType, event: str, argument: object) -> None:
        nonlocal count
        count += event in {"call", "c_call"}

    sys.setprofile(note)
    try:
        function()
    except ConfigurationError:
        pass
    finally:
        sys.setprofile(None)
    return count


@pytest.mark.parametrize("name", ATTACKS)
@pytest.mark.parametrize("use", [traffic, "{} {{question}}".format])
def test_calls_are_linear(name: str, use: Callable[[str], Any]) -> None:
    small, large = (use(ATTACKS[name](n)) for n in (3000, 12_000))
    assert calls(partial(lint_prompt, large)) < 6 * calls(partial(lint_prompt, small))


# The parts that calls do not show, because they are loops or one call of C


class Word:
    """An item that counts how often it is looked up."""

    looked_up = 0

    def __init__(self, name: int) -> None:
        self.name = name

    def __hash__(self) -> int:
        Word.looked_up += 1
        return self.name

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Word) and self.name == other.name


SEQUENCES: dict[str, Callable[[int], int]] = {
    "equal": lambda n: 0,
    "different": lambda n: n,
    "Thue-Morse": lambda n: n.bit_count() % 2,
    "growing blocks": lambda n: n if (8 * n + 1) ** 0.5 % 1 == 0 else 0,
    "alternating": lambda n: n % 3,
}


@pytest.mark.parametrize("name", SEQUENCES)
def test_matching_is_linear(name: str) -> None:
    def looked_up(length: int) -> int:
        first = [Word(SEQUENCES[name](n)) for n in range(length)]
        second = [Word(SEQUENCES[name](n + 1)) for n in range(length)][::-1]
        Word.looked_up = 0
        matching_blocks(first, second)
        return Word.looked_up

    assert looked_up(4000) < 6 * looked_up(1000) + 1000
    assert looked_up(1000) < 1000 * 20 * lint_matching.MAX_LEVELS


class CountingDecoder(json.JSONDecoder):
    """A decoder that counts the characters that it reads, and those before an error."""

    read = 0

    def raw_decode(self, s: str, idx: int = 0) -> tuple[Any, int]:
        try:
            value, end = super().raw_decode(s, idx)
        except (ValueError, RecursionError) as error:
            CountingDecoder.read += len(s) - idx
            if isinstance(error, json.JSONDecodeError):
                CountingDecoder.read += error.pos // 100
            raise
        CountingDecoder.read += end - idx
        return value, end


@pytest.mark.parametrize(
    "name", [name for name in ATTACKS if '"' in ATTACKS[name](99) or "[" in name]
)
def test_looking_for_json_is_linear(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(json, "JSONDecoder", CountingDecoder)
    text = ATTACKS[name](200_000)
    CountingDecoder.read = 0
    list(lint_traffic._json_values(text))
    assert CountingDecoder.read <= (lint_traffic.VAIN_TRIES + 1) * len(text)


def test_json_is_found_in_what_breaks_off() -> None:
    text = 'See ["x", {"a": 1, "b": 2} and [{"c": 1, "d": 2}, oops'
    values = [value for _, _, value in lint_traffic._json_values(text)]
    assert values == [{"a": 1, "b": 2}, {"c": 1, "d": 2}]


# The same is found as before


WORDS = st.lists(st.sampled_from("abcd"), max_size=30)


@given(WORDS, WORDS)
def test_blocks_are_those_of_difflib(first: list[str], second: list[str]) -> None:
    matcher = difflib.SequenceMatcher(None, first, second, autojunk=False)
    expected = matcher.find_longest_match()
    assert longest_block(first, second) == (tuple(expected) if expected.size else (0, 0, 0))
    merged: list[list[int]] = []
    for at, to, size in matching_blocks(first, second):
        if merged and [at, to] == [merged[-1][0] + merged[-1][2], merged[-1][1] + merged[-1][2]]:
            merged[-1][2] += size
        else:
            merged.append([at, to, size])
    assert [tuple(block) for block in merged] == [
        tuple(block) for block in matcher.get_matching_blocks() if block.size
    ]


def test_what_is_left_at_the_last_level_has_nothing_in_common(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(lint_matching, "MAX_LEVELS", 1)
    assert matching_blocks("abcxd", "abcyd") == [(0, 0, 3)]


@pytest.mark.parametrize("repeats", [10, 40, 300])
@pytest.mark.parametrize("sentence", ["You help people.", "Never forget the rules of this house: "])
def test_a_sentence_that_is_repeated_behind_a_time(sentence: str, repeats: int) -> None:
    def request(n: int) -> Any:
        system = f"Now 2026-11-25 10:{n:02d}:07. " + f"{sentence} " * repeats
        return {
            "messages": [
                {"role": "system", "content": system},
                {"role": "user", "content": f"{n}?"},
            ]
        }

    report = lint_prompt([request(n) for n in range(12)])
    assert report.codes == ("timestamp",)
    assert report.recomputed_tokens >= 0.95 * len(sentence.split()) * repeats


def test_runs_are_whole_words() -> None:
    assert cutter([("b", "c")])("ab c b  c d") == ["ab c ", "b  c", " d"]
    assert cutter([("b",), ("c",)])("b c") == ["", "b", " ", "c", ""]
    assert cutter([("b",)])("abc") is None
    assert common_runs([""]) == []
    assert common_runs([]) == []
