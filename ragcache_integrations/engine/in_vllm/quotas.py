"""Tenants' quotas in vLLM's scheduler: who uses which blocks, and who has to wait."""

from __future__ import annotations

from typing import Any

from vllm.v1.request import Request, RequestStatus

from ragcache_integrations.knowledge_tree import KnowledgeTree

from .free_blocks import DocumentFreeQueue

__all__ = ["keep_to_quotas"]


def keep_to_quotas(
    scheduler: Any, tree: KnowledgeTree[Any], free_blocks: DocumentFreeQueue, groups: int
) -> None:
    """Charge blocks to tenants, and let nobody's requests take what is within others' quotas.

    A request whose tenant has others running waits until its blocks fit. A tenant's only request
    runs in any case, or one that is longer than its quota never would.

    Args:
        scheduler: vLLM's scheduler.
        tree: Whose tenants have quotas.
        free_blocks: Its free blocks.
        groups: Number of groups of layers, each of which has blocks for every token.
    """
    allocate = scheduler.kv_cache_manager.allocate_slots
    most = int(scheduler.max_model_len)

    def blocks(tokens: int) -> int:
        return -(-tokens // tree.block_size) * groups

    def left(request: Request) -> int:
        tokens = request.num_prompt_tokens + (request.max_tokens or most)
        return blocks(min(tokens, most)) - blocks(request.num_computed_tokens)

    def allocate_charged(request: Request, *args: Any, **kwargs: Any) -> Any:
        user = request.cache_salt or ""
        if request.status != RequestStatus.RUNNING:
            payer = tree.payer(user)
            others = [
                other for other in scheduler.running if tree.payer(other.cache_salt or "") == payer
            ]
            if others and not tree.affords(user, sum(map(left, (request, *others)))):
                return None
        free_blocks.user = user
        return allocate(request, *args, **kwargs)

    scheduler.kv_cache_manager.allocate_slots = allocate_charged
