"""The contents of a chat request, hidden from the model's chat template.

vLLM applies the template, with its handling of tools, content parts and keyword arguments. Every
text of a user, a tool or a document is replaced by a placeholder: contents of messages, arguments
and results of tools, descriptions in their schemas. Templates do see the texts that they evaluate,
such as names and types, unless these could be read as markup, and roles, which were checked before
(:mod:`.guard`).
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from typing import Any

from ragcache_integrations.core.chat_template import Reasoning
from ragcache_integrations.core.placeholders import Placeholders
from ragcache_integrations.core.prompt import Part
from ragcache_integrations.core.text_encoder import TextEncoder

__all__ = ["CHAT_FIELDS", "NOT_RENDERED", "HiddenChat"]

CHAT_FIELDS = (
    *("messages", "tools", "tool_choice", "functions", "function_call", "documents"),
    *("chat_template_kwargs", "response_format"),
)
"""Fields of a chat request that a template may write into the prompt."""

NOT_RENDERED = ("echo", "truncate_prompt_tokens", "prompt_embeds", "return_prompt_text")
"""With one of these fields, vLLM renders a chat itself, even if the request has tokens."""

# The words of the protocol and of JSON Schema, which templates look for.
_WORDS = frozenset(
    {
        *("role", "content", "type", "text", "name", "id", "index", "function", "arguments"),
        *("tool_calls", "tool_call_id", "tools", "reasoning", "reasoning_content", "strict"),
        *("object", "string", "integer", "number", "boolean", "array", "null", "parameters"),
        *("properties", "required", "description", "enum", "items", "default", "title"),
        *("format", "additionalProperties", "anyOf", "oneOf", "allOf", "auto", "none"),
    }
)
_NAME = re.compile(r"[A-Za-z0-9_$.:-]{1,128}")
_CONTENTS = frozenset({"content", "text", "reasoning", "reasoning_content", "refusal", "thinking"})
_TEMPLATES = frozenset({"chat_template"})


class HiddenChat:
    """A chat request as the template may see it.

    Args:
        body: The request.
        contents: The contents of its messages; ``None`` for those that are lists or missing.
        encoder: Encoder that knows the model's markup.
        reasoning: Splits reasoning from answers as the template does.

    Attributes:
        placeholders: Put the contents back into the rendered text.
        body: The request with placeholders.
    """

    def __init__(
        self,
        body: dict[str, Any],
        contents: Sequence[Sequence[Part] | None],
        encoder: TextEncoder,
        reasoning: Reasoning,
    ) -> None:
        # Names that become markup if a template puts them into brackets, as think becomes <think>.
        self._cores = {re.sub(r"^[\W_]+|[\W_]+$", "", token) for token in encoder.markup}
        self._is_markup = encoder.holds_markup
        self._reasoning = reasoning
        self._known: dict[str, str] = {}
        fields = {name: body[name] for name in CHAT_FIELDS if name in body}
        self.placeholders = Placeholders(_texts(fields))
        hidden = {name: self._hide(value) for name, value in fields.items() if name != "messages"}
        messages = [
            self._message(message, content)
            for message, content in zip(body["messages"], contents, strict=True)
        ]
        self.body = {**body, **hidden, "messages": messages}

    def _message(self, message: dict[str, Any], content: Sequence[Part] | None) -> dict[str, Any]:
        hidden = {
            name: value if name == "role" and isinstance(value, str) else self._hide(value, name)
            for name, value in message.items()
            if name != "content" or content is None
        }
        if content is None:
            return hidden
        parts: Sequence[Part] = content
        if message.get("role") == "assistant" and not hidden.get("reasoning"):
            thoughts, parts = self._reasoning.split(content)
            if thoughts is not None and not message.get("reasoning_content"):
                hidden["reasoning"] = self.placeholders.hide(thoughts)
        return {**hidden, "content": self.placeholders.hide(parts)}

    def _hide(self, value: Any, name: str = "") -> Any:
        if isinstance(value, str):
            return self._text(value, name)
        if isinstance(value, list):
            return [self._hide(item, name) for item in value]
        if isinstance(value, dict):
            return {self._key(key): self._hide(item, key) for key, item in value.items()}
        return value

    def _text(self, text: str, name: str) -> str:
        if name in _TEMPLATES:  # the application's, which vLLM uses only if its settings allow it
            return text
        if name == "arguments":
            return self._arguments(text)
        if name not in _CONTENTS and self._is_name(text):
            return text
        if text not in self._known:
            self._known[text] = self.placeholders.hide([text])
        return self._known[text]

    def _key(self, key: str) -> str:
        return key if self._is_name(key) else self._text(key, "")

    def _arguments(self, text: str) -> str:
        """The arguments of a call, which vLLM parses."""
        try:
            return json.dumps(self._hide(json.loads(text)), ensure_ascii=False)
        except (ValueError, RecursionError):
            return self.placeholders.hide([text])  # vLLM refuses such arguments

    def _is_name(self, text: str) -> bool:
        """Whether a template may see a text: neither markup nor what becomes markup in brackets."""
        if text in _WORDS:
            return True
        if not _NAME.fullmatch(text) or self._is_markup(text):
            return False
        return text not in self._cores


def _texts(value: Any) -> Iterator[str]:
    """All texts in a part of a request."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, list):
        for item in value:
            yield from _texts(item)
    elif isinstance(value, dict):
        for key, item in value.items():
            yield key
            yield from _texts(item)
