"""Laying a prompt out so that its KV cache can be reused."""

from ragcache_integrations.prompts.layout import Change, PromptLayout, PromptPart
from ragcache_integrations.prompts.lint import Finding, LintReport, lint_prompt
from ragcache_integrations.prompts.marking import mark_documents, mark_prompt
from ragcache_integrations.prompts.plan import FlowPart, FlowStep, PrefixPlan, Traffic
from ragcache_integrations.prompts.provider_caching import anthropic_request, openai_request
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
