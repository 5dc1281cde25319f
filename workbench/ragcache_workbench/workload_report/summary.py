"""What the tables and the report say about a result, in words and numbers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from ragcache_workbench.reports import percent
from ragcache_workbench.simulation import (
    ENOUGH,
    LEAST_HIT_RATE,
    Characterisation,
    Workload,
)

from .providers import ProviderShare
from .replicas import Replicas

__all__ = ["TOP_PARTS", "Findings"]

TOP_PARTS = (0.01, 0.03, 0.1, 0.2, 0.5)
"""Parts of the documents, in the table of skew; RAGCache §3.2 names 3 %."""

GIB = 2**30


@dataclass(frozen=True, slots=True)
class Findings:
    """A result, and how it came about.

    Attributes:
        name: Name of the workload's file.
        workload: The traffic.
        result: What caching does for it.
        requests_per_day: How many requests like these a day has.
        providers: What the prompt caches of hosted models would do for it.
        kv_bytes_per_token: Size of a token's KV cache; ``None`` where it is unknown.
        origins: Where prefill times, tokens and bytes come from, in sentences.
        replicas: What several replicas find; ``None`` if none were simulated.
    """

    name: str
    workload: Workload
    result: Characterisation
    requests_per_day: float
    providers: Sequence[ProviderShare]
    kv_bytes_per_token: int | None
    origins: Sequence[str]
    replicas: Replicas | None = None

    def verdict(self) -> str:
        """Whether caching pays, by how much, and what to do."""
        size, most = self.result.recommended, self.result.unlimited
        if size is None:
            return (
                f"Caching will not pay here: at most {percent(most.saved_share)} of the prefill "
                "time could be saved. Stock vLLM is enough."
            )
        return (
            f"Caching pays here: give it {self.size(size.tokens)}, and it saves "
            f"{percent(size.saved_share)} of the prefill time."
        )

    def advice(self) -> str:
        """Why, and what else is possible."""
        unlimited, size, half = self.result.unlimited, self.result.recommended, self.result.half
        if size is None or half is None:
            return (
                f"Even a cache that held everything would find only "
                f"{percent(unlimited.token_hit_rate)} of the documents' tokens; below "
                f"{percent(LEAST_HIT_RATE)} it is not worth its memory."
            )
        return (
            f"This is the smallest size that reaches {percent(ENOUGH)} of what a cache that holds "
            f"everything finds: {percent(size.token_hit_rate)} of the documents' tokens, of at "
            f"most {percent(unlimited.token_hit_rate)}. Stock vLLM's own LRU finds "
            f"{percent(size.stock_token_hit_rate)} in the same memory. Where memory is short: "
            f"{self.size(half.tokens)} find {percent(half.token_hit_rate)}, stock LRU "
            f"{percent(half.stock_token_hit_rate)}."
        )

    def notes(self) -> list[str]:
        """What has to be known to read the figures."""
        result, workload = self.result, self.workload
        notes = [
            *self.origins,
            (
                "Sizes are of both tiers together and hold one running request of up to "
                f"{result.longest_request_tokens:,} tokens; each further one that runs at the "
                "same time needs memory in addition."
            ),
            (
                "Requests are simulated one after another, in the file's order, from an empty "
                f"cache: what is repeated only after these {result.requests:,} requests is "
                "not seen."
            ),
            "A document counts as found if all of it is, after the same documents as before.",
            (
                "Hosted models' prompt caches are computed from the providers' own figures of "
                f"{self.providers[0].cache.read_on}, with {self.requests_per_day:,.0f} requests a "
                "day at even intervals, and without the text before the documents, which the file "
                "does not have."
            ),
        ]
        if self.replicas is not None:
            notes.append(self.replicas.note())
        if workload.without_documents:
            notes.append(f"Requests that brought no document: {workload.without_documents:,}.")
        if workload.changed_documents:
            notes.append(
                f"{workload.changed_documents:,} document ids came with more than one text or "
                "length; each version counts as a document of its own."
            )
        return notes

    def size(self, tokens: int) -> str:
        """A cache size in words."""
        gib = self.gib(tokens)
        return f"{tokens:,} tokens" + ("" if gib is None else f" ({gib} GiB)")

    def gib(self, tokens: int) -> str | None:
        """A cache size in GiB, as text; ``None`` where a token's size is unknown."""
        if self.kv_bytes_per_token is None:
            return None
        return f"{tokens * self.kv_bytes_per_token / GIB:,.3g}"

    def as_dict(self) -> dict[str, Any]:
        """All of it as plain data for JSON; times are in seconds."""
        result = self.result
        return {
            "workload": self.name,
            "pays": result.pays,
            "requests": result.requests,
            "documents": result.skew.documents,
            "accesses": result.skew.accesses,
            "document_tokens": result.document_tokens,
            "mean_prompt_tokens": result.mean_prompt_tokens,
            "longest_request_tokens": result.longest_request_tokens,
            "kv_bytes_per_token": self.kv_bytes_per_token,
            "access_share_of_top": {
                str(part): result.skew.share_of_top(part) for part in TOP_PARTS
            },
            "prefill": asdict(result.prefill),
            "sizes": [asdict(size) for size in result.sizes],
            "half": None if result.half is None else asdict(result.half),
            "requests_per_day": self.requests_per_day,
            "providers": {
                share.cache.name: {"cached_share": share.cached, "price_share": share.price}
                for share in self.providers
            },
            "recommended": None if result.recommended is None else asdict(result.recommended),
            "replicas": None if self.replicas is None else self.replicas.as_dict(),
            "notes": self.notes(),
        }
