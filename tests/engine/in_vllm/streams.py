"""CUDA's streams and events on a CPU, with work that is done as late and as mixed as CUDA may."""

from __future__ import annotations

import ctypes
import random
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch


@dataclass
class Mark:
    """A place in a stream."""

    passed: bool = False


class Event:
    """Knows the last place at which it was recorded."""

    def __init__(self) -> None:
        self.mark = Mark(passed=True)

    def record(self, stream: WorkQueue) -> None:
        self.mark = Mark()
        stream.work.append(self.mark)

    def query(self) -> bool:
        return self.mark.passed


@dataclass
class Wait:
    """Where a stream waits."""

    mark: Mark


@dataclass
class WorkQueue:
    """Work in order."""

    work: deque[Mark | Wait | Callable[[], None]] = field(default_factory=deque)

    def record_event(self) -> Event:
        event = Event()
        event.record(self)
        return event

    def wait_event(self, event: Event) -> None:
        self.work.append(Wait(event.mark))

    def wait_stream(self, other: WorkQueue) -> None:
        self.wait_event(other.record_event())

    @property
    def held(self) -> bool:
        """Whether nothing can be done now."""
        return not self.work or (isinstance(self.work[0], Wait) and not self.work[0].mark.passed)

    def advance(self) -> None:
        """Do the first piece of work."""
        first = self.work.popleft()
        if isinstance(first, Mark):
            first.passed = True
        elif not isinstance(first, Wait):
            first()


class Gpu:
    """Stands in for ``torch.cuda`` and vLLM's operation.

    Args:
        dice: Decides which stream goes on.
    """

    Event = Event

    def __init__(self, dice: random.Random) -> None:
        self.dice = dice
        self.compute = WorkQueue()
        self._streams = [self.compute]
        self._current = [self.compute]

    def Stream(self, device: Any = None) -> WorkQueue:  # noqa: N802 - CUDA's name
        self._streams.append(WorkQueue())
        return self._streams[-1]

    def current_stream(self, device: Any = None) -> WorkQueue:
        return self._current[-1]

    @contextmanager
    def stream(self, stream: WorkQueue) -> Iterator[None]:
        self._current.append(stream)
        yield
        self._current.pop()

    def enqueue(self, action: Callable[[], None]) -> None:
        """Have the current stream do something."""
        self.current_stream().work.append(action)

    def work(self, most: int) -> None:
        """Do some of what is enqueued; some streams may not come to anything."""
        busy = self.dice.sample(self._streams, self.dice.randint(1, len(self._streams)))
        for _ in range(self.dice.randint(0, most)):
            ready = [stream for stream in busy if not stream.held]
            if not ready:
                break
            self.dice.choice(ready).advance()

    def finish(self) -> None:
        """Do all of it."""
        while ready := [stream for stream in self._streams if not stream.held]:
            self.dice.choice(ready).advance()
        assert not any(stream.work for stream in self._streams), "a stream waits for ever"

    def move(
        self,
        sources: torch.Tensor,
        targets: torch.Tensor,
        sizes: torch.Tensor,
        is_src_access_order_any: bool = False,
    ) -> None:
        """vLLM's ``swap_blocks_batch``, one piece after the other and in any order."""
        pieces = list(zip(sources.tolist(), targets.tolist(), sizes.tolist(), strict=True))
        self.dice.shuffle(pieces)
        for source, target, size in pieces:
            early = is_src_access_order_any and self.dice.random() < 0.5
            taken = ctypes.string_at(source, size) if early else None

            def copy(
                source: int = source, target: int = target, size: int = size, taken: Any = taken
            ) -> None:
                ctypes.memmove(target, source if taken is None else taken, size)

            self.enqueue(copy)
