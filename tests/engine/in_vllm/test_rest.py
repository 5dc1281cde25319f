"""An engine rests before it computes what nobody waits for.

What it computes, and the socket, stand in: the rest is a question of their order alone.
"""

from __future__ import annotations

from typing import Any, cast

from ragcache_integrations.engine.in_vllm.main import IDLE_SECONDS, Host
from ragcache_integrations.engine.protocol import Shutdown, Step


class Socket:
    """Brings the end after so many polls, and notes how long each would have waited."""

    def __init__(self, polls: int) -> None:
        self.waits: list[float] = []
        self._polls = polls

    def poll(self, seconds: float) -> bool:
        self.waits.append(seconds)
        return len(self.waits) == self._polls

    def recv(self) -> object:
        return Shutdown()

    def send(self, message: object) -> None:
        """Take what is reported."""


class Work:
    """Answers in its first step. From then on it has documents to encode for later."""

    busy = True

    def __init__(self, *, encodes: bool) -> None:
        self.steps = 0
        self._encodes = encodes

    @property
    def idles(self) -> bool:
        return self._encodes and self.steps > 0

    def step(self) -> tuple[Any, ...]:
        self.steps += 1
        return (_Answer(),) if self.steps == 1 else ()

    def report(self, outputs: tuple[Any, ...]) -> Step:
        return Step(outputs)


class _Answer:
    finish_reason = "stop"


def waits_of(*, encodes: bool) -> list[float]:
    socket, work = Socket(polls=4), Work(encodes=encodes)
    Host(cast("Any", socket), cast("Any", work), heartbeat_seconds=1e6).serve()
    return socket.waits


def test_the_next_question_is_waited_for_before_a_document_is_encoded_for_later() -> None:
    first, second, *_ = waits_of(encodes=True)
    assert first == 0
    assert 0 < second <= IDLE_SECONDS


def test_what_somebody_waits_for_is_computed_at_once() -> None:
    assert waits_of(encodes=False) == [0, 0, 0, 0]
