"""Keeps the output of starting engines off the screen."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TextIO

from tqdm import tqdm

__all__ = ["output_to", "quiet_start"]


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


@contextmanager
def quiet_start(log: Path, what: str, steps: int, *, show_progress: bool) -> Iterator[tqdm[Any]]:
    """Redirect all output to a file, and count the steps of starting something on the screen.

    Args:
        log: The file, to which is appended.
        what: What is started.
        steps: Number of steps.
        show_progress: Whether to show the steps.

    Yields:
        The progress bar, which each step updates.
    """
    bar_format = "{desc}: {n_fmt} of {total_fmt} [{elapsed}]"
    with (
        output_to(log) as screen,
        tqdm(
            desc=what, total=steps, bar_format=bar_format, file=screen, disable=not show_progress
        ) as progress,
    ):
        yield progress
