"""Finds the text that all prompts of a flow have in common, and the values between.

The prompts come from one template, which is unknown. Words that all of them have in the same order
are the template's fixed text; the words between are values of its variables.

Finds the blocks that two sequences have in common, in order, in linear time.

The blocks are those of :class:`difflib.SequenceMatcher`: the longest common block, then the longest
on either side of it, and so on. That class takes cubic time at worst, or misses items that are
repeated often (its ``autojunk``), such as a sentence that a prompt has a hundred times. Here a
suffix automaton finds the longest block, so that each level of the recursion takes linear time, and
the number of levels is bounded.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Sequence
from itertools import islice, pairwise

from ragcache_integrations.core.texts import split_words, word_spans

__all__ = [
    "MAX_LEVELS",
    "Block",
    "Cut",
    "Run",
    "common_runs",
    "cutter",
    "longest_block",
    "matching_blocks",
]


MAX_LEVELS = 40
"""Levels of the recursion. Balanced halves of a million words need 20; the rest after 40 levels
counts as having nothing in common."""

Block = tuple[int, int, int]
"""Index of the first item in the first and in the second sequence, and the number of items."""


def matching_blocks(first: Sequence[Hashable], second: Sequence[Hashable]) -> list[Block]:
    """Find blocks that both sequences have in the same order.

    Returns:
        Blocks of at least one item, in the order of the sequences.
    """
    blocks: list[Block] = []
    level = [(0, len(first), 0, len(second))]
    for _ in range(MAX_LEVELS):
        gaps = []
        for begin, end, low, high in level:
            if set(first[begin:end]).isdisjoint(second[low:high]):
                continue
            at, to, size = longest_block(first[begin:end], second[low:high])
            at, to = at + begin, to + low
            blocks.append((at, to, size))
            gaps += [(begin, at, low, to), (at + size, end, to + size, high)]
        level = gaps
    return sorted(blocks)


def longest_block(first: Sequence[Hashable], second: Sequence[Hashable]) -> Block:
    """Find the longest block of both sequences; of several, the earliest in the first one.

    This takes linear time: the suffix automaton of the first sequence has at most two states per
    item, and reading the second sequence follows at most two links per item.
    """
    automaton = _SuffixAutomaton(first)
    best, state, size = (0, 0, 0), 0, 0
    for place, item in enumerate(second, 1):
        while state and item not in automaton.next[state]:
            state = automaton.link[state]
            size = automaton.length[state]
        if item in automaton.next[state]:
            state = automaton.next[state][item]
            size += 1
        begin = automaton.end[state] - size
        if size > best[2] or (size == best[2] and size and begin < best[0]):
            best = (begin, place - size, size)
    return best


class _SuffixAutomaton:
    """The smallest automaton that reads every block of a sequence.

    Attributes:
        next: For each state, the following state for each item.
        link: For each state, the state of its longest suffix that also occurs elsewhere.
        length: For each state, the most items that lead to it.
        end: For each state, the number of items up to the first end of such a block.
    """

    def __init__(self, items: Sequence[Hashable]) -> None:
        self.next: list[dict[Hashable, int]] = [{}]
        self.link = [-1]
        self.length = [0]
        self.end = [0]
        last = 0
        for place, item in enumerate(items, 1):
            last = self._append(item, last, place)

    def _append(self, item: Hashable, last: int, place: int) -> int:
        state = self._add({}, place, place)
        while last >= 0 and item not in self.next[last]:
            self.next[last][item] = state
            last = self.link[last]
        self.link[state] = 0 if last < 0 else self._suffix(last, item)
        return state

    def _suffix(self, state: int, item: Hashable) -> int:
        """The state after ``item`` whose longest block is that of ``state`` and the item."""
        target = self.next[state][item]
        if self.length[target] == self.length[state] + 1:
            return target
        # The target also has longer blocks: a copy of it takes over the shorter ones.
        copy = self._add(dict(self.next[target]), self.length[state] + 1, self.end[target])
        self.link[copy] = self.link[target]
        self.link[target] = copy
        while state >= 0 and self.next[state].get(item) == target:
            self.next[state][item] = copy
            state = self.link[state]
        return copy

    def _add(self, following: dict[Hashable, int], length: int, end: int) -> int:
        self.next.append(following)
        self.link.append(0)
        self.length.append(length)
        self.end.append(end)
        return len(self.length) - 1


SAMPLE = 12
"""Number of texts that are compared in each round. The next round takes texts that lack a run."""

MIN_WORDS = 4
"""Words of the shortest run that is no coincidence."""

MAX_WORDS = 200_000
"""Words of a text that are compared; all words after them count as varying."""

HEADING_WORDS = 5
"""The most words of a heading such as ``Question:`` or ``Here is the context:``."""

_HEADING_ENDS = (":", "\uff1a", "-", "#", ">", "]", "=", "`", '"')
_GAP = ""  # no word is empty

Run = tuple[str, ...]
"""Words, regardless of the white space between them."""

Cut = Callable[[str], list[str] | None]


def common_runs(texts: Sequence[str]) -> list[Run]:
    """Find the text that all have in common.

    Args:
        texts: The texts. Without any, nothing is in common.

    Returns:
        Runs of words that each of the texts has in this order; if there are very many kinds of
        texts, most of them. A run is at least :data:`MIN_WORDS` words long, or looks like a
        heading.
    """
    distinct = list(dict.fromkeys(texts))
    if not distinct:
        return []
    runs = [run] if (run := tuple(split_words(distinct[0])[:MAX_WORDS])) else []
    compared = distinct[1 :: max(1, len(distinct) // SAMPLE)]
    for _ in range(SAMPLE):
        for text in compared:
            runs = [run for run in _shared_runs(runs, _words(text)) if run]
        cut = cutter(runs)
        compared = [text for text in distinct if cut(text) is None][:SAMPLE]
        if not compared:
            break
    return runs


def cutter(runs: Sequence[Run]) -> Cut:
    """Make a function that cuts a text at the common runs.

    Returns:
        A function that returns the pieces of a text: text between runs and runs alternate, the
        first and the last piece are between runs, and their concatenation is the text. It returns
        ``None`` for a text that lacks a run.
    """
    # Each word of the runs becomes one character, so that str.find can find the runs. It takes
    # linear time; a regular expression of the words does not.
    known = dict.fromkeys(word for run in runs for word in run)
    codes = {word: chr(number) for number, word in enumerate(known, 1)}
    coded = ["".join(map(codes.__getitem__, run)) for run in runs]

    def cut(text: str) -> list[str] | None:
        haystack = "".join(codes.get(word, "\0") for word in split_words(text))
        places: list[int] = []
        position = 0
        for run in coded:
            begin = haystack.find(run, position)
            if begin < 0:
                return None
            position = begin + len(run)
            places += [begin, position - 1]
        ends = [0, *_ends(text, places), len(text)]
        return [text[begin:end] for begin, end in pairwise(ends)]

    return cut


def _ends(text: str, places: Sequence[int]) -> Iterator[int]:
    """Characters at which some words of a text begin and end.

    Args:
        text: The text.
        places: Numbers of the words from 0, in ascending order: the first of them begins, the
            second ends, and so on.
    """
    spans = enumerate(word_spans(text))
    for turn, place in enumerate(places):
        if turn % 2 == 0 or place != places[turn - 1]:
            _, span = next(item for item in spans if item[0] == place)
        yield span[turn % 2]


def _words(text: str) -> list[tuple[str, str]]:
    """The words, each with the white space after it."""
    spans = list(islice(word_spans(text), MAX_WORDS + 1))
    ends = [*(begin for begin, _ in spans[1:]), len(text)]
    return [
        (text[begin:end], text[end:following])
        for (begin, end), following in zip(spans[:MAX_WORDS], ends, strict=False)
    ]


def _shared_runs(runs: Sequence[Run], words: Sequence[tuple[str, str]]) -> list[Run]:
    """The parts of the runs that ``words`` has, too, in the same order."""
    flat: list[str] = []
    for run in runs:
        flat += [*run, _GAP]  # so that no block extends over two runs
    bare = [word for word, _ in words]
    kept = []
    for _, start, size in _blocks(flat, bare, _headings(words)):
        run = tuple(bare[start : start + size])
        if len(run) >= MIN_WORDS or _is_heading(words, start, run):
            kept.append(run)
    return kept


def _blocks(first: Sequence[str], second: Sequence[str], headings: Sequence[Run]) -> list[Block]:
    """The blocks of words that two texts have in common, in order.

    Headings are aligned first. Otherwise a few words that one text's question shares with the
    other's documents could misalign the rest.
    """
    blocks: list[Block] = []
    after_first = after_second = 0
    ends = (len(first), len(second), 0)
    for begin_first, begin_second, size in [*_anchors(first, second, headings), ends]:
        between = matching_blocks(first[after_first:begin_first], second[after_second:begin_second])
        shifted = [(after_first + a, after_second + b, n) for a, b, n in between]
        for block in [*shifted, (begin_first, begin_second, size)]:
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
    """Blocks of the headings that both texts have."""
    known = set(headings)
    places = [_find_headings(text, known) for text in (first, second)]
    runs = ([run for _, run in in_text] for in_text in places)
    return [
        (places[0][at + n][0], place, len(run))
        for at, to, size in matching_blocks(*runs)
        for n, (place, run) in enumerate(places[1][to : to + size])
    ]


def _find_headings(text: Sequence[str], known: set[Run]) -> list[tuple[int, Run]]:
    """The known headings in a text, each with the number of its first word."""
    headings = []
    start = 0
    while start < len(text):
        sizes = range(1, HEADING_WORDS + 1)
        size = next((n for n in sizes if tuple(text[start : start + n]) in known), 0)
        if size:
            headings.append((start, tuple(text[start : start + size])))
        start += size or 1
    return headings


def _headings(words: Sequence[tuple[str, str]]) -> list[Run]:
    """Beginnings of lines of a few words, up to a colon."""
    headings = []
    for start in range(len(words)):
        if start > 0 and "\n" not in words[start - 1][1]:
            continue
        for end in range(start + 1, min(start + HEADING_WORDS, len(words)) + 1):
            if words[end - 1][0].endswith((":", "\uff1a")):
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
