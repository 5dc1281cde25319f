"""Per-query configuration (RAGServe, METIS): how many chunks, which synthesis."""

from .answers import AdaptiveAnswer, AdaptiveCost, Explanation
from .asker import (
    Asker,
    EngineAsker,
    Limits,
    LogprobSupport,
    ModelAnswer,
    ModelRequest,
)
from .best_fit import Choice, PrunedSpace
from .pipeline import AdaptivePipeline
from .profile import (
    CachedProfiler,
    HeuristicProfiler,
    LLMProfiler,
    ProfileEstimate,
    Profiler,
    QueryProfile,
)
from .resources import LoadSource, MemoryLoad, MetricsLoadSource
from .settings import AdaptiveSettings
from .synthesis import (
    SynthesisPrompts,
    SynthesisSettings,
    astream_synthesis,
    asynthesise,
    stream_synthesis,
    synthesise,
)
from .types import (
    Citation,
    Step,
    Synthesis,
    SynthesisConfig,
    Synthesised,
)

__all__ = [
    "AdaptiveAnswer",
    "AdaptiveCost",
    "AdaptivePipeline",
    "AdaptiveSettings",
    "Asker",
    "CachedProfiler",
    "Choice",
    "Citation",
    "EngineAsker",
    "Explanation",
    "HeuristicProfiler",
    "LLMProfiler",
    "Limits",
    "LoadSource",
    "LogprobSupport",
    "MemoryLoad",
    "MetricsLoadSource",
    "ModelAnswer",
    "ModelRequest",
    "ProfileEstimate",
    "Profiler",
    "PrunedSpace",
    "QueryProfile",
    "Step",
    "Synthesis",
    "SynthesisConfig",
    "SynthesisPrompts",
    "SynthesisSettings",
    "Synthesised",
    "astream_synthesis",
    "asynthesise",
    "stream_synthesis",
    "synthesise",
]
