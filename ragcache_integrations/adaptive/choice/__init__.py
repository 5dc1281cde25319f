"""The best configuration that fits the free memory: candidates, load, reservations."""

from .best_fit import BestFit, Choice, ChunkFacts, Situation
from .cached_chunks import CachedChunks
from .load import EngineLoadSource, LoadSource, MemoryLoad, MetricsLoadSource
from .mapping import LEEWAY, PrunedSpace, RecentSpaces, pruned_space
from .measuring import Measures
from .polling import Seen
from .reservations import Reservations
from .resources import LoadReader, Resources, resources_of

__all__ = [
    "LEEWAY",
    "BestFit",
    "CachedChunks",
    "Choice",
    "ChunkFacts",
    "EngineLoadSource",
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
    "pruned_space",
    "resources_of",
]
