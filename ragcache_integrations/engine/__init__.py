"""The bundled engine: unmodified vLLM in its own process; prompts say which parts are documents.

Importing this loads neither vLLM nor torch.
"""

from __future__ import annotations

from ragcache_integrations.core.generation import (
    FinishReason,
    Generation,
    GenerationChunk,
    SamplingOptions,
    TokenLogprob,
    Usage,
)
from ragcache_integrations.core.prompt import (
    DocumentSpan,
    Message,
    Prompt,
    PromptDocument,
    RenderedPrompt,
)

from .engine import RAGCacheEngine
from .metrics import EngineCollector
from .protocol import EngineLoad, EngineStats
from .streams import AsyncGenerationStream, GenerationStream

__all__ = [
    "AsyncGenerationStream",
    "DocumentSpan",
    "EngineCollector",
    "EngineLoad",
    "EngineStats",
    "FinishReason",
    "Generation",
    "GenerationChunk",
    "GenerationStream",
    "Message",
    "Prompt",
    "PromptDocument",
    "RAGCacheEngine",
    "RenderedPrompt",
    "SamplingOptions",
    "TokenLogprob",
    "Usage",
]
