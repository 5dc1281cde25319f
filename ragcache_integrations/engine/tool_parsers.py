"""Which of vLLM's parsers reads the tool calls of a model, by its chat template.

Models write calls in forms of their own, and their templates write the calls of earlier turns in
the same form. vLLM has the parsers, under the names of ``--tool-call-parser``, but has the user
choose one.

Source: https://docs.vllm.ai/en/latest/features/tool_calling.html.
"""

from __future__ import annotations

import tomllib
from importlib.resources import files

__all__ = ["find_tool_parser"]

_FAMILIES: dict[str, list[str]] = tomllib.loads(
    files(__package__).joinpath("tool_parsers.toml").read_text("utf-8")
)
"""Parsers, and what the templates of their families hold. The first that fits is taken."""


def find_tool_parser(template: str) -> str:
    """The name of the parser for models with a chat template.

    Args:
        template: The text of the template.

    Returns:
        The name; empty if no known family writes calls like this.
    """
    for name, marks in _FAMILIES.items():
        if all(mark in template for mark in marks):
            return name
    return ""
