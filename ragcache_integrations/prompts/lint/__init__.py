"""The prompt linter: its rules, and the files and logs that it reads."""

from .jinja import jinja_pieces
from .lint import Finding, lint_prompt
from .mustache import mustache_pieces
from .providers import ProviderCost, provider_cost
from .requests import RecordedRequest, RequestLog, export_entries, recorded_requests
from .rules import MIN_TOKENS, LintReport
from .templates import Template, TemplatePiece, pieces_of
from .tokens import CountTokens, approximate_tokens

__all__ = [
    "MIN_TOKENS",
    "CountTokens",
    "Finding",
    "LintReport",
    "ProviderCost",
    "RecordedRequest",
    "RequestLog",
    "Template",
    "TemplatePiece",
    "approximate_tokens",
    "export_entries",
    "jinja_pieces",
    "lint_prompt",
    "mustache_pieces",
    "pieces_of",
    "provider_cost",
    "recorded_requests",
]
