"""The findings in words and numbers, and as a report."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from ragcache_workbench.reports import (
    Cell,
    Panel,
    Report,
    Section,
    Table,
    Tile,
    comparison,
    curve_of,
    marked,
    percent,
    short_number,
)
from ragcache_workbench.simulation import ENOUGH, LEAST_HIT_RATE, Characterisation, Workload

from .comparisons import (
    MEASURES,
    ProviderShare,
    Replicas,
    duration,
)

__all__ = ["TOP_PARTS", "Findings", "access", "prefill", "report_of", "sizes"]

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


PREFILL_ROWS = 6
"""Rows of the table of prefill times on the terminal."""


def report_of(findings: Findings) -> Report:
    """Return the report."""
    return Report(
        question="Does caching pay here?",
        lead=f"What keeping the documents' KV caches would do for the traffic in {findings.name}.",
        name=findings.name,
        pays=findings.result.pays,
        verdict=findings.verdict(),
        advice=findings.advice(),
        notes=findings.notes(),
        tiles=_tiles(findings),
        charts=[access(findings), prefill(findings), *sizes(findings)],
        sections=_sections(findings),
    )


def _tiles(findings: Findings) -> list[Tile]:
    result, size = findings.result, findings.result.recommended
    skew = result.skew
    recommended = Tile("Recommended size", "none", "caching will not pay here")
    if size is not None:
        gib = findings.gib(size.tokens)
        rounded = short_number(float(f"{size.tokens:.3g}"))
        recommended = Tile(
            "Recommended size",
            f"{rounded} tokens" if gib is None else f"{gib} GiB",
            f"{size.tokens:,} tokens, saves {percent(size.saved_share)} of the prefill time",
        )
    return [
        Tile(
            "Requests",
            f"{result.requests:,}",
            f"{skew.documents:,} different documents in {skew.accesses:,} accesses",
        ),
        Tile(
            "Mean prompt",
            f"{result.mean_prompt_tokens:,.0f} tokens",
            f"all documents together {result.document_tokens:,}",
        ),
        Tile(
            "Found by a cache of any size",
            percent(result.unlimited.token_hit_rate),
            "at most, of the documents' tokens",
        ),
        recommended,
    ]


def access(findings: Findings) -> Panel:
    """Share of the accesses that goes to the most popular documents (RAGCache, figure 5)."""
    lines = {
        "this workload": findings.result.skew.curve(),
        "if all were equally popular": [(0.0, 0.0), (1.0, 1.0)],
    }
    note = "The steeper it begins, the less memory finds the most."
    x_label = "documents, the most popular first"
    return comparison("How skewed access is", note, x_label, lines, None, "share")


def prefill(findings: Findings) -> Panel:
    """What a cached prefix saves (RAGCache, figure 4)."""
    times = findings.result.prefill
    seconds = {"prefix cached": times.cached, "prefix computed": times.uncached}
    return Panel(
        "Prefill time, computed and cached",
        "tokens of the prefix",
        "count",
        tuple(
            curve_of(name, colour, zip(times.prefix_tokens, values, strict=True))
            for (name, values), colour in zip(seconds.items(), ("c0", "other"), strict=True)
        ),
        "count",
        "seconds",
        f"With {times.new_tokens:,} new tokens, the median question, after the prefix.",
    )


def sizes(findings: Findings) -> list[Panel]:
    """What caches of different sizes find, and what they save."""
    result = findings.result

    def chart(title: str, note: str, field: str) -> Panel:
        ours, stock = (
            [(float(size.tokens), getattr(size, prefix + field)) for size in result.sizes]
            for prefix in ("", "stock_")
        )
        lines = {"knowledge tree": ours, "stock vLLM, block LRU": stock}
        at = None if result.recommended is None else float(result.recommended.tokens)
        return comparison(title, note, "tokens that the cache holds", lines, at)

    return [
        chart(
            "Found by size of the cache",
            "Share of the documents' tokens that are found.",
            "token_hit_rate",
        ),
        chart(
            "Prefill time saved by size of the cache",
            "Share of the prefill time of all requests.",
            "saved_share",
        ),
    ]


def _sections(findings: Findings) -> list[Section]:
    """The tables, from what to do to what it follows from."""
    result, times = findings.result, findings.result.prefill
    sections = {
        "Found, and prefill time saved, by size of the cache": _sizes(findings),
        f"Prompt caches of hosted models, {findings.requests_per_day:,.0f} requests a day": _table(
            ("provider", "tokens from its cache", "cost, of uncached"),
            [
                (share.cache.name, percent(share.cached), percent(share.price))
                for share in findings.providers
            ],
        ),
        f"Access: {result.requests:,} requests for {result.skew.accesses:,} documents, "
        f"{result.skew.documents:,} different ones": _table(
            ("most popular", "accesses"),
            [(percent(part), percent(result.skew.share_of_top(part))) for part in TOP_PARTS],
        ),
    }
    if findings.replicas is not None:
        title = f"{findings.replicas.replicas} replicas, by what a router chooses them"
        sections[title] = _table(
            ("by", *(head for head, _, _ in MEASURES.values())), findings.replicas.rows()
        )
    prefills = [
        (f"{tokens:,}", duration(uncached), duration(cached), _ratio(uncached, cached))
        for tokens, uncached, cached in zip(
            times.prefix_tokens, times.uncached, times.cached, strict=True
        )
    ]
    return [
        *(Section(title, table) for title, table in sections.items()),
        Section(
            f"Prefill time of {times.new_tokens:,} new tokens after a prefix",
            _table(("prefix tokens", "computed", "cached", "ratio"), prefills),
            every=-(-len(prefills) // PREFILL_ROWS),
        ),
    ]


def _table(heads: tuple[str, ...], rows: Sequence[Sequence[str]]) -> Table:
    return Table(heads, tuple(tuple(map(Cell, row)) for row in rows))


def _ratio(uncached: float, cached: float) -> str:
    return f"{uncached / cached:.1f}" if cached else "-"


def _sizes(findings: Findings) -> Table:
    measures = ("documents", "tokens", "time saved")
    memory = () if findings.kv_bytes_per_token is None else ("GiB",)
    heads = ("cache, tokens", *memory, *measures, f"stock LRU: {measures[0]}", *measures[1:])
    rows = []
    for size in findings.result.sizes:
        gib = findings.gib(size.tokens)
        shares = (
            *(size.document_hit_rate, size.token_hit_rate, size.saved_share),
            *(size.stock_document_hit_rate, size.stock_token_hit_rate, size.stock_saved_share),
        )
        texts = [f"{size.tokens:,}", *([] if gib is None else [gib]), *map(percent, shares)]
        rows.append(marked(texts, is_recommended=size == findings.result.recommended))
    return Table(heads, tuple(rows))
