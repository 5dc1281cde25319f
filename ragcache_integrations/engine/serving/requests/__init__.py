"""Requests to the server, read and checked."""

from .documents import CHAT_PATH, COMPLETION_PATH, DocumentReader, check_spans
from .fields import check_fields, has_grammar, refuse_marks, with_strict_tools
from .guard import MarkupGuard, RenderedGuard, is_guarded
from .pins import pass_pin_on, pin_ticket
from .reading import DISCARDED, decoded, parse_json, read_body
from .reuse import ReuseFields
from .steps import pass_steps_on

__all__ = [
    "CHAT_PATH",
    "COMPLETION_PATH",
    "DISCARDED",
    "DocumentReader",
    "MarkupGuard",
    "RenderedGuard",
    "ReuseFields",
    "check_fields",
    "check_spans",
    "decoded",
    "has_grammar",
    "is_guarded",
    "parse_json",
    "pass_pin_on",
    "pass_steps_on",
    "pin_ticket",
    "read_body",
    "refuse_marks",
    "with_strict_tools",
]
