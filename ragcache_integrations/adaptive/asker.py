"""What is asked, whichever model answers: the engine, a server, or a model of a framework."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Generator, Iterable, Mapping
from contextlib import aclosing, closing
from dataclasses import dataclass, replace
from typing import Any, Protocol

from ragcache_integrations.core.generation import SamplingOptions, TokenLogprob, Usage
from ragcache_integrations.core.prompt import Prompt
from ragcache_integrations.errors import ConfigurationError

__all__ = [
    "DEFAULT_ANSWER_TOKENS",
    "Asker",
    "EngineAsker",
    "Limits",
    "LogprobSupport",
    "ModelAnswer",
    "ModelRequest",
    "add_usage",
    "count_roughly",
    "count_texts",
    "join_answers",
]

BYTES_PER_TOKEN = 3
"""Fewer than any usual vocabulary reaches: what is counted so fits."""

DEFAULT_ANSWER_TOKENS = 256
"""Taken to be the most tokens of an answer where a model has no limit, or does not tell."""

TOKENS_PER_MESSAGE = 8
"""Room for what a chat template writes around a message."""


@dataclass(frozen=True, slots=True)
class ModelRequest:
    """One call of a model.

    Attributes:
        prompt: What is asked, its documents marked.
        max_tokens: The most tokens of the answer; the model's own setting where ``None``.
        logprobs: Whether to ask for the tokens' log-probabilities.
        json_schema: JSON schema that the answer must satisfy, for models that can keep to one.
    """

    prompt: Prompt
    max_tokens: int | None = None
    logprobs: bool = False
    json_schema: Mapping[str, Any] | None = None


@dataclass(frozen=True, slots=True)
class ModelAnswer:
    """What a model said, or a piece of it.

    Attributes:
        text: The answer.
        logprobs: Its tokens with their log-probabilities; empty where the model gave none.
        usage: What it took, where the model tells; among the pieces of a stream, on one of them
            or in parts that add up.
    """

    text: str
    logprobs: tuple[TokenLogprob, ...] = ()
    usage: Usage | None = None


@dataclass(frozen=True, slots=True)
class Limits:
    """How much a model reads and writes.

    Attributes:
        context_window: Tokens of prompt and answer together; ``None`` where the model won't tell.
        answer_tokens: The most tokens of an answer, where a request does not say; what room is left
            for one that has no limit but the window.
    """

    context_window: int | None
    answer_tokens: int


@dataclass(slots=True)
class LogprobSupport:
    """What is known of a model's log-probabilities. Shared by all that ask the same model.

    Attributes:
        given: Whether they come with answers, as far as is known; ``False`` once a request for
            them was answered without.
        lack_was_told: Whether their lack was logged.
    """

    given: bool
    lack_was_told: bool = False


class Asker(Protocol):
    """A model that answers requests; from any thread, and from any event loop."""

    @property
    def logprob_support(self) -> LogprobSupport:
        """Whether log-probabilities come with answers."""

    def ask(self, request: ModelRequest) -> ModelAnswer:
        """Answer a request."""

    async def aask(self, request: ModelRequest) -> ModelAnswer:
        """Answer a request without blocking the event loop."""

    def stream(self, request: ModelRequest) -> Generator[ModelAnswer]:
        """Answer a request piece by piece; closing the generator gives it up."""

    def astream(self, request: ModelRequest) -> AsyncGenerator[ModelAnswer]:
        """Answer a request piece by piece without blocking; closing gives it up."""

    # Called off the event loop: they may have to start the engine or ask a server.

    def limits(self) -> Limits:
        """How much the model reads and writes."""

    def count_tokens(self, text: str) -> int:
        """Count the tokens of a document's text."""

    def count_prompt(self, prompt: Prompt) -> int:
        """Count the tokens of a prompt, with what a chat template adds."""


class EngineAsker:
    """The bundled engine, or a server that is spoken to as it is.

    Args:
        engine: A :class:`~ragcache_integrations.engine.RAGCacheEngine` or
            :class:`~ragcache_integrations.llms.openai.server.OpenAIServer`; it stays yours.
        options: How answers are generated; a request's own values win.
        namespace: Tenant.
        timeout: Seconds that a call may take; ``None`` for no limit.
    """

    def __init__(
        self,
        engine: Any,
        options: SamplingOptions | None = None,
        *,
        namespace: str = "",
        timeout: float | None = None,
    ) -> None:
        if not hasattr(engine, "generate") or not hasattr(engine, "count_tokens"):
            msg = f"engine must be a RAGCacheEngine, got {type(engine).__name__}"
            raise ConfigurationError(msg)
        self.logprob_support = LogprobSupport(given=True)
        self._engine = engine
        self._options = options or SamplingOptions()
        self._call: dict[str, Any] = {"namespace": namespace, "timeout": timeout}

    def ask(self, request: ModelRequest) -> ModelAnswer:
        """Answer a request."""
        answer = self._engine.generate(request.prompt, self._with(request), **self._call)
        return ModelAnswer(answer.text, answer.logprobs, answer.usage)

    async def aask(self, request: ModelRequest) -> ModelAnswer:
        """Answer a request without blocking the event loop."""
        answer = await self._engine.agenerate(request.prompt, self._with(request), **self._call)
        return ModelAnswer(answer.text, answer.logprobs, answer.usage)

    def stream(self, request: ModelRequest) -> Generator[ModelAnswer]:
        """Answer a request piece by piece; closing the generator gives it up."""
        stream = self._engine.stream(request.prompt, self._with(request), **self._call)
        with closing(stream) as chunks:
            for chunk in chunks:
                yield _piece(chunk)

    async def astream(self, request: ModelRequest) -> AsyncGenerator[ModelAnswer]:
        """Answer a request piece by piece without blocking; closing gives it up."""
        stream = await self._engine.astream(request.prompt, self._with(request), **self._call)
        async with aclosing(stream) as chunks:
            async for chunk in chunks:
                yield _piece(chunk)

    def limits(self) -> Limits:
        """How much the model reads and writes."""
        answer = self._options.max_tokens or DEFAULT_ANSWER_TOKENS
        return Limits(self._engine.max_model_len, answer)

    def count_tokens(self, text: str) -> int:
        """Count the tokens of a document's text."""
        return int(self._engine.count_tokens(text))

    def count_prompt(self, prompt: Prompt) -> int:
        """Count the tokens of a prompt; where a server's template is unknown, a few too many."""
        if hasattr(self._engine, "render"):
            return len(self._engine.render(prompt).token_ids)
        return count_texts(prompt, self.count_tokens)

    def _with(self, request: ModelRequest) -> SamplingOptions:
        changes: dict[str, Any] = {}
        if request.max_tokens is not None:
            changes["max_tokens"] = request.max_tokens
        if request.logprobs and self._options.logprobs is None:
            changes["logprobs"] = 0
        if request.json_schema is not None:
            changes["json_schema"] = request.json_schema
        return replace(self._options, **changes) if changes else self._options


def _piece(chunk: Any) -> ModelAnswer:
    # Usage stands on the first chunk, too, and is not to be counted twice.
    return ModelAnswer(chunk.text, chunk.logprobs, chunk.usage if chunk.finish_reason else None)


def join_answers(pieces: Iterable[ModelAnswer]) -> ModelAnswer:
    """Put the pieces of an answer together."""
    given = list(pieces)
    return ModelAnswer(
        "".join(piece.text for piece in given),
        tuple(token for piece in given for token in piece.logprobs),
        add_usage(piece.usage for piece in given if piece.usage is not None),
    )


def add_usage(usages: Iterable[Usage]) -> Usage | None:
    """Add up what calls took; ``None`` for no calls."""
    listed = list(usages)
    return sum(listed[1:], start=listed[0]) if listed else None


def count_roughly(text: str) -> int:
    """Count the tokens of a text for a model whose tokenizer is unknown; rather too many."""
    return -(-len(text.encode(errors="replace")) // BYTES_PER_TOKEN)


def count_texts(prompt: Prompt, count: Callable[[str], int]) -> int:
    """Count the tokens of a prompt by its texts, with room for what a chat template writes."""
    if prompt.parts:
        return sum(count(part if isinstance(part, str) else part.text) for part in prompt.parts)
    return sum(count(message.text) + TOKENS_PER_MESSAGE for message in prompt.messages)
