"""A model that answers by a script, for the tests of synthesis."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncGenerator, Callable, Generator, Iterator, Sequence
from contextlib import contextmanager

from ragcache_integrations.adaptive import (
    Limits,
    LogprobSupport,
    ModelAnswer,
    ModelRequest,
)
from ragcache_integrations.adaptive.asker import count_texts
from ragcache_integrations.core.generation import TokenLogprob, Usage
from ragcache_integrations.core.prompt import Prompt, PromptDocument


def said(text: str, *logprobs: float) -> ModelAnswer:
    """An answer whose tokens have these log-probabilities."""
    tokens = tuple(TokenLogprob("x", -1, logprob) for logprob in logprobs)
    return ModelAnswer(text, tokens, Usage(10, 2, 4))


def documents(*texts: str) -> list[PromptDocument]:
    return [PromptDocument(text, f"id-{place}") for place, text in enumerate(texts)]


def read(request: ModelRequest) -> list[str]:
    """The texts of the documents in a request."""
    return [document.text for document in request.prompt.documents]


Answer = Callable[[ModelRequest], ModelAnswer]


class ScriptedAsker:
    """Answers as a function says; counts a token a character."""

    def __init__(
        self,
        answer: Answer | None = None,
        *,
        context_window: int | None = None,
        answer_tokens: int = 20,
        gives_logprobs: bool = True,
    ) -> None:
        self.logprob_support = LogprobSupport(available=gives_logprobs)
        self.requests: list[ModelRequest] = []
        self.most_at_once = 0
        self.closed_streams = 0
        self.namespace: str | None = None
        self._at_once = 0
        self._lock = threading.Lock()
        self._answer = answer or (lambda request: said("yes", -0.5))
        self._limits = Limits(context_window, answer_tokens)

    @contextmanager
    def _one(self, request: ModelRequest) -> Iterator[None]:
        with self._lock:
            self.requests.append(request)
            self._at_once += 1
            self.most_at_once = max(self.most_at_once, self._at_once)
        try:
            yield
        finally:
            with self._lock:
                self._at_once -= 1

    @property
    def running(self) -> int:
        return self._at_once

    def ask(self, request: ModelRequest) -> ModelAnswer:
        with self._one(request):
            return self._answer(request)

    async def aask(self, request: ModelRequest) -> ModelAnswer:
        with self._one(request):
            await asyncio.sleep(0)
            return self._answer(request)

    def stream(self, request: ModelRequest) -> Generator[ModelAnswer]:
        with self._one(request):
            try:
                yield from pieces(self._answer(request))
            finally:
                self.closed_streams += 1

    async def astream(self, request: ModelRequest) -> AsyncGenerator[ModelAnswer]:
        with self._one(request):
            try:
                for piece in pieces(self._answer(request)):
                    await asyncio.sleep(0)
                    yield piece
            finally:
                self.closed_streams += 1

    def limits(self) -> Limits:
        return self._limits

    def count_tokens(self, text: str) -> int:
        return len(text)

    def count_prompt(self, prompt: Prompt) -> int:
        return count_texts(prompt, self.count_tokens)


def pieces(answer: ModelAnswer) -> Sequence[ModelAnswer]:
    """An answer character by character, its tokens on the first piece, its usage on the last."""
    first = ModelAnswer("", answer.logprobs)
    return [first, *map(ModelAnswer, answer.text), ModelAnswer("", usage=answer.usage)]
