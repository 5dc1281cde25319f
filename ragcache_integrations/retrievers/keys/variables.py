"""The application's context variables, and OpenTelemetry's baggage, which may say who asks."""

from __future__ import annotations

import contextvars
import decimal
import functools
import re
import sys
from collections.abc import Iterator, Mapping
from contextvars import ContextVar
from typing import Any

from ragcache_integrations.core.own_code import is_own_class, is_own_module

__all__ = ["variables_around"]

# Packages whose context variables do not identify a user: frameworks (whose own are read
# elsewhere), tracing, logging, event loops, numbers, notebooks.
_SILENT_PACKAGES = {
    *("langchain", "langchain_classic", "langchain_community", "langchain_core", "langgraph"),
    *("langsmith", "llama_index", "llama_index_instrumentation"),
    *(
        "ragcache_integrations",
        "ragcache_workbench",
        "ddtrace",
        "langfuse",
        "openinference",
        "opentelemetry",
    ),
    *("sentry_sdk", "asgi_correlation_id", "loguru", "logging", "structlog"),
    *("anyio", "asyncio", "sniffio", "trio", "decimal", "numpy", "scipy", "torch", "transformers"),
    *("vllm", "anthropic", "griffe", "huggingface_hub", "openai", "pydantic", "rich"),
    *("hypothesis", "IPython", "ipykernel", "jupyter_core", "prompt_toolkit", "pytest"),
}
# The same of LlamaIndex's package whose name an application may have, too.
_SILENT_MODULES = (
    *("workflows.runtime.types.", "workflows.plugins.basic", "workflows.context.serializers"),
)
_TAGS = "instrument_tags"
_OTHER_TRACES = frozenset(
    f"sentry-{name}"
    for name in (
        *("trace_id", "sample_rand", "sample_rate", "sampled", "transaction", "replay_id"),
        *("environment", "release", "public_key", "org_id"),
    )
)
"""Sentry's part of the baggage."""
_DRAWN = re.compile(r"-[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$")
"""What OpenTelemetry adds to the name of a key, in each process another one."""
_SPANS = ("current-span", "suppress")
"""Beginnings of the keys of the current span, and of marks that nothing is to be traced."""


def variables_around() -> Iterator[tuple[str, str, Any]]:
    """Yield what the context says now: its place in keys, its own name, and its value."""
    for variable, value in contextvars.copy_context().items():
        place = _place(variable)
        if place == _TAGS:
            for tag in value:
                if not (isinstance(tag, str) and tag.startswith("llamaindex.")):  # a workflow's
                    yield f"{_TAGS}.{tag}", str(tag), value[tag]
        elif place == "" and not _is_a_library_s(variable, value):
            # Variables that are no module's attribute may share a name.
            yield f"variable.{variable.name}@{id(variable)}", variable.name, value
        elif place:
            yield f"variable.{place}", variable.name, value
    yield from _of_opentelemetry()


@functools.lru_cache(maxsize=1024)
def _place(variable: ContextVar[Any]) -> str | None:
    """Return a variable's name in keys.

    It is empty if the variable is no module's attribute, and ``None`` if it does not identify a
    user.
    """
    owners = [
        name
        for name, module in list(sys.modules.items())
        if any(value is variable for value in list(getattr(module, "__dict__", {}).values()))
    ]
    if variable.name == _TAGS and any(name.startswith("llama_index") for name in owners):
        return _TAGS
    if any(
        (name.partition(".")[0] in _SILENT_PACKAGES or name.startswith(_SILENT_MODULES))
        and not is_own_module(name)
        for name in owners
    ):
        return None
    return f"{min(owners)}.{variable.name}" if owners else ""


def _is_a_library_s(variable: ContextVar[Any], value: object) -> bool:
    """Whether a variable that is no module's attribute belongs to a library, and names no user.

    Its name says nothing: an application may choose the same.
    """
    kind = type(value)
    if kind is decimal.Context:
        return True
    if kind.__module__.startswith("langchain_core.") and hasattr(kind, "ignore_llm"):
        return True  # a counter of tokens, which each call makes a variable for
    tracing = getattr(sys.modules.get("opentelemetry.context"), "_RUNTIME_CONTEXT", None)
    logging = getattr(sys.modules.get("structlog.contextvars"), "_CONTEXT_VARS", {})
    owners = [_attributes(tracing), logging, *map(_attributes, _of_a_notebook())]
    return any(held is variable for owner in owners for held in list(owner.values()))


def _attributes(owner: object) -> Mapping[str, Any]:
    return getattr(owner, "__dict__", {})


def _of_a_notebook() -> list[object]:
    """Return the objects of Jupyter's kernel that have context variables, if it runs."""
    application = getattr(sys.modules.get("ipykernel.kernelapp"), "IPKernelApp", None)
    kernel = getattr(getattr(application, "_instance", None), "kernel", None)
    shell = getattr(kernel, "shell", None)
    parts = [getattr(shell, name, None) for name in ("displayhook", "display_pub")]
    return [] if kernel is None else [kernel, shell, *parts, sys.stdout, sys.stderr]


def _of_opentelemetry() -> Iterator[tuple[str, str, Any]]:
    """Yield the baggage, and other values of its context that say something."""
    module = sys.modules.get("opentelemetry.context")
    current: Mapping[str, Any] = {} if module is None else module.get_current()
    for key, value in current.items():
        name = _DRAWN.sub("", str(key))
        if name.startswith(_SPANS):
            continue
        if name == "baggage" and isinstance(value, Mapping):
            for entry, said in value.items():
                if entry not in _OTHER_TRACES:
                    yield f"baggage.{entry}", entry, said
        elif type(value).__module__ == "builtins" or is_own_class(type(value)):
            yield f"opentelemetry.{name}", name, value
