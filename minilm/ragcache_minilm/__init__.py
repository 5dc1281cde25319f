"""The weights and the tokenizer of all-MiniLM-L6-v2, and nothing else."""

from __future__ import annotations

from pathlib import Path

__all__ = ["path"]

__version__ = "0.1.0"


def path() -> Path:
    """The folder with ``model.onnx`` and ``tokenizer.json``."""
    return Path(__file__).parent
