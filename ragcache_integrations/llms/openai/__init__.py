"""Clients for OpenAI-compatible servers: requests, timeouts, answers."""

from .server import OpenAIServer, TokenCounter
from .wire import strict_form, usage_fields

__all__ = [
    "OpenAIServer",
    "TokenCounter",
    "strict_form",
    "usage_fields",
]
