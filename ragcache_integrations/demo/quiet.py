"""Keeps the output of starting engines off the screen."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TextIO

__all__ = ["output_to"]


@contextmanager
def output_to(log: Path) -> Iterator[TextIO]:
    """Redirect the output of this process and of those that it starts meanwhile to a file.

    File descriptors are redirected, so that the output of C++ code and of other processes is
    caught, too. Processes that were started meanwhile keep writing to the file afterwards.

    Args:
        log: The file, to which is appended.

    Yields:
        The screen: standard error as it was.
    """
    sys.stdout.flush()
    sys.stderr.flush()
    saved = os.dup(1), os.dup(2)
    with log.open("ab") as file:
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)
    try:
        with os.fdopen(os.dup(saved[1]), "w", encoding="utf-8", buffering=1) as screen:
            yield screen
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        for target, descriptor in zip((1, 2), saved, strict=True):
            os.dup2(descriptor, target)
            os.close(descriptor)
