"""The best configuration that fits the free memory: candidates, load, reservations."""

from .best_fit import (
    BestFit,
    Choice,
    ChunkFacts,
    Measures,
    Reservations,
    Situation,
    next_step,
)
from .load import EngineLoadSource, LoadSource, MemoryLoad, MetricsLoadSource
from .mapping import DEFAULT_PROFILE, LEEWAY, Held, PrunedSpace, RecentSpaces, pruned_space
from .resources import CachedChunks, LoadReader, Resources, Seen, resources_of

__all__ = [
    "DEFAULT_PROFILE",
    "LEEWAY",
    "BestFit",
    "CachedChunks",
    "Choice",
    "ChunkFacts",
    "EngineLoadSource",
    "Held",
    "LoadReader",
    "LoadSource",
    "Measures",
    "MemoryLoad",
    "MetricsLoadSource",
    "PrunedSpace",
    "RecentSpaces",
    "Reservations",
    "Resources",
    "Seen",
    "Situation",
    "next_step",
    "pruned_space",
    "resources_of",
]
