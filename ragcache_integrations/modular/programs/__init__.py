"""Prompt programs: schemas written as Python functions."""

from .program import Length, PromptProgram, prompt_program, role

__all__ = [
    "Length",
    "PromptProgram",
    "prompt_program",
    "role",
]
