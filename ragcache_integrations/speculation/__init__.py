"""Dynamic speculative pipelining (RAGCache §5.3): generation starts before the search ends."""

from ragcache_integrations.speculation.sources import (
    stage_of_search,
    stages_of_index,
    stages_of_pair,
)
from ragcache_integrations.speculation.speculator import Speculator
from ragcache_integrations.speculation.streams import AsyncSpeculativeStream, SpeculativeStream
from ragcache_integrations.speculation.types import (
    SpeculationEvent,
    SpeculationReport,
    SpeculativeAnswer,
    SpeculatorStats,
    StageOfDocuments,
)

__all__ = [
    "AsyncSpeculativeStream",
    "SpeculationEvent",
    "SpeculationReport",
    "SpeculativeAnswer",
    "SpeculativeStream",
    "Speculator",
    "SpeculatorStats",
    "StageOfDocuments",
    "stage_of_search",
    "stages_of_index",
    "stages_of_pair",
]
