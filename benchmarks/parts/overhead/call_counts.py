"""How many calls of our functions an answer takes, and of how many of our files."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

import ragcache_integrations

__all__ = ["CallCounter"]

_PACKAGE = str(Path(ragcache_integrations.__file__).parent)


class CallCounter:
    """Counts calls into a folder's code by this thread, and by those that begin from now on.

    A generator or a coroutine that is resumed counts as called.

    Args:
        folder: Where the code is; this package by default.

    Attributes:
        calls: How many calls there were.
        files: Which files they were of.
    """

    def __init__(self, folder: str = _PACKAGE) -> None:
        self._folder = folder
        self._counts = False
        self.calls = 0
        self.files: set[str] = set()

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Have threads that begin meanwhile counted, too: make the retriever in here."""
        threading.setprofile(self._profile)
        try:
            yield
        finally:
            threading.setprofile(None)

    def start(self) -> None:
        """Count from zero."""
        self.calls, self.files, self._counts = 0, set(), True
        sys.setprofile(self._profile)

    def stop(self) -> tuple[int, int]:
        """Count no more; return how many calls there were, and of how many files."""
        sys.setprofile(None)
        self._counts = False
        return self.calls, len(self.files)

    def _profile(self, frame: FrameType, event: str, _: Any) -> None:
        if self._counts and event == "call":
            name = frame.f_code.co_filename
            if name.startswith(self._folder):
                self.calls += 1
                self.files.add(name)
