"""The colours of every report, for a light and a dark background.

A page has each colour as the CSS variable of its name, and ``c0`` to ``c7`` and ``other`` also as
classes. Pictures have the light colours.
"""

from __future__ import annotations

__all__ = ["DARK", "LIGHT", "PALETTE", "PALETTE_SIZE"]

PALETTE_SIZE = 8
"""Number of colours that can be distinguished in one plot."""

_COLOURS = {
    "page": ("#f6f7f9", "#12151b"),
    "card": ("#ffffff", "#1b2029"),
    "ink": ("#1b1f27", "#e8ebf1"),
    "soft": ("#5b6472", "#9aa4b5"),
    "line": ("#e2e6ec", "#2c3340"),
    "code": ("#f0f2f6", "#141922"),
    "shadow": ("rgb(20 30 50 / 18%)", "rgb(0 0 0 / 60%)"),
    "focus": ("#2f6fde", "#7fb0ff"),
    "good": ("#0b7a75", "#2fd4c4"),
    "bad": ("#b42318", "#ff8f85"),
    "other": ("#8a94a6", "#7c879b"),
    "c0": ("#0b7a75", "#2fd4c4"),
    "c1": ("#c2560c", "#ff9d5c"),
    "c2": ("#4a55c8", "#a2aaff"),
    "c3": ("#b3265e", "#ff86b4"),
    "c4": ("#2f7fd1", "#6cb4ff"),
    "c5": ("#6b7a00", "#c3d24a"),
    "c6": ("#8a5a2b", "#d9a878"),
    "c7": ("#5b6472", "#9aa4b5"),
    # What the time of a question goes to.
    "embedding": ("#8b5cf6", "#a586ff"),
    "search": ("#e08a00", "#f0a733"),
    "overhead": ("#b9c0cc", "#5a6475"),
    "prefill": ("#2f6fde", "#5b95ff"),
    "decode": ("#94b5f0", "#33507f"),
}
LIGHT = {name: light for name, (light, _) in _COLOURS.items()}
DARK = {name: dark for name, (_, dark) in _COLOURS.items()}
PALETTE = tuple(LIGHT[f"c{number}"] for number in range(PALETTE_SIZE))
"""Colours of curves on a light background."""
