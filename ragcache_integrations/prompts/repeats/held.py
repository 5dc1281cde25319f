"""What messages hold of their documents while a conversation keeps them.

A message whose documents are partly referred to must be whole again when what it refers to is cut
from the history. So it holds all of its parts, under a name in its ``additional_kwargs``, in a form
that JSON can hold. What cannot be read counts as missing: then the message stays as it is.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ragcache_integrations.core.prompt import Part, PromptDocument

__all__ = ["HELD", "IN_FULL", "dump_parts", "held_parts", "held_text", "is_in_full"]

HELD = "ragcache_parts"
IN_FULL = "in_full"


def dump_parts(parts: Sequence[Part]) -> list[dict[str, str]]:
    """Parts in a form that JSON can hold."""
    return [
        {"text": part} if isinstance(part, str) else {"text": part.text, "id": part.id}
        for part in parts
    ]


def held_parts(extras: Mapping[str, Any]) -> tuple[Part, ...] | None:
    """The parts that a message holds; ``None`` if it holds none that can be read.

    Args:
        extras: The message's ``additional_kwargs``.
    """
    held = extras.get(HELD)
    if not isinstance(held, list) or not held:
        return None
    parts: list[Part] = []
    for item in held:
        text = item.get("text") if isinstance(item, Mapping) else None
        if not isinstance(text, str) or not text:
            return None
        name = item.get("id")
        parts.append(PromptDocument(text, name) if isinstance(name, str) else text)
    return tuple(parts)


def held_text(extras: Mapping[str, Any]) -> str | None:
    """The whole text of a message that holds its parts; ``None`` for other messages."""
    parts = held_parts(extras)
    if parts is None:
        return None
    return "".join(part if isinstance(part, str) else part.text for part in parts)


def is_in_full(extras: Mapping[str, Any]) -> bool:
    """Whether a message asks to stay as it is."""
    return bool(extras.get(IN_FULL))
