"""Reads Mustache templates for the linter, without rendering anything."""

from __future__ import annotations

from collections.abc import Iterable

from ragcache_integrations.core.extras import require
from ragcache_integrations.errors import ConfigurationError

from .templates import (
    LONGEST_REASON,
    TemplatePiece,
    TemplateVariable,
    join_pieces,
)

__all__ = ["MAX_TEMPLATE", "mustache_pieces"]

MAX_TEMPLATE = 2**18
"""The most characters of a template: LangChain's tokenizer copies the rest of it at each tag."""

_VARIABLES = ("variable", "no escape")


def mustache_pieces(text: str) -> list[TemplatePiece]:
    """Cut a Mustache template into text and variables.

    A section with variables in it becomes the variable that it iterates over, as in LangChain. A
    section without variables is a condition, and its text counts. Inverted sections don't count.

    Raises:
        ConfigurationError: The text is no Mustache template, or too long.
        MissingExtraError: LangChain, whose tokenizer reads it, is not installed.
    """
    if len(text) > MAX_TEMPLATE:
        msg = f"a Mustache template must have at most {MAX_TEMPLATE} characters, got {len(text)}"
        raise ConfigurationError(msg)
    mustache = require(
        "langchain_core.utils.mustache", feature="linting Mustache templates", extra="langchain"
    )
    try:
        tokens = list(mustache.tokenize(text))
    except (SyntaxError, ValueError, LookupError) as error:
        msg = f"the Mustache template cannot be read: {str(error)[:LONGEST_REASON]}"
        raise ConfigurationError(msg) from error
    return join_pieces(_pieces(tokens))


def _pieces(tokens: Iterable[tuple[str, str]]) -> list[TemplatePiece]:
    pieces: list[TemplatePiece] = []
    inside: list[str] = []  # kinds of the sections that are open
    section: list[TemplatePiece] = []
    for kind, key in tokens:
        if kind in {"section", "inverted section"}:
            if not inside:
                section = [TemplateVariable(_root(key))]
            inside.append(kind)
        elif kind == "end":
            inside.pop()
            if not inside:
                pieces += _section(section)
                section = []
        elif "inverted section" not in inside:
            target = section if inside else pieces
            target += [key] if kind == "literal" else []
            target += [TemplateVariable(_root(key))] if kind in _VARIABLES else []
    return pieces


def _section(section: list[TemplatePiece]) -> list[TemplatePiece]:
    """The pieces of a section: its variable, or its text if it is only a condition."""
    shown = section[1:]
    if any(isinstance(piece, TemplateVariable) for piece in shown):
        return section[:1]
    return shown


def _root(key: str) -> str:
    return key.strip().partition(".")[0]
