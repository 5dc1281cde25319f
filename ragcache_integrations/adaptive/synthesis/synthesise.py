"""Answering a question from chunks: ``stuff``, ``map_reduce``, ``map_rerank`` (RAGServe §2)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Generator, Sequence
from functools import partial

from ragcache_integrations.adaptive.asker import Asker, ModelAnswer, ModelRequest, join_answers
from ragcache_integrations.adaptive.types import SynthesisConfig, Synthesised
from ragcache_integrations.core.flows import (
    Call,
    Each,
    Flow,
    aoutputs,
    awhole_output,
    in_thread,
    outputs,
    whole_output,
)
from ragcache_integrations.core.prompt import PromptDocument
from ragcache_integrations.core.threads import map_in_threads

from .methods import Answered, Answering, Plan, Round
from .prompts import SynthesisSettings

__all__ = ["astream_synthesis", "asynthesise", "stream_synthesis", "synthesise"]


def synthesise(
    asker: Asker,
    question: str,
    chunks: Sequence[PromptDocument],
    config: SynthesisConfig,
    settings: SynthesisSettings | None = None,
    answered: Answered | None = None,
) -> Synthesised:
    """Answer a question from chunks.

    Args:
        asker: The model.
        question: The question.
        chunks: The retrieved chunks, most relevant first. If there are none, no model is called and
            the answer says so.
        config: The method, and how much to read.
        settings: The other settings.
        answered: What the model was asked about single chunks before, with its answers: it is not
            asked again, and is no step of the result. What it is asked now is added.

    Raises:
        ConfigurationError: The question is empty, or ``ranking`` is ``logprobs`` and the model
            returns none.
        PromptTooLongError: Question and instructions alone fill the context window.
        RAGCacheError: The model failed; the error of the first of concurrent calls to fail.
    """
    flow = _flow(asker, question, chunks, config, settings, answered)
    result: Synthesised = whole_output(flow)
    return result


async def asynthesise(
    asker: Asker,
    question: str,
    chunks: Sequence[PromptDocument],
    config: SynthesisConfig,
    settings: SynthesisSettings | None = None,
    answered: Answered | None = None,
) -> Synthesised:
    """Async version of :func:`synthesise`. Cancelling it cancels all calls."""
    flow = _flow(asker, question, chunks, config, settings, answered)
    result: Synthesised = await awhole_output(flow)
    return result


def stream_synthesis(
    asker: Asker,
    question: str,
    chunks: Sequence[PromptDocument],
    config: SynthesisConfig,
    settings: SynthesisSettings | None = None,
    answered: Answered | None = None,
) -> Generator[str | Synthesised]:
    """Answer a question piece by piece, while the model generates the last step.

    The answer of ``map_rerank`` comes in one piece, since only complete answers can be compared.
    Raises what :func:`synthesise` does.

    Args:
        asker: The model.
        question: The question.
        chunks: The retrieved chunks, most relevant first.
        config: The method, and how much to read.
        settings: The other settings.
        answered: What the model was asked about single chunks before, with its answers: it is not
            asked again, and is no step of the result. What it is asked now is added.

    Yields:
        The pieces of the answer; then the result of :func:`synthesise`, whose text is stripped of
        leading and trailing white space.
    """
    return outputs(_flow(asker, question, chunks, config, settings, answered, streamed=True))


def astream_synthesis(
    asker: Asker,
    question: str,
    chunks: Sequence[PromptDocument],
    config: SynthesisConfig,
    settings: SynthesisSettings | None = None,
    answered: Answered | None = None,
) -> AsyncGenerator[str | Synthesised]:
    """Async version of :func:`stream_synthesis`."""
    return aoutputs(_flow(asker, question, chunks, config, settings, answered, streamed=True))


def _flow(
    asker: Asker,
    question: str,
    chunks: Sequence[PromptDocument],
    config: SynthesisConfig,
    settings: SynthesisSettings | None,
    answered: Answered | None,
    *,
    streamed: bool = False,
) -> Flow:
    """Answer a question; the outputs are the pieces of a streamed answer, and its result."""
    settings = settings or SynthesisSettings()
    known = {} if answered is None else answered
    plan = Answering(asker, question, chunks, config, settings, known).plan()
    received: list[ModelAnswer] = []

    def text(piece: ModelAnswer) -> str | None:
        received.append(piece)
        return piece.text or None

    answers: list[ModelAnswer] | None = None
    # In a thread: a plan counts tokens, and may start the engine or ask a server for its window.
    while isinstance(state := (yield in_thread(_advance, plan, answers)), Round):
        if streamed and state.final:
            asked = state.requests[0]
            yield Each(partial(asker.stream, asked), partial(asker.astream, asked), text)
            answers = [join_answers(received)]
        else:
            asking = (asker, state.requests, settings.max_concurrency)
            answers = yield Call(partial(_ask_all, *asking), partial(_aask_all, *asking))
    if streamed and not received and state.text:
        yield state.text
    yield state


def _advance(plan: Plan, answers: Sequence[ModelAnswer] | None) -> Round | Synthesised:
    try:
        return next(plan) if answers is None else plan.send(answers)
    except StopIteration as stop:
        result: Synthesised = stop.value
        return result


def _ask_all(
    asker: Asker, requests: Sequence[ModelRequest], max_concurrency: int
) -> list[ModelAnswer]:
    workers = min(max_concurrency, len(requests))
    if workers == 1:
        return [asker.ask(request) for request in requests]
    return map_in_threads(asker.ask, requests, workers)


async def _aask_all(
    asker: Asker, requests: Sequence[ModelRequest], max_concurrency: int
) -> list[ModelAnswer]:
    slots = asyncio.Semaphore(max_concurrency)

    async def ask(request: ModelRequest) -> ModelAnswer:
        async with slots:
            return await asker.aask(request)

    tasks = [asyncio.create_task(ask(request)) for request in requests]
    try:
        return await asyncio.gather(*tasks)
    finally:
        # After a failure the other calls are cancelled, and awaited until they have ended.
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
