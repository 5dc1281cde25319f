"""The HTML report of a run: tables, plots, comparisons."""

from .labels import FOLLOWED, format_figure, main_quality, measure, rephrased_by
from .report import awrite_report, show, write_report
from .tables import failures, interruptions

__all__ = [
    "FOLLOWED",
    "awrite_report",
    "failures",
    "format_figure",
    "interruptions",
    "main_quality",
    "measure",
    "rephrased_by",
    "show",
    "write_report",
]
