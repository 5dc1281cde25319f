"""Measurements of an engine: prefill time, documents encoded ahead, stock vLLM to compare with."""

from .profiling import measure_prefill, prefill_duration
from .reloading import Reloading, measure_reloading
from .stock import StockChunk, StockEngine

__all__ = [
    "Reloading",
    "StockChunk",
    "StockEngine",
    "measure_prefill",
    "measure_reloading",
    "prefill_duration",
]
