"""``ragcache serve``: an OpenAI-compatible server whose prompts know their documents.

vLLM's own server, unmodified, with our scheduler and host tier in its engine and one ASGI
middleware around its routes. Importing this loads neither vLLM nor torch.
"""

from __future__ import annotations

from ragcache_integrations.engine.serving.launch import serve
from ragcache_integrations.engine.serving.settings import ServingSettings

__all__ = ["ServingSettings", "serve"]
