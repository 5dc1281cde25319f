"""Figures in words."""

from __future__ import annotations

__all__ = ["percent"]


def percent(share: float) -> str:
    """A share as text, with two digits."""
    return f"{share:.0%}" if share >= 0.095 else f"{100 * share:.2g}%"  # noqa: PLR2004 - 9.5 %
