"""The knowledge tree: which KV caches stay, in which tier; replacement policies (RAGCache §5.1).

It knows nothing of vLLM: the engine drives it, and so does the simulator.
"""

from __future__ import annotations

from ragcache_integrations.knowledge_tree.policies import POLICIES
from ragcache_integrations.knowledge_tree.prefill_cost import PrefillCostModel
from ragcache_integrations.knowledge_tree.reordering import ReorderingQueue
from ragcache_integrations.knowledge_tree.snapshot import NodeSnapshot, TreeSnapshot
from ragcache_integrations.knowledge_tree.stats import TreeStats
from ragcache_integrations.knowledge_tree.tree import KnowledgeTree

__all__ = [
    "POLICIES",
    "KnowledgeTree",
    "NodeSnapshot",
    "PrefillCostModel",
    "ReorderingQueue",
    "TreeSnapshot",
    "TreeStats",
]
