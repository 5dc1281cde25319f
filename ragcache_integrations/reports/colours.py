"""The colours of every report, on a light and on a dark ground.

A page has each as the CSS variable of its name, and ``c0`` to ``c7`` and ``other`` as classes, too;
pictures take the light ones.
"""

from __future__ import annotations

__all__ = ["DARK", "LIGHT", "PALETTE", "PALETTE_SIZE"]

PALETTE_SIZE = 8
"""Number of colours that can be told apart in one plot."""

LIGHT = {
    "page": "#f6f7f9",
    "card": "#ffffff",
    "ink": "#1b1f27",
    "soft": "#5b6472",
    "line": "#e2e6ec",
    "code": "#f0f2f6",
    "shadow": "rgb(20 30 50 / 18%)",
    "focus": "#2f6fde",
    "good": "#0b7a75",
    "bad": "#b42318",
    "other": "#8a94a6",
    "c0": "#0b7a75",
    "c1": "#c2560c",
    "c2": "#4a55c8",
    "c3": "#b3265e",
    "c4": "#2f7fd1",
    "c5": "#6b7a00",
    "c6": "#8a5a2b",
    "c7": "#5b6472",
}
DARK = {
    "page": "#12151b",
    "card": "#1b2029",
    "ink": "#e8ebf1",
    "soft": "#9aa4b5",
    "line": "#2c3340",
    "code": "#141922",
    "shadow": "rgb(0 0 0 / 60%)",
    "focus": "#7fb0ff",
    "good": "#2fd4c4",
    "bad": "#ff8f85",
    "other": "#7c879b",
    "c0": "#2fd4c4",
    "c1": "#ff9d5c",
    "c2": "#a2aaff",
    "c3": "#ff86b4",
    "c4": "#6cb4ff",
    "c5": "#c3d24a",
    "c6": "#d9a878",
    "c7": "#9aa4b5",
}
PALETTE = tuple(LIGHT[f"c{number}"] for number in range(PALETTE_SIZE))
"""Colours of curves on a light ground."""
