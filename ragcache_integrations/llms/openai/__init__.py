"""Clients for OpenAI-compatible servers: requests, timeouts, answers."""

from .server import OpenAIServer, TokenCounter
from .wire import REASONING, REFUSAL, extra_texts, noted_reasoning, strict_form, usage_fields

__all__ = [
    "REASONING",
    "REFUSAL",
    "OpenAIServer",
    "TokenCounter",
    "extra_texts",
    "noted_reasoning",
    "strict_form",
    "usage_fields",
]
