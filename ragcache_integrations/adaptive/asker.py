"""One interface to every model that answers: the engine, a server, or a framework's model."""

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
    "ChangedAsker",
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
"""Fewer than usual vocabularies average, so that a text counted like this fits."""

DEFAULT_ANSWER_TOKENS = 256
"""Assumed limit of an answer in tokens if the model has none or does not report it."""

TOKENS_PER_MESSAGE = 8
"""Tokens allowed for what a chat template writes around a message."""


@dataclass(frozen=True, slots=True)
class ModelRequest:
    """One call of a model.

    Attributes:
        prompt: The prompt, with its documents marked.
        max_tokens: Limit of the answer in tokens; ``None`` for the model's own setting.
        logprobs: Whether to ask for the tokens' log-probabilities.
        json_schema: JSON schema that the answer must satisfy, for models that can keep to one.
        inner: Whether the answer is only a step to the one that the user gets, or may turn out to
            be one, so that nobody should show its tokens while they are generated.
    """

    prompt: Prompt
    max_tokens: int | None = None
    logprobs: bool = False
    json_schema: Mapping[str, Any] | None = None
    inner: bool = False


@dataclass(frozen=True, slots=True)
class ModelAnswer:
    """A model's answer, or a piece of one.

    Attributes:
        text: The answer.
        logprobs: Its tokens with their log-probabilities; empty if the model returned none.
        usage: Tokens of the call, if the model reports them; in a stream, one piece has them all
            or the pieces' counts add up to them.
    """

    text: str
    logprobs: tuple[TokenLogprob, ...] = ()
    usage: Usage | None = None


@dataclass(frozen=True, slots=True)
class Limits:
    """The most that a model reads and writes.

    Attributes:
        context_window: Tokens of prompt and answer together; ``None`` if the model does not report
            it.
        answer_tokens: Limit of an answer in tokens for requests that set none; for a model that
            is limited by its window alone, the room that is reserved for the answer.
    """

    context_window: int | None
    answer_tokens: int


@dataclass(slots=True)
class LogprobSupport:
    """Whether a model returns log-probabilities. Shared by all askers of the same model.

    Attributes:
        available: Whether answers have them, as far as is known; ``False`` once an answer came
            without them although they were requested.
        lack_was_told: Whether a warning that they are missing was logged.
    """

    available: bool
    lack_was_told: bool = False


class Asker(Protocol):
    """A model that answers requests. Every method may be called from any thread or event loop."""

    @property
    def logprob_support(self) -> LogprobSupport:
        """Whether answers have log-probabilities."""

    def ask(self, request: ModelRequest) -> ModelAnswer:
        """Answer a request."""

    async def aask(self, request: ModelRequest) -> ModelAnswer:
        """Async version of :meth:`ask`."""

    def stream(self, request: ModelRequest) -> Generator[ModelAnswer]:
        """Answer a request piece by piece; closing the generator cancels the request."""

    def astream(self, request: ModelRequest) -> AsyncGenerator[ModelAnswer]:
        """Async version of :meth:`stream`."""

    # Never called on an event loop: they may have to start the engine or to call a server.

    def limits(self) -> Limits:
        """The most that the model reads and writes."""

    def count_tokens(self, text: str) -> int:
        """Count the tokens of a document's text."""

    def count_prompt(self, prompt: Prompt) -> int:
        """Count the tokens of a prompt, including those that a chat template adds."""


@dataclass(frozen=True)
class ChangedAsker:
    """A model whose requests are changed, or refused, before they are answered.

    It is for ``synthesise`` and ``asynthesise``, which stream nothing.

    Attributes:
        asker: The model.
        change: Returns the request that it is asked.
    """

    asker: Asker
    change: Callable[[ModelRequest], ModelRequest]

    def ask(self, request: ModelRequest) -> ModelAnswer:
        """Answer a request."""
        return self.asker.ask(self.change(request))

    async def aask(self, request: ModelRequest) -> ModelAnswer:
        """Async version of :meth:`ask`."""
        return await self.asker.aask(self.change(request))

    def __getattr__(self, name: str) -> Any:
        return getattr(self.asker, name)


class EngineAsker:
    """Asks the bundled engine, or a server through the same methods.

    ::

        asker = EngineAsker(engine, SamplingOptions(max_tokens=64))
        result = synthesise(asker, question, chunks, SynthesisConfig("stuff", 5))

    Args:
        engine: A :class:`~ragcache_integrations.engine.RAGCacheEngine` or
            :class:`~ragcache_integrations.llms.openai.server.OpenAIServer`; it stays yours.
        options: How answers are generated; a request's own values override them.
        namespace: Tenant whose cached documents may be reused.
        timeout: Limit of a call in seconds; ``None`` for none.

    Raises:
        ConfigurationError: ``engine`` is neither.
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
        self.logprob_support = LogprobSupport(available=True)
        self._engine = engine
        self._options = options or SamplingOptions()
        self._call: dict[str, Any] = {"namespace": namespace, "timeout": timeout}

    def ask(self, request: ModelRequest) -> ModelAnswer:
        """Answer a request."""
        answer = self._engine.generate(request.prompt, self._with(request), **self._call)
        return ModelAnswer(answer.text, answer.logprobs, answer.usage)

    async def aask(self, request: ModelRequest) -> ModelAnswer:
        """Async version of :meth:`ask`."""
        answer = await self._engine.agenerate(request.prompt, self._with(request), **self._call)
        return ModelAnswer(answer.text, answer.logprobs, answer.usage)

    def stream(self, request: ModelRequest) -> Generator[ModelAnswer]:
        """Answer a request piece by piece; closing the generator cancels the request."""
        stream = self._engine.stream(request.prompt, self._with(request), **self._call)
        with closing(stream) as chunks:
            for chunk in chunks:
                yield _piece(chunk)

    async def astream(self, request: ModelRequest) -> AsyncGenerator[ModelAnswer]:
        """Async version of :meth:`stream`."""
        stream = await self._engine.astream(request.prompt, self._with(request), **self._call)
        async with aclosing(stream) as chunks:
            async for chunk in chunks:
                yield _piece(chunk)

    def limits(self) -> Limits:
        """The most that the model reads and writes."""
        answer = self._options.max_tokens or DEFAULT_ANSWER_TOKENS
        return Limits(self._engine.max_model_len, answer)

    def count_tokens(self, text: str) -> int:
        """Count the tokens of a document's text."""
        return int(self._engine.count_tokens(text))

    def count_prompt(self, prompt: Prompt) -> int:
        """Count the tokens of a prompt; a few too many if a server's template is unknown."""
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
    # The first chunk has the usage, too; it must not be counted twice.
    return ModelAnswer(chunk.text, chunk.logprobs, chunk.usage if chunk.finish_reason else None)


def join_answers(pieces: Iterable[ModelAnswer]) -> ModelAnswer:
    """Put the pieces of an answer together."""
    parts = list(pieces)
    return ModelAnswer(
        "".join(part.text for part in parts),
        tuple(token for part in parts for token in part.logprobs),
        add_usage(part.usage for part in parts if part.usage is not None),
    )


def add_usage(usages: Iterable[Usage]) -> Usage | None:
    """Add up the tokens of calls; ``None`` for no calls."""
    listed = list(usages)
    return sum(listed[1:], start=listed[0]) if listed else None


def count_roughly(text: str) -> int:
    """Estimate the tokens of a text for an unknown tokenizer; rather too many than too few."""
    return -(-len(text.encode(errors="replace")) // BYTES_PER_TOKEN)


def count_texts(prompt: Prompt, count: Callable[[str], int]) -> int:
    """Count the tokens of a prompt's texts, and allow for what a chat template writes.

    Args:
        prompt: The prompt.
        count: Counts the tokens of a text.
    """
    if prompt.parts:
        return sum(count(part if isinstance(part, str) else part.text) for part in prompt.parts)
    return sum(count(message.text) + TOKENS_PER_MESSAGE for message in prompt.messages)
