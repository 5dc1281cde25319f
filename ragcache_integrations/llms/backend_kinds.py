"""The kinds of backend that an LLM class can have: which knobs each takes, and how it is made."""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Callable
from functools import partial
from typing import Any, ClassVar, TypeAlias

from typing_extensions import override

from ragcache_integrations.engine.arguments import LocalKnobs
from ragcache_integrations.engine.engine import RAGCacheEngine, engine_settings
from ragcache_integrations.engine.protocol import TreeKnobs
from ragcache_integrations.errors import ConfigurationError

from .backend import Backend, BackendSource, SharedBackends
from .knobs import LLMKnobs
from .openai import OpenAIServer

__all__ = [
    "ENGINE_KNOBS",
    "LOCAL_ENGINE",
    "REUSE_KNOBS",
    "SERVER",
    "USER_BACKEND",
    "BackendKind",
    "Recipe",
    "UserBackend",
    "exclude",
    "is_modular",
]

_START_KNOBS = (
    *("kv_cache_gib", "dtype", "chat_template", "tool_parser", "startup_timeout", "vllm_args"),
)
_TREE_DEFAULTS = {
    name: LocalKnobs.model_fields[name].default
    for name in ("knowledge_tree", *TreeKnobs.model_fields)
}
ENGINE_KNOBS = (*_START_KNOBS, *_TREE_DEFAULTS)
"""Knobs of a local engine besides the model and its context window."""

REUSE_KNOBS = ("reuse", "link_tokens")
"""Those of them that a single call may have, too, and that ``ragcache serve`` is sent."""

_APPROXIMATION_KNOBS = (*REUSE_KNOBS, "exact_documents")
"""Those of them on which approximate answers depend."""

_BACKEND_METHODS = (
    *("generate", "agenerate", "generate_batch", "agenerate_batch", "stream", "astream"),
    *("count_tokens", "tokenize"),
)


Recipe: TypeAlias = tuple[Callable[..., Backend], dict[str, Any]]
"""A function that makes a backend, and its arguments; equal recipes make equal backends."""


class BackendKind(ABC):
    """A kind of backend. It has no state: the settings are the knobs of the LLM object.

    Attributes:
        is_modular: Whether documents become modules, and answers have no grammar.
    """

    is_modular: ClassVar[bool] = False

    @abstractmethod
    def check(self, knobs: LLMKnobs) -> None:
        """Check the knobs that are about the backend.

        Raises:
            ConfigurationError: A knob is missing, out of its range or for another kind of backend.
        """

    @abstractmethod
    def make(self, knobs: LLMKnobs) -> Recipe:
        """The recipe of the backend, which is made at first use."""

    def source(self, knobs: LLMKnobs, shared: SharedBackends) -> BackendSource:
        """Where an LLM object gets its backend from.

        Args:
            knobs: The LLM object's knobs.
            shared: Backends that the object shares with those made from it.
        """
        maker, arguments = self.make(knobs)
        key = (maker, json.dumps(arguments, sort_keys=True, default=repr))
        return shared.source(make=partial(maker, **arguments), key=key, view=self.view(knobs))

    def view(self, knobs: LLMKnobs) -> Callable[[Any], Backend] | None:
        """A function that wraps the shared backend for an object; ``None`` for no wrapping."""
        del knobs
        return None

    def reuse(self, knobs: LLMKnobs) -> dict[str, Any]:
        """Where documents are reused, as far as every request has to say it."""
        del knobs
        return {}

    def identity(self, knobs: LLMKnobs) -> dict[str, Any]:
        """Values on which answers depend besides the model, its address and the sampling."""
        del knobs
        return {}


class LocalEngine(BackendKind):
    """The bundled engine, started at the first call."""

    @override
    def check(self, knobs: LLMKnobs) -> None:
        if knobs.tokenizer is not None:
            msg = "tokenizer is for base_url: a local engine counts with its model's own"
            raise ConfigurationError(msg)
        _, arguments = self.make(knobs)
        engine_settings(**arguments)

    @override
    def make(self, knobs: LLMKnobs) -> Recipe:
        values = {name: getattr(knobs, name) for name in (*_START_KNOBS, "max_model_len")}
        arguments = {name: value for name, value in values.items() if value is not None}
        arguments |= {name: getattr(knobs, name) for name in _TREE_DEFAULTS}  # None says much here
        return RAGCacheEngine, {"model": knobs.model, **arguments}

    @override
    def identity(self, knobs: LLMKnobs) -> dict[str, Any]:
        return _approximation(knobs)


class Server(BackendKind):
    """A server that speaks the OpenAI protocol, at ``base_url``."""

    @override
    def check(self, knobs: LLMKnobs) -> None:
        exclude(knobs, "base_url", *(name for name in ENGINE_KNOBS if name not in REUSE_KNOBS))
        if knobs.model is None:
            raise ConfigurationError("base_url needs model, the name that the server serves")

    @override
    def reuse(self, knobs: LLMKnobs) -> dict[str, Any]:
        chosen = {name: getattr(knobs, name) for name in REUSE_KNOBS}
        return {name: value for name, value in chosen.items() if value != _TREE_DEFAULTS[name]}

    @override
    def identity(self, knobs: LLMKnobs) -> dict[str, Any]:
        return self.reuse(knobs)  # the rest is the server's, as its model is

    @override
    def make(self, knobs: LLMKnobs) -> Recipe:
        headers = (knobs.default_headers or {}).items()
        return OpenAIServer, {
            "base_url": knobs.base_url,
            "model": knobs.model,
            "api_key": None if knobs.api_key is None else knobs.api_key.get_secret_value(),
            "default_headers": {name: value.get_secret_value() for name, value in headers},
            "max_model_len": knobs.max_model_len,
            "tokenizer": knobs.tokenizer,
            "max_retries": knobs.max_retries,
        }


class UserBackend(BackendKind):
    """The user's own backend, ``engine=``, which only the user closes."""

    @override
    def check(self, knobs: LLMKnobs) -> None:
        exclude(knobs, "engine", "base_url", "model", "max_model_len", "tokenizer", *ENGINE_KNOBS)
        missing = [name for name in _BACKEND_METHODS if not hasattr(knobs.engine, name)]
        if missing:
            kind = type(knobs.engine).__name__
            msg = f"engine must be a RAGCacheEngine, got {kind} without {', '.join(missing)}"
            raise ConfigurationError(msg)

    @override
    def make(self, knobs: LLMKnobs) -> Recipe:
        raise NotImplementedError  # it is there

    @override
    def source(self, knobs: LLMKnobs, shared: SharedBackends) -> BackendSource:
        engine: Any = knobs.engine
        return shared.source(engine, view=self.view(knobs))

    @override
    def identity(self, knobs: LLMKnobs) -> dict[str, Any]:
        return _approximation(knobs.engine)


def _approximation(owner: Any) -> dict[str, Any]:
    """How an engine, or an LLM object with one, approximates answers; nothing if they are exact."""
    values = {name: getattr(owner, name, None) for name in _APPROXIMATION_KNOBS}
    return values if values["reuse"] == "anywhere" else {}


def is_modular(engine: object) -> bool:
    """Whether this is a modular engine, and not the name of one."""
    return hasattr(engine, "with_strategy")


def exclude(knobs: LLMKnobs, chosen: str, *others: str) -> None:
    """Refuse knobs that are for another kind of backend.

    They count as set by their values: LangChain's configurable fields set every knob again.

    Args:
        knobs: The LLM object's knobs.
        chosen: Name of the knob that excludes others, for the message.
        others: Names of the knobs that it excludes.

    Raises:
        ConfigurationError: An excluded knob differs from its default.
    """
    excluded = [name for name in others if getattr(knobs, name) != _TREE_DEFAULTS.get(name)]
    if excluded:
        raise ConfigurationError(f"{chosen} excludes {', '.join(excluded)}: both were given")


LOCAL_ENGINE, SERVER, USER_BACKEND = LocalEngine(), Server(), UserBackend()
