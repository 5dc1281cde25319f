"""Which blocks of a document are kept, where some layers see only a part of the prompt.

Layers that do have blocks of their own, in groups. A prompt that continues after a document needs
of such a group the last blocks before the document's end, and no others. The tail that a document's
followers need of it is never longer than its own: it is enough to look at each document's end.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence

from .node import Key, in_group

__all__ = ["Windows"]


class Windows:
    """The windows of all groups, and where blocks are in their documents.

    Args:
        windows: For each group, how many blocks before a place a prompt needs to continue there;
            ``None`` for all.
    """

    def __init__(self, windows: Sequence[int | None]) -> None:
        self._windows = tuple(windows)
        self._longest = max((blocks for blocks in windows if blocks is not None), default=0)
        self._behind: dict[Key, int] = {}  # in its document, of those in the longest window

    def __len__(self) -> int:
        """Number of groups."""
        return len(self._windows)

    @property
    def whole(self) -> bool:
        """Whether there is one group, and it needs everything."""
        return self._windows == (None,)

    def enter(self, keys: Sequence[Key]) -> None:
        """Take in a document's blocks."""
        if self._longest:
            self._behind.update(zip(reversed(keys[-self._longest :]), itertools.count()))

    def leave(self, keys: Sequence[Key]) -> None:
        """Forget a document's blocks."""
        if self._longest:
            for key in keys[-self._longest :]:
                del self._behind[key]

    def clear(self) -> None:
        """Forget all documents."""
        self._behind.clear()

    def keep(self, key: Key, group: int) -> bool:
        """Whether anything after its document needs a block of a group."""
        window = self._windows[group]
        return window is None or self._behind.get(key, window) < window

    def size(self, blocks: int) -> int:
        """Blocks of all groups that are kept of a document with a number of keys."""
        return sum(blocks if window is None else min(blocks, window) for window in self._windows)

    def first(self, group: int, start: int, end: int) -> int:
        """The first block from ``start`` on that a group needs to continue at ``end``."""
        window = self._windows[group]
        return start if window is None else max(start, end - window)

    def furthest(self, keys: Sequence[Key], start: int, there: Callable[[Key], bool]) -> int:
        """The last place at which a prompt can continue with blocks of some tier.

        Args:
            keys: The prompt's blocks.
            start: Up to where every group has what it needs without the tier.
            there: Whether the tier has a block, by its name in the tier.

        Returns:
            A number of blocks, ``start`` where the tier is of no use.
        """
        furthest = start
        gaps = [start] * len(self)  # where each group's latest run of blocks begins
        for at in range(start, len(keys)):
            for group, window in enumerate(self._windows):
                if not there(in_group(keys[at], group)):
                    if window is None:
                        return furthest
                    gaps[group] = at + 1
            if all(gap <= self.first(group, start, at + 1) for group, gap in enumerate(gaps)):
                furthest = at + 1
        return furthest
