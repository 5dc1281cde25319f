"""Names of stores, and how many times a store is asked."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable
from typing import Any

import pytest

_numbers = itertools.count()


def new_name() -> str:
    return f"store_{next(_numbers)}"


def count_calls(monkeypatch: pytest.MonkeyPatch, owner: type, *names: str) -> list[str]:
    """Return a list that gets the name of each method of a class that is called."""
    calls: list[str] = []

    def counted(name: str, method: Callable[..., Any]) -> Callable[..., Any]:
        def call(self: Any, *positional: Any, **named: Any) -> Any:
            calls.append(name)
            return method(self, *positional, **named)

        return call

    for name in names:
        monkeypatch.setattr(owner, name, counted(name, getattr(owner, name)))
    return calls


def call_one_at_a_time(monkeypatch: pytest.MonkeyPatch, owner: type, *names: str) -> None:
    """Let threads wait for each other in methods of a class that is made for one thread."""
    lock = threading.RLock()

    def guarded(method: Callable[..., Any]) -> Callable[..., Any]:
        def call(self: Any, *positional: Any, **named: Any) -> Any:
            with lock:
                return method(self, *positional, **named)

        return call

    for name in names:
        monkeypatch.setattr(owner, name, guarded(getattr(owner, name)))
