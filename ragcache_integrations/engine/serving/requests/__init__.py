"""Requests to the server, read and checked."""

from .documents import (
    CHAT_PATH,
    COMPLETION_PATH,
    DocumentReader,
    check_fields,
    check_spans,
    has_grammar,
    refuse_marks,
    with_strict_tools,
)
from .guard import MarkupGuard, RenderedGuard, is_guarded
from .reading import (
    DISCARDED,
    ReuseFields,
    decoded,
    parse_json,
    pass_pin_on,
    pass_steps_on,
    pin_ticket,
    read_body,
)

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
