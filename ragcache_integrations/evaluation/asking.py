"""Asks one question: makes its prompt, and measures the times of its answer."""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field

from ragcache_integrations.adaptive import (
    AdaptiveAnswer,
    AdaptivePipeline,
    AdaptiveSettings,
    Explanation,
    HeuristicProfiler,
    LLMProfiler,
    SynthesisSettings,
    astream_synthesis,
)
from ragcache_integrations.adaptive.asker import Asker, ModelRequest, add_usage
from ragcache_integrations.adaptive.choice import resources_of
from ragcache_integrations.adaptive.pipeline import Retrieve
from ragcache_integrations.adaptive.types import SynthesisConfig, Synthesised
from ragcache_integrations.core.generation import TokenLogprob, Usage
from ragcache_integrations.core.prompt import Message, Prompt, PromptDocument

from .datasets import EvalPrompt
from .settings import EvalSettings
from .systems import Model

__all__ = ["Answered", "adaptive_pipeline", "answer", "answer_adaptively", "full_prompt"]

SEPARATOR = "\n\n"


@dataclass(slots=True)
class Answered:
    """An answer and its times, in seconds of ``time.perf_counter``.

    Attributes:
        called: When the model was called.
        first: When the first token came; ``None`` if none came.
        ended: When the last token came.
        text: The answer.
        likeliest: Log-probabilities of the likeliest first tokens.
        usage: Tokens of the calls; ``None`` if the model does not report them.
        streamed_tokens: Number of tokens from the first to the last; ``None`` if unknown, as for an
            answer of several calls.
        configuration: The configuration that was chosen for the question, as in its record.
    """

    called: float
    first: float | None = None
    ended: float = 0.0
    text: str = ""
    likeliest: dict[str, float] = field(default_factory=dict)
    usage: Usage | None = None
    streamed_tokens: int | None = None
    configuration: str = ""


def full_prompt(prompt: EvalPrompt, documents: Sequence[PromptDocument]) -> Prompt:
    """Put documents into a data set's prompt."""
    parts: list[str | PromptDocument] = [prompt.before] if prompt.before else []
    for document in documents:
        parts += [document, SEPARATOR]
    parts.append(prompt.after)
    system = (Message("system", prompt.system),) if prompt.system else ()
    return Prompt(messages=(*system, Message("user", parts)))


async def answer(
    model: Model,
    asker: Asker,
    prompt: EvalPrompt,
    documents: Sequence[PromptDocument],
    *,
    question: str,
    max_tokens: int,
    options: bool = False,
    synthesis: SynthesisConfig | None = None,
) -> Answered:
    """Ask a model, and measure the times.

    Args:
        model: The model.
        asker: Sends the requests to it.
        prompt: The data set's prompt.
        documents: The retrieved documents, in the order of the prompt.
        question: The wording of the question, for synthesis.
        max_tokens: Limit of the answer in tokens.
        options: Whether the likeliest first tokens are needed.
        synthesis: The configuration of synthesis; ``None`` for the data set's own prompt.

    Raises:
        RAGCacheError: The model failed.
    """
    if synthesis is not None:
        pieces = astream_synthesis(
            asker, question, documents, synthesis, SynthesisSettings(max_tokens=max_tokens)
        )
        answered = await _synthesised(pieces)
        if synthesis.method == "stuff" and answered.usage is not None:
            answered.streamed_tokens = answered.usage.completion_tokens
        return answered
    request = ModelRequest(full_prompt(prompt, documents), max_tokens=max_tokens)
    answered = Answered(time.perf_counter())
    if options and model.whole_answers:
        output = await asker.aask(request)
        answered.first = answered.ended = time.perf_counter()
        answered.text, answered.usage = output.text, output.usage
        answered.likeliest = _likeliest(output.logprobs[0]) if output.logprobs else {}
        return answered
    usage: list[Usage] = []
    async with aclosing(asker.astream(request)) as stream:
        async for piece in stream:
            moment = time.perf_counter()
            if answered.first is None and (piece.text or model.eager_first):
                answered.first = moment
            if piece.logprobs and not answered.likeliest:
                answered.likeliest = _likeliest(piece.logprobs[0])
            if piece.usage is not None:
                usage.append(piece.usage)
            answered.text += piece.text
            answered.ended = moment
    answered.ended = answered.ended or time.perf_counter()
    answered.usage = add_usage(usage)
    if answered.usage is not None:
        answered.streamed_tokens = answered.usage.completion_tokens
    return answered


def adaptive_pipeline(
    settings: EvalSettings, model: Model, *, corpus: str, max_tokens: int
) -> AdaptivePipeline:
    """Make the pipeline that chooses a configuration for each question, and answers it.

    Args:
        settings: The settings of the run.
        model: The model that profiles and answers.
        corpus: A description of the documents, in one line.
        max_tokens: Limit of an answer in tokens.
    """
    asker = model.asker(options=False)
    return AdaptivePipeline(
        asker,
        LLMProfiler(asker, corpus) if settings.profiler == "llm" else HeuristicProfiler(),
        AdaptiveSettings(max_chunks=settings.k, latency_budget=settings.latency_budget),
        SynthesisSettings(max_tokens=max_tokens),
        resources=lambda: resources_of(model.backend()),
    )


async def answer_adaptively(
    pipeline: AdaptivePipeline, question: str, retrieve: Retrieve
) -> Answered:
    """Answer a question with the configuration that it needs, and measure the times.

    Args:
        pipeline: The pipeline of :func:`adaptive_pipeline`.
        question: The wording of the question.
        retrieve: Finds its documents, best first.

    Raises:
        RAGCacheError: The model failed.
    """
    answered = Answered(time.perf_counter())
    async with aclosing(pipeline.astream(question, retrieve)) as stream:
        async for piece in stream:
            moment = time.perf_counter()
            if isinstance(piece, Explanation):
                answered.called, config = moment, piece.config
                words = (config.method, config.num_chunks, config.intermediate_length)
                answered.configuration = " ".join(str(word) for word in words if word is not None)
                continue
            answered.ended = moment
            if answered.first is None:
                answered.first = moment
            if isinstance(piece, AdaptiveAnswer):
                usages = (piece.cost.usage, piece.cost.profile_usage)
                answered.text = piece.text
                answered.usage = add_usage([usage for usage in usages if usage is not None])
    return answered


async def _synthesised(pieces: AsyncGenerator[str | Synthesised]) -> Answered:
    answered = Answered(time.perf_counter())
    async with aclosing(pieces) as stream:
        async for piece in stream:
            answered.ended = time.perf_counter()
            if answered.first is None:
                answered.first = answered.ended
            if isinstance(piece, Synthesised):
                answered.text, answered.usage = piece.text, piece.usage
    return answered


def _likeliest(token: TokenLogprob) -> dict[str, float]:
    return {likely.token: likely.logprob for likely in (*reversed(token.top), token)}
