"""The colours of every report, for a light and a dark background.

A page has each colour as the CSS variable of its name, and ``c0`` to ``c7`` and ``other`` also as
classes. Pictures have the light colours.
"""

from __future__ import annotations

import tomllib
from importlib.resources import files

__all__ = ["DARK", "LIGHT", "PALETTE", "PALETTE_SIZE"]

PALETTE_SIZE = 8
"""Number of colours that can be distinguished in one plot."""

_COLOURS: dict[str, tuple[str, str]] = tomllib.loads(
    files(__package__).joinpath("colours.toml").read_text("utf-8")
)
LIGHT = {name: light for name, (light, _) in _COLOURS.items()}
DARK = {name: dark for name, (_, dark) in _COLOURS.items()}
PALETTE = tuple(LIGHT[f"c{number}"] for number in range(PALETTE_SIZE))
"""Colours of curves on a light background."""
