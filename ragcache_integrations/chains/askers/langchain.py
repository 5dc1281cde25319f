"""Calls any of LangChain's models for the framework-free packages."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Generator, Iterator, Mapping
from contextlib import aclosing, closing
from dataclasses import dataclass, replace
from typing import Any

from langchain_core.language_models import BaseLLM
from langchain_core.messages import BaseMessage, HumanMessage, SystemMessage
from langchain_core.outputs import Generation
from langchain_core.runnables import Runnable, RunnableBinding, RunnableConfig
from langchain_core.runnables.config import ensure_config, merge_configs

from ragcache_integrations.adaptive import (
    EngineAsker,
    Limits,
    LogprobSupport,
    ModelAnswer,
    ModelRequest,
)
from ragcache_integrations.adaptive.asker import (
    DEFAULT_ANSWER_TOKENS,
    count_roughly,
    count_texts,
)
from ragcache_integrations.core.checks import check_type
from ragcache_integrations.core.generation import TokenLogprob
from ragcache_integrations.core.prompt import Prompt
from ragcache_integrations.llms.handover import backend_of
from ragcache_integrations.llms.knobs import LLMKnobs
from ragcache_integrations.prompts.langchain import (
    CompletionPromptValue,
    message_content,
)

from .common import MAX_TOKENS_NAMES, limit_argument, own_arguments, usage_of

__all__ = ["INNER_TAG", "BoundRunnable", "LangChainAsker", "LangChainModel", "unbound"]

INNER_TAG = "nostream"
"""Tag of the calls whose answers are only steps to that of the user: LangGraph streams no tokens of
runs that have it, and ``astream_events`` takes it as one of its ``exclude_tags``."""


@dataclass(frozen=True)
class BoundRunnable:
    """A Runnable without its bindings.

    Attributes:
        runnable: The Runnable inside of the bindings.
        arguments: The arguments that were bound.
        config: The configuration that was bound.
    """

    runnable: Any
    arguments: dict[str, Any]
    config: RunnableConfig

    def configured(self, config: RunnableConfig) -> BoundRunnable:
        """The same with more configuration."""
        return replace(self, config=merge_configs(self.config, config))


def unbound(runnable: Any, *, every: bool = False) -> BoundRunnable:
    """Take a Runnable out of the bindings that ``bind`` and ``with_config`` make.

    Args:
        runnable: Any Runnable.
        every: Whether to remove also bindings that compute a configuration at each call, such as
            those of ``with_listeners``; what they compute is lost.
    """
    arguments: dict[str, Any] = {}
    config = RunnableConfig()
    while isinstance(runnable, RunnableBinding) and (every or not runnable.config_factories):
        arguments = {**runnable.kwargs, **arguments}
        config = merge_configs(runnable.config, config)
        runnable = runnable.bound
    return BoundRunnable(runnable, arguments, config)


class LangChainModel:
    """The properties of a model, regardless of its bindings.

    Models of this package get marked documents in their prompts; others get plain text.
    Log-probabilities are requested if the model's class has a field ``logprobs``, and are always
    read from answers that have them. The length of an answer is limited if the class has one of the
    usual fields for it.

    Args:
        llm: A chat model or an LLM, also after ``bind``; or any Runnable that accepts messages.

    Raises:
        ConfigurationError: ``llm`` is no Runnable.
    """

    def __init__(self, llm: Runnable[Any, Any]) -> None:
        check_type("llm", llm, Runnable, "one of LangChain's models")
        self.outer = llm
        binding = unbound(llm)
        self.inner, self.bound, self.config = binding.runnable, binding.arguments, binding.config
        self.own = self.inner if isinstance(self.inner, LLMKnobs) else None
        self.fields = frozenset(getattr(type(self.inner), "model_fields", ()))
        supported = (
            self.own is not None or bool(self.bound.get("logprobs")) or "logprobs" in self.fields
        )
        self.logprob_support = LogprobSupport(available=supported)

    def limits(self) -> Limits:
        """The most tokens that the model reads and writes."""
        names = [name for name in MAX_TOKENS_NAMES if name in self.fields or name in self.bound]
        limits = [self.bound.get(name, getattr(self.inner, name, None)) for name in names]
        # A negative number means no limit.
        answer = next((limit for limit in limits if isinstance(limit, int) and limit > 0), None)
        if self.own is not None:
            window: int | None = backend_of(self.own).max_model_len
        else:
            window = (getattr(self.inner, "profile", None) or {}).get("max_input_tokens")
        return Limits(window, answer or DEFAULT_ANSWER_TOKENS)

    def arguments(self, request: ModelRequest) -> dict[str, Any]:
        """Arguments of a call, besides the prompt."""
        if self.own is not None:
            logprobs = self.bound.get("logprobs", self.own.logprobs)
            return own_arguments(request, logprobs=logprobs)
        arguments = limit_argument(request, self.fields)
        if request.logprobs and "logprobs" in self.fields and "logprobs" not in self.bound:
            arguments["logprobs"] = True
        return arguments


class LangChainAsker:
    """A model within one run: its calls are children of that run.

    Args:
        model: The model.
        config: The configuration of the run.
        call: Arguments of every call of the model.

    Attributes:
        logprob_support: Whether answers have log-probabilities.
        namespace: The tenant that the arguments name; ``None`` if they name none.
    """

    def __init__(
        self,
        model: LangChainModel,
        config: RunnableConfig | None = None,
        call: Mapping[str, Any] | None = None,
    ) -> None:
        self._model = model
        self._config = config
        self._call = dict(call or {})
        self.namespace: object = self._call.get("namespace")
        self.logprob_support = model.logprob_support

    def ask(self, request: ModelRequest) -> ModelAnswer:
        """Answer a request."""
        arguments = self._arguments(request)
        if isinstance(self._model.inner, BaseLLM):
            # invoke() would only return the text.
            prompt = self._completion(request.prompt)
            result = self._model.inner.generate_prompt([prompt], **self._run(request), **arguments)
            return _answer(result.generations[0][0])
        messages = self._messages(request.prompt)
        return _answer(self._model.outer.invoke(messages, self._config_of(request), **arguments))

    async def aask(self, request: ModelRequest) -> ModelAnswer:
        """Async version of :meth:`ask`."""
        arguments = self._arguments(request)
        if isinstance(self._model.inner, BaseLLM):
            prompt = self._completion(request.prompt)
            result = await self._model.inner.agenerate_prompt(
                [prompt], **self._run(request), **arguments
            )
            return _answer(result.generations[0][0])
        messages = self._messages(request.prompt)
        config = self._config_of(request)
        return _answer(await self._model.outer.ainvoke(messages, config, **arguments))

    def stream(self, request: ModelRequest) -> Generator[ModelAnswer]:
        """Answer a request in pieces; those of models that complete text have only text."""
        value = self._input(request.prompt)
        config = self._config_of(request)
        stream: Any = self._model.outer.stream(value, config, **self._arguments(request))
        with _closing(stream) as chunks:
            for chunk in chunks:
                yield _answer(chunk)

    async def astream(self, request: ModelRequest) -> AsyncGenerator[ModelAnswer]:
        """Async version of :meth:`stream`."""
        value = self._input(request.prompt)
        config = self._config_of(request)
        stream: Any = self._model.outer.astream(value, config, **self._arguments(request))
        async with _aclosing(stream) as chunks:
            async for chunk in chunks:
                yield _answer(chunk)

    def limits(self) -> Limits:
        """The most tokens that the model reads and writes."""
        return self._model.limits()

    def count_tokens(self, text: str) -> int:
        """Count the tokens of a document's text.

        If the tokenizer is unknown, the count is a high estimate: LangChain's default would
        download the tokenizer of GPT-2.
        """
        if self._model.own is not None:
            return backend_of(self._model.own).count_tokens(text)
        custom = getattr(self._model.inner, "custom_get_token_ids", None)
        return len(custom(text)) if custom is not None else count_roughly(text)

    def count_prompt(self, prompt: Prompt) -> int:
        """Count the tokens of a prompt, including those of the chat template."""
        if self._model.own is not None:
            return EngineAsker(backend_of(self._model.own)).count_prompt(prompt)
        return count_texts(prompt, self.count_tokens)

    def _arguments(self, request: ModelRequest) -> dict[str, Any]:
        arguments = {**self._call, **self._model.arguments(request)}
        if isinstance(self._model.inner, BaseLLM):
            arguments = {**self._model.bound, **arguments}
            if self._model.own is not None:
                arguments["documents"] = list(request.prompt.documents)
        return arguments

    def _config_of(self, request: ModelRequest) -> RunnableConfig | None:
        """The configuration of a call."""
        if not request.inner:
            return self._config
        return merge_configs(self._config, RunnableConfig(tags=[INNER_TAG]))

    def _run(self, request: ModelRequest) -> dict[str, Any]:
        """The configuration of a call as arguments of an LLM's own methods."""
        config = ensure_config(merge_configs(self._model.config, self._config_of(request)))
        return {name: config.get(name) for name in ("callbacks", "tags", "metadata", "run_name")}

    def _input(self, prompt: Prompt) -> Any:
        is_text = isinstance(self._model.inner, BaseLLM)
        return self._completion(prompt) if is_text else self._messages(prompt)

    def _completion(self, prompt: Prompt) -> CompletionPromptValue:
        return CompletionPromptValue.of(prompt, is_ours=self._model.own is not None)

    def _messages(self, prompt: Prompt) -> list[BaseMessage]:
        messages: list[BaseMessage] = []
        for message in prompt.messages:
            kind = SystemMessage if message.role == "system" else HumanMessage
            messages.append(kind(message_content(message, is_ours=self._model.own is not None)))
        return messages


def _closing(stream: Iterator[Any]) -> Any:
    """Close a stream: Runnables return iterators, most of which are generators."""
    return closing(stream) if isinstance(stream, Generator) else closing(_generator(stream))


def _generator(stream: Iterator[Any]) -> Generator[Any]:
    yield from stream


def _aclosing(stream: AsyncIterator[Any]) -> Any:
    return aclosing(stream) if isinstance(stream, AsyncGenerator) else aclosing(_agenerator(stream))


async def _agenerator(stream: AsyncIterator[Any]) -> AsyncGenerator[Any]:
    async for item in stream:
        yield item


def _answer(result: Any) -> ModelAnswer:
    if isinstance(result, BaseMessage):
        usage = usage_of(getattr(result, "usage_metadata", None))
        return ModelAnswer(str(result.text), _logprobs(result.response_metadata), usage)
    if isinstance(result, Generation):
        info = result.generation_info or {}
        return ModelAnswer(result.text, _logprobs(info), usage_of(info.get("usage")))
    return ModelAnswer(str(result))


def _logprobs(metadata: Mapping[str, Any]) -> tuple[TokenLogprob, ...]:
    """Read log-probabilities in OpenAI's form, which LangChain's models use, too."""
    logprobs = metadata.get("logprobs")
    content = logprobs.get("content") if isinstance(logprobs, Mapping) else None
    return tuple(
        TokenLogprob(
            token["token"],
            -1,
            token["logprob"],
            tuple(
                TokenLogprob(top["token"], -1, top["logprob"])
                for top in token.get("top_logprobs") or ()
            ),
        )
        for token in content or ()
    )
