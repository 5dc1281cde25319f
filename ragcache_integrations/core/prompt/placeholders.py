"""Hides the contents of a chat from its template.

A chat template is a program that writes markup and contents into one text. To distinguish the two
afterwards, the template gets placeholders instead of the contents. Placeholders are random, so that
no content can contain one. They contain a quotation mark, which shows whether the template wrote
them as JSON. The white space at a content's edges, which many templates trim, stays outside.

Definitions and calls of tools are JSON values. Templates evaluate the names and types in them, so
they see those, unless they could be read as markup. Every other text becomes a placeholder.
"""

from __future__ import annotations

import json
import re
import secrets
import string
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from ragcache_integrations.core.texts import join_neighbours
from ragcache_integrations.errors import ConfigurationError

from .prompt import Part, PromptDocument, part_text
from .text_encoder import TemplateText, TextEncoder

__all__ = ["TEMPLATE_WORDS", "ChangedContentError", "Placeholders", "ValueHider", "texts_in"]

NONCE_CHARACTERS = 24
FRAGMENT_CHARACTERS = 8
"""Length of a piece that identifies a placeholder which a template has changed."""

# The edges of a placeholder: Deseret letters, which have upper and lower case, and which templates
# don't use.
_OPEN, _CLOSE = "\U00010428", "\U00010429"
_EDGES = re.compile("[\U00010400-\U0001044f]")
_NOTHING = TemplateText("")
_ALPHABET = string.ascii_lowercase + string.digits

Content = Sequence[Part]


class ChangedContentError(ConfigurationError):
    """The chat template changed a content in a way that cannot be reversed."""


class Placeholders:
    """Placeholders for the contents of one conversation.

    Args:
        texts: All contents of the conversation; none of them will contain the random part.
    """

    def __init__(self, texts: Iterable[str]) -> None:
        known = list(texts)
        self._nonce = _nonce()
        while any(self._nonce in text for text in known):
            self._nonce = _nonce()
        self._contents: list[Content] = []
        self._pattern = re.compile(rf'{_OPEN}{self._nonce}X([0-9]+)(\\*)"{_CLOSE}')

    def hide(self, content: Content) -> str:
        """A placeholder for a content, with the white space at its edges.

        Returns:
            The text for the template. A content of white space needs no placeholder.
        """
        shown = (part for part in content if part)
        parts: list[Part] = join_neighbours(shown, lambda part: isinstance(part, str), _joined)
        before, after = "", ""
        if parts and isinstance(parts[0], str):
            inner = parts[0].lstrip()
            before, parts[0] = parts[0][: len(parts[0]) - len(inner)], inner
        if parts and isinstance(parts[-1], str):
            inner = parts[-1].rstrip()
            after, parts[-1] = parts[-1][len(inner) :], inner
        parts = [part for part in parts if part]
        if not parts:
            return before + after
        self._contents.append(parts)
        return f'{before}{_OPEN}{self._nonce}X{len(self._contents) - 1}"{_CLOSE}{after}'

    def split(self, rendered: str) -> list[TemplateText | Part]:
        """Replace the placeholders in the template's result by the contents.

        A content is left out, repeated or moved if the template did so with its placeholder.

        Raises:
            ChangedContentError: The template changed a placeholder, so that it would change
                contents.
        """
        self._check(self._pattern.sub(" ", rendered))
        pieces: list[TemplateText | Part] = []
        at = 0
        for match in self._pattern.finditer(rendered):
            pieces.append(TemplateText(rendered[at : match.start()]))
            pieces += self._content(int(match[1]), len(match[2]))
            at = match.end()
        pieces.append(TemplateText(rendered[at:]))
        return [piece for piece in pieces if piece != _NOTHING]

    def _check(self, written: str) -> None:
        folded = written.casefold()
        fragments = (
            self._nonce[at : at + FRAGMENT_CHARACTERS]
            for at in range(NONCE_CHARACTERS - FRAGMENT_CHARACTERS + 1)
        )
        if _EDGES.search(written) or any(fragment in folded for fragment in fragments):
            raise _change_error()

    def _content(self, number: int, backslashes: int) -> Content:
        if number >= len(self._contents) or (backslashes + 1) & backslashes:
            raise _change_error()
        content = self._contents[number]
        # JSON within JSON has 1, 3, 7, ... backslashes before a quotation mark.
        for _ in range((backslashes + 1).bit_length() - 1):
            content = [_as_json(part) for part in content]
        return content


def _nonce() -> str:
    return "".join(secrets.choice(_ALPHABET) for _ in range(NONCE_CHARACTERS))


def _joined(texts: list[Part]) -> Part:
    return "".join(map(part_text, texts))


def _as_json(part: Part) -> Part:
    # A document always has the tokens that it has alone, so it is not escaped.
    if isinstance(part, PromptDocument):
        return part
    return json.dumps(part, ensure_ascii=False)[1:-1]


def _change_error() -> ChangedContentError:
    return ChangedContentError(
        "the chat template changes the text of messages (upper case, cut, escaped or the like), so "
        "its own text cannot be distinguished from theirs: use a chat_template that leaves "
        "contents as they are"
    )


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
