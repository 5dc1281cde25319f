"""Translates chats, and requests with documents, for vLLM's server.

A document is a content part of a request (see :mod:`..wire`). Contents and documents are hidden
while vLLM applies the model's chat template, and replace their placeholders afterwards: tokens and
spans are made here, never trusted, and only the template's own text is markup. A client with the
tokenizer may also send the tokens of a completion with the spans of its documents, which are
checked.

vLLM applies the template, with its handling of tools, content parts and keyword arguments. Every
text of a user, a tool or a document is replaced by a placeholder: contents of messages, arguments
and results of tools, descriptions in their schemas. Templates do see the texts that they evaluate,
such as names and types, unless these could be read as markup, and roles, which were checked before
(:mod:`.guard`).
"""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from ragcache_integrations.core.prompt import (
    SPAN_ARGS,
    ChangedContentError,
    Part,
    Placeholders,
    Prompt,
    PromptDocument,
    PromptRenderer,
    Reasoning,
    RenderedPrompt,
    TemplateText,
    TextEncoder,
    ValueHider,
    extra_args_from_spans,
    leading_special_tokens,
    part_text,
    spans_from_extra_args,
    texts_in,
)
from ragcache_integrations.engine.serving.wire import (
    DOCUMENT,
    TEXT,
    RequestRefusedError,
    tokenizer_mark,
)
from ragcache_integrations.errors import ConfigurationError

from .guard import MarkupGuard, is_guarded

__all__ = [
    "CHAT_FIELDS",
    "CHAT_PATH",
    "COMPLETION_PATH",
    "NOT_RENDERED",
    "DocumentReader",
    "HiddenChat",
    "Template",
    "check_fields",
    "check_spans",
    "has_grammar",
    "object_in",
    "with_strict_tools",
]


_FREE_FORMATS = ("text", "json_object")


def check_fields(body: dict[str, Any]) -> None:
    """Refuse fields on which vLLM would fail with an internal error.

    Raises:
        RequestRefusedError: ``structured_outputs`` is no object.
    """
    object_in(body, "structured_outputs")


def object_in(body: dict[str, Any], name: str) -> dict[str, Any]:
    """The object in a field; an empty one if there is none.

    Raises:
        RequestRefusedError: The field is no object.
    """
    value = body.get(name)
    if value is not None and not isinstance(value, dict):
        msg = f"{name} must be an object, got {type(value).__name__}"
        raise RequestRefusedError(400, msg)
    return value or {}


def has_grammar(body: dict[str, Any]) -> bool:
    """Whether a request has a grammar, a schema, tools or the like, which the engine compiles.

    The engine compiles it after accepting the request, and reports a failure as an internal error.
    """
    formatted = body.get("response_format")
    kind = formatted.get("type") if isinstance(formatted, dict) else None
    formed = kind is not None and kind not in _FREE_FORMATS
    return bool(body.get("structured_outputs")) or formed or bool(body.get("tools"))


def with_strict_tools(body: dict[str, Any]) -> dict[str, Any]:
    """A request whose forced tool calls follow the tools' schemas, as on the local engine.

    vLLM would leave the arguments of tools free that do not say ``strict``.
    """
    tools = body.get("tools")
    if body.get("tool_choice") in (None, "auto", "none") or not isinstance(tools, list):
        return body
    return {**body, "tools": [_strict(tool) for tool in tools]}


def _strict(tool: Any) -> Any:
    function = tool.get("function") if isinstance(tool, dict) else None
    if not isinstance(function, dict) or function.get("strict") is not None:
        return tool
    return {**tool, "function": {**function, "strict": True}}


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


CHAT_PATH, COMPLETION_PATH = "/v1/chat/completions", "/v1/completions"

MAX_DOCUMENTS = 4096
MAX_ID_CHARACTERS = 1024

TOKENS = "prompt_token_ids"

# With one of these fields, vLLM would compute another prompt than the one to which the spans
# belong.
_CUTTING = ("truncate_prompt_tokens", "prompt_embeds")
_CHAT_CUTTING = (*_CUTTING, "echo")

Template = Callable[[dict[str, Any]], Awaitable[str | None]]
"""Returns the text of a chat request as the model reads it; ``None`` if there is none."""


@dataclasses.dataclass(frozen=True, slots=True)
class _Chat:
    """A chat that was read.

    Attributes:
        body: The request with documents as text.
        contents: The contents of its messages; ``None`` for those that are lists or missing.
        documents: Its documents, in order.
        is_text: Whether it contains only text.
    """

    body: dict[str, Any]
    contents: list[Sequence[Part] | None]
    documents: list[PromptDocument]
    is_text: bool


class DocumentReader:
    """Turns chats, and requests with documents, into requests that vLLM understands.

    Args:
        tokenizer: The model's tokenizer.
        template: Applies the model's chat template.
        source: The model's chat template; empty if it is unknown.
        rendered: Whether a :class:`RenderedGuard` checks all that vLLM renders.
    """

    def __init__(
        self, tokenizer: Any, template: Template, source: str = "", *, rendered: bool = False
    ) -> None:
        self._renderer = PromptRenderer(tokenizer)
        self._encoder = self._renderer.encoder
        self._template = template
        self._reasoning = Reasoning(source)
        self._guard = MarkupGuard(self._encoder.holds_markup, self._encoder.markup)
        self._rendered = rendered
        # Tokens at the beginning of raw text, such as <s>; chat templates write them themselves.
        self._head = leading_special_tokens(tokenizer)

    @property
    def mark(self) -> str:
        """The mark by which clients see whether their tokenizer is the same."""
        return tokenizer_mark(self._renderer.tokenize)

    async def read(self, path: str, body: dict[str, Any]) -> tuple[dict[str, Any], int]:
        """Check and translate a request.

        Args:
            path: The request's path, without the server's root path.
            body: The request's JSON, which is not changed.

        Returns:
            The body for vLLM, which is the same object if nothing changed, and the number of
            documents with spans.

        Raises:
            RequestRefusedError: Documents or spans are malformed, or come with a field that
                excludes them; or a content or a role would be read as markup.
        """
        sent = check_spans(path, body)
        if path == CHAT_PATH:
            return await self._chat(_read_chat(body))
        prompt = body.get("prompt")
        if path == COMPLETION_PATH and isinstance(prompt, list) and _any_dict(prompt):
            return await self._completion(body, prompt)
        if is_guarded(path, body, rendered=self._rendered):
            await asyncio.to_thread(self._guard.check, body)
        else:
            self._guard.check_roles(body)
        return body, sent

    async def _chat(self, chat: _Chat) -> tuple[dict[str, Any], int]:
        body = chat.body
        self._guard.check_roles(body)
        if chat.documents:
            _check_number(chat.documents)
            _exclude(body, _CHAT_CUTTING)
            object_in(body, "vllm_xargs")
        pieces = await self._pieces(chat)
        if pieces is None:
            if is_guarded(CHAT_PATH, body, rendered=self._rendered):
                await asyncio.to_thread(self._guard.check, body)
            return body, 0
        rendered = await self._render(body, self._renderer.render_conversation, pieces)
        head = self._head if body.get("add_special_tokens") is True else []
        params = object_in(body, "kv_transfer_params")
        params = {**params, TOKENS: [*head, *rendered.token_ids]}
        return _with_spans({**body, "kv_transfer_params": params}, rendered, len(head))

    async def _pieces(self, chat: _Chat) -> list[TemplateText | Part] | None:
        """The template's text with its contents; ``None`` if only vLLM can render it."""
        if not chat.is_text or any(chat.body.get(name) for name in NOT_RENDERED):
            return None
        hidden = await asyncio.to_thread(
            HiddenChat, chat.body, chat.contents, self._encoder, self._reasoning
        )
        text = await self._template(hidden.body)
        if text is None:
            return None
        try:
            return hidden.placeholders.split(text)
        except ChangedContentError:
            return None

    async def _completion(
        self, body: dict[str, Any], prompt: list[Any]
    ) -> tuple[dict[str, Any], int]:
        parts = _parts(prompt, "prompt")
        documents = [part for part in parts if isinstance(part, PromptDocument)]
        _check_number(documents)
        _exclude(body, _CUTTING)
        rendered = await self._render(body, self._renderer.render, Prompt.raw(parts))
        cut = 0 if body.get("add_special_tokens", True) is True else len(self._head)
        return _with_spans({**body, "prompt": rendered.token_ids[cut:]}, rendered, -cut)

    async def _render(
        self, body: dict[str, Any], render: Callable[[Any, str], RenderedPrompt], content: Any
    ) -> RenderedPrompt:
        salt = body.get("cache_salt")
        tenant = salt if isinstance(salt, str) else ""
        try:
            return await asyncio.to_thread(render, content, tenant)
        except ConfigurationError as error:
            raise RequestRefusedError(400, str(error)) from error


def _with_spans(
    body: dict[str, Any], rendered: RenderedPrompt, moved: int
) -> tuple[dict[str, Any], int]:
    """A request with the spans of its documents, moved by some tokens, and their number."""
    spans = [(span.id, span.start + moved, span.end + moved) for span in rendered.documents]
    if spans:
        xargs = {**object_in(body, "vllm_xargs"), **extra_args_from_spans(spans)}
        body = {**body, "vllm_xargs": xargs}
    return body, len(spans)


def check_spans(path: str, body: dict[str, Any]) -> int:
    """Check the spans that a client has sent, and count them.

    Raises:
        RequestRefusedError: They are malformed, or come with a field that excludes them.
    """
    xargs = body.get("vllm_xargs")
    if not isinstance(xargs, dict) or not any(name in xargs for name in SPAN_ARGS):
        return 0
    names = ", ".join(SPAN_ARGS)
    prompt: Any = body.get("prompt")
    if path != COMPLETION_PATH or not _is_tokens(prompt):
        msg = (
            f"{names} in vllm_xargs go with the tokens of one prompt, sent to {COMPLETION_PATH}; "
            f'elsewhere send documents as parts {{"type": "{DOCUMENT}", "text": ...}}'
        )
        raise RequestRefusedError(400, msg)
    missing = [name for name in SPAN_ARGS if name not in xargs]
    if missing:
        msg = f"{names} in vllm_xargs belong together, {', '.join(missing)} is missing"
        raise RequestRefusedError(400, msg)
    _exclude(body, _CUTTING)
    try:
        spans = spans_from_extra_args(xargs, len(prompt))
    except ConfigurationError as error:
        raise RequestRefusedError(400, str(error)[:1000]) from error
    _check_number(spans)
    for name, _, _ in spans:
        _check_id(name, "vllm_xargs")
    return len(spans)


def _is_tokens(prompt: Any) -> bool:
    return isinstance(prompt, list) and all(type(token) is int for token in prompt)


def _read_chat(body: dict[str, Any]) -> _Chat:
    messages = body.get("messages")
    if not isinstance(messages, list) or not all(isinstance(item, dict) for item in messages):
        return _Chat(body, [], [], is_text=False)  # vLLM reports what is wrong
    contents: list[Sequence[Part] | None] = []
    documents: list[PromptDocument] = []
    plain = list(messages)
    for number, message in enumerate(messages):
        content = message.get("content")
        if isinstance(content, str):
            contents.append([content])
        elif _any_document(content):
            parts = _parts(content, f"messages[{number}].content")
            contents.append(parts)
            documents += [part for part in parts if isinstance(part, PromptDocument)]
            plain[number] = {**message, "content": _text(parts)}
        else:
            contents.append(None)
    is_text = all(
        known is not None or _is_text(message.get("content"))
        for known, message in zip(contents, messages, strict=True)
    )
    read = {**body, "messages": plain} if documents else body
    return _Chat(read, contents, documents, is_text)


def _is_text(content: Any) -> bool:
    """Whether a content that is no string is text, both for vLLM and for us."""
    return content is None or (
        isinstance(content, list)
        and all(
            isinstance(part, dict)
            and part.keys() == {"type", "text"}
            and part["type"] == TEXT
            and isinstance(part["text"], str)
            for part in content
        )
    )


def _any_document(content: Any) -> bool:
    return isinstance(content, list) and any(
        isinstance(part, dict) and part.get("type") == DOCUMENT for part in content
    )


def _any_dict(prompt: list[Any]) -> bool:
    return any(isinstance(part, dict) for part in prompt)


def _parts(content: list[Any], where: str) -> list[Part]:
    """Read the content parts of a message with a document, or of a prompt."""
    parts: list[Part] = []
    for number, part in enumerate(content):
        place = f"{where}[{number}]"
        kind = part.get("type") if isinstance(part, dict) else None
        if kind not in (DOCUMENT, TEXT):  # a tuple, because the value may not be hashable
            msg = (
                f'{place}: besides documents, only parts {{"type": "{TEXT}", "text": ...}} and '
                f'{{"type": "{DOCUMENT}", "text": ..., "id": ...}} are allowed'
            )
            raise RequestRefusedError(400, msg)
        allowed = ("type", "text", "id") if kind == DOCUMENT else ("type", "text")
        unknown = sorted(set(part) - set(allowed))
        text, name = part.get("text"), part.get("id")
        if unknown:
            msg = f"{place}: unknown field {unknown[0][:100]!r}: {kind} takes {', '.join(allowed)}"
            raise RequestRefusedError(400, msg)
        if not isinstance(text, str) or (kind == DOCUMENT and not text):
            msg = f"{place}: text must be a string{', and not empty' if kind == DOCUMENT else ''}"
            raise RequestRefusedError(400, msg)
        if kind == TEXT:
            parts.append(text)
            continue
        if name is not None:
            _check_id(name, place)
        parts.append(PromptDocument(text, name or ""))
    if not _text(parts):
        msg = f"{where} is empty"
        raise RequestRefusedError(400, msg)
    return parts


def _check_id(name: Any, place: str) -> None:
    if not isinstance(name, str) or not name or len(name) > MAX_ID_CHARACTERS:
        msg = (
            f"{place}: a document's id must be a string of 1 to {MAX_ID_CHARACTERS} characters; "
            "leave it out for a hash of the text"
        )
        raise RequestRefusedError(400, msg)


def _check_number(documents: Sequence[Any]) -> None:
    if len(documents) > MAX_DOCUMENTS:
        msg = f"a request may hold {MAX_DOCUMENTS} documents, got {len(documents)}"
        raise RequestRefusedError(400, msg)


def _exclude(body: dict[str, Any], names: Sequence[str]) -> None:
    name = next((name for name in names if body.get(name)), None)
    if name is not None:
        msg = f"{name} excludes documents: the prompt would differ from the one with their spans"
        raise RequestRefusedError(400, msg)


def _text(parts: Sequence[Part]) -> str:
    return "".join(map(part_text, parts))
