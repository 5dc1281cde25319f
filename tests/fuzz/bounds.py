"""What an example may take: processor time, memory, and no crash."""

from __future__ import annotations

import faulthandler
import os
import resource
import signal
import sys
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

import pytest

from tests.support.memory import no_more_memory_than

CPU_SECONDS = 10
WAIT_SECONDS = 60
MEMORY = 1 << 30  # bytes, beyond what the process has already


@contextmanager
def bounded() -> Iterator[None]:
    """Let what takes too long or too much memory fail.

    Only where the work is Python's: what a library in C takes is noticed once it returns.
    """

    def fail(number: int, frame: FrameType | None) -> None:
        pytest.fail(f"it took more than {CPU_SECONDS} seconds of processor time")

    before = signal.signal(signal.SIGPROF, fail)
    signal.setitimer(signal.ITIMER_PROF, CPU_SECONDS)
    try:
        with no_more_memory_than(MEMORY):
            yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, before)


def contained(work: Callable[[], str]) -> str:
    """Do something in a forked child, whose crash fails the example alone.

    Args:
        work: What to do; it returns a word for what came of it.

    Returns:
        That word.

    Raises:
        AssertionError: It raised something, crashed, or took too long or too much memory.
    """
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(reading)
        _run(work, writing)
    os.close(writing)
    with os.fdopen(reading, errors="replace") as said:
        report = said.read()
    _, status = os.waitpid(child, 0)
    code = os.waitstatus_to_exitcode(status)
    ended = signal.Signals(-code).name if code < 0 else f"status {code}"
    assert code == 0, f"it ended with {ended}\n{report}"
    return report.rpartition("\n")[2]


def _run(work: Callable[[], str], report: int) -> None:
    """Do something, and end this process."""
    status = 1
    try:
        os.dup2(report, sys.__stderr__.fileno() if sys.__stderr__ else 2)
        os.dup2(report, 2)
        faulthandler.enable(2)
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        signal.alarm(WAIT_SECONDS)
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        resource.setrlimit(resource.RLIMIT_CPU, (CPU_SECONDS, CPU_SECONDS))
        with no_more_memory_than(MEMORY):
            word = work()
        os.write(report, f"\n{word}".encode())
        status = 0
    except BaseException:  # it must not go on as a second run of the tests
        os.write(report, traceback.format_exc().encode(errors="replace"))
    finally:
        os._exit(status)
