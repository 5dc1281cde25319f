"""The result as one HTML file that needs nothing but a browser."""

from __future__ import annotations

import statistics
from pathlib import Path
from typing import Any

from ragcache_workbench.demo import charts
from ragcache_workbench.reports import Cell, Table, Tile, render_page, write_page

from .run import TURN, DemoResult, FrameworkResult
from .settings import FRAMEWORKS, DemoSettings
from .summary import (
    answers_table,
    conditions,
    examples,
    milliseconds,
    quality_table,
    rows,
    verdict,
)

__all__ = ["render", "write_report"]

SWAPS = {
    "langchain": (
        ("-", "retriever = store.as_retriever(search_kwargs={{'k': {k}}})"),
        (
            "+",
            "retriever = ApproximateCacheRetriever.from_vectorstore(store, k={k}, tolerance={t:g})",
        ),
        ("-", "model = StockChatModel(engine=vllm)"),
        ("+", "model = ChatRAGCache(engine=engine)"),
    ),
    "llama_index": (
        ("-", "retriever = index.as_retriever(similarity_top_k={k})"),
        ("+", "retriever = ApproximateCacheRetriever.from_index(index, k={k}, tolerance={t:g})"),
        ("-", "llm = StockLLM(engine=vllm)"),
        ("+", "llm = RAGCacheLLM(engine=engine)"),
    ),
}
"""What is swapped in each framework, as lines of a diff."""


def render(result: DemoResult) -> str:
    """The report as HTML: no script, nothing loaded from anywhere."""
    return render_page(
        "demo/report.html.j2",
        conditions=conditions(result.settings, result.requests),
        seconds=round(result.seconds),
        turn=TURN,
        encoded=result.encoded,
        encoding=round(result.encoding_seconds),
        frameworks=[
            _framework(framework)
            | {"name": FRAMEWORKS[name], "swap": _swap(name, result.settings)}
            | dict(zip(("verdict", "pays"), verdict(FRAMEWORKS[name], framework), strict=True))
            for name, framework in result.frameworks.items()
        ],
        scored=len(result.scored),
        quality=quality_table(result),
        answers=answers_table(result),
        examples=examples(result),
        command=result.settings.command(),
    )


def write_report(result: DemoResult, path: Path) -> None:
    """Write the report to a file.

    Raises:
        ConfigurationError: The file cannot be written.
    """
    write_page(render(result), path)


def _framework(result: FrameworkResult) -> dict[str, Any]:
    bars = charts.parts(result)
    figures = tuple(
        (
            Cell(row.label),
            Cell(row.before),
            Cell(row.after, style="strong"),
            Cell(row.change),
            Cell(row.anywhere, style="strong"),
            Cell(row.anywhere_change),
        )
        for row in rows(result)
    )
    return {
        "tiles": _tiles(result),
        "bars": bars,
        "parts": charts.parts_table(bars),
        "charts": [charts.cumulative(result), charts.retrievals(result), charts.ttfts(result)],
        "figures": Table(
            ("Times: mean (median)", "before", "after", "change", "anywhere", "change"), figures
        ),
    }


def _swap(framework: str, settings: DemoSettings) -> list[tuple[str, str]]:
    return [
        (sign, line.format(k=settings.top_k, t=settings.tolerance))
        for sign, line in SWAPS[framework]
    ]


def _tiles(framework: FrameworkResult) -> list[Tile]:
    before, after = framework.before_figures, framework.after_figures
    recall = "no hits" if after.hit_recall is None else f"recall {after.hit_recall:.3f} on hits"
    first, second = (
        statistics.median(seen.ttft_ms for seen in side)
        for side in (framework.before, framework.after)
    )
    hits = f"{after.hits:,} hits, {recall}"
    ratio = f"median; ratio of pairs {framework.ttft_ratio:.2f}"
    return [
        Tile("Vector-store calls", f"{after.store_calls:,}", hits, f"{before.store_calls:,}"),
        _time("Search or cache", before.retrieval_ms, after.retrieval_ms),
        _time("Question to last token", before.end_to_end_ms, after.end_to_end_ms),
        _time("Time to first token", first, second, ratio),
    ]


def _time(label: str, before: float, after: float, note: str = "mean per question") -> Tile:
    return Tile(label, f"{milliseconds(after)} ms", note, milliseconds(before))
