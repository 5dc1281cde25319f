"""Requests that are refused, in the words of OpenAI's protocol."""

from __future__ import annotations

import json

__all__ = ["Headers", "RequestRefusedError"]

Headers = list[tuple[bytes, bytes]]

_KINDS = {
    400: "BadRequestError",
    401: "AuthenticationError",
    404: "NotFoundError",
    408: "RequestTimeoutError",
    413: "RequestEntityTooLargeError",
    414: "RequestURITooLongError",
    429: "RateLimitError",
    431: "RequestHeaderFieldsTooLargeError",
    503: "ServiceUnavailableError",
}


class RequestRefusedError(Exception):
    """Ends the handling of a request with this answer.

    Attributes:
        status: HTTP status.
        headers: Beyond those that every answer has.
    """

    def __init__(self, status: int, message: str, headers: Headers | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.headers = headers or []

    @property
    def body(self) -> bytes:
        """The answer."""
        error = {
            "message": str(self),
            "type": _KINDS[self.status],
            "param": None,
            "code": self.status,
        }
        return json.dumps({"error": error}).encode()
