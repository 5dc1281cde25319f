"""Says what a misspelled name may have meant, at a bounded price and in few words.

Names come from files and requests, in any number and of any length. The comparison of two names
takes up to the cube of their length, so long names are not compared, and of many names only those
that share the most characters with the misspelled one.
"""

from __future__ import annotations

from collections.abc import Iterable
from difflib import SequenceMatcher, get_close_matches
from heapq import nlargest

__all__ = ["LONGEST_NAME", "closest_names", "shortened"]

LONGEST_NAME = 64
"""Characters; a longer name is not compared, and is cut where a message quotes it."""
MOST_NAMES = 10_000
MOST_COMPARED = 32
CUT = " ... "


def closest_names(
    name: str, known: Iterable[str], count: int = 1, cutoff: float = 0.6
) -> list[str]:
    """The known names that are most similar to a misspelled one, the most similar first.

    Args:
        name: What was given.
        known: What is allowed. Beyond the first 10,000 in alphabetical order, names are ignored.
        count: How many are returned at most.
        cutoff: How similar they must be, from 0 to 1.
    """
    if len(name) > LONGEST_NAME:
        return []
    matcher = SequenceMatcher()
    matcher.set_seq2(name)
    similar = []
    for candidate in sorted(known)[:MOST_NAMES]:
        if len(candidate) > LONGEST_NAME:
            continue
        matcher.set_seq1(candidate)
        # Both bound the similarity from above in linear time.
        if matcher.real_quick_ratio() >= cutoff and (share := matcher.quick_ratio()) >= cutoff:
            similar.append((share, candidate))
    compared = [candidate for _, candidate in nlargest(MOST_COMPARED, similar)]
    return get_close_matches(name, compared, count, cutoff)


def shortened(text: str, most: int = LONGEST_NAME) -> str:
    """Leave out the middle of a text that is too long for a message.

    Args:
        text: Any text.
        most: Characters that stay; at least 10.
    """
    if len(text) <= most:
        return text
    kept = most - len(CUT)
    end = kept // 3
    return f"{text[: kept - end]}{CUT}{text[len(text) - end :]}"
