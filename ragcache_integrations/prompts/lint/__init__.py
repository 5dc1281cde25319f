"""The prompt linter: its rules, and the templates that it reads."""

from .jinja import jinja_pieces
from .lint import (
    CountTokens,
    Template,
    TemplatePiece,
    approximate_tokens,
    common_length,
    excerpt,
    lint_prompt,
    mustache_pieces,
    pieces_of,
    printable,
)
from .rules import MIN_TOKENS, REMEDIES, Finding, LintReport, Matter, Stretch, break_findings

__all__ = [
    "MIN_TOKENS",
    "REMEDIES",
    "CountTokens",
    "Finding",
    "LintReport",
    "Matter",
    "Stretch",
    "Template",
    "TemplatePiece",
    "approximate_tokens",
    "break_findings",
    "common_length",
    "excerpt",
    "jinja_pieces",
    "lint_prompt",
    "mustache_pieces",
    "pieces_of",
    "printable",
]
