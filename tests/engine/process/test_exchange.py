"""Who is suspected of ending processes. The processes are doubles here, which say what is scripted;
``test_failing_steps.py`` has a real one that a request ends.
"""

from __future__ import annotations

import threading
import time
from typing import Any, cast

from ragcache_integrations.engine import SamplingOptions
from ragcache_integrations.engine.process.client import EngineProcess
from ragcache_integrations.engine.process.exchange import Exchange
from ragcache_integrations.engine.protocol import (
    Begun,
    Counters,
    FailureKind,
    FaultSettings,
    Output,
    RequestFailed,
    Step,
    Submit,
)
from ragcache_integrations.errors import EngineDeadError


class Process:
    def __init__(self) -> None:
        self.ended = threading.Event()
        self.sent: list[int] = []
        self.attempts: dict[int, int] = {}

    def send(self, message: Any) -> None:
        if isinstance(message, Submit):
            self.sent.append(message.request_id)
            self.attempts[message.request_id] = message.attempt


class World:
    def __init__(self, requests: int, faults: FaultSettings | None = None) -> None:
        self.exchange = Exchange(faults or FaultSettings(), Counters())
        self.process = Process()
        self.got: dict[int, list[Any]] = {}
        for _ in range(requests):
            inbox: list[Any] = []
            request = Submit(0, [1, 2, 3], SamplingOptions(max_tokens=2), "", ())
            self.got[self.exchange.register(inbox.append, request)] = inbox

    def connect(self) -> list[int]:
        """A process, and what it is sent."""
        self.process = Process()
        assert self.exchange.connect(cast("EngineProcess", self.process)) is not None
        return self.process.sent

    def begin(self, *numbers: int) -> None:
        self.exchange.received(Begun(numbers))

    def say(self, number: int, *, last: bool = False) -> None:
        output = Output(
            request_id=number,
            text="x",
            token_ids=(7,),
            logprobs=(),
            finish_reason="length" if last else None,
            cached_tokens=0,
            attempt=self.process.attempts[number],
        )
        self.exchange.received(Step((output,)))

    def fail(self, number: int) -> None:
        self.exchange.received(
            RequestFailed(
                number, FailureKind.HOST_TIER, "its copy is gone", self.process.attempts[number]
            )
        )

    def end(self) -> None:
        self.process.ended.set()
        self.exchange.disconnect()


def test_whoever_only_waited_is_no_suspect() -> None:
    world = World(5)
    for _ in range(6):
        assert world.connect() == [1, 2, 3, 4, 5]
        world.end()
    assert not any(world.got.values())


def test_whoever_was_computed_each_time_is_given_up() -> None:
    world = World(4)
    for _ in range(2):
        assert world.connect() == [1, 2, 3, 4]
        world.begin(2, 3)
        world.end()
    assert world.connect() == [1, 4, 2], "one suspect at a time"
    world.begin(1, 4, 2)
    world.end()
    (error,) = world.got[2]
    assert isinstance(error, EngineDeadError)
    assert "ended 3 times in a row while it computed this request" in str(error)
    assert world.connect() == [1, 4, 3]
    world.begin(1, 4, 3)
    world.say(3)
    world.end()
    assert world.connect() == [3, 1], "what had a token is none, and goes on"
    assert [len(world.got[number]) for number in (1, 3, 4)] == [0, 1, 0]


def test_whoever_is_tried_again_meanwhile_stays_a_suspect() -> None:
    """A request that waits too long is tried again, but a process may be computing it by then."""
    world = World(2, FaultSettings(request_timeout=1e-9, max_retries=9))
    for again in (False, True):
        assert world.connect() == [1, 2]
        world.begin(1, 2)
        world.exchange.retry()
        if again:
            time.sleep(world.exchange.retry_due())
            world.exchange.retry()
            assert world.process.sent == [1, 2, 1, 2]
        world.end()
    assert world.connect() == [1], "one suspect at a time"


def test_whoever_failed_is_no_suspect() -> None:
    world = World(1)
    for _ in range(6):
        assert world.connect() == [1]
        world.begin(1)
        world.fail(1)
        world.end()
    assert not world.got[1]


def test_the_next_suspect_follows_when_one_is_cleared() -> None:
    world = World(3)
    for _ in range(2):
        world.connect()
        world.begin(1, 2, 3)
        world.end()
    assert world.connect() == [1]
    world.begin(1)
    world.say(1)
    assert world.process.sent == [1, 2]
    world.exchange.abort(2)
    assert 3 in world.process.sent


def test_a_token_clears_of_all_suspicion() -> None:
    world = World(1)
    for _ in range(9):
        world.connect()
        world.begin(1)
        world.say(1)
        world.end()
    world.connect()
    world.say(1, last=True)
    assert [type(one) for one in world.got[1]] == [Output] * 10
