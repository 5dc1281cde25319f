"""Prompt programs; the public name of their decorator."""

from ragcache_integrations.modular.programs.program import (
    Length,
    PromptProgram,
    prompt_program,
    role,
)

__all__ = ["Length", "PromptProgram", "prompt_program", "role"]
