"""Halves of characters, which Python and JSON allow in a text and no file can hold."""

from __future__ import annotations

__all__ = ["without_surrogates"]


def without_surrogates(text: str) -> str:
    """Join pairs of surrogates, and replace single ones by U+FFFD."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
    return text
