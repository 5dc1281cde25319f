"""How far an order may be from that of relevance."""

from __future__ import annotations

from collections.abc import Sequence

__all__ = ["may_follow", "within_limit"]


def may_follow(placed: Sequence[int], candidate: int, limit: int) -> bool:
    """Whether a document may come next, so that all of them can end within the limit.

    Documents are numbered by relevance, from 0. Those left in order of relevance always fit if the
    first of them does: each is pushed back once for every less relevant one before it, and the
    first has the most of those before it.

    Args:
        placed: What stands before, itself within the limit.
        candidate: The next document; none of those placed.
        limit: The largest allowed distance between a document's place and its number.
    """
    place = len(placed)
    if candidate - place > limit:
        return False
    first_left = 0
    while first_left == candidate or first_left in placed:
        first_left += 1
    return place + 1 - first_left <= limit


def within_limit(
    wanted: Sequence[int], limit: int | None, placed: Sequence[int] = ()
) -> tuple[int, ...]:
    """The order closest to the wanted one in which no document is too far from its place.

    Place by place, the first of the wanted documents that may come there. The most relevant one
    left always may.

    Args:
        wanted: The documents not placed yet, by number, in the order that would be best.
        limit: As for :func:`may_follow`; ``None`` for no limit.
        placed: What stands before them, within the limit.

    Returns:
        All documents, what was placed before them first.
    """
    if limit is None:
        return (*placed, *wanted)
    order, left = list(placed), list(wanted)
    while left:
        chosen = next(one for one in left if may_follow(order, one, limit))
        left.remove(chosen)
        order.append(chosen)
    return tuple(order)
