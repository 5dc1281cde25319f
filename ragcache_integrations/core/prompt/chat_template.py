"""Renders conversations in the form that a model was trained on."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any

from ragcache_integrations.errors import ConfigurationError

from .placeholders import Placeholders, ValueHider, texts_in
from .prompt import Message, Part, part_text
from .text_encoder import TemplateText, TextEncoder
from .tools import Tool, ToolCall

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

__all__ = ["NO_TOOLS", "ChatTemplate", "Reasoning"]

_THINK, _THOUGHT = "<think>", "</think>"
_LOOKS_FOR_THOUGHT = re.compile(r"""['"]</think>['"]\s*(not\s+)?in\b|split\(\s*['"]</think>['"]""")
_PROBES = "one", "two"
_PROBE_TOOL = Tool("defined_tool")
_PROBE_CALL = ToolCall("probe1234", "called_tool", "{}")

NO_TOOLS = (
    "the model's chat template writes no tools, so the model is not made to call any: take a model "
    "that is, or a chat_template that writes tools and their calls"
)
"""The message of errors about tools for a model that has not learnt to call any."""


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
        encoder: Encoder of the same tokenizer.
        source: The text of a template that replaces the tokenizer's; ``None`` for none.
    """

    def __init__(
        self,
        tokenizer: PreTrainedTokenizerBase,
        encoder: TextEncoder,
        source: str | None = None,
    ) -> None:
        self._tokenizer = tokenizer
        self._encoder = encoder
        self._source = source

    def __bool__(self) -> bool:
        """Whether there is a template; otherwise roles are written as plain text."""
        return bool(self._source or self._tokenizer.chat_template)

    @cached_property
    def text(self) -> str:
        """The text of the template; empty if there is none."""
        return str(self._tokenizer.get_chat_template(self._source)) if self else ""

    @cached_property
    def tool_text(self) -> str:
        """The text of the template for prompts with tools; some models have a separate one."""
        if not self:
            return ""
        tools = [_PROBE_TOOL.definition()]
        return str(self._tokenizer.get_chat_template(self._source, tools=tools))

    @cached_property
    def writes_tools(self) -> bool:
        """Whether the template writes definitions and calls of tools into the prompt."""
        if not self:
            return False
        known = _PROBE_CALL
        conversation: list[dict[str, Any]] = [
            {"role": "user", "content": _PROBES[0]},
            {"role": "assistant", "content": "", "tool_calls": [_call(known.id, known.name, {})]},
            {"role": "tool", "content": _PROBES[1], "tool_call_id": known.id},
        ]
        try:
            written = self._render(conversation, [_PROBE_TOOL.definition()])
        except ConfigurationError:
            return False
        return _PROBE_TOOL.name in written and known.name in written

    def apply(
        self, messages: Sequence[Message], tools: Sequence[Tool] = ()
    ) -> list[TemplateText | Part]:
        """Render a conversation, up to the beginning of the model's answer.

        Args:
            messages: The conversation.
            tools: The tools that the model may call.

        Returns:
            The template's own text, with the contents of the messages in their places.

        Raises:
            ConfigurationError: The template refuses the messages, changes their contents, or writes
                no tools although there are some.
        """
        if (tools or any(message.tool_calls for message in messages)) and not self.writes_tools:
            raise ConfigurationError(NO_TOOLS)
        if not self:
            return list(_plain(messages))
        definitions = [tool.definition() for tool in tools]
        placeholders = Placeholders(_texts(messages, definitions))
        hider = ValueHider(placeholders, self._encoder)
        turns = [self._turn(message, placeholders, hider) for message in messages]
        return placeholders.split(self._render(turns, hider.hide(definitions)))

    def _turn(
        self, message: Message, placeholders: Placeholders, hider: ValueHider
    ) -> dict[str, Any]:
        if message.role != "assistant":
            turn = self._as_turn(message.role, placeholders.hide(message.parts))
            if message.tool_call_id:
                turn["tool_call_id"] = hider.hide(message.tool_call_id)
            return turn
        reasoning, answer = self._reasoning.split(message.parts)
        turn = self._as_turn(message.role, placeholders.hide(answer))
        if reasoning is not None:
            turn["reasoning_content"] = placeholders.hide(reasoning)
        if message.tool_calls:
            turn["tool_calls"] = [
                _call(hider.hide(call.id), hider.hide(call.name), hider.arguments(call.arguments))
                for call in message.tool_calls
            ]
        return turn

    def _as_turn(self, role: str, content: str) -> dict[str, Any]:
        if self._takes_parts:
            return {"role": role, "content": [{"type": "text", "text": content}]}
        return {"role": role, "content": content}

    @cached_property
    def _reasoning(self) -> Reasoning:
        return Reasoning(self.text)

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

    def _render(
        self, conversation: list[dict[str, Any]], tools: Sequence[dict[str, Any]] = ()
    ) -> str:
        import jinja2  # noqa: PLC0415 - comes with the tokenizer

        try:
            return str(
                self._tokenizer.apply_chat_template(
                    conversation,
                    tools=list(tools) or None,
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


def _call(id_: str, name: str, arguments: Any) -> dict[str, Any]:
    """A call as templates read it."""
    function = {"name": name, "arguments": arguments}
    return {"id": id_, "type": "function", "function": function}


def _texts(messages: Sequence[Message], definitions: list[dict[str, Any]]) -> Iterator[str]:
    yield from texts_in(definitions)
    for message in messages:
        yield from map(part_text, message.parts)
        yield message.tool_call_id
        for call in message.tool_calls:
            yield from (call.id, call.name, call.arguments)
