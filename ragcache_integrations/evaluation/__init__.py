"""``ragcache eval``: quality and speed on the papers' data sets and on your own.

Framework-free, but for the adapters :mod:`.langchain` and :mod:`.llama_index`. A run is a folder
with its configuration, environment, raw records and figures, and goes on after a break.
"""

from __future__ import annotations

from ragcache_integrations.evaluation.datasets.base import (
    Answer,
    EvalDataset,
    EvalDocument,
    EvalPrompt,
    EvalQuestion,
    Scored,
    load_dataset,
)
from ragcache_integrations.evaluation.evaluate import (
    aevaluate,
    aevaluate_grid,
    evaluate,
    evaluate_grid,
)
from ragcache_integrations.evaluation.records.records import Record
from ragcache_integrations.evaluation.report.report import awrite_report, write_report
from ragcache_integrations.evaluation.runs import (
    Comparison,
    EvalRun,
    Throughput,
    compare,
    throughputs,
)
from ragcache_integrations.evaluation.scores.figures import PriceTable
from ragcache_integrations.evaluation.scores.intervals import Interval
from ragcache_integrations.evaluation.scores.scoring import Score
from ragcache_integrations.evaluation.settings import EvalSettings
from ragcache_integrations.evaluation.workloads.streams import Workload, make_workload

__all__ = [
    "Answer",
    "Comparison",
    "EvalDataset",
    "EvalDocument",
    "EvalPrompt",
    "EvalQuestion",
    "EvalRun",
    "EvalSettings",
    "Interval",
    "PriceTable",
    "Record",
    "Score",
    "Scored",
    "Throughput",
    "Workload",
    "aevaluate",
    "aevaluate_grid",
    "awrite_report",
    "compare",
    "evaluate",
    "evaluate_grid",
    "load_dataset",
    "make_workload",
    "throughputs",
    "write_report",
]
