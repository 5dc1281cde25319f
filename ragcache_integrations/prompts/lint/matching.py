"""What two sequences have in common, in order, in time that is linear in their lengths.

The blocks are those of :class:`difflib.SequenceMatcher`: the longest common block, then the longest
on either side of it, and so on. That class takes cubic time at worst, or overlooks whatever is
repeated often (its ``autojunk``), such as a sentence that stands in a prompt a hundred times. Here
each level of the recursion is linear, because a suffix automaton finds the longest block, and the
number of levels is bounded.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence

__all__ = ["MAX_LEVELS", "Block", "longest_block", "matching_blocks"]

MAX_LEVELS = 40
"""Levels of the recursion. Balanced halves of a million words need 20; what is left after 40 is
taken to have nothing in common."""

Block = tuple[int, int, int]
"""Where the items begin in either sequence, and their number."""


def matching_blocks(first: Sequence[Hashable], second: Sequence[Hashable]) -> list[Block]:
    """Find blocks that stand in both sequences in the same order.

    Returns:
        Blocks of at least one item, by their places in either sequence.
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
    """Find the longest block that stands in both; of several, the earliest in the first sequence.

    Linear: the suffix automaton of the first sequence has at most two states per item, and reading
    the second one follows at most two links per item.
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
        next: Of each state, the state that follows on each item.
        link: Of each state, the state of its longest suffix that stands elsewhere, too.
        length: Of each state, the most items that lead to it.
        end: Of each state, behind which item such a block ends first.
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
        """The state behind ``item`` that holds no longer block than that of ``state`` and it."""
        behind = self.next[state][item]
        if self.length[behind] == self.length[state] + 1:
            return behind
        copy = self._add(dict(self.next[behind]), self.length[state] + 1, self.end[behind])
        self.link[copy] = self.link[behind]
        self.link[behind] = copy
        while state >= 0 and self.next[state].get(item) == behind:
            self.next[state][item] = copy
            state = self.link[state]
        return copy

    def _add(self, following: dict[Hashable, int], length: int, end: int) -> int:
        self.next.append(following)
        self.link.append(0)
        self.length.append(length)
        self.end.append(end)
        return len(self.length) - 1
