"""What a query needs: estimated by a heuristic or a model, or recorded."""

from .llm import EXAMPLE_CHARACTERS, Example, LLMProfiler, adraft_corpus, draft_corpus
from .profile import (
    MAX_PIECES,
    CachedProfiler,
    HeuristicProfiler,
    ProfileEstimate,
    Profiler,
    QueryProfile,
    RecordedProfiler,
    failed_estimate,
    save_profiles,
)

__all__ = [
    "EXAMPLE_CHARACTERS",
    "MAX_PIECES",
    "CachedProfiler",
    "Example",
    "HeuristicProfiler",
    "LLMProfiler",
    "ProfileEstimate",
    "Profiler",
    "QueryProfile",
    "RecordedProfiler",
    "adraft_corpus",
    "draft_corpus",
    "failed_estimate",
    "save_profiles",
]
