"""Prompt templates with the stable parts first; cache fields of providers."""

from .layout import Change, Flow, PromptLayout, PromptPart, check_flow
from .providers import anthropic_request, openai_request

__all__ = [
    "Change",
    "Flow",
    "PromptLayout",
    "PromptPart",
    "anthropic_request",
    "check_flow",
    "openai_request",
]
