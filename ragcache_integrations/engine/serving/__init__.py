"""``ragcache serve``: an OpenAI-compatible server whose prompts know their documents.

vLLM's own server, unmodified, with our scheduler and host tier in its engine and one ASGI
middleware around its routes. Importing this loads neither vLLM nor torch.
"""

from __future__ import annotations

from .launch import serve
from .settings import ConnectionSettings, ServingSettings
from .wire import FACTS_PATH, PROTOCOL, ServerFacts, content_parts, tokenizer_mark

__all__ = [
    "FACTS_PATH",
    "PROTOCOL",
    "ConnectionSettings",
    "ServerFacts",
    "ServingSettings",
    "content_parts",
    "serve",
    "tokenizer_mark",
]
