"""The result as one HTML file that needs nothing but a browser."""

from __future__ import annotations

import statistics
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path

import jinja2

from ragcache_integrations import __version__
from ragcache_integrations.demo import charts
from ragcache_integrations.demo.run import TURN, DemoResult, FrameworkResult
from ragcache_integrations.demo.settings import FRAMEWORKS, DemoSettings
from ragcache_integrations.demo.summary import (
    conditions,
    examples,
    milliseconds,
    quality_rows,
    rows,
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


@dataclass(frozen=True, slots=True)
class Tile:
    """A figure in large type."""

    label: str
    before: str
    after: str
    note: str


def render(result: DemoResult) -> str:
    """The report as HTML: no script, nothing loaded from anywhere."""
    environment = jinja2.Environment(
        autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    source = files(__package__).joinpath("report.html.j2").read_text(encoding="utf-8")
    return environment.from_string(source).render(
        version=__version__,
        conditions=conditions(result.settings, result.requests),
        seconds=round(result.seconds),
        turn=TURN,
        frameworks=[
            {
                "name": FRAMEWORKS[name],
                "swap": _swap(name, result.settings),
                "tiles": _tiles(framework),
                "bars": charts.parts(framework),
                "charts": [
                    charts.cumulative(framework),
                    charts.retrievals(framework),
                    charts.ttfts(framework),
                ],
                "rows": rows(framework),
            }
            for name, framework in result.frameworks.items()
        ],
        scored=result.settings.scored,
        quality=quality_rows(result),
        examples=examples(result),
        command=result.settings.command(),
    )


def write_report(result: DemoResult, path: Path) -> None:
    """Write the report to a file."""
    path.write_text(render(result), encoding="utf-8")


def _swap(framework: str, settings: DemoSettings) -> list[tuple[str, str]]:
    return [
        (sign, line.format(k=settings.top_k, t=settings.tolerance))
        for sign, line in SWAPS[framework]
    ]


def _tiles(framework: FrameworkResult) -> list[Tile]:
    before, after = framework.before_figures, framework.after_figures
    recall = "no hits" if after.hit_recall is None else f"recall {after.hit_recall:.3f} on hits"
    medians = [
        milliseconds(statistics.median(one.ttft_ms for one in side))
        for side in (framework.before, framework.after)
    ]
    return [
        Tile(
            "Vector-store calls",
            f"{before.store_calls:,}",
            f"{after.store_calls:,}",
            f"{after.hits:,} hits, {recall}",
        ),
        Tile(
            "Search or cache",
            milliseconds(before.retrieval_ms),
            f"{milliseconds(after.retrieval_ms)} ms",
            "mean per question",
        ),
        Tile(
            "Question to last token",
            milliseconds(before.end_to_end_ms),
            f"{milliseconds(after.end_to_end_ms)} ms",
            "mean per question",
        ),
        Tile(
            "Time to first token",
            medians[0],
            f"{medians[1]} ms",
            f"median; ratio of pairs {framework.ttft_ratio:.2f}",
        ),
    ]
