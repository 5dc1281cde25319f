"""Hides the texts within JSON values from a chat template.

Templates evaluate names and types in definitions and calls of tools, so they see those, unless they
could be read as markup. Every other text becomes a placeholder.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

from .placeholders import Placeholders
from .text_encoder import TextEncoder

__all__ = ["TEMPLATE_WORDS", "ValueHider", "texts_in"]

TEMPLATE_WORDS = frozenset(
    {
        *("role", "content", "type", "text", "name", "id", "index", "function", "arguments"),
        *("tool_calls", "tool_call_id", "tools", "reasoning", "reasoning_content", "strict"),
        *("object", "string", "integer", "number", "boolean", "array", "null", "parameters"),
        *("properties", "required", "description", "enum", "items", "default", "title"),
        *("format", "additionalProperties", "anyOf", "oneOf", "allOf", "auto", "none"),
    }
)
"""The words of the protocol and of JSON Schema, which templates look for."""

_NAME = re.compile(r"[A-Za-z0-9_$.:-]{1,128}")
_CONTENTS = frozenset({"content", "text", "reasoning", "reasoning_content", "refusal", "thinking"})


class ValueHider:
    """Replaces texts by placeholders.

    Args:
        placeholders: Those of the conversation.
        encoder: Encoder that knows the model's markup.
    """

    def __init__(self, placeholders: Placeholders, encoder: TextEncoder) -> None:
        # Names that become markup if a template puts them into brackets, as think becomes <think>.
        # Templates may change the case, too.
        self._cores = {re.sub(r"^[\W_]+|[\W_]+$", "", token).casefold() for token in encoder.markup}
        self._is_markup = encoder.holds_markup
        self._placeholders = placeholders
        self._known: dict[str, str] = {}

    def hide(self, value: Any, name: str = "") -> Any:
        """A copy of a JSON value with placeholders.

        Args:
            value: The value.
            name: The field that holds it; empty for none.
        """
        if isinstance(value, str):
            return self._text(value, name)
        if isinstance(value, list):
            return [self.hide(item, name) for item in value]
        if isinstance(value, dict):
            return {self._key(key): self.hide(item, key) for key, item in value.items()}
        return value

    def arguments(self, text: str) -> Any:
        """The arguments of a call, parsed as templates expect them.

        Returns:
            A JSON value; a placeholder for arguments that are no JSON.
        """
        try:
            return self.hide(json.loads(text))
        except (ValueError, RecursionError):
            return self._placeholders.hide([text])

    def _text(self, text: str, name: str) -> str:
        if name == "arguments":
            return self._arguments(text)
        if name not in _CONTENTS and self._is_name(text):
            return text
        if text not in self._known:
            self._known[text] = self._placeholders.hide([text])
        return self._known[text]

    def _arguments(self, text: str) -> str:
        """The arguments of a call, which vLLM parses."""
        try:
            return json.dumps(self.hide(json.loads(text)), ensure_ascii=False)
        except (ValueError, RecursionError):
            return self._placeholders.hide([text])  # vLLM refuses such arguments

    def _key(self, key: str) -> str:
        return key if self._is_name(key) else self._text(key, "")

    def _is_name(self, text: str) -> bool:
        """Whether a template may see a text: neither markup nor what becomes markup in brackets."""
        if text in TEMPLATE_WORDS:
            return True
        if not _NAME.fullmatch(text) or self._is_markup(text):
            return False
        return text.casefold() not in self._cores


def texts_in(value: Any) -> Iterator[str]:
    """All texts in a JSON value."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, list):
        for item in value:
            yield from texts_in(item)
    elif isinstance(value, dict):
        for key, item in value.items():
            yield key
            yield from texts_in(item)
