"""Streams of questions, and rephrasings of them."""

from .rephrasing import FUNCTION_WORDS, KINDS, Kind, rephrase
from .streams import Workload, WorkloadItem, WorkloadKind, check_workload, make_workload

__all__ = [
    "FUNCTION_WORDS",
    "KINDS",
    "Kind",
    "Workload",
    "WorkloadItem",
    "WorkloadKind",
    "check_workload",
    "make_workload",
    "rephrase",
]
