"""Modular attention reuse (Prompt Cache, EPIC): text encoded once serves anywhere in a prompt.

Prompt Cache, EPIC, CacheBlend and KVLink with one interface, on Hugging Face transformers. They are
approximations of full attention, so their keys and values never reach the engine's exact cache.
Importing this package loads neither torch nor transformers.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ragcache_integrations.core.generation import (
        Generation,
        GenerationChunk,
        Sampling,
        TokenLogprob,
        Usage,
    )
    from ragcache_integrations.modular.kv.prefill import Prefilled
    from ragcache_integrations.modular.kv.store import StoreStats
    from ragcache_integrations.modular.kv.strategies import (
        STRATEGIES,
        CacheBlend,
        Epic,
        Exact,
        KVLink,
        PromptCache,
        Strategy,
    )
    from ragcache_integrations.prompts.pml import (
        Assembly,
        CompiledSchema,
        Fresh,
        Import,
        Limits,
        Module,
        Param,
        Placed,
        Prompt,
        Scaffold,
        Schema,
        SchemaModule,
        Slot,
        Text,
        Turn,
        Union,
        escape,
    )

    from .engine import ModularEngine
    from .generation import ModularChunk, ModularGeneration
    from .model import ModularModel, ModularStats
    from .streams import AsyncModularStream, ModularStream

__all__ = [
    "STRATEGIES",
    "Assembly",
    "AsyncModularStream",
    "CacheBlend",
    "CompiledSchema",
    "Epic",
    "Exact",
    "Fresh",
    "Generation",
    "GenerationChunk",
    "Import",
    "KVLink",
    "Limits",
    "ModularChunk",
    "ModularEngine",
    "ModularGeneration",
    "ModularModel",
    "ModularStats",
    "ModularStream",
    "Module",
    "Param",
    "Placed",
    "Prefilled",
    "Prompt",
    "PromptCache",
    "Sampling",
    "Scaffold",
    "Schema",
    "SchemaModule",
    "Slot",
    "StoreStats",
    "Strategy",
    "Text",
    "TokenLogprob",
    "Turn",
    "Union",
    "Usage",
    "escape",
]

_NAMES = {
    ".prompts.pml": (
        *("Assembly", "CompiledSchema", "Fresh", "Import", "Limits", "Module", "Param", "Placed"),
        *("Prompt", "Scaffold", "Schema", "SchemaModule", "Slot", "Text", "Turn", "Union"),
        "escape",
    ),
    ".core.generation": ("Generation", "GenerationChunk", "Sampling", "TokenLogprob", "Usage"),
    "generation": ("ModularChunk", "ModularGeneration"),
    "model": ("ModularModel", "ModularStats"),
    "engine": ("ModularEngine",),
    "kv.prefill": ("Prefilled",),
    "kv.store": ("StoreStats",),
    "kv.strategies": (
        *("STRATEGIES", "CacheBlend", "Epic", "Exact", "KVLink", "PromptCache", "Strategy"),
    ),
    "streams": ("AsyncModularStream", "ModularStream"),
}
_HOMES = {name: module for module, names in _NAMES.items() for name in names}


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        return getattr(importlib.import_module(f".{_HOMES[name]}", __name__), name)
    msg = f"module {__name__!r} has no attribute {name!r}"
    raise AttributeError(msg)


def __dir__() -> list[str]:
    return __all__
