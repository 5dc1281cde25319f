"""Which white space of markup is text and which is layout.

Text is separated by *blocks*: all tags except ``<param>``, which is part of the text, like a word.

1. White space between two blocks, without other text, is layout.
2. White space after a tag up to the end of its line is layout, and so are empty lines after that.
3. Indentation that all further lines of a text share is layout; further indentation is text.
4. White space before a tag on a line of its own is layout. The line break before it is text, once.
5. In a prompt, and at both ends of a turn such as ``<user>``, white space at the edges is layout.

CDATA and character references such as ``&#10;`` are always text.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import takewhile

from .markup import Characters, Element

__all__ = ["text_and_blocks"]

_SPACE = " \t\n"  # \r can only come from a character reference, which is text
_HELD = "\0"  # replaces items that are not layout; markup cannot contain it

Item = Element | Characters


def text_and_blocks(
    children: Sequence[Item], *, prompt: bool = False, turn: bool = False
) -> list[Item]:
    """The children of an element without layout.

    Args:
        children: The children as they were read.
        prompt: Whether they are part of a prompt.
        turn: Whether they are the content of a turn.
    """
    runs: list[list[Item] | Element] = [[]]
    for child in children:
        if isinstance(child, Element) and child.tag != "param":
            runs += [child, []]
        else:
            last = runs[-1]
            assert isinstance(last, list)  # noqa: S101 - a block is followed by a run
            last.append(child)
    content: list[Item] = []
    for number, run in enumerate(runs):
        if isinstance(run, Element):
            content.append(run)
            continue
        items = _without_layout(run)
        if items and (prompt or (turn and number == 0)):
            items[0] = _strip(items[0], left=True)
        if items and (prompt or (turn and number == len(runs) - 1)):
            items[-1] = _strip(items[-1], left=False)
        content += (item for item in items if not isinstance(item, Characters) or item.text)
    return content


def _strip(item: Item, *, left: bool) -> Item:
    if not isinstance(item, Characters) or item.literal:
        return item
    return replace(item, text=item.text.lstrip(_SPACE) if left else item.text.rstrip(_SPACE))


def _without_layout(run: list[Item]) -> list[Item]:
    plain: list[Characters | None] = [None]  # before, between and after the items in held
    held: list[Item] = []
    for item in run:
        if isinstance(item, Characters) and not item.literal:
            plain[-1] = item
        else:
            held.append(item)
            plain.append(None)
    text = _HELD.join("" if item is None else item.text for item in plain)
    if not text.strip(_SPACE):
        return []
    items: list[Item] = []
    for number, piece in enumerate(_drop_indentation(text).split(_HELD)):
        characters = plain[number]
        if characters is not None and piece:
            items.append(replace(characters, text=piece))
        items += held[number : number + 1]
    return items


def _drop_indentation(text: str) -> str:
    """Drop the shared indentation (rule 3), and layout at the edges (rules 2 and 4)."""
    first, *lines = text.split("\n")
    filled = [line for line in lines if line.strip(_SPACE)]
    columns = zip(*(_indentation(line) for line in filled), strict=False)
    margin = sum(1 for _ in takewhile(lambda column: len(set(column)) == 1, columns))
    lines = [first, *(line[margin:] if line.strip(_SPACE) else "" for line in lines)]
    start, end = 0, len(lines)
    while start < end - 1 and not lines[start].strip(_SPACE):
        start += 1
    while end > 1 and not lines[end - 1]:
        end -= 1
    closing = "\n" if end < len(lines) else ""
    return "\n".join(lines[start:end]) + closing


def _indentation(line: str) -> str:
    return line[: len(line) - len(line.lstrip(_SPACE))]
