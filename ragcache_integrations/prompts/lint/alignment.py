"""What all texts of a flow have in common, and what stands between.

The texts were made from one template that nobody has told us. What stands in all of them, in the
same order, is its fixed text; what stands between are its variables' values.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from itertools import islice, pairwise

from ragcache_integrations.prompts.lint.matching import Block, matching_blocks

__all__ = ["Cut", "Run", "common_runs", "cutter"]

SAMPLE = 12
"""Texts that are compared at a time; of the others, those that then cannot be cut."""

MIN_WORDS = 4
"""Words of a run that are no coincidence wherever they stand."""

MAX_WORDS = 200_000
"""Words of a text that are compared; what stands behind them is taken to vary."""

HEADING_WORDS = 5
"""Words of a heading such as ``Question:`` or ``Here is the context:`` at most."""

_WORD = re.compile(r"(\S+)(\s*)")
_HEADING_ENDS = (":", "-", "#", ">", "]", "=", "`", '"')
_GAP = ""  # no word is empty

Run = tuple[str, ...]
"""Words, whatever white space stands between them."""

Cut = Callable[[str], list[str] | None]


def common_runs(texts: Sequence[str]) -> list[Run]:
    """Find the text that all have in common.

    Args:
        texts: At least one text.

    Returns:
        Runs of words that stand in each of the texts in this order; where there are very many
        kinds of texts, in most of them. A run is at least :data:`MIN_WORDS` words long, or looks
        like a heading.
    """
    distinct = list(dict.fromkeys(texts))
    runs = [run] if (run := tuple(word for word, _ in _words(distinct[0]))) else []
    compared = distinct[1 :: max(1, len(distinct) // SAMPLE)]
    for _ in range(SAMPLE):
        for text in compared:
            runs = [run for run in _shared(runs, _words(text)) if run]
        cut = cutter(runs)
        compared = [text for text in distinct if cut(text) is None][:SAMPLE]
        if not compared:
            break
    return runs


def cutter(runs: Sequence[Run]) -> Cut:
    """Make a function that cuts a text at the common runs.

    Returns:
        It gives the texts between the runs and of the runs by turns, beginning and ending with one
        between; concatenated they are the text. ``None`` where the text has not all of the runs.
    """
    # Each word of the runs becomes one character, so that runs are found by str.find, which is
    # linear, and which the regular expression of a run is not.
    words = dict.fromkeys(word for run in runs for word in run)
    codes = {word: chr(number) for number, word in enumerate(words, 1)}
    coded = ["".join(map(codes.__getitem__, run)) for run in runs]

    def cut(text: str) -> list[str] | None:
        haystack = "".join(codes.get(word, "\0") for word in text.split())
        places: list[int] = []
        position = 0
        for run in coded:
            found = haystack.find(run, position)
            if found < 0:
                return None
            position = found + len(run)
            places += [found, position - 1]
        ends = [0, *_ends(text, places), len(text)]
        return [text[begin:end] for begin, end in pairwise(ends)]

    return cut


def _ends(text: str, places: Sequence[int]) -> Iterator[int]:
    """Where words begin and end by turns.

    Args:
        text: The text.
        places: Numbers of the words from 0, in ascending order.
    """
    words = enumerate(_WORD.finditer(text))
    for turn, place in enumerate(places):
        if turn % 2 == 0 or place != places[turn - 1]:
            _, word = next(found for found in words if found[0] == place)
        yield word.end(1) if turn % 2 else word.start()


def _words(text: str) -> list[tuple[str, str]]:
    """The words, each with the white space behind it."""
    return [(found[1], found[2]) for found in islice(_WORD.finditer(text), MAX_WORDS)]


def _shared(runs: Sequence[Run], words: Sequence[tuple[str, str]]) -> list[Run]:
    """Keep of the runs what stands among ``words``, too, in the same order."""
    flat: list[str] = []
    for run in runs:
        flat += [*run, _GAP]  # so that no match reaches from one run into the next
    bare = [word for word, _ in words]
    kept = []
    for _, start, size in _blocks(flat, bare, _headings(words)):
        run = tuple(bare[start : start + size])
        if len(run) >= MIN_WORDS or _is_heading(words, start, run):
            kept.append(run)
    return kept


def _blocks(first: Sequence[str], second: Sequence[str], headings: Sequence[Run]) -> list[Block]:
    """Where two texts have the same words, in order: begin in either, and number of words.

    Headings are aligned before anything else. Otherwise a few words that a question has in common
    with another one's documents could pull the two texts out of step.
    """
    blocks: list[Block] = []
    after_first = after_second = 0
    ends = (len(first), len(second), 0)
    for begin_first, begin_second, size in [*_anchors(first, second, headings), ends]:
        between = matching_blocks(first[after_first:begin_first], second[after_second:begin_second])
        found = [(after_first + a, after_second + b, n) for a, b, n in between]
        for block in [*found, (begin_first, begin_second, size)]:
            if blocks and block[:2] == (
                blocks[-1][0] + blocks[-1][2],
                blocks[-1][1] + blocks[-1][2],
            ):
                blocks[-1] = (blocks[-1][0], blocks[-1][1], blocks[-1][2] + block[2])
            elif block[2]:
                blocks.append(block)
        after_first, after_second = begin_first + size, begin_second + size
    return blocks


def _anchors(first: Sequence[str], second: Sequence[str], headings: Sequence[Run]) -> list[Block]:
    known = set(headings)
    places = [_found_headings(text, known) for text in (first, second)]
    return [
        (places[0][at + n][0], place, len(run))
        for at, to, size in matching_blocks(*([run for _, run in found] for found in places))
        for n, (place, run) in enumerate(places[1][to : to + size])
    ]


def _found_headings(text: Sequence[str], known: set[Run]) -> list[tuple[int, Run]]:
    """Where one of the known headings begins, and which."""
    found = []
    start = 0
    while start < len(text):
        sizes = range(1, HEADING_WORDS + 1)
        size = next((n for n in sizes if tuple(text[start : start + n]) in known), 0)
        if size:
            found.append((start, tuple(text[start : start + size])))
        start += size or 1
    return found


def _headings(words: Sequence[tuple[str, str]]) -> list[Run]:
    """Beginnings of lines up to a colon, of a few words."""
    headings = []
    for start in range(len(words)):
        if start > 0 and "\n" not in words[start - 1][1]:
            continue
        for end in range(start + 1, min(start + HEADING_WORDS, len(words)) + 1):
            if words[end - 1][0].endswith(":"):
                headings.append(tuple(word for word, _ in words[start:end]))
                break
            if "\n" in words[end - 1][1]:
                break
    return headings


def _is_heading(words: Sequence[tuple[str, str]], start: int, run: Run) -> bool:
    """Whether a short run begins a line and ends it, or ends like ``Question:``."""
    if not run or (start > 0 and "\n" not in words[start - 1][1]):
        return False
    end = start + len(run)
    ends_line = end == len(words) or "\n" in words[end - 1][1]
    return run[-1].endswith(_HEADING_ENDS) or (ends_line and len(run) > 1)
