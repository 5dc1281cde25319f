"""The findings on the terminal."""

from __future__ import annotations

from collections.abc import Iterable

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from ragcache_workbench.reports import percent

from .summary import (
    REPLICA_HEADS,
    TOP_PARTS,
    Findings,
    duration,
)

__all__ = ["show"]

PREFILL_ROWS = 6


def show(findings: Findings, console: Console) -> None:
    """Write the verdict, then the tables."""
    result = findings.result
    style = "bold green" if findings.result.pays else "bold red"
    console.print(findings.verdict(), style=style, highlight=False)
    console.print(escape(findings.advice()), highlight=False)
    console.print()
    tables = {
        f"Access: {result.requests:,} requests for {result.skew.accesses:,} documents, "
        f"{result.skew.documents:,} different ones": _skew(findings),
        f"Prefill time of {result.prefill.new_tokens:,} new tokens after a prefix": (
            _prefill(findings)
        ),
        "Found, and prefill time saved, by size of the cache": _sizes(findings),
        f"Prompt caches of hosted models, {findings.requests_per_day:,.0f} requests a day": (
            _providers(findings)
        ),
    }
    if findings.replicas is not None:
        title = f"{findings.replicas.replicas} replicas, by what a router chooses them"
        tables[title] = _replicas(findings)
    for title, table in tables.items():
        console.print(title, style="bold", highlight=False)
        console.print(table)
        console.print()
    for note in findings.notes():
        console.print(f"• {escape(note)}", highlight=False, style="dim")


def _table(columns: Iterable[str]) -> Table:
    table = Table()
    for column in columns:
        table.add_column(column, justify="right")
    return table


def _replicas(findings: Findings) -> Table:
    table = _table(REPLICA_HEADS)
    for row in findings.replica_rows():
        table.add_row(*row)
    return table


def _skew(findings: Findings) -> Table:
    table = _table(("most popular", "accesses"))
    for part in TOP_PARTS:
        table.add_row(percent(part), percent(findings.result.skew.share_of_top(part)))
    return table


def _prefill(findings: Findings) -> Table:
    times = findings.result.prefill
    table = _table(("prefix tokens", "computed", "cached", "ratio"))
    rows = list(zip(times.prefix_tokens, times.uncached, times.cached, strict=True))
    step = -(-len(rows) // PREFILL_ROWS)
    for tokens, uncached, cached in rows[::-1][::step][::-1]:
        ratio = f"{uncached / cached:.1f}" if cached else "-"
        table.add_row(f"{tokens:,}", duration(uncached), duration(cached), ratio)
    return table


def _providers(findings: Findings) -> Table:
    table = _table(("provider", "tokens from its cache", "cost, of uncached"))
    for share in findings.providers:
        table.add_row(share.cache.name, percent(share.cached), percent(share.price))
    return table


def _sizes(findings: Findings) -> Table:
    memory = [] if findings.kv_bytes_per_token is None else ["GiB"]
    columns = ["cache tokens", *memory, "documents", "tokens", "saved", "stock LRU", "saved"]
    table = _table(columns)
    for size, recommended in findings.size_rows():
        gib = findings.gib(size.tokens)
        table.add_row(
            f"{size.tokens:,}",
            *([] if gib is None else [gib]),
            percent(size.document_hit_rate),
            percent(size.token_hit_rate),
            percent(size.saved_share),
            percent(size.stock_token_hit_rate),
            percent(size.stock_saved_share),
            style="bold green" if recommended else None,
        )
    return table
