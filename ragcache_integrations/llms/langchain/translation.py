"""LangChain's messages, documents and metadata in this package's terms and back."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from langchain_core.documents import Document
from langchain_core.messages import (
    AIMessage,
    BaseMessage,
    ChatMessage,
    HumanMessage,
    SystemMessage,
    ToolMessage,
)
from langchain_core.messages.ai import InputTokenDetails, UsageMetadata

from ragcache_integrations.core.generation import Generation, GenerationChunk, TokenLogprob, Usage
from ragcache_integrations.core.prompt import Message, Prompt, PromptDocument
from ragcache_integrations.errors import ConfigurationError
from ragcache_integrations.llms.openai import usage_fields
from ragcache_integrations.prompts.completion.langchain import block_document

__all__ = [
    "chat_prompt",
    "generation_info",
    "logprobs_metadata",
    "own_call",
    "usage_metadata",
]

_ROLES: tuple[tuple[type[BaseMessage], str], ...] = (
    (SystemMessage, "system"),
    (HumanMessage, "user"),
    (AIMessage, "assistant"),
    (ToolMessage, "tool"),
)

# Roles that no chat template knows, in words that they do.
_ALIASES = {"developer": "system"}

_REASONING_BLOCKS = frozenset({"reasoning", "thinking", "redacted_thinking"})

# LangChain hands these to every model; they say nothing about the answer.
_FRAMEWORK_ARGUMENTS = ("stream", "ls_structured_output_format")


def own_call(call: dict[str, Any]) -> dict[str, Any]:
    """Keep what is ours of a call's arguments, with its documents translated."""
    own = {name: value for name, value in call.items() if name not in _FRAMEWORK_ARGUMENTS}
    if isinstance(own.get("documents"), list | tuple):
        own["documents"] = [_document(document) for document in own["documents"]]
    return own


def _document(document: object) -> object:
    if not isinstance(document, Document):
        return document
    text = document.page_content
    return PromptDocument(text, document.id or "") if text else ""


def chat_prompt(messages: Sequence[BaseMessage]) -> Prompt:
    """A conversation.

    Raises:
        ConfigurationError: It holds something else than text, or is empty.
    """
    return Prompt(messages=tuple(Message(_role(m), _parts(m)) for m in messages))


def _role(message: BaseMessage) -> str:
    if isinstance(message, ChatMessage):
        return _ALIASES.get(message.role, message.role)
    for kind, role in _ROLES:
        if isinstance(message, kind):
            if isinstance(message, AIMessage) and message.tool_calls:
                msg = "messages with tool calls are not supported"
                raise ConfigurationError(msg)
            return role
    msg = f"messages of type {message.type!r} are not supported"
    raise ConfigurationError(msg)


def _parts(message: BaseMessage) -> list[str | PromptDocument]:
    content = message.content
    blocks = [content] if isinstance(content, str) else content
    return [_part(block) for block in blocks if not _is_reasoning(message, block)]


def _is_reasoning(message: BaseMessage, block: object) -> bool:
    """Whether a block is what a model thought before it answered, which no later turn needs."""
    if not isinstance(message, AIMessage) or not isinstance(block, dict):
        return False
    return block.get("type") in _REASONING_BLOCKS


def _part(block: str | dict[str, Any]) -> str | PromptDocument:
    if isinstance(block, str):
        return block
    kind, text = block.get("type"), block.get("text")
    if not isinstance(text, str) or kind not in {"text", "text-plain"}:
        msg = f"content blocks must hold text, of type text or text-plain, got type {kind!r}"
        raise ConfigurationError(msg)
    return text if kind == "text" or not text else block_document(text, block)


def usage_metadata(usage: Usage) -> UsageMetadata | None:
    """An answer's usage as LangChain's type; ``None`` if the server did not report it."""
    if usage.estimated:
        return None
    metadata = UsageMetadata(
        input_tokens=usage.prompt_tokens,
        output_tokens=usage.completion_tokens,
        total_tokens=usage.total_tokens,
    )
    if usage.cached_known:
        metadata["input_token_details"] = InputTokenDetails(cache_read=usage.cached_tokens)
    return metadata


def logprobs_metadata(logprobs: Sequence[TokenLogprob]) -> dict[str, Any]:
    """Log-probabilities in the form that LangChain's other providers have, OpenAI's."""
    content = [
        {
            "token": token.token,
            "logprob": token.logprob,
            "top_logprobs": [{"token": t.token, "logprob": t.logprob} for t in token.top],
        }
        for token in logprobs
    ]
    return {"logprobs": {"content": content}} if content else {}


def generation_info(answer: Generation | GenerationChunk) -> dict[str, Any]:
    """Metadata of an answer besides its text; the last chunk of a stream has those of its end."""
    info = logprobs_metadata(answer.logprobs)
    if answer.finish_reason is not None:
        info["finish_reason"] = answer.finish_reason
        info |= answer.reuse
        if answer.usage is not None and (usage := usage_fields(answer.usage)):
            info["usage"] = usage
    return info
