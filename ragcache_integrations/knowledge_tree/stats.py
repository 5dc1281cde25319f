"""What the knowledge tree counts."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from .node import Span
from .shares import ShareStats

__all__ = ["Tally", "TreeStats"]


class Tally(Counter[str]):
    """Running counts, by the name of a field of :class:`TreeStats`."""

    def access(
        self,
        spans: Sequence[Span],
        block_size: int,
        gpu_tokens: int,
        cached_tokens: int,
        lookahead: int = 0,
    ) -> None:
        """Count one request's hits; ``lookahead`` is the tree's."""
        self["requests"] += 1
        for _, start, end in spans:
            self["documents"] += 1
            self["document_tokens"] += end - start
            # The block in which a document ends belongs to what comes next. Where that block is
            # all there is of it, the document was found if the block was.
            last = max((end - lookahead) // block_size * block_size, start + 1)
            if last <= gpu_tokens:
                self["documents_hit_gpu"] += 1
            elif last <= cached_tokens:
                self["documents_hit_host"] += 1
            in_gpu = min(max(gpu_tokens - start, 0), end - start)
            cached = min(max(cached_tokens - start, 0), end - start)
            self["document_tokens_hit_gpu"] += in_gpu
            self["document_tokens_hit_host"] += cached - in_gpu

    def evicted(self, tier: Literal["gpu", "host"], blocks: int, *, whole: bool) -> None:
        """Count an eviction from a tier; ``whole`` if nothing of the node is left there."""
        self[f"{tier}_evicted_blocks"] += blocks
        self[f"{tier}_evicted_nodes"] += whole


@dataclass(frozen=True, slots=True)
class TreeStats:
    """What the knowledge tree did since it was made, and what it holds.

    Attributes:
        requests: Requests with documents that were admitted.
        documents: Documents in them.
        documents_hit_gpu: Documents found whole in the GPU. By the paper's definition: [D1, D2]
            stored and [D1, D3] asked for is one hit of two (RAGCache §7.3).
        documents_hit_host: Documents of which some or all had to be read back from the host.
        document_tokens: Tokens of the documents.
        document_tokens_hit_gpu: Those found in the GPU.
        document_tokens_hit_host: Those read back from the host.
        gpu_evicted_nodes: Documents that left the GPU tier with their last block.
        gpu_evicted_blocks: Blocks that left it.
        host_evicted_nodes: Documents that left the host tier with their last block.
        host_evicted_blocks: Blocks that left it.
        swap_outs: Blocks copied from the GPU to the host.
        swap_ins: Blocks read back.
        dropped: Evicted blocks for which the host had no room.
        changed_documents: Times that an id came with other text than before; never served.
        gpu_clock, host_clock: The tiers' logical clocks, in the policy's unit.
        gpu_idle_blocks: Blocks of documents in the GPU that no request uses now.
        host_used_blocks: Blocks in the host tier.
        host_blocks: Its capacity.
        nodes: Documents after paths that the tree knows now.
        reorderings: Requests that were admitted before one that came earlier.
        longest_overtaking: The most requests by which one request was overtaken.
        preemptions: Times that a request was put back because memory ran out.
        gpu_blocks: Capacity of the GPU, blocks in use included.
        pins: Paths that are pinned.
        refused_pins: Pins for which there was no room.
        pinned_blocks: Blocks that are kept for them in the GPU.
        hints: Steps of workflows that are expected, and whose prompts' beginnings are kept for it.
        shares: Of tenants with quotas, and of all others together; empty without quotas.
    """

    requests: int = 0
    documents: int = 0
    documents_hit_gpu: int = 0
    documents_hit_host: int = 0
    document_tokens: int = 0
    document_tokens_hit_gpu: int = 0
    document_tokens_hit_host: int = 0
    gpu_evicted_nodes: int = 0
    gpu_evicted_blocks: int = 0
    host_evicted_nodes: int = 0
    host_evicted_blocks: int = 0
    swap_outs: int = 0
    swap_ins: int = 0
    dropped: int = 0
    changed_documents: int = 0
    gpu_clock: float = 0.0
    host_clock: float = 0.0
    gpu_idle_blocks: int = 0
    host_used_blocks: int = 0
    host_blocks: int = 0
    nodes: int = 0
    reorderings: int = 0
    longest_overtaking: int = 0
    preemptions: int = 0
    gpu_blocks: int = 0
    pins: int = 0
    refused_pins: int = 0
    pinned_blocks: int = 0
    hints: int = 0
    shares: tuple[ShareStats, ...] = ()

    @property
    def document_hit_rate(self) -> float:
        """Share of the documents that were found, in either tier; 0 before the first."""
        hits = self.documents_hit_gpu + self.documents_hit_host
        return hits / self.documents if self.documents else 0.0

    @property
    def token_hit_rate(self) -> float:
        """Share of the documents' tokens that were found, in either tier; 0 before the first."""
        hits = self.document_tokens_hit_gpu + self.document_tokens_hit_host
        return hits / self.document_tokens if self.document_tokens else 0.0
