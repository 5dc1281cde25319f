"""Text that a conversation has already: referred to, instead of said again."""

from .held import HELD, dump_parts, whole_text
from .repeats import MIN_WORDS, Repeats, documents_once

__all__ = ["HELD", "MIN_WORDS", "Repeats", "documents_once", "dump_parts", "whole_text"]
