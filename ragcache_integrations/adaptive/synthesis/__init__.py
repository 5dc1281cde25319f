"""Synthesis methods: stuff, map-rerank, map-reduce."""

from .methods import Answered, Window
from .prompts import (
    DEFAULT_PROMPTS,
    SEPARATOR,
    Ranking,
    SynthesisPrompts,
    SynthesisSettings,
    found_nothing,
)
from .synthesise import astream_synthesis, asynthesise, stream_synthesis, synthesise

__all__ = [
    "DEFAULT_PROMPTS",
    "SEPARATOR",
    "Answered",
    "Ranking",
    "SynthesisPrompts",
    "SynthesisSettings",
    "Window",
    "astream_synthesis",
    "asynthesise",
    "found_nothing",
    "stream_synthesis",
    "synthesise",
]
