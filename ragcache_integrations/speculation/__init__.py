"""Dynamic speculative pipelining (RAGCache §5.3): generation starts before the search ends."""

from .sources import (
    stage_of_search,
    stages_of_index,
    stages_of_pair,
)
from .speculator import Speculator
from .streams import AsyncSpeculativeStream, SpeculativeStream
from .types import (
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
