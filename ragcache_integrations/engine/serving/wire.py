"""The extensions of OpenAI's protocol that this package's servers and clients use.

A document is a content part ``{"type": "document", "text": ..., "id": ...}`` among parts
``{"type": "text", "text": ...}``, in the content of a chat's message or as the prompt of a
completion. The parts are concatenated unchanged, with nothing between them. A server that
understands this says so at ``/v1/ragcache``. Requests are refused by errors of OpenAI's protocol.
"""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Callable, Iterable
from typing import Any

from pydantic import BaseModel

from ragcache_integrations.core.prompt import PromptDocument

__all__ = [
    "DOCUMENT",
    "FACTS_PATH",
    "PROTOCOL",
    "TEXT",
    "Headers",
    "Refused",
    "RequestRefusedError",
    "ServerFacts",
    "content_parts",
    "json_headers",
    "tokenizer_mark",
]

PROTOCOL = 1
"""Version of the protocol; raised when servers no longer understand older clients."""

FACTS_PATH = "/ragcache"
"""Path of the server's facts, after its ``/v1``."""

DOCUMENT, TEXT = "document", "text"

# A text with case, digits, white space, scripts and markup, in which tokenizers differ.
_PROBE = (
    "The 12,345 naïve  cats'\n\tpurr — 猫は喉を鳴らす. "
    "<s></s><|im_start|><|user|> def f(x):\n    pass"
)


class ServerFacts(BaseModel):
    """Facts about a server, which it publishes.

    Attributes:
        ragcache: The server's version of this package.
        protocol: See ``PROTOCOL``.
        models: Names under which it serves its model.
        max_model_len: Context window in tokens.
        block_size: Tokens per block of the KV cache.
        tokenizer: The server's :func:`tokenizer_mark`; ``None`` if it makes no spans.
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
    """Text and documents as content parts."""
    return [
        {"type": TEXT, "text": part}
        if isinstance(part, str)
        else {"type": DOCUMENT, "id": part.id, "text": part.text}
        for part in parts
    ]


def tokenizer_mark(tokenize: Callable[[str], Iterable[int]]) -> str:
    """A mark that differs between tokenizers.

    Equal marks mean that one text with many kinds of characters has the same tokens.
    """
    numbers = ",".join(map(str, tokenize(_PROBE)))
    return hashlib.blake2b(numbers.encode(), digest_size=16).hexdigest()


Headers = list[tuple[bytes, bytes]]

Refused = Counter[int]
"""Number of refused requests by HTTP status."""

_KINDS = {
    400: "BadRequestError",
    401: "AuthenticationError",
    404: "NotFoundError",
    408: "RequestTimeoutError",
    413: "RequestEntityTooLargeError",
    414: "RequestURITooLongError",
    415: "UnsupportedMediaTypeError",
    429: "RateLimitError",
    431: "RequestHeaderFieldsTooLargeError",
    503: "ServiceUnavailableError",
}


class RequestRefusedError(Exception):
    """Ends the handling of a request with an error for the client.

    Attributes:
        status: HTTP status.
        headers: Headers in addition to those of every answer.
    """

    def __init__(self, status: int, message: str, headers: Headers | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.headers = headers or []

    @property
    def body(self) -> bytes:
        """The answer's body."""
        error = {
            "message": str(self),
            "type": _KINDS[self.status],
            "param": None,
            "code": self.status,
        }
        return json.dumps({"error": error}).encode()


def json_headers(body: bytes) -> Headers:
    """The headers of every answer with this JSON."""
    return [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(body))]
