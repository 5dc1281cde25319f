"""The contents of a chat request, hidden from the model's chat template.

vLLM applies the template, with its handling of tools, content parts and keyword arguments. Every
text of a user, a tool or a document is replaced by a placeholder: contents of messages, arguments
and results of tools, descriptions in their schemas. Templates do see the texts that they evaluate,
such as names and types, unless these could be read as markup, and roles, which were checked before
(:mod:`.guard`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ragcache_integrations.core.prompt import (
    Part,
    Placeholders,
    Reasoning,
    TextEncoder,
    ValueHider,
    texts_in,
)

__all__ = ["CHAT_FIELDS", "NOT_RENDERED", "HiddenChat"]

CHAT_FIELDS = (
    *("messages", "tools", "tool_choice", "functions", "function_call", "documents"),
    *("chat_template_kwargs", "response_format"),
)
"""Fields of a chat request that a template may write into the prompt."""

NOT_RENDERED = ("echo", "truncate_prompt_tokens", "prompt_embeds", "return_prompt_text")
"""With one of these fields, vLLM renders a chat itself, even if the request has tokens."""


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
        self._reasoning = reasoning
        fields = {name: body[name] for name in CHAT_FIELDS if name in body}
        self.placeholders = Placeholders(texts_in(fields))
        self._hide = ValueHider(self.placeholders, encoder).hide
        hidden = {name: self._hide(value) for name, value in fields.items() if name != "messages"}
        own = body.get("chat_template_kwargs")
        if isinstance(own, dict) and "chat_template" in own:
            # The application's, which vLLM uses only if its settings allow that.
            hidden["chat_template_kwargs"]["chat_template"] = own["chat_template"]
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
