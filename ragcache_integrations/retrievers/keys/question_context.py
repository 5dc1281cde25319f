"""Questions of a conversation, which mean little without the turns before them.

"And in 2024?" is asked in many conversations, and means something else in each. With its turns it
is one text: what is embedded, what the guard reads, and what an entry of a cache is found by.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Iterable, Mapping
from functools import partial
from typing import Any

from ragcache_integrations.core.texts import content_id
from ragcache_integrations.errors import ConfigurationError

from .text_identity import normalize_text

__all__ = ["FollowUpWarning", "context_text", "in_context", "turns_form"]

logger = logging.getLogger(__name__)

_FOLLOW_UP = re.compile(
    r"\W*(?:(?P<opening>and|but|or|what about|how about|what else|who else|tell me more)\b"
    r"|(?P<whole>why|why not|how so|how come|which one|since when|when|where|who|how many|how much)"
    r"\W*$)",
    re.IGNORECASE,
)


def in_context(question: str, turns: object) -> str:
    """Return a question together with the turns before it, as one text.

    The question comes first: an embedding model that stops reading in the middle has read it.

    Args:
        question: The question.
        turns: See :func:`context_text`.

    Raises:
        ConfigurationError: As for :func:`context_text`.
    """
    context = context_text(turns)
    return f"{question}\n{context}" if context else question


def context_text(turns: object) -> str:
    """Return the turns before a question as one text; an empty one where there are none.

    Args:
        turns: A text; or texts and messages, the oldest first, of LangChain or LlamaIndex, as a
            dict with ``content``, or as a pair of a role and a text. What is no text within a
            message, such as an image, is the same only as itself.

    Raises:
        ConfigurationError: They are something else.
    """
    if turns is None or isinstance(turns, str):
        return turns or ""
    return "\n".join(map(_turn_text, _each(turns)))


def _each(turns: object) -> Iterable[Any]:
    if not isinstance(turns, Iterable) or isinstance(turns, bytes | Mapping):
        raise _refused(turns)
    return turns


def turns_form(turns: object) -> tuple[tuple[str, ...], str]:
    """Return what the text of turns does not show: who says what, and which tools are called.

    :func:`context_text` is the same where one turn quotes the answer to it as where there are two.

    Args:
        turns: As for :func:`context_text`.

    Returns:
        The role of each turn, and a hash that only the same turns have, but for differences of
        case and white space. Neither has anything where they are a text.

    Raises:
        ConfigurationError: As for :func:`context_text`.
    """
    if turns is None or isinstance(turns, str):
        return (), ""
    every = [(*_speaker(turn), normalize_text(_turn_text(turn))) for turn in _each(turns)]
    return tuple(role for role, *_ in every), content_id(repr(every)) if every else ""


def _speaker(turn: Any) -> tuple[str, str, str]:
    """Return the role of a turn, the name of who has it, and the calls of tools in it."""
    if isinstance(turn, str):
        return "", "", ""
    if isinstance(turn, tuple):
        return str(turn[0]), "", ""
    read = turn.get if isinstance(turn, Mapping) else partial(_attribute, turn)
    role = read("role") or read("type") or ""
    # Identifiers of calls are others each time.
    calls = [
        (call.get("name"), call.get("args"), call.get("function"))
        for call in read("tool_calls") or ()
        if isinstance(call, Mapping)
    ]
    return str(getattr(role, "value", role)), str(read("name") or ""), repr(calls) if calls else ""


def _attribute(turn: object, name: str) -> Any:
    return getattr(turn, name, None)


def _turn_text(turn: Any) -> str:
    if isinstance(turn, str):
        return turn
    match turn:
        case (str(), str(text)):
            return text
        case {"content": content}:
            pass
        case _:
            content = getattr(turn, "blocks", None) or getattr(turn, "content", None)
    if isinstance(content, str):
        return content
    if isinstance(content, list):
        return "\n".join(map(_part_text, content))
    raise _refused(turn)


def _part_text(part: Any) -> str:
    text = part.get("text") if isinstance(part, Mapping) else getattr(part, "text", part)
    return text if isinstance(text, str) else content_id(repr(part))


def _refused(value: object) -> ConfigurationError:
    msg = f"context must be a text, or a list of texts and messages, got {value!r:.100}"
    return ConfigurationError(msg)


class FollowUpWarning:
    """Warns, once, of a question that is asked without the turns that it needs."""

    def __init__(self) -> None:
        self._given = False

    def hear(self, question: str) -> None:
        """Look at a question that came without turns."""
        # What comes with its turns has several lines.
        follow_up = None if self._given or "\n" in question else _FOLLOW_UP.match(question)
        if follow_up is None:
            return
        self._given = True
        words = follow_up["opening"] or follow_up["whole"]
        logger.warning(
            'A question that begins with "%s" came without the turns before it, so it is compared '
            "with those of other conversations as it is. Pass the turns (context=, context_key=; "
            "in LlamaIndex question_in_context()), or condense the question first",
            words.lower(),
        )
