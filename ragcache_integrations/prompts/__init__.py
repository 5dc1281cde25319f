"""Prompts laid out so that their KV caches can be reused."""

from .layout import Change, PromptLayout, PromptPart, anthropic_request, openai_request
from .lint import Finding, LintReport, lint_prompt
from .plan import FlowPart, FlowStep, PrefixPlan, Traffic
from .provider_caches import PROVIDERS, ProviderCache, ProviderCost, provider_cost
from .recognition import mark_documents, mark_prompt
from .rendering import stable_json
from .repeats import documents_once

__all__ = [
    "PROVIDERS",
    "Change",
    "Finding",
    "FlowPart",
    "FlowStep",
    "LintReport",
    "PrefixPlan",
    "PromptLayout",
    "PromptPart",
    "ProviderCache",
    "ProviderCost",
    "Traffic",
    "anthropic_request",
    "documents_once",
    "lint_prompt",
    "mark_documents",
    "mark_prompt",
    "openai_request",
    "provider_cost",
    "stable_json",
]
