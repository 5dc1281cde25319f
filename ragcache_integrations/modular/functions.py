"""Prompt programs; the public name of their decorator."""

from .programs import Length, PromptProgram, prompt_program, role

__all__ = ["Length", "PromptProgram", "prompt_program", "role"]
