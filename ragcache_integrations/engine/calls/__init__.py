"""Calls of the engine: their checks, their prompts as tokens, and the streams of their outputs."""

from .calls import NO_PARSER, Calls, Keeping, aencode_all, encode_all
from .streams import AsyncGenerationStream, GenerationStream, Link

__all__ = [
    "NO_PARSER",
    "AsyncGenerationStream",
    "Calls",
    "GenerationStream",
    "Keeping",
    "Link",
    "aencode_all",
    "encode_all",
]
