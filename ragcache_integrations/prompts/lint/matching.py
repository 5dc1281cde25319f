"""Finds the blocks that two sequences have in common, in order, in linear time.

The blocks are those of :class:`difflib.SequenceMatcher`: the longest common block, then the longest
on either side of it, and so on. That class takes cubic time at worst, or misses items that are
repeated often (its ``autojunk``), such as a sentence that a prompt has a hundred times. Here a
suffix automaton finds the longest block, so that each level of the recursion takes linear time, and
the number of levels is bounded.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence

__all__ = ["MAX_LEVELS", "Block", "longest_block", "matching_blocks"]

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
