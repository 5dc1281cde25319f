"""The HTML report of a run: tables, plots, comparisons."""

from .console import show
from .report import awrite_report, write_report

__all__ = [
    "awrite_report",
    "show",
    "write_report",
]
