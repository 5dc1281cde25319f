"""Documents that stay in the GPU until they are unpinned or their time is over."""

from __future__ import annotations

import asyncio
from abc import abstractmethod
from collections.abc import Iterable
from typing import Any, Unpack

from ragcache_integrations.core.checks import check_seconds
from ragcache_integrations.core.generation import SamplingOptions, Usage
from ragcache_integrations.core.prompt import FOREVER, Prompt, RenderedPrompt

from .calls import AsyncGenerationStream, Calls, GenerationStream, Link
from .process import Supervisor, acontrol, control
from .protocol import EngineCallOptions, Submit

__all__ = ["PREFILL", "Pinning"]

PREFILL = SamplingOptions(max_tokens=1, tool_choice="none")


class Pinning:
    """An engine's methods that pin documents."""

    _process: Supervisor
    _calls: Calls

    @property
    @abstractmethod
    def _link(self) -> Link:
        """What ties a stream to the engine."""

    @abstractmethod
    def _check(
        self, options: SamplingOptions | None, **call: Unpack[EngineCallOptions]
    ) -> tuple[SamplingOptions, dict[str, Any]]:
        """The options of a request, and the arguments of its stream."""

    def pin(
        self,
        documents: Prompt | Iterable[Any],
        *,
        ttl: float | None = None,
        system: str = "",
        **call: Unpack[EngineCallOptions],
    ) -> Usage:
        """Keep documents' KV caches in the GPU under any load.

        A KV cache serves only after the same text, so that all before the documents is kept, too.
        What is missing is computed now. Pinning again sets a new time. :meth:`reset_cache` ends all
        pins; after a restart of the process they are made again. A prompt's question is not kept.

        Args:
            documents: A prompt as it will be asked, or several documents, which
                :meth:`Prompt.rag` puts into one.
            ttl: Seconds; ``None`` until :meth:`unpin`.
            system: System text before the documents, if they are not in a prompt.
            call: As of :meth:`generate`, and so are the errors.

        Returns:
            The prompt's tokens, and how many of these were cached before.

        Raises:
            ConfigurationError: There would be no room for the longest request, of
                ``max_model_len`` tokens, or the tenant's pins would exceed its quota; the message
                says the numbers. Or there are no documents, or there is no knowledge tree.
        """
        arguments = self._pinning(ttl, call)
        rendered = self._calls.render_pinned(documents, system, call.get("namespace", ""))
        return GenerationStream(self._link, rendered, **arguments).result().usage

    async def apin(
        self,
        documents: Prompt | Iterable[Any],
        *,
        ttl: float | None = None,
        system: str = "",
        **call: Unpack[EngineCallOptions],
    ) -> Usage:
        """Async version of :meth:`pin`."""
        arguments = self._pinning(ttl, call)
        render, namespace = self._calls.render_pinned, call.get("namespace", "")
        rendered = await asyncio.to_thread(render, documents, system, namespace)
        stream = AsyncGenerationStream(self._link, rendered, **arguments)
        return (await stream.aresult()).usage

    def unpin(
        self, documents: Prompt | Iterable[Any], *, system: str = "", namespace: str = ""
    ) -> bool:
        """Let pinned documents be evicted again; arguments as of :meth:`pin`.

        Returns:
            Whether they were pinned at this place.
        """
        self._check(PREFILL, namespace=namespace)
        rendered = self._calls.render_pinned(documents, system, namespace)
        return bool(control(self._process, "unpin", _unpinning(rendered, namespace)))

    async def aunpin(
        self, documents: Prompt | Iterable[Any], *, system: str = "", namespace: str = ""
    ) -> bool:
        """Async version of :meth:`unpin`."""
        self._check(PREFILL, namespace=namespace)
        render = self._calls.render_pinned
        rendered = await asyncio.to_thread(render, documents, system, namespace)
        return bool(await acontrol(self._process, "unpin", _unpinning(rendered, namespace)))

    def _pinning(self, ttl: float | None, call: EngineCallOptions) -> dict[str, Any]:
        """The arguments of a stream that pins its documents."""
        check_seconds("ttl", ttl, also="None for no end")
        call = {**call, "reuse": "prefix", "link_tokens": None}
        options, arguments = self._check(PREFILL, **call)
        return {"options": options, **arguments, "pin": FOREVER if ttl is None else float(ttl)}


def _unpinning(prompt: RenderedPrompt, namespace: str) -> Submit:
    documents = tuple((span.id, span.start, span.end) for span in prompt.documents)
    return Submit(0, prompt.token_ids, PREFILL, namespace, documents, pin=0.0)
