"""Answering a question from chunks: ``stuff``, ``map_reduce``, ``map_rerank`` (RAGServe §2)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Generator, Sequence
from contextlib import aclosing, closing

from ragcache_integrations.adaptive.asker import Asker, ModelAnswer, ModelRequest, join_answers
from ragcache_integrations.adaptive.types import SynthesisConfig, Synthesised
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
    job = _job(asker, question, chunks, config, settings, answered)
    plan, most = job.plan(), job.settings.max_concurrency
    state = _advance(plan, None)
    while isinstance(state, Round):
        state = _advance(plan, _ask_all(asker, state.requests, most))
    return state


async def asynthesise(
    asker: Asker,
    question: str,
    chunks: Sequence[PromptDocument],
    config: SynthesisConfig,
    settings: SynthesisSettings | None = None,
    answered: Answered | None = None,
) -> Synthesised:
    """Async version of :func:`synthesise`. Cancelling it cancels all calls."""
    job = _job(asker, question, chunks, config, settings, answered)
    plan, most = job.plan(), job.settings.max_concurrency
    state = await _aadvance(plan, None)
    while isinstance(state, Round):
        answers = await _aask_all(asker, state.requests, most)
        state = await _aadvance(plan, answers)
    return state


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
    job = _job(asker, question, chunks, config, settings, answered)
    plan, most = job.plan(), job.settings.max_concurrency
    streamed = False
    state = _advance(plan, None)
    while isinstance(state, Round):
        if not state.final:
            state = _advance(plan, _ask_all(asker, state.requests, most))
            continue
        received: list[ModelAnswer] = []
        with closing(asker.stream(state.requests[0])) as pieces:
            for piece in pieces:
                received.append(piece)
                if piece.text:
                    yield piece.text
        streamed = True
        state = _advance(plan, [join_answers(received)])
    if not streamed and state.text:
        yield state.text
    yield state


async def astream_synthesis(
    asker: Asker,
    question: str,
    chunks: Sequence[PromptDocument],
    config: SynthesisConfig,
    settings: SynthesisSettings | None = None,
    answered: Answered | None = None,
) -> AsyncGenerator[str | Synthesised]:
    """Async version of :func:`stream_synthesis`."""
    job = _job(asker, question, chunks, config, settings, answered)
    plan, most = job.plan(), job.settings.max_concurrency
    streamed = False
    state = await _aadvance(plan, None)
    while isinstance(state, Round):
        if not state.final:
            answers = await _aask_all(asker, state.requests, most)
            state = await _aadvance(plan, answers)
            continue
        received: list[ModelAnswer] = []
        async with aclosing(asker.astream(state.requests[0])) as pieces:
            async for piece in pieces:
                received.append(piece)
                if piece.text:
                    yield piece.text
        streamed = True
        state = await _aadvance(plan, [join_answers(received)])
    if not streamed and state.text:
        yield state.text
    yield state


def _job(
    asker: Asker,
    question: str,
    chunks: Sequence[PromptDocument],
    config: SynthesisConfig,
    settings: SynthesisSettings | None,
    answered: Answered | None,
) -> Answering:
    known = {} if answered is None else answered
    return Answering(asker, question, chunks, config, settings or SynthesisSettings(), known)


def _advance(plan: Plan, answers: Sequence[ModelAnswer] | None) -> Round | Synthesised:
    try:
        return next(plan) if answers is None else plan.send(answers)
    except StopIteration as stop:
        result: Synthesised = stop.value
        return result


async def _aadvance(plan: Plan, answers: Sequence[ModelAnswer] | None) -> Round | Synthesised:
    # In a thread: a plan counts tokens, and may start the engine or ask a server for its window.
    return await asyncio.to_thread(_advance, plan, answers)


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
