"""An LLM object whose answer is already being generated.

A pipeline that submits prompts itself, as speculation does, returns the running answer to the
user's LLM object. The framework then handles the answer as usual (chunks, callbacks, traces,
usage).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from ragcache_integrations.core.generation import Generation
from ragcache_integrations.core.prompt import Prompt, PromptDocument

from .backend import (
    AsyncChunkStream,
    Backend,
    BackendSource,
    ChunkStream,
)
from .base import BaseRAGCacheLLM

__all__ = ["abackend_of", "answered_by", "arguments_of", "backend_of", "marked"]

M = TypeVar("M", bound=BaseRAGCacheLLM)


def backend_of(llm: BaseRAGCacheLLM) -> Backend:
    """An LLM object's backend; the first call may take as long as an engine's start.

    Raises:
        RAGCacheError: The backend could not be made.
    """
    return llm._source.get()  # noqa: SLF001 - this is a part of the LLM classes


async def abackend_of(llm: BaseRAGCacheLLM) -> Backend:
    """Async version of :func:`backend_of`."""
    return await llm._source.aget()  # noqa: SLF001 - this is a part of the LLM classes


def arguments_of(llm: BaseRAGCacheLLM, call: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments that an LLM object passes to its backend besides a prompt.

    Args:
        llm: The LLM object.
        call: Arguments of this call alone, including ``stop``.

    Raises:
        ConfigurationError: An argument is unknown or out of its range.
    """
    own = {name: value for name, value in call.items() if name != "stop"}
    return llm._call(call.get("stop"), own).arguments  # noqa: SLF001 - as above


def marked(llm: BaseRAGCacheLLM, prompt: Prompt, documents: Sequence[PromptDocument]) -> Prompt:
    """Return a prompt as an LLM object sends it to its backend, with its documents marked.

    Args:
        llm: The LLM object.
        prompt: The prompt for the backend.
        documents: The retrieved documents, whose texts are verbatim in the prompt.
    """
    ready, _ = llm._ready(prompt, None, {"documents": list(documents)})  # noqa: SLF001 - as above
    return ready


def answered_by(llm: M, prompt: Prompt, stream: Any) -> M:
    """Return a copy of an LLM object for which a prompt is already being answered.

    Args:
        llm: The LLM object.
        prompt: A prompt from :func:`marked`. Other prompts, and this one when it is sent a second
            time, are answered as usual.
        stream: Its answer: a stream for sync methods or one for async methods, depending on which
            will be called.
    """
    replay: Any = _Replay(backend_of(llm), prompt, stream)
    copy = llm.model_copy()
    copy._source = BackendSource(replay)  # noqa: SLF001 - as above
    return copy


@dataclass(eq=False, repr=False)
class _Replay:
    """A backend in front of another one, with one running answer."""

    backend: Backend
    prompt: Prompt
    running: Any

    def __getattr__(self, name: str) -> Any:
        return getattr(self.backend, name)

    def _take(self, prompt: Prompt) -> Any:
        """The running answer if it belongs to this prompt; it is returned once."""
        if prompt != self.prompt:
            return None
        running, self.running = self.running, None
        return running

    def stream(self, prompt: Prompt, *options: Any, **arguments: Any) -> ChunkStream:
        """Return the running answer, or have the backend answer the prompt chunk by chunk."""
        running: ChunkStream | None = self._take(prompt)
        return running or self.backend.stream(prompt, *options, **arguments)

    async def astream(self, prompt: Prompt, *options: Any, **arguments: Any) -> AsyncChunkStream:
        """Async version of :meth:`stream`."""
        running: AsyncChunkStream | None = self._take(prompt)
        return running or await self.backend.astream(prompt, *options, **arguments)

    def generate(self, prompt: Prompt, *options: Any, **arguments: Any) -> Generation:
        """Return the whole running answer, or have the backend answer the prompt."""
        running = self._take(prompt)
        if running is None:
            return self.backend.generate(prompt, *options, **arguments)
        answer: Generation = running.result().generation
        return answer

    async def agenerate(self, prompt: Prompt, *options: Any, **arguments: Any) -> Generation:
        """Async version of :meth:`generate`."""
        running = self._take(prompt)
        if running is None:
            return await self.backend.agenerate(prompt, *options, **arguments)
        answer: Generation = (await running.aresult()).generation
        return answer
