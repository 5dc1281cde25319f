"""The offline optimum: what is needed again last goes first (Belady's MIN), on the tree."""

from __future__ import annotations

from collections.abc import Sequence
from operator import attrgetter

from ragcache_integrations.knowledge_tree.node import Node
from ragcache_integrations.knowledge_tree.policies import Priced
from ragcache_integrations.knowledge_tree.tier import Tier
from ragcache_workbench.simulation.traces import Trace

__all__ = ["optimal_tier"]


def optimal_tier(trace: Trace) -> Tier[int]:
    """A tier that knows a trace's future.

    A block is needed again when the next request comes whose prompt begins with the same documents
    up to it. Blocks are alike in size, and a block is never needed before the one that it follows,
    so no order of eviction finds more blocks of documents.

    Args:
        trace: All of its requests have documents, and are served in its order.
    """
    following = _next_uses(trace)

    def priority(node: Priced, clock: float) -> float:  # noqa: ARG001 - one signature for all
        assert isinstance(node, Node)
        return -following[node.last_access - 1][_depth(node)]

    return Tier(attrgetter("gpu"), priority)


def _depth(node: Node) -> int:
    """How many documents a node's path has."""
    depth, above = -1, node.under
    while above is not None:
        depth, above = depth + 1, above.under
    return depth


def _next_uses(trace: Trace) -> Sequence[Sequence[float]]:
    """For each request, and each number of its first documents: the next request that has them."""
    latest: dict[tuple[tuple[str, int], ...], int] = {}
    uses: list[list[float]] = []
    for number in range(len(trace.requests) - 1, -1, -1):
        documents = trace.requests[number].documents
        begins = [documents[:depth] for depth in range(len(documents) + 1)]
        uses.append([latest.get(begin, len(trace.requests)) for begin in begins])
        latest.update(dict.fromkeys(begins, number))
    return uses[::-1]
