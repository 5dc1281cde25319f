"""What the application remembers of a request, so that it can be asked again.

A request outlives the process that answers it. One of which nothing has come is submitted as it
was. One that had begun is submitted with the tokens that came, and goes on behind them. Where that
can't be done, it is answered from the start, and what is known already is checked and left out: a
grammar or the random numbers of a seed can't be entered in the middle, and penalties on what stands
in the answer would not count tokens that came back as the end of the prompt. (A repetition penalty
counts the prompt's, too, so that it sees the same tokens either way.)
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable
from dataclasses import replace

from ragcache_integrations.core.generation import SamplingOptions, penalises_answer
from ragcache_integrations.engine.protocol import Answer, Control, Output, Submit

__all__ = ["DivergedError", "PendingControl", "PendingRequest", "Received", "Receiver"]

Received = Output | Answer | Exception
Receiver = Callable[[Received], None]


class DivergedError(Exception):
    """Answered again from the start, a request was answered otherwise."""


class PendingControl:
    """A question outside any request. Asking it twice does no harm."""

    def __init__(self, receiver: Receiver, control: Control) -> None:
        self.receiver = receiver
        self.sent = False
        self._control = control

    @property
    def operation(self) -> str:
        """What is asked."""
        return self._control.operation

    def message(self) -> Control:
        """What to send."""
        self.sent = True
        return self._control


class PendingRequest:
    """A request that was not answered to its end.

    Attributes:
        receiver: Gets what is new, in order and once.
        sent: Whether it was submitted to the process of now.
        computing: Whether that one has begun to compute it, and has not said that it failed. Being
            given up for its slowness does not end that: the process may be at it still.
        retries: How often it was tried again for its own sake.
        due: When it is to be submitted again, by the monotonic clock; ``None`` where it is being
            computed, or waits for the process.
        progressed_at: When something last came of it.
        deaths: How many processes in a row ended while they computed it, before anything came of
            it.
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
        constrained = options.json_schema is not None or bool(options.choice)
        penalised = penalises_answer(options)
        if (constrained or penalised) and sampled and options.seed is None:
            options = replace(options, seed=secrets.randbits(63))  # as good as none, and repeatable
        self._request = replace(request, options=options)
        self._whole = constrained or penalised  # never entered in the middle
        self._repeats = self._whole or (sampled and options.seed is not None)
        self._attempts = 0
        self._emitted = list(request.emitted)
        self._characters = 0
        self._cached_tokens = 0
        # What this attempt has yet to repeat.
        self._known_tokens = 0
        self._known_characters = 0

    @property
    def prompt(self) -> Submit:
        """The request as it was first submitted."""
        return self._request

    @property
    def begun(self) -> bool:
        """Whether something of its answer has come."""
        return bool(self._emitted)

    @property
    def attempts(self) -> int:
        """How often it was submitted."""
        return self._attempts

    def message(self) -> Submit:
        """What to send. Nothing counts any more that comes of attempts before."""
        self.sent = True
        self.due = None
        self.progressed_at = time.monotonic()
        attempt = self._attempts
        self._attempts += 1
        if self._repeats:
            self._known_tokens, self._known_characters = len(self._emitted), self._characters
            return replace(self._request, attempt=attempt)
        return replace(self._request, attempt=attempt, emitted=tuple(self._emitted))

    def is_current(self, attempt: int) -> bool:
        """Whether what comes of this attempt still counts."""
        return self.due is None and attempt == self._attempts - 1

    def take(self, output: Output) -> Output | None:
        """Note an output.

        Returns:
            What is new in it; ``None`` where that is nothing.

        Raises:
            DivergedError: What should have been repeated was not.
        """
        if not self.is_current(output.attempt):
            return None
        self.progressed_at = time.monotonic()
        self.deaths = 0
        if self._attempts > 1:
            output = self._new_part(output)
            if not (output.token_ids or output.text or output.finish_reason):
                return None
        elif not self._emitted:
            self._cached_tokens = output.cached_tokens
        self._emitted += output.token_ids
        self._characters += len(output.text)
        return output

    def _new_part(self, output: Output) -> Output:
        if not self._emitted and not self._known_tokens:  # the attempts before brought nothing
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
        )

    def go_on_instead(self) -> bool:
        """After a divergence: from now on, go on behind what was emitted.

        Returns:
            Whether that is possible; grammars and penalties can't be entered in the middle.
        """
        if self._whole:
            return False
        self._repeats = False
        self._known_tokens = self._known_characters = 0
        seed = self._request.options.seed
        if seed is not None:  # not the same random numbers again
            options: SamplingOptions = replace(
                self._request.options, seed=(seed + len(self._emitted)) % 2**63
            )
            self._request = replace(self._request, options=options)
        return True
