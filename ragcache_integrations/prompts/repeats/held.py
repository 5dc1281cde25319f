"""What messages hold of their documents while a conversation keeps them.

A message whose documents are partly referred to must be whole again when what it refers to is cut
from the history. So it holds all of its parts, under a name in its ``additional_kwargs``, in a form
that JSON can hold. What cannot be read counts as missing: then the message stays as it is. So does
what a message holds whose text was changed since, such as redacted: nothing brings it back.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from typing import Any

from ragcache_integrations.core.prompt import Part, PromptDocument, part_text

__all__ = ["HELD", "IN_FULL", "dump_parts", "held_parts", "is_in_full", "whole_text"]

HELD = "ragcache_parts"
IN_FULL = "in_full"


def dump_parts(parts: Sequence[Part], shown: Sequence[Part]) -> dict[str, Any]:
    """Parts in a form that JSON can hold.

    Args:
        parts: All parts of a message.
        shown: Those that its text is made of: the same, or some with references.
    """
    dumped = [
        {"text": part} if isinstance(part, str) else {"text": part.text, "id": part.id}
        for part in parts
    ]
    return {"parts": dumped, "shown": _digest("".join(map(part_text, shown)))}


def held_parts(extras: Mapping[str, Any], shown: str) -> tuple[Part, ...] | None:
    """The parts that a message holds; ``None`` if it holds none that can be read.

    Args:
        extras: The message's ``additional_kwargs``.
        shown: The message's text. Its parts are those of this text only.
    """
    held = extras.get(HELD)
    if not isinstance(held, Mapping) or held.get("shown") != _digest(shown):
        return None
    dumped = held.get("parts")
    if not isinstance(dumped, list) or not dumped:
        return None
    parts: list[Part] = []
    for item in dumped:
        text = item.get("text") if isinstance(item, Mapping) else None
        if not isinstance(text, str) or not text:
            return None
        name = item.get("id")
        parts.append(PromptDocument(text, name) if isinstance(name, str) else text)
    return tuple(parts)


def whole_text(extras: Mapping[str, Any], shown: str) -> str | None:
    """The whole text of a message that holds its parts; ``None`` for other messages."""
    parts = held_parts(extras, shown)
    return None if parts is None else "".join(map(part_text, parts))


def is_in_full(extras: Mapping[str, Any]) -> bool:
    """Whether a message asks to stay as it is."""
    return bool(extras.get(IN_FULL))


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()
