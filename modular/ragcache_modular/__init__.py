"""Modular attention reuse (Prompt Cache, EPIC): text encoded once serves anywhere in a prompt.

Prompt Cache, EPIC, CacheBlend and KVLink with one interface, on Hugging Face transformers. They are
approximations of full attention, so their keys and values never reach the engine's exact cache.
Importing this package loads neither torch nor transformers.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from ragcache_integrations import __version__ as _installed

if TYPE_CHECKING:
    from ragcache_integrations.core.generation import (
        Generation,
        GenerationChunk,
        Sampling,
        TokenLogprob,
        Usage,
    )
    from ragcache_modular.kv.prefill import Prefilled
    from ragcache_modular.kv.store import StoreStats
    from ragcache_modular.kv.strategies import (
        STRATEGIES,
        CacheBlend,
        Epic,
        Exact,
        KVLink,
        PromptCache,
        Strategy,
    )

    from .answers import AsyncModularStream, ModularStream
    from .engine import ModularEngine
    from .generation import ModularChunk, ModularGeneration
    from .model import ModularModel, ModularStats

__all__ = [
    "STRATEGIES",
    "AsyncModularStream",
    "CacheBlend",
    "Epic",
    "Exact",
    "Generation",
    "GenerationChunk",
    "KVLink",
    "ModularChunk",
    "ModularEngine",
    "ModularGeneration",
    "ModularModel",
    "ModularStats",
    "ModularStream",
    "Prefilled",
    "PromptCache",
    "Sampling",
    "StoreStats",
    "Strategy",
    "TokenLogprob",
    "Usage",
]

__version__ = "0.1.0"

if __version__ != _installed:
    _message = (
        f"ragcache-modular {__version__} needs ragcache-integrations {__version__}, but "
        f"{_installed} is installed: install both from the same clone, address or folder of wheels"
    )
    raise ImportError(_message)

_NAMES = {
    "ragcache_integrations.core.generation": (
        "Generation",
        "GenerationChunk",
        "Sampling",
        "TokenLogprob",
        "Usage",
    ),
    ".answers": ("AsyncModularStream", "ModularStream"),
    ".backend": ("MODULAR_MODEL", "USER_MODULAR"),
    ".generation": ("ModularChunk", "ModularGeneration"),
    ".model": ("ModularModel", "ModularStats"),
    ".engine": ("ModularEngine",),
    ".kv.prefill": ("Prefilled",),
    ".kv.store": ("StoreStats",),
    ".kv.strategies": (
        *("STRATEGIES", "CacheBlend", "Epic", "Exact", "KVLink", "PromptCache", "Strategy"),
    ),
}
_HOMES = {name: module for module, names in _NAMES.items() for name in names}


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        return getattr(importlib.import_module(_HOMES[name], __name__), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return __all__
