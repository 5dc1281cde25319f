"""What the application remembers of a request, so that it can be submitted again.

A request outlives the process that answers it. If it has produced no output, it is submitted
unchanged. If it has, it is submitted with its emitted tokens and resumes after them. Where that is
impossible, it is answered from the start, and the part that is known already is compared and left
out: neither a grammar, nor the reading of tool calls, nor the random numbers of a seed can be
entered in the middle, and penalties on the answer's tokens would not count tokens that were
submitted as the end of the prompt. (A repetition penalty counts the prompt's tokens, too, so it
sees the same tokens either way.)
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from typing import TypeVar

from ragcache_integrations.core.generation import SamplingOptions, penalises_answer
from ragcache_integrations.core.prompt import ToolCallPiece
from ragcache_integrations.engine.protocol import Answer, Control, Output, Submit
from ragcache_integrations.errors import EngineError

__all__ = ["DivergedError", "PendingControl", "PendingRequest", "Received", "Receiver"]

Received = Output | Answer | Exception
Receiver = Callable[[Received], None]


Reply = TypeVar("Reply", Output, Answer)


def expect(kind: type[Reply], received: Received) -> Reply:
    """Return what was received.

    Args:
        kind: What must have been received.
        received: A message, or the error to raise.
    """
    if isinstance(received, Exception):
        raise received
    if not isinstance(received, kind):
        raise EngineError(f"the engine answered out of turn: {received!r}")
    return received


class DivergedError(Exception):
    """The answer computed again from the start differs from the emitted one."""


@dataclass(slots=True, eq=False)
class PendingControl:
    """A control message without an answer. Sending it twice does no harm."""

    receiver: Receiver
    control: Control
    sent: bool = False

    def message(self) -> Control:
        """What to send."""
        self.sent = True
        return self.control


class PendingRequest:
    """A request whose answer is not complete.

    Attributes:
        receiver: Gets each new output once and in order.
        request: The request as it was first submitted.
        attempts: How often it was submitted.
        sent: Whether it was submitted to the current process.
        computing: Whether the current process has begun to compute it and has not reported a
            failure. An abort for slowness leaves this set: the process may still be computing it.
        retries: How often it was retried while the process lived.
        due: When it is submitted again, by the monotonic clock; ``None`` while it is being computed
            or waits for a process.
        progressed_at: Time of its last output or submission, by the monotonic clock.
        deaths: How many processes in a row ended while computing it, before it produced output.
    """

    def __init__(self, receiver: Receiver, request: Submit) -> None:
        self.receiver = receiver
        self.sent = False
        self.computing = False
        self.retries = 0
        self.deaths = 0
        self.due: float | None = None
        self.progressed_at = time.monotonic()
        options = request.options
        sampled = options.temperature > 0
        constrained = options.needs_grammar or request.tools is not None
        penalised = penalises_answer(options)
        if (constrained or penalised) and sampled and options.seed is None:
            options = replace(options, seed=secrets.randbits(63))  # as random, but repeatable
        self.request = replace(request, options=options)
        self._whole = constrained or penalised  # never entered in the middle
        self._repeats = self._whole or (sampled and options.seed is not None)
        self.attempts = 0
        self._emitted = list(request.emitted)
        self._characters = 0
        self._cached_tokens = 0
        # How much of the emitted answer this attempt must still repeat.
        self._known_tokens = 0
        self._known_characters = 0
        # Characters of the arguments of each call that were passed on, and that it must repeat.
        self._calls: dict[int, int] = {}
        self._known_calls: dict[int, int] = {}

    @property
    def begun(self) -> bool:
        """Whether it has produced output."""
        return bool(self._emitted)

    def message(self) -> Submit:
        """Begin the next attempt: the message to send. Outputs of earlier attempts are ignored."""
        self.sent = True
        self.due = None
        self.progressed_at = time.monotonic()
        attempt = self.attempts
        self.attempts += 1
        if self._repeats:
            self._known_tokens, self._known_characters = len(self._emitted), self._characters
            self._known_calls = dict(self._calls)
            return replace(self.request, attempt=attempt)
        return replace(self.request, attempt=attempt, emitted=tuple(self._emitted))

    def is_current(self, attempt: int) -> bool:
        """Whether this attempt is the latest and still runs."""
        return self.due is None and attempt == self.attempts - 1

    def take(self, output: Output) -> Output | None:
        """Record an output.

        Args:
            output: An output of any attempt.

        Returns:
            The part of it that is new; ``None`` if nothing is.

        Raises:
            DivergedError: It does not repeat what was emitted.
        """
        if not self.is_current(output.attempt):
            return None
        self.progressed_at = time.monotonic()
        self.deaths = 0
        if self.attempts > 1:
            output = self._new_part(output)
            if not any((output.token_ids, output.text, output.tool_calls, output.finish_reason)):
                return None
        elif not self._emitted:
            self._cached_tokens = output.cached_tokens
        self._emitted += output.token_ids
        self._characters += len(output.text)
        for piece in output.tool_calls:
            self._calls[piece.index] = self._calls.get(piece.index, 0) + len(piece.arguments)
        return output

    def _new_part(self, output: Output) -> Output:
        if not self._emitted and not self._known_tokens:  # earlier attempts had no output
            self._cached_tokens = output.cached_tokens
        tokens = min(self._known_tokens, len(output.token_ids))
        begin = len(self._emitted) - self._known_tokens
        self._known_tokens -= tokens
        cut_short = output.finish_reason is not None and self._known_tokens
        if cut_short or output.token_ids[:tokens] != tuple(self._emitted[begin : begin + tokens]):
            raise DivergedError
        characters = min(self._known_characters, len(output.text))
        self._known_characters -= characters
        return replace(
            output,
            text=output.text[characters:],
            token_ids=output.token_ids[tokens:],
            logprobs=output.logprobs[tokens:],
            cached_tokens=self._cached_tokens,
            tool_calls=tuple(self._new_calls(output.tool_calls)),
        )

    def _new_calls(self, pieces: Iterable[ToolCallPiece]) -> Iterator[ToolCallPiece]:
        """Pieces of calls without what was passed on before, under ids of the first attempt."""
        for piece in pieces:
            known = self._known_calls.get(piece.index)
            if known is None:
                yield piece
                continue
            self._known_calls[piece.index] = max(0, known - len(piece.arguments))
            if piece.arguments[known:]:
                yield ToolCallPiece(piece.index, piece.arguments[known:])

    def resume_differently(self) -> bool:
        """After a divergence, resume after the emitted tokens instead of repeating them.

        Returns:
            Whether that is possible; grammars and penalties can't be entered in the middle.
        """
        if self._whole:
            return False
        self._repeats = False
        self._known_tokens = self._known_characters = 0
        seed = self.request.options.seed
        if seed is not None:  # not the same random numbers again
            options: SamplingOptions = replace(
                self.request.options, seed=(seed + len(self._emitted)) % 2**63
            )
            self.request = replace(self.request, options=options)
        return True
