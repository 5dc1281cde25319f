"""What servers and clients of this package say to each other beyond OpenAI's protocol.

A document is a content part of its own, ``{"type": "document", "text": ..., "id": ...}``, among
parts ``{"type": "text", "text": ...}``, in the content of a chat's message or as the prompt of a
completion. The parts stand behind each other as they are, nothing between them. A server tells that
it understands that under ``/v1/ragcache``.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable
from typing import Any

from pydantic import BaseModel

from ragcache_integrations.core.prompt import PromptDocument

__all__ = [
    "DOCUMENT",
    "FACTS_PATH",
    "PROTOCOL",
    "TEXT",
    "ServerFacts",
    "content_parts",
    "tokenizer_mark",
]

PROTOCOL = 1
"""Grows when a server no longer understands what older clients send."""

FACTS_PATH = "/ragcache"
"""Behind the server's ``/v1``."""

DOCUMENT, TEXT = "document", "text"

# Whatever tokenizers differ in shows in one of these: case, digits, white space, scripts, markup.
_PROBE = (
    "The 12,345 naïve  cats'\n\tpurr — 猫は喉を鳴らす. "
    "<s></s><|im_start|><|user|> def f(x):\n    pass"
)


class ServerFacts(BaseModel):
    """What a server tells of itself.

    Attributes:
        ragcache: Version of this package there.
        protocol: See ``PROTOCOL``.
        models: Names under which it serves its model.
        max_model_len: Context window in tokens.
        block_size: Tokens per block of the KV cache.
        tokenizer: What :func:`tokenizer_mark` gives there; ``None`` where spans are not made.
        knowledge_tree: Whether documents are kept by the knowledge tree.
    """

    ragcache: str
    protocol: int
    models: list[str] = []
    max_model_len: int | None = None
    block_size: int | None = None
    tokenizer: str | None = None
    knowledge_tree: bool = False


def content_parts(parts: Iterable[str | PromptDocument]) -> list[dict[str, Any]]:
    """Say text and documents in the documented form."""
    return [
        {"type": TEXT, "text": part}
        if isinstance(part, str)
        else {"type": DOCUMENT, "id": part.id, "text": part.text}
        for part in parts
    ]


def tokenizer_mark(tokenize: Callable[[str], Iterable[int]]) -> str:
    """Tell tokenizers apart: equal marks mean equal tokens, as far as one text can tell."""
    numbers = ",".join(map(str, tokenize(_PROBE)))
    return hashlib.blake2b(numbers.encode(), digest_size=16).hexdigest()
