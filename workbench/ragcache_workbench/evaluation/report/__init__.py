"""The HTML report of a run: tables, plots, comparisons."""

from .console import show
from .labels import rephrased_by
from .measures import FOLLOWED, Unit, format_figure, main_quality, measure
from .report import awrite_report, write_report
from .tables import failures, interruptions

__all__ = [
    "FOLLOWED",
    "Unit",
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
