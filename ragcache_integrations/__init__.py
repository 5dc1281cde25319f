"""Make the RAG chain that you already have answer sooner.

Import the drop-in classes from :mod:`ragcache_integrations.langchain` or
:mod:`ragcache_integrations.llama_index`; the framework-free parts are loaded from here when they
are first used, so that importing this package loads neither torch, vLLM nor a framework.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from .errors import RAGCacheError

if TYPE_CHECKING:
    from .engine import Prompt, PromptDocument, RAGCacheEngine
    from .query_cache import QueryCache

__version__ = "0.1.0"

__all__ = [
    "Prompt",
    "PromptDocument",
    "QueryCache",
    "RAGCacheEngine",
    "RAGCacheError",
    "__version__",
]

_HOMES = {
    "Prompt": "ragcache_integrations.engine",
    "PromptDocument": "ragcache_integrations.engine",
    "QueryCache": "ragcache_integrations.query_cache",
    "RAGCacheEngine": "ragcache_integrations.engine",
}


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        return getattr(importlib.import_module(_HOMES[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return __all__
