"""``ragcache eval``: quality and speed on the papers' data sets and on your own.

Framework-free, except for ``systems/langchain.py`` and ``systems/llama_index.py``. A run is a
folder with its configuration, environment, raw records and figures, and can be resumed.
"""

from __future__ import annotations

from .datasets import (
    Answer,
    EvalDataset,
    EvalDocument,
    EvalPrompt,
    EvalQuestion,
    Scored,
    load_dataset,
)
from .evaluate import (
    aevaluate,
    aevaluate_grid,
    evaluate,
    evaluate_grid,
)
from .records import Record
from .report import awrite_report, write_report
from .runs import (
    Comparison,
    EvalRun,
    Throughput,
    compare,
    throughputs,
)
from .scores import Interval, PriceTable, Score
from .settings import EvalSettings
from .workloads import Workload, make_workload

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
