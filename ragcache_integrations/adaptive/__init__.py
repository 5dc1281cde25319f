"""Per-query configuration (RAGServe, METIS): how many chunks, which synthesis."""

from ragcache_integrations.adaptive.answers import AdaptiveAnswer, AdaptiveCost, Explanation
from ragcache_integrations.adaptive.asker import (
    Asker,
    EngineAsker,
    Limits,
    LogprobSupport,
    ModelAnswer,
    ModelRequest,
)
from ragcache_integrations.adaptive.choice.best_fit import BestFit, Choice
from ragcache_integrations.adaptive.choice.load import (
    EngineLoadSource,
    LoadSource,
    MemoryLoad,
    MetricsLoadSource,
)
from ragcache_integrations.adaptive.choice.mapping import PrunedSpace, pruned_space
from ragcache_integrations.adaptive.golden import GOLDEN_CONFIG
from ragcache_integrations.adaptive.pipeline import AdaptivePipeline
from ragcache_integrations.adaptive.profile.cache import CachedProfiler
from ragcache_integrations.adaptive.profile.heuristic import HeuristicProfiler
from ragcache_integrations.adaptive.profile.llm import LLMProfiler, adraft_corpus, draft_corpus
from ragcache_integrations.adaptive.profile.profile import ProfileEstimate, Profiler, QueryProfile
from ragcache_integrations.adaptive.profile.recorded import RecordedProfiler, save_profiles
from ragcache_integrations.adaptive.settings import AdaptiveSettings
from ragcache_integrations.adaptive.synthesis.prompts import SynthesisPrompts
from ragcache_integrations.adaptive.synthesis.settings import SynthesisSettings
from ragcache_integrations.adaptive.synthesis.synthesise import (
    astream_synthesis,
    asynthesise,
    stream_synthesis,
    synthesise,
)
from ragcache_integrations.adaptive.types import (
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
