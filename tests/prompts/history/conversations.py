"""A framework of its own for the tests of chat histories: messages, a store, a model."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from ragcache_integrations.prompts.history.history import ChatHistory, Summary
from ragcache_integrations.prompts.history.policy import Entry, HistorySettings


@dataclass(frozen=True)
class Said:
    """A message; each word is a token."""

    role: str
    text: str
    pinned: bool = False
    summary: Summary | None = None
    calls: tuple[str, ...] = ()
    answers: tuple[str, ...] = ()

    @property
    def tokens(self) -> int:
        return len(self.text.split())


class Plain:
    """The dialect of :class:`Said`."""

    def entry(self, message: Said) -> Entry:
        held = message.pinned or message.role == "system"
        return Entry(message.tokens, message.role, held, message.calls, message.answers)

    def text(self, message: Said) -> str:
        return message.text

    def question(self, text: str) -> Said:
        return Said("user", text)

    def summary(self, summary: Summary) -> Said:
        return Said("system", summary.text, summary=summary)

    def read_summary(self, message: Said) -> Summary | None:
        return message.summary

    def unmarked(self, message: Said) -> Said:
        return replace(message, summary=None)

    def documents_once(self, messages: Sequence[Said]) -> list[Said]:
        return list(messages)


class Shelf:
    """A store that fails when it is told to."""

    def __init__(self) -> None:
        self.kept: list[Said] = []
        self.fails = False
        self.refuses: Callable[[Said], bool] = lambda message: False

    def read(self) -> list[Said]:
        self._check([])
        return list(self.kept)

    def append(self, messages: Sequence[Said]) -> None:
        self._check(messages)
        self.kept += messages

    def replace(self, messages: Sequence[Said]) -> None:
        self._check(messages)
        self.kept = list(messages)

    def _check(self, messages: Sequence[Said]) -> None:
        if self.fails or any(map(self.refuses, messages)):
            msg = "the store is down"
            raise ConnectionError(msg)


class Scripted:
    """A model that remembers what it was asked, and waits or fails when it is told to."""

    def __init__(self) -> None:
        self.summaries: list[list[Said]] = []
        self.prefills: list[list[Said]] = []
        self.answers = threading.Event()
        self.answers.set()
        self.asked = threading.Event()
        self.error: Exception | None = None
        self.busy = False

    def ask(self, messages: Sequence[Said], max_tokens: int, timeout: float | None) -> str:
        prefill = max_tokens == 1
        (self.prefills if prefill else self.summaries).append(list(messages))
        self.asked.set()
        assert self.answers.wait(30)
        if self.error is not None:
            raise self.error
        return "so" if prefill else f"summary {len(self.summaries)}"

    def is_idle(self) -> bool:
        return not self.busy


def make(
    budget: int = 100,
    *,
    model: Scripted | None = None,
    shelf: Shelf | None = None,
    system: Sequence[Said] = (),
    **knobs: Any,
) -> ChatHistory[Said]:
    settings = HistorySettings(budget=budget, **{"summary_tokens": 8, **knobs})
    return ChatHistory(settings, Plain(), shelf or Shelf(), model, system)


def turn(number: int, tokens: int = 5) -> list[Said]:
    """A question and its reply, of so many words each."""
    return [
        Said("user", f"question{number} " + "q " * (tokens - 1)),
        Said("assistant", f"reply{number} " + "r " * (tokens - 1)),
    ]


def total(messages: Sequence[Said]) -> int:
    return sum(message.tokens for message in messages)
