"""Clients for OpenAI-compatible servers: requests, timeouts, answers."""

from .server import OpenAIServer
from .token_counting import TokenCounter
from .wire import usage_fields

__all__ = [
    "OpenAIServer",
    "TokenCounter",
    "usage_fields",
]
