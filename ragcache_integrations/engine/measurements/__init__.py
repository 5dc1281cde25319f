"""Measurements of an engine: prefill time, documents encoded ahead, stock vLLM to compare with."""

from .profiling import Reloading, measure_prefill, measure_reloading, prefill_duration
from .stock import StockChunk, StockEngine

__all__ = [
    "Reloading",
    "StockChunk",
    "StockEngine",
    "measure_prefill",
    "measure_reloading",
    "prefill_duration",
]
