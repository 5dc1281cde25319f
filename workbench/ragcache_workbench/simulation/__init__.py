"""The tree under simulated traffic and recorded traces."""

from .characterise import ENOUGH, LEAST_HIT_RATE, CacheSize, Characterisation, characterise
from .replicas import MOST_REPLICAS, ROUTINGS, ReplicasResult, simulate_replicas
from .traces import Trace, TraceRequest, zipf_ranks
from .workload import Workload, load_workload

__all__ = [
    "ENOUGH",
    "LEAST_HIT_RATE",
    "MOST_REPLICAS",
    "ROUTINGS",
    "CacheSize",
    "Characterisation",
    "ReplicasResult",
    "Trace",
    "TraceRequest",
    "Workload",
    "characterise",
    "load_workload",
    "simulate_replicas",
    "zipf_ranks",
]
