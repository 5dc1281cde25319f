"""Text that a conversation has already: referred to, instead of said again."""

from .repeats import HELD, MIN_WORDS, Repeats, documents_once, dump_parts, whole_text

__all__ = ["HELD", "MIN_WORDS", "Repeats", "documents_once", "dump_parts", "whole_text"]
