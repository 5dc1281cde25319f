"""Prompts laid out so that their KV caches can be reused."""

from ragcache_integrations.prompts.layout.layout import Change, PromptLayout, PromptPart
from ragcache_integrations.prompts.layout.providers import anthropic_request, openai_request
from ragcache_integrations.prompts.lint.lint import Finding, LintReport, lint_prompt
from ragcache_integrations.prompts.plan.plan import FlowPart, FlowStep, PrefixPlan, Traffic
from ragcache_integrations.prompts.recognition.marking import mark_documents, mark_prompt
from ragcache_integrations.prompts.rendering import stable_json

__all__ = [
    "Change",
    "Finding",
    "FlowPart",
    "FlowStep",
    "LintReport",
    "PrefixPlan",
    "PromptLayout",
    "PromptPart",
    "Traffic",
    "anthropic_request",
    "lint_prompt",
    "mark_documents",
    "mark_prompt",
    "openai_request",
    "stable_json",
]
