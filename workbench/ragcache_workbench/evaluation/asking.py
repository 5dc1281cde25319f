"""Asks questions: makes their prompts, and measures the times of the answers."""

from __future__ import annotations

import asyncio
import hashlib
import json
import time
from collections.abc import (
    AsyncGenerator,
    Awaitable,
    Callable,
    Iterable,
    Mapping,
    Sequence,
)
from contextlib import aclosing
from dataclasses import asdict, dataclass, field
from typing import Any

from ragcache_integrations.adaptive import (
    AdaptiveAnswer,
    AdaptivePipeline,
    Explanation,
    HeuristicProfiler,
    LLMProfiler,
    SynthesisSettings,
    astream_synthesis,
)
from ragcache_integrations.adaptive.asker import ModelRequest, add_usage
from ragcache_integrations.adaptive.resources import resources_of
from ragcache_integrations.adaptive.types import Synthesised
from ragcache_integrations.core.generation import TokenLogprob, Usage
from ragcache_integrations.core.prompt import Message, Prompt, PromptDocument
from ragcache_integrations.errors import ConfigurationError

from .datasets import EvalDataset, EvalPrompt, EvalQuestion
from .records import Record
from .settings import EvalSettings
from .systems import Model

__all__ = ["Answered", "Answerer", "Retrieve", "full_prompt"]

Retrieve = Callable[[str, int], Awaitable[Sequence[PromptDocument]]]
"""Finds the documents of a question, as the adaptive pipeline calls it."""

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
        prompt: Digest of the prompt, as in its record.
        reused: Whether an equal prompt was answered before, and the model was not asked again.
    """

    called: float
    first: float | None = None
    ended: float = 0.0
    text: str = ""
    likeliest: dict[str, float] = field(default_factory=dict)
    usage: Usage | None = None
    streamed_tokens: int | None = None
    configuration: str = ""
    prompt: str = ""
    reused: bool = False

    def facts(self, arrived: float) -> dict[str, Any]:
        """Return what the record says of this answer, to a question that arrived at that moment."""
        facts: dict[str, Any] = {
            "answer": self.text,
            "likeliest": self.likeliest,
            "prompt": self.prompt,
            "reused": self.reused,
        }
        if self.reused:
            return facts
        facts["configuration"] = self.configuration
        facts["end_to_end_seconds"] = self.ended - arrived
        if self.usage is not None:
            facts["prompt_tokens"] = self.usage.prompt_tokens
            facts["cached_tokens"] = self.usage.cached_tokens
            facts["output_tokens"] = self.usage.completion_tokens
        if self.first is not None:
            facts["model_ttft_seconds"] = self.first - self.called
            facts["ttft_seconds"] = self.first - arrived
            if (tokens := self.streamed_tokens or 0) > 1:
                facts["tpot_seconds"] = (self.ended - self.first) / (tokens - 1)
        return facts


def full_prompt(prompt: EvalPrompt, documents: Sequence[PromptDocument]) -> Prompt:
    """Put documents into a data set's prompt."""
    parts: list[str | PromptDocument] = [prompt.before] if prompt.before else []
    for document in documents:
        parts += [document, SEPARATOR]
    parts.append(prompt.after)
    system = (Message("system", prompt.system),) if prompt.system else ()
    return Prompt(messages=(*system, Message("user", parts)))


class Answerer:
    """Asks the model of a run, and measures the times.

    Args:
        settings: The settings of the run.
        dataset: The data set, which makes the prompts.
        model: The model.
        max_tokens: Limit of an answer in tokens.

    Raises:
        ConfigurationError: Equal prompts are to be answered once, and the model's answers depend on
            what came before.
    """

    def __init__(
        self, settings: EvalSettings, dataset: EvalDataset, model: Model, max_tokens: int
    ) -> None:
        self._dataset = dataset
        self._model = model
        self._max_tokens = max_tokens
        self._asker = model.asker(options=dataset.chooses)
        self._config = settings.synthesis_config
        self._synthesis = SynthesisSettings(max_tokens=max_tokens)
        self._known = model.answers if settings.answer_once else None
        if self._known is not None and model.reuses_anywhere:
            raise ConfigurationError(
                "answer_once needs a model with reuse='prefix', got one with 'anywhere': its "
                "answers depend on what came before"
            )
        self._adaptive = self._pipeline(settings) if settings.synthesis == "adaptive" else None

    def _pipeline(self, settings: EvalSettings) -> AdaptivePipeline:
        """The pipeline that chooses a configuration for each question, and answers it."""
        corpus, by_model = self._dataset.title, settings.profiler == "llm"
        return AdaptivePipeline(
            self._asker,
            LLMProfiler(self._asker, corpus) if by_model else HeuristicProfiler(),
            settings.adaptive_settings(),
            self._synthesis,
            resources=lambda: resources_of(self._model.backend()),
        )

    def close(self) -> None:
        """Start no more golden feedback."""
        if self._adaptive is not None:
            self._adaptive.close()

    async def wait(self) -> None:
        """Wait for golden feedback, which would slow down the next run."""
        if self._adaptive is not None and self._adaptive.golden is not None:
            await asyncio.to_thread(self._adaptive.golden.join)

    async def answer(self, question: EvalQuestion, text: str, retrieve: Retrieve) -> Answered:
        """Answer a question.

        Args:
            question: The question.
            text: Its wording.
            retrieve: Finds its documents, in the order of the prompt.

        Raises:
            RAGCacheError: The model failed.
        """
        if self._adaptive is not None:
            return await _timed(self._adaptive.astream(text, retrieve))
        documents = await retrieve(text, 0)
        if self._known is None:
            return await self._ask(question, text, documents)
        digest = self._digest(question, text, documents)
        if digest in self._known:
            return _again(digest, *self._known[digest])
        answered = await self._ask(question, text, documents)
        answered.prompt = digest
        self._known[digest] = answered.text, answered.likeliest
        return answered

    def remember(self, records: Iterable[Record]) -> None:
        """Learn the answers of a run of the same model, if equal prompts are answered once."""
        if self._known is None:
            return
        for record in records:
            if record.prompt and not record.error:
                self._known[record.prompt] = record.answer, record.likeliest

    def _digest(
        self, question: EvalQuestion, text: str, documents: Sequence[PromptDocument]
    ) -> str:
        """Hash all on which an answer of the model depends.

        Documents count by their texts: those of two corpora may have the same ids.
        """
        prompt = asdict(self._dataset.prompt(question, text)) if self._config is None else text
        texts = [document.text for document in documents]
        config = None if self._config is None else asdict(self._config)
        content = [prompt, texts, self._max_tokens, config, self._dataset.chooses]
        return hashlib.blake2b(json.dumps(content).encode(), digest_size=16).hexdigest()

    async def _ask(
        self, question: EvalQuestion, text: str, documents: Sequence[PromptDocument]
    ) -> Answered:
        if self._config is not None:
            pieces = astream_synthesis(self._asker, text, documents, self._config, self._synthesis)
            answered = await _timed(pieces)
            if self._config.method == "stuff" and answered.usage is not None:
                answered.streamed_tokens = answered.usage.completion_tokens
            return answered
        prompt = full_prompt(self._dataset.prompt(question, text), documents)
        request = ModelRequest(prompt, max_tokens=self._max_tokens)
        if self._dataset.chooses and self._model.whole_answers:
            return await self._whole(request)
        return await self._streamed(request)

    async def _whole(self, request: ModelRequest) -> Answered:
        answered = Answered(time.perf_counter())
        output = await self._asker.aask(request)
        answered.first = answered.ended = time.perf_counter()
        answered.text, answered.usage = output.text, output.usage
        answered.likeliest = _likeliest(output.logprobs[0]) if output.logprobs else {}
        return answered

    async def _streamed(self, request: ModelRequest) -> Answered:
        answered = Answered(time.perf_counter())
        usage: list[Usage] = []
        async with aclosing(self._asker.astream(request)) as stream:
            async for piece in stream:
                moment = time.perf_counter()
                if answered.first is None and (piece.text or self._model.eager_first):
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


def _again(prompt: str, text: str, likeliest: Mapping[str, float]) -> Answered:
    moment = time.perf_counter()
    return Answered(
        moment, ended=moment, text=text, likeliest=dict(likeliest), prompt=prompt, reused=True
    )


async def _timed(
    pieces: AsyncGenerator[Explanation | str | AdaptiveAnswer | Synthesised],
) -> Answered:
    """Read the pieces of an answer of several calls, and measure when they come."""
    answered = Answered(time.perf_counter())
    async with aclosing(pieces) as stream:
        async for piece in stream:
            moment = time.perf_counter()
            if isinstance(piece, Explanation):
                config = piece.config
                words = (config.method, config.num_chunks, config.intermediate_length)
                answered.configuration = " ".join(str(word) for word in words if word is not None)
                continue
            answered.ended = moment
            if answered.first is None:
                answered.first = moment
            if isinstance(piece, Synthesised):
                answered.text, answered.usage = piece.text, piece.usage
            elif isinstance(piece, AdaptiveAnswer):
                # Not when the explanation came: of ``gradual`` it comes after the first answer.
                # At most the first token: the answer's end was a moment before it came here.
                answered.called = min(answered.first, moment - piece.cost.synthesis_seconds)
                usages = (piece.cost.usage, piece.cost.profile_usage)
                answered.text = piece.text
                answered.usage = add_usage([usage for usage in usages if usage is not None])
    return answered


def _likeliest(token: TokenLogprob) -> dict[str, float]:
    return {likely.token: likely.logprob for likely in (*reversed(token.top), token)}
