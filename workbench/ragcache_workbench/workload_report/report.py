"""The findings as a report."""

from __future__ import annotations

from collections.abc import Sequence

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

from .replicas import MEASURES, duration
from .summary import TOP_PARTS, Findings

__all__ = ["access", "prefill", "report_of", "sizes"]

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
        return comparison(title, note, "tokens that the cache holds", lines, at, "number")

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
