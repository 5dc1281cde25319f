"""Requests to the server, read and checked."""

from .documents import (
    CHAT_PATH,
    COMPLETION_PATH,
    DocumentReader,
    check_fields,
    check_spans,
    has_grammar,
    with_strict_tools,
)
from .guard import MarkupGuard, RenderedGuard, is_guarded
from .reading import (
    DISCARDED,
    OwnFields,
    decoded,
    parse_json,
    pin_ticket,
    read_body,
    refuse_marks,
)

__all__ = [
    "CHAT_PATH",
    "COMPLETION_PATH",
    "DISCARDED",
    "DocumentReader",
    "MarkupGuard",
    "OwnFields",
    "RenderedGuard",
    "check_fields",
    "check_spans",
    "decoded",
    "has_grammar",
    "is_guarded",
    "parse_json",
    "pin_ticket",
    "read_body",
    "refuse_marks",
    "with_strict_tools",
]
