"""Prompts of modules: schemas, and the engine of ``ragcache_modular`` under its earlier name.

Schemas are in :mod:`ragcache_integrations.prompts.pml`. The engine on Hugging Face transformers is
a distribution of its own, loaded when one of its names is used first.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from .core.extras import require
from .prompts.pml import (
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

if TYPE_CHECKING:
    from ragcache_modular import (
        STRATEGIES,
        AsyncModularStream,
        CacheBlend,
        Epic,
        Exact,
        Generation,
        GenerationChunk,
        KVLink,
        ModularChunk,
        ModularEngine,
        ModularGeneration,
        ModularModel,
        ModularStats,
        ModularStream,
        Prefilled,
        PromptCache,
        Sampling,
        StoreStats,
        Strategy,
        TokenLogprob,
        Usage,
    )

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


def __getattr__(name: str) -> Any:
    if name.startswith("__"):  # Python's own question, such as for a path
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    engine = require("ragcache_modular", feature="The engine on transformers", extra="modular")
    return getattr(engine, name)


def __dir__() -> list[str]:
    return __all__
