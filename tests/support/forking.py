"""Children that are forked while threads of their parent are at work."""

from __future__ import annotations

import faulthandler
import os
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Self

from .programs import run_program

ROOT = Path(__file__).parents[2]
LONGEST = 15.0
"""Seconds that a child may take; one that hangs takes for ever."""


def run_forking(module: str, *arguments: str, anew: bool = False) -> str:
    """Run a module that forks, apart from this process and its threads.

    Args:
        module: Its name.
        arguments: Its own.
        anew: As for :func:`run_program`.

    Returns:
        What it prints.
    """
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = run_program(module, *arguments, folder=ROOT, environment=environment, anew=anew)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def in_child(work: Callable[[], object]) -> None:
    """Fork, and do something in the child.

    Raises:
        AssertionError: It failed there, or did not end.
    """
    child = os.fork()
    if child == 0:
        status = 1
        try:
            faulthandler.dump_traceback_later(LONGEST - 2)
            work()
            status = 0
        except BaseException:
            traceback.print_exc()
        finally:
            sys.stderr.flush()
            os._exit(status)
    deadline = time.monotonic() + LONGEST
    while True:
        done, status = os.waitpid(child, os.WNOHANG)
        if done:
            assert status == 0, f"the child failed with status {status}"
            return
        if time.monotonic() > deadline:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
            raise AssertionError("the child hangs")
        time.sleep(0.002)


class Hammer:
    """Threads that do something again and again while children are forked."""

    def __init__(self, *works: Callable[[int], object]) -> None:
        self._stop = threading.Event()
        self.failures: list[BaseException] = []
        self._threads = [threading.Thread(target=self._run, args=(work,)) for work in works]

    def __enter__(self) -> Self:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join()
        assert not self.failures, self.failures

    def _run(self, work: Callable[[int], object]) -> None:
        number = 0
        while not self._stop.is_set():
            number += 1
            try:
                work(number)
            except BaseException as error:
                self.failures.append(error)
                return
