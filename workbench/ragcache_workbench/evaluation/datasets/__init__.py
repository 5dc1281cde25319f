"""Data sets (Natural Questions, MMLU, SQuAD, HotpotQA, TAT-QA and more) and their metrics."""

from .base import (
    BUNDLED,
    DATASETS,
    SYSTEM,
    Answer,
    EvalDataset,
    EvalDocument,
    EvalPrompt,
    EvalQuestion,
    Scored,
    check_dataset,
    checked_metrics,
    checked_score,
    digest_of,
    load_dataset,
)
from .metrics import exact_match, k_recall, token_f1

__all__ = [
    "BUNDLED",
    "DATASETS",
    "SYSTEM",
    "Answer",
    "EvalDataset",
    "EvalDocument",
    "EvalPrompt",
    "EvalQuestion",
    "Scored",
    "check_dataset",
    "checked_metrics",
    "checked_score",
    "digest_of",
    "exact_match",
    "k_recall",
    "load_dataset",
    "token_f1",
]
