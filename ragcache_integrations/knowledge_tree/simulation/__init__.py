"""The tree under simulated traffic and recorded traces."""

from .characterise import ENOUGH, LEAST_HIT_RATE, CacheSize, Characterisation, characterise
from .traces import zipf_ranks
from .workload import CHARACTERS_PER_TOKEN, Workload, estimate_tokens, load_workload

__all__ = [
    "CHARACTERS_PER_TOKEN",
    "ENOUGH",
    "LEAST_HIT_RATE",
    "CacheSize",
    "Characterisation",
    "Workload",
    "characterise",
    "estimate_tokens",
    "load_workload",
    "zipf_ranks",
]
