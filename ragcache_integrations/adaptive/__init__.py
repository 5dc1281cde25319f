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
from .choice import (
    BestFit,
    Choice,
    EngineLoadSource,
    LoadSource,
    MemoryLoad,
    MetricsLoadSource,
    PrunedSpace,
    pruned_space,
)
from .pipeline import GOLDEN_CONFIG, AdaptivePipeline
from .profile import (
    CachedProfiler,
    HeuristicProfiler,
    LLMProfiler,
    ProfileEstimate,
    Profiler,
    QueryProfile,
    RecordedProfiler,
    adraft_corpus,
    draft_corpus,
    save_profiles,
)
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
    "GOLDEN_CONFIG",
    "AdaptiveAnswer",
    "AdaptiveCost",
    "AdaptivePipeline",
    "AdaptiveSettings",
    "Asker",
    "BestFit",
    "CachedProfiler",
    "Choice",
    "Citation",
    "EngineAsker",
    "EngineLoadSource",
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
    "RecordedProfiler",
    "Step",
    "Synthesis",
    "SynthesisConfig",
    "SynthesisPrompts",
    "SynthesisSettings",
    "Synthesised",
    "adraft_corpus",
    "astream_synthesis",
    "asynthesise",
    "draft_corpus",
    "pruned_space",
    "save_profiles",
    "stream_synthesis",
    "synthesise",
]
