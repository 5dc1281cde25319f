"""The weights of a small reading model, and nothing else. ``README.md`` is its model card."""

from __future__ import annotations

from pathlib import Path

__all__ = ["path"]

__version__ = "0.2.0"


def path() -> Path:
    """The model's folder, in the format of Hugging Face transformers."""
    return Path(__file__).parent / "model"
