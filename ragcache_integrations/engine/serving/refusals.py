"""Refused requests, as errors of OpenAI's protocol."""

from __future__ import annotations

import json
from collections import Counter

__all__ = ["Headers", "Refused", "RequestRefusedError", "json_headers"]

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
