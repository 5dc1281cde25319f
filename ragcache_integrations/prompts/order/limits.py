"""Limits how far an order may be from that of relevance."""

from __future__ import annotations

from collections.abc import Sequence

__all__ = ["may_follow", "within_limit"]


def may_follow(placed: Sequence[int], candidate: int, limit: int) -> bool:
    """Whether a document may come next, so that all documents can stay within the limit.

    Documents are numbered by relevance, from 0. If the first remaining document is within the limit
    at the next place, the others are, too, in order of relevance: each document is pushed back once
    by every less relevant one before it, and the first one has the most of those before it.

    Args:
        placed: The documents before, within the limit.
        candidate: The next document; none of those placed.
        limit: The largest distance between a document's place and its number.
    """
    place = len(placed)
    if candidate - place > limit:
        return False
    first_left = 0
    while first_left == candidate or first_left in placed:
        first_left += 1
    return place + 1 - first_left <= limit


def within_limit(
    best: Sequence[int], limit: int | None, placed: Sequence[int] = ()
) -> tuple[int, ...]:
    """The order closest to the best one in which no document is too far from its place.

    At each place comes the first remaining document that may come there. The most relevant one
    always may.

    Args:
        best: The documents that are not placed yet, by number, in the best order.
        limit: As for :func:`may_follow`; ``None`` for no limit.
        placed: The documents before them, within the limit.

    Returns:
        All documents, beginning with those placed.
    """
    if limit is None:
        return (*placed, *best)
    order, left = list(placed), list(best)
    while left:
        chosen = next(number for number in left if may_follow(order, number, limit))
        left.remove(chosen)
        order.append(chosen)
    return tuple(order)
