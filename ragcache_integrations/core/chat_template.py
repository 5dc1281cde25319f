"""Renders conversations in the form that a model was trained on."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any

from ragcache_integrations.errors import ConfigurationError

from .placeholders import Placeholders
from .prompt import Message, Part, part_text
from .text_encoder import TemplateText

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

__all__ = ["ChatTemplate", "Reasoning"]

_THINK, _THOUGHT = "<think>", "</think>"
_LOOKS_FOR_THOUGHT = re.compile(r"""['"]</think>['"]\s*(not\s+)?in\b|split\(\s*['"]</think>['"]""")
_PROBES = "one", "two"


class Reasoning:
    """Splits ``<think>...</think>`` from the assistant's answers like a template.

    Some templates look for these tags in earlier answers, to leave the reasoning out. Because
    contents are hidden from templates, it is done here instead.

    Args:
        source: The text of the template.
    """

    def __init__(self, source: str) -> None:
        self._looks = _LOOKS_FOR_THOUGHT.search(source) is not None
        self._takes = re.search(r"\breasoning_content\b", source) is not None

    def split(self, content: Sequence[Part]) -> tuple[list[Part] | None, list[Part]]:
        """Split a message of the assistant into reasoning and answer, like the template.

        Returns:
            The reasoning, which is ``None`` if there is none or the template ignores it; and the
            answer.
        """
        parts = list(content)
        ends = [at for at, part in enumerate(parts) if isinstance(part, str) and _THOUGHT in part]
        if not self._looks or not ends:
            return None, parts
        first, last = ends[0], ends[-1]
        answer = [str(parts[last]).rpartition(_THOUGHT)[2], *parts[last + 1 :]]
        if not self._takes:
            return None, answer
        reasoning = [*parts[:first], str(parts[first]).partition(_THOUGHT)[0]]
        for at, part in reversed(list(enumerate(reasoning))):
            if isinstance(part, str) and _THINK in part:
                reasoning = [part.rpartition(_THINK)[2], *reasoning[at + 1 :]]
                break
        answer[0] = str(answer[0]).lstrip("\n")
        return _without_line_ends(reasoning), answer


def _without_line_ends(parts: list[Part]) -> list[Part]:
    if isinstance(parts[0], str):
        parts[0] = parts[0].lstrip("\n")
    if isinstance(parts[-1], str):
        parts[-1] = parts[-1].rstrip("\n")
    return parts


class ChatTemplate:
    """A tokenizer's chat template. Thread-safe.

    Args:
        tokenizer: A transformers tokenizer.
        source: The text of a template that replaces the tokenizer's; ``None`` for none.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerBase, source: str | None = None) -> None:
        self._tokenizer = tokenizer
        self._source = source

    def __bool__(self) -> bool:
        """Whether there is a template; otherwise roles are written as plain text."""
        return bool(self._source or self._tokenizer.chat_template)

    def apply(self, messages: Sequence[Message]) -> list[TemplateText | Part]:
        """Render a conversation, up to the beginning of the model's answer.

        Returns:
            The template's own text, with the contents of the messages in their places.

        Raises:
            ConfigurationError: The template refuses the messages, or changes their contents.
        """
        if not self:
            return list(_plain(messages))
        placeholders = Placeholders(_texts(messages))
        turns = [self._turn(message, placeholders) for message in messages]
        return placeholders.split(self._render(turns))

    def _turn(self, message: Message, placeholders: Placeholders) -> dict[str, Any]:
        if message.role != "assistant":
            return self._as_turn(message.role, placeholders.hide(message.parts))
        reasoning, answer = self._reasoning.split(message.parts)
        turn = self._as_turn(message.role, placeholders.hide(answer))
        if reasoning is not None:
            turn["reasoning_content"] = placeholders.hide(reasoning)
        return turn

    def _as_turn(self, role: str, content: str) -> dict[str, Any]:
        if self._takes_parts:
            return {"role": role, "content": [{"type": "text", "text": content}]}
        return {"role": role, "content": content}

    @cached_property
    def _reasoning(self) -> Reasoning:
        return Reasoning(self._tokenizer.get_chat_template(self._source))

    @cached_property
    def _takes_parts(self) -> bool:
        """Whether the template renders contents only if they are lists of parts."""
        return not self._shows(*_PROBES) and self._shows(
            *([{"type": "text", "text": probe}] for probe in _PROBES)
        )

    def _shows(self, *contents: Any) -> bool:
        """Whether the template's result depends on the content."""
        try:
            results = {self._render([{"role": "user", "content": item}]) for item in contents}
        except ConfigurationError:
            return False
        return len(results) > 1

    def _render(self, conversation: list[dict[str, Any]]) -> str:
        import jinja2  # noqa: PLC0415 - comes with the tokenizer

        try:
            return str(
                self._tokenizer.apply_chat_template(
                    conversation,
                    chat_template=self._source,
                    tokenize=False,
                    add_generation_prompt=True,
                )
            )
        except (jinja2.TemplateError, TypeError, ValueError, KeyError, AttributeError) as error:
            msg = f"the model's chat template refuses these messages: {error}"
            raise ConfigurationError(msg) from error


def _plain(messages: Sequence[Message]) -> Iterator[TemplateText | Part]:
    for message in messages:
        yield TemplateText(f"{message.role}: ")
        yield from message.parts
        yield TemplateText("\n")
    yield TemplateText("assistant: ")


def _texts(messages: Sequence[Message]) -> Iterator[str]:
    for message in messages:
        yield from map(part_text, message.parts)
