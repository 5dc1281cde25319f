"""Calls any of LlamaIndex's LLMs for the framework-free packages."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Generator, Mapping
from contextlib import aclosing, closing
from typing import Any

from llama_index.core.base.llms.types import (
    ChatMessage,
    ChatResponse,
    CompletionResponse,
    LogProb,
)
from llama_index.core.llms.llm import LLM
from llama_index.core.utils import get_tokenizer

from ragcache_integrations.adaptive import (
    EngineAsker,
    Limits,
    LogprobSupport,
    ModelAnswer,
    ModelRequest,
)
from ragcache_integrations.adaptive.asker import DEFAULT_ANSWER_TOKENS, count_texts
from ragcache_integrations.core.checks import check_type
from ragcache_integrations.core.generation import TokenLogprob
from ragcache_integrations.core.prompt import Prompt
from ragcache_integrations.llms.handover import abackend_of, backend_of
from ragcache_integrations.llms.knobs import LLMKnobs
from ragcache_integrations.prompts.rendering import completion_text

from .common import limit_argument, own_arguments, usage_of

__all__ = ["LlamaIndexAsker"]


class LlamaIndexAsker:
    """Calls an LLM.

    LLMs of this package get marked documents in their prompts; others get plain text.
    Log-probabilities are requested if the LLM's class has a field ``logprobs``, and are always read
    from answers that have them. The length of an answer is limited if the class has one of the
    usual fields for it.

    Args:
        llm: The LLM.
        call: Arguments of every call of it.
        support: Whether its answers have log-probabilities; shared by all askers of the same LLM.

    Attributes:
        logprob_support: As above.

    Raises:
        ConfigurationError: ``llm`` is no LLM of LlamaIndex.
    """

    def __init__(
        self,
        llm: LLM,
        call: Mapping[str, Any] | None = None,
        support: LogprobSupport | None = None,
    ) -> None:
        check_type("llm", llm, LLM, "one of LlamaIndex's LLMs")
        self._llm = llm
        self._call = dict(call or {})
        self._own = llm if isinstance(llm, LLMKnobs) else None
        self._fields = frozenset(type(llm).model_fields)
        supported = self._own is not None or "logprobs" in self._fields
        self.logprob_support = support or LogprobSupport(available=supported)

    def ask(self, request: ModelRequest) -> ModelAnswer:
        """Answer a request."""
        arguments = self._arguments(request)
        if self._llm.metadata.is_chat_model:
            return _answer(self._llm.chat(self._messages(request.prompt), **arguments))
        return _answer(self._llm.complete(self._text(request.prompt), **arguments))

    async def aask(self, request: ModelRequest) -> ModelAnswer:
        """Async version of :meth:`ask`."""
        arguments = self._arguments(request)
        if await self._ais_chat():
            return _answer(await self._llm.achat(self._messages(request.prompt), **arguments))
        return _answer(await self._llm.acomplete(self._text(request.prompt), **arguments))

    def stream(self, request: ModelRequest) -> Generator[ModelAnswer]:
        """Answer a request in pieces; closing the generator aborts the request."""
        arguments = self._arguments(request)
        stream: Any = (
            self._llm.stream_chat(self._messages(request.prompt), **arguments)
            if self._llm.metadata.is_chat_model
            else self._llm.stream_complete(self._text(request.prompt), **arguments)
        )
        last = None
        with closing(stream) as responses:
            for last in responses:
                yield _piece(last)
        yield _end(last)

    async def astream(self, request: ModelRequest) -> AsyncGenerator[ModelAnswer]:
        """Async version of :meth:`stream`."""
        arguments = self._arguments(request)
        stream: Any = (
            await self._llm.astream_chat(self._messages(request.prompt), **arguments)
            if await self._ais_chat()
            else await self._llm.astream_complete(self._text(request.prompt), **arguments)
        )
        last = None
        async with aclosing(stream) as responses:
            async for last in responses:
                yield _piece(last)
        yield _end(last)

    def limits(self) -> Limits:
        """The most tokens that the LLM reads and writes."""
        metadata = self._llm.metadata
        answer = metadata.num_output if metadata.num_output > 0 else DEFAULT_ANSWER_TOKENS
        return Limits(metadata.context_window, answer)

    def count_tokens(self, text: str) -> int:
        """Count the tokens of a document's text; with LlamaIndex's tokenizer for other LLMs."""
        if self._own is not None:
            return backend_of(self._own).count_tokens(text)
        return len(get_tokenizer()(text))

    def count_prompt(self, prompt: Prompt) -> int:
        """Count the tokens of a prompt, including those of the chat template."""
        system = self._llm.system_prompt
        before = self.count_tokens(system) if system else 0
        if self._own is not None:
            return before + EngineAsker(backend_of(self._own)).count_prompt(prompt)
        return before + count_texts(prompt, self.count_tokens)

    async def _ais_chat(self) -> bool:
        if self._own is not None:
            await abackend_of(self._own)
            # In a thread, because it may ask a server for its context window.
            return (await asyncio.to_thread(lambda: self._llm.metadata)).is_chat_model
        return self._llm.metadata.is_chat_model

    def _arguments(self, request: ModelRequest) -> dict[str, Any]:
        if self._own is not None:
            own = own_arguments(request, logprobs=self._own.logprobs)
            return {**self._call, **own, "documents": list(request.prompt.documents)}
        arguments = {**self._call, **limit_argument(request, self._fields)}
        if request.logprobs and "logprobs" in self._fields:
            arguments["logprobs"] = True
            if "top_logprobs" in self._fields:
                arguments["top_logprobs"] = 1  # without it, LlamaIndex drops those of the tokens
        return arguments

    def _text(self, prompt: Prompt) -> str:
        text = completion_text(prompt)
        return text if self._own is not None else str(text)

    def _messages(self, prompt: Prompt) -> list[ChatMessage]:
        messages = [
            ChatMessage(role=message.role, content=message.text) for message in prompt.messages
        ]
        system = self._llm.system_prompt
        return [ChatMessage(role="system", content=system), *messages] if system else messages


def _answer(response: ChatResponse | CompletionResponse) -> ModelAnswer:
    if isinstance(response, CompletionResponse):
        text = response.text
    else:
        text = response.message.content or ""
    return ModelAnswer(text, _logprobs(response.logprobs), _usage(response))


def _piece(response: ChatResponse | CompletionResponse) -> ModelAnswer:
    return ModelAnswer(response.delta or "", _logprobs(response.logprobs))


def _end(last: ChatResponse | CompletionResponse | None) -> ModelAnswer:
    """The usage from the last piece: some LLMs repeat it on every piece."""
    return ModelAnswer("", usage=None if last is None else _usage(last))


def _usage(response: ChatResponse | CompletionResponse) -> Any:
    raw = response.raw
    usage = raw.get("usage") if isinstance(raw, Mapping) else getattr(raw, "usage", None)
    return usage_of(usage) or usage_of(response.additional_kwargs)


def _logprobs(logprobs: list[list[LogProb]] | None) -> tuple[TokenLogprob, ...]:
    """Read log-probabilities: those of each token come first, then those of alternatives."""
    return tuple(
        TokenLogprob(
            token[0].token,
            -1,
            token[0].logprob,
            tuple(TokenLogprob(other.token, -1, other.logprob) for other in token[1:]),
        )
        for token in logprobs or ()
        if token
    )
