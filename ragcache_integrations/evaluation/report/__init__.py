"""The HTML report of a run: tables, plots, comparisons."""

from .console import show
from .measures import FOLLOWED, Unit, format_figure, main_quality, measure
from .report import awrite_report, write_report

__all__ = [
    "FOLLOWED",
    "Unit",
    "awrite_report",
    "format_figure",
    "main_quality",
    "measure",
    "show",
    "write_report",
]
