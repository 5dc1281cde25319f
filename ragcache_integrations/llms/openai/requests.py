"""Requests in the words that the server at hand understands."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Unpack

from pydantic import SecretStr

from ragcache_integrations.core.extras import require
from ragcache_integrations.core.forks import make_lock
from ragcache_integrations.core.generation import SamplingOptions
from ragcache_integrations.core.prompt import Prompt, PromptRenderer
from ragcache_integrations.engine.serving import ServerFacts, tokenizer_mark
from ragcache_integrations.errors import ConfigurationError

from .handshake import Handshake
from .wire import Request, ServerCallOptions, build_request

__all__ = ["RequestBuilder"]

logger = logging.getLogger(__name__)


class RequestBuilder:
    """Makes requests, and asks the server what it is if that makes a difference. Thread-safe.

    ``ragcache serve`` gets documents as documents. It renders conversations by its chat template.
    Raw text is sent as tokens if the model's tokenizer is known and is the server's. Any other
    server gets text, and no steps of workflows, on which no answer depends.

    Args:
        model: The name under which the server serves the model.
        handshake: Asks the server for its facts.
        tokenizer: Path or hub name of the model's tokenizer, if known.
    """

    def __init__(self, model: str, handshake: Handshake, tokenizer: str | None = None) -> None:
        self._model = model
        self._handshake = handshake
        self._tokenizer = tokenizer
        self._lock = make_lock()
        self._loaded = tokenizer is None
        self._renderer: PromptRenderer | None = None

    def build(
        self,
        prompt: Prompt,
        options: SamplingOptions,
        **call: Unpack[ServerCallOptions],
    ) -> Request:
        """Translate a request for the server.

        Raises:
            ConfigurationError: The prompt holds text that is no valid Unicode, or the server is to
                reuse documents in a way that it does not know.
        """
        facts = self._handshake.ask(call.get("timeout")) if _asks(prompt, call) else None
        return self._build(prompt, options, facts, **call)

    async def abuild(
        self,
        prompt: Prompt,
        options: SamplingOptions,
        **call: Unpack[ServerCallOptions],
    ) -> Request:
        """Async version of :meth:`build`."""
        facts = await self._handshake.aask(call.get("timeout")) if _asks(prompt, call) else None
        if facts is None or self._tokenizer is None:
            return self._build(prompt, options, facts, **call)
        return await asyncio.to_thread(self._build, prompt, options, facts, **call)

    def _build(
        self,
        prompt: Prompt,
        options: SamplingOptions,
        facts: ServerFacts | None,
        *,
        namespace: str = "",
        timeout: float | None = None,
        headers: Mapping[str, SecretStr] | None = None,
        reuse: str | None = None,
        link_tokens: int | None = None,
        priority: int | None = None,
        step: str = "",
        next_steps: Mapping[str, int] | None = None,
    ) -> Request:
        chosen: dict[str, Any] = {"reuse": reuse, "link_tokens": link_tokens}
        fields = {name: value for name, value in chosen.items() if value is not None}
        if facts is None and fields and prompt.documents:
            msg = f"{' and '.join(fields)} are for `ragcache serve`, which does not answer there"
            raise ConfigurationError(msg)
        rendered = None
        if facts is not None and prompt.documents and prompt.parts:
            renderer = self._renderer_of(facts)
            rendered = None if renderer is None else renderer.render(prompt, namespace)
        request = build_request(
            self._model,
            prompt,
            options,
            namespace,
            documents=facts is not None,
            rendered=rendered,
        )
        if facts is None:
            fields = {}
        elif step:
            fields |= {"step": step, "next_steps": dict(next_steps or {})}
        if priority is not None:
            fields["priority"] = priority  # vLLM's own field
        if fields:
            request = replace(request, body={**request.body, **fields})
        return replace(request.with_headers(headers), timeout=timeout)

    def _renderer_of(self, facts: ServerFacts) -> PromptRenderer | None:
        with self._lock:
            if not self._loaded:
                self._loaded = True
                self._renderer = self._load(facts)
            return self._renderer

    def _load(self, facts: ServerFacts) -> PromptRenderer | None:
        try:
            transformers: Any = require("transformers", feature="tokenizer=", extra="tokenizer")
            renderer = PromptRenderer(transformers.AutoTokenizer.from_pretrained(self._tokenizer))
        except (ImportError, OSError, ValueError):
            return None  # counting tokens will tell
        if tokenizer_mark(renderer.tokenize) == facts.tokenizer:
            return renderer
        logger.warning(
            "the tokenizer %r is not the server's: its tokens are not sent", self._tokenizer
        )
        return None


def _asks(prompt: Prompt, call: ServerCallOptions) -> bool:
    """Whether a request depends on what the server is."""
    return bool(prompt.documents or call.get("step"))
