"""The knowledge tree: which KV caches stay, in which tier; replacement policies (RAGCache §5.1).

It knows nothing of vLLM: the engine drives it, and so does the simulator.
"""

from __future__ import annotations

from .policies import POLICIES
from .prefill_cost import PrefillCostModel
from .reordering import ReorderingQueue
from .snapshot import NodeSnapshot, TreeSnapshot
from .stats import TreeStats
from .tree import KnowledgeTree

__all__ = [
    "POLICIES",
    "KnowledgeTree",
    "NodeSnapshot",
    "PrefillCostModel",
    "ReorderingQueue",
    "TreeSnapshot",
    "TreeStats",
]
