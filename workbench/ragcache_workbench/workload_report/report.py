"""The findings as one HTML file that needs nothing but a browser."""

from __future__ import annotations

from pathlib import Path

from ragcache_workbench.reports import Cell, Table, Tile, percent, render_page, write_page
from ragcache_workbench.workload_report import charts

from .summary import (
    REPLICA_HEADS,
    TOP_PARTS,
    Findings,
    short_number,
)

__all__ = ["render", "write_report"]


def render(findings: Findings) -> str:
    """The report as HTML: no script, nothing loaded from anywhere."""
    return render_page(
        "workload_report/report.html.j2",
        findings=findings,
        figures=_tiles(findings),
        charts=[charts.access(findings), charts.prefill(findings), *charts.sizes(findings)],
        sizes=_sizes(findings),
        skew=_skew(findings),
        replicas=Table(
            REPLICA_HEADS, tuple(tuple(map(Cell, row)) for row in findings.replica_rows())
        ),
        providers=_providers(findings),
    )


def write_report(findings: Findings, path: Path) -> None:
    """Write the report to a file.

    Raises:
        ConfigurationError: The file cannot be written.
    """
    write_page(render(findings), path)


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


def _sizes(findings: Findings) -> Table:
    measures = ("documents found", "tokens found", "prefill time saved")
    memory = () if findings.kv_bytes_per_token is None else ("GiB",)
    heads = ("cache, tokens", *memory, *measures, f"stock LRU: {measures[0]}", *measures[1:])
    rows = []
    for size, recommended in findings.size_rows():
        gib = findings.gib(size.tokens)
        texts = [
            f"{size.tokens:,}" + (" ← recommended" if recommended else ""),
            *([] if gib is None else [gib]),
            percent(size.document_hit_rate),
            percent(size.token_hit_rate),
            percent(size.saved_share),
            percent(size.stock_document_hit_rate),
            percent(size.stock_token_hit_rate),
            percent(size.stock_saved_share),
        ]
        rows.append(tuple(Cell(text, style="good" if recommended else "") for text in texts))
    return Table(heads, tuple(rows))


def _providers(findings: Findings) -> Table:
    rows = [
        (Cell(share.cache.name), Cell(percent(share.cached)), Cell(percent(share.price)))
        for share in findings.providers
    ]
    return Table(("provider", "tokens from its cache", "cost, of uncached"), tuple(rows))


def _skew(findings: Findings) -> Table:
    shares = [percent(findings.result.skew.share_of_top(part)) for part in TOP_PARTS]
    return Table(
        ("most popular documents", *map(percent, TOP_PARTS)),
        ((Cell("share of the accesses"), *map(Cell, shares)),),
    )
