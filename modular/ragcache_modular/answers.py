"""Builds an answer token by token: chooses tokens, decodes text, decides when to stop, streams."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Collection, Generator, Iterator
from typing import Any

import torch
from torch import Tensor

from ragcache_integrations.core.blocks import AsyncCloseable, Closeable
from ragcache_integrations.core.forks import make_lock
from ragcache_integrations.core.generation import FinishReason, Sampling, TokenLogprob, Usage
from ragcache_modular.kv.encoding import Cancelled, Patience
from ragcache_modular.kv.prefill import Prefilled

from .generation import ModularChunk, ModularGeneration

__all__ = ["Answer", "AsyncModularStream", "ModularStream", "Start", "decode"]

UNFINISHED = "\ufffd"
"""The character that a tokenizer writes if bytes of a character are missing."""


class Answer:
    """An answer that is being generated.

    Args:
        prefilled: The prompt, in memory.
        sampling: How tokens are chosen, and when the answer ends.
        tokenizer: A transformers tokenizer; ``None`` leaves texts empty.
        ends: Tokens that end an answer.

    Attributes:
        finish_reason: Why the answer ended; ``None`` until then.
    """

    def __init__(
        self, prefilled: Prefilled, sampling: Sampling, tokenizer: Any, ends: Collection[int]
    ) -> None:
        self.finish_reason: FinishReason | None = None
        self._about = prefilled.about
        self._ttft = prefilled.about.ttft
        self._sampling = sampling
        self._most = prefilled.room if sampling.max_tokens is None else sampling.max_tokens
        self._tokenizer = tokenizer
        self._ends = () if sampling.ignore_eos else frozenset(ends)
        self._before = prefilled.visible_tokens if sampling.repetition_penalty != 1 else None
        self._token_ids: list[int] = []
        self._logprobs: list[TokenLogprob] = []
        self._text = ""
        self._released = 0  # characters of the text handed out
        self._decoded = 0  # tokens whose text is complete
        self._random = torch.Generator()
        if sampling.seed is None:
            self._random.seed()
        else:
            self._random.manual_seed(sampling.seed)

    def take(self, logits: Tensor) -> tuple[int, ModularChunk]:
        """Choose the next token.

        Args:
            logits: Scores of the tokens, ``[vocabulary]``.

        Returns:
            The token, and the new part of the answer. The token that ends the answer is part of its
            tokens but not of its text.
        """
        logits = logits.float().cpu()
        token = self._choose(self._penalised(logits))
        logprobs = self._report(logits, token)
        self._token_ids.append(token)
        self._logprobs += logprobs
        if token in self._ends:
            self.finish_reason = "stop"
        else:
            self._read()
            if self.finish_reason is None and len(self._token_ids) >= self._most:
                self.finish_reason = "length"
        first = len(self._token_ids) == 1
        return token, ModularChunk(
            text=self._new_text(),
            token_ids=(token,),
            logprobs=logprobs,
            finish_reason=self.finish_reason,
            usage=self.usage if first or self.finish_reason else None,
            strategy=self._about.strategy,
            recomputed_share=self._about.recomputed_share,
        )

    @property
    def usage(self) -> Usage:
        """Tokens of the prompt and of the answer so far."""
        about = self._about
        return Usage(about.prompt_tokens, len(self._token_ids), about.cached_tokens)

    def result(self) -> ModularGeneration:
        """The answer; if it was aborted, the part that was generated."""
        return ModularGeneration(
            text=self._text[: self._released],
            token_ids=tuple(self._token_ids),
            finish_reason=self.finish_reason or "abort",
            usage=self.usage,
            logprobs=tuple(self._logprobs),
            strategy=self._about.strategy,
            recomputed_share=self._about.recomputed_share,
            ttft=self._ttft,
        )

    def _penalised(self, logits: Tensor) -> Tensor:
        """Apply penalties to tokens that occurred, in vLLM's order: repetition first."""
        sampling, repeated = self._sampling, Counter(self._token_ids)
        counted = sampling.frequency_penalty or sampling.presence_penalty
        if self._before is None and not counted:
            return logits
        scores = logits.clone()
        if self._before is not None:
            seen = torch.tensor([*{*self._before.tolist(), *repeated}])
            old, penalty = scores[seen], sampling.repetition_penalty
            scores[seen] = torch.where(old > 0, old / penalty, old * penalty)
        tokens = torch.tensor([*repeated], dtype=torch.long)
        counts = torch.tensor([*repeated.values()], dtype=scores.dtype)
        scores[tokens] -= sampling.frequency_penalty * counts + sampling.presence_penalty
        return scores

    def _choose(self, logits: Tensor) -> int:
        sampling = self._sampling
        if sampling.temperature == 0:
            return int(logits.argmax())
        scores = logits / sampling.temperature
        if sampling.top_k:
            least = scores.topk(min(sampling.top_k, len(scores))).values[-1]
            scores = scores.masked_fill(scores < least, -torch.inf)
        if sampling.top_p < 1:
            likely, order = scores.softmax(-1).sort(descending=True)
            # A token stays while those before it do not reach top_p: the first always does.
            beyond = likely.cumsum(-1) - likely >= sampling.top_p
            scores = scores.index_fill(0, order[beyond], -torch.inf)
        return int(torch.multinomial(scores.softmax(-1), 1, generator=self._random))

    def _report(self, logits: Tensor, token: int) -> tuple[TokenLogprob, ...]:
        if self._sampling.logprobs is None:
            return ()
        logprobs = logits.log_softmax(-1)
        top: tuple[TokenLogprob, ...] = ()
        if self._sampling.logprobs:
            best = logprobs.topk(min(self._sampling.logprobs, len(logprobs)))
            pairs = zip(best.indices.tolist(), best.values.tolist(), strict=True)
            top = tuple(TokenLogprob(self._decode([other]), other, value) for other, value in pairs)
        return (TokenLogprob(self._decode([token]), token, float(logprobs[token]), top),)

    def _decode(self, token_ids: list[int]) -> str:
        if self._tokenizer is None:
            return ""
        return str(self._tokenizer.decode(token_ids, skip_special_tokens=True))

    def _read(self) -> None:
        """Add the new tokens' text; end at a stop string."""
        # Decoded together with the token before them, because some tokenizers drop a leading space.
        before = self._decode(self._token_ids[max(self._decoded - 1, 0) : self._decoded])
        text = self._decode(self._token_ids[max(self._decoded - 1, 0) :])[len(before) :]
        last = len(self._token_ids) >= self._most
        if text.endswith(UNFINISHED) and not last:
            return
        self._text += text
        self._decoded = len(self._token_ids)
        ends = [at for stop in self._sampling.stop if (at := self._text.find(stop)) >= 0]
        if ends:
            self._text = self._text[: min(ends)]
            self.finish_reason = "stop"

    def _new_text(self) -> str:
        """New text to release; an end that may be the beginning of a stop string is held back."""
        until = len(self._text)
        if self.finish_reason is None:
            held = max((_overlap(self._text, stop) for stop in self._sampling.stop), default=0)
            until -= held
        text = self._text[self._released : until]
        self._released = max(self._released, until)
        return text


def _overlap(text: str, stop: str) -> int:
    """Length of the longest suffix of ``text`` that is a proper prefix of ``stop``."""
    most = min(len(text), len(stop) - 1)
    return next((size for size in range(most, 0, -1) if text.endswith(stop[:size])), 0)


# Streams

Start = Generator[tuple[Answer, ModularChunk]]
"""Computes an answer while it is iterated."""


class ModularStream(Closeable, Iterator[ModularChunk]):
    """An answer as an iterator of chunks, which computes each chunk on demand.

    Use it in a ``with`` block::

        with model.stream(prompt) as stream:
            for chunk in stream:
                print(chunk.text, end="")

    Closing it, leaving its ``with`` block or deleting it ends the answer and frees its memory. A
    stream belongs to one consumer; :meth:`abort` may be called from any thread.

    Args:
        steps: Computes the answer, one token per step.
        patience: Shared with the steps, so that their deadline and :meth:`abort` end them.
    """

    def __init__(self, steps: Start, patience: Patience) -> None:
        self._steps = steps
        self._patience = patience
        self._busy = make_lock()
        self._answer: Answer | None = None

    def __next__(self) -> ModularChunk:
        """The next chunk.

        Raises:
            StopIteration: The answer is complete or was aborted.
            GenerationTimeoutError: The timeout has passed.
            RAGCacheError: The prompt cannot be served.
        """
        with self._busy:
            try:
                self._answer, chunk = next(self._steps)
            except Cancelled:
                raise StopIteration from None
            finally:
                if self._patience.cancelled:
                    self._steps.close()
        return chunk

    def result(self) -> ModularGeneration:
        """The whole answer, including chunks that were consumed before.

        Raises:
            Cancelled: The answer was aborted before its first token.
        """
        for _ in self:
            pass
        if self._answer is None:
            raise Cancelled
        return self._answer.result()

    def abort(self) -> None:
        """Abort the answer, which ends the iteration. Never blocks."""
        self._patience.cancel()
        # A thread that is computing a token holds the lock. It sees the cancellation at the next
        # layer, and closes the steps itself.
        if self._busy.acquire(blocking=False):
            try:
                self._steps.close()
            finally:
                self._busy.release()

    def close(self) -> None:
        """Abort the answer unless it is complete."""
        self.abort()


class AsyncModularStream(AsyncCloseable, AsyncIterator[ModularChunk]):
    """Async version of :class:`ModularStream`; it computes in threads.

    Cancelling the task that waits for a chunk aborts the answer.

    Args:
        stream: Computes the answer; it must have no other consumer.
    """

    def __init__(self, stream: ModularStream) -> None:
        self._stream = stream

    async def __anext__(self) -> ModularChunk:
        """The next chunk; the errors are those of :meth:`ModularStream.__next__`."""
        try:
            chunk = await asyncio.to_thread(next, self._stream, None)
        except asyncio.CancelledError:
            self._stream.abort()
            raise
        if chunk is None:
            raise StopAsyncIteration
        return chunk

    async def aresult(self) -> ModularGeneration:
        """Async version of :meth:`ModularStream.result`."""
        async for _ in self:
            pass
        return self._stream.result()

    def abort(self) -> None:
        """Abort the answer, which ends the iteration. Never blocks."""
        self._stream.abort()

    async def aclose(self) -> None:
        """Abort the answer unless it is complete."""
        self._stream.abort()


def decode(prefilled: Prefilled, answer: Answer, patience: Patience) -> Start:
    """Generate an answer to a prompt, one token at a time."""
    logits = prefilled.logits(patience)
    while True:
        patience.check()
        token, chunk = answer.take(logits)
        # Before the yield: a consumer that stops here has the token, and may continue after it.
        prefilled.remember(token)
        yield answer, chunk
        if answer.finish_reason is not None:
            return
        logits = prefilled.logits(patience)
