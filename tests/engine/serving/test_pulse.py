"""Engines that hang are found and ended. Processes of their own stand for the engines here; a real
one is stopped in ``test_running.py``.
"""

from __future__ import annotations

import contextlib
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from ragcache_integrations.engine.serving.reports import PulseWatch

INTERVAL = 0.05
WAIT_SECONDS = 60.0
LONG = 1000.0

ENGINE = """
import sys, time
from ragcache_integrations.engine.serving.reports import Pulse
has_work, moves = (word == "yes" for word in sys.argv[2:])
pulse = Pulse(sys.argv[1], 0.05, lambda: has_work)
print("up", flush=True)
while True:
    time.sleep(0.01)
    if moves:
        pulse.moved()
"""


@contextlib.contextmanager
def engine(folder: Path, *, has_work: bool, moves: bool) -> Iterator[subprocess.Popen[bytes]]:
    words = ["yes" if said else "no" for said in (has_work, moves)]
    command = [sys.executable, "-c", ENGINE, str(folder), *words]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"up\n"
        try:
            yield process
        finally:
            process.kill()


def until_killed(watch: PulseWatch) -> list[str]:
    deadline = time.monotonic() + WAIT_SECONDS
    while time.monotonic() < deadline:
        if words := watch.kill_hung():
            return words
        time.sleep(INTERVAL)
    raise AssertionError("nothing was killed")


def for_a_while(watch: PulseWatch, seconds: float) -> list[str]:
    deadline = time.monotonic() + seconds
    words = []
    while time.monotonic() < deadline:
        words += watch.kill_hung()
        time.sleep(INTERVAL)
    return words


@contextlib.contextmanager
def watching(
    folder: Path, hang_timeout: float | None, step_timeout: float | None
) -> Iterator[PulseWatch]:
    watch = PulseWatch(str(folder), INTERVAL, hang_timeout, step_timeout)
    try:
        yield watch
    finally:
        watch.close()
        watch.close()  # harmless
    assert not list(folder.glob("*.pulse"))


def test_a_stopped_process(tmp_path: Path) -> None:
    with (
        watching(tmp_path, 2.0, None) as watch,
        engine(tmp_path, has_work=True, moves=True) as stopped,
        engine(tmp_path, has_work=True, moves=True) as well,
    ):
        for_a_while(watch, 0.5)
        stopped.send_signal(signal.SIGSTOP)
        assert until_killed(watch) == [
            f"the engine's process {stopped.pid} hung: no sign of life for 2 s"
        ]
        assert stopped.wait(WAIT_SECONDS) == -signal.SIGKILL
        assert well.poll() is None


def test_a_process_that_stopped_before_it_was_heard(tmp_path: Path) -> None:
    with engine(tmp_path, has_work=False, moves=False) as stopped:
        stopped.send_signal(signal.SIGSTOP)
        with watching(tmp_path, 0.5, None) as watch:
            (words,) = until_killed(watch)
        assert str(stopped.pid) in words


def test_a_step_that_does_not_end(tmp_path: Path) -> None:
    with (
        watching(tmp_path, LONG, 0.5) as watch,
        engine(tmp_path, has_work=True, moves=False) as stuck,
    ):
        (words,) = until_killed(watch)
        assert words == f"the engine's process {stuck.pid} hung: one step took more than 0.5 s"
        assert stuck.wait(WAIT_SECONDS) == -signal.SIGKILL


@pytest.mark.parametrize(("has_work", "moves"), [(False, False), (True, True)])
def test_idle_ones_and_busy_ones_are_well(tmp_path: Path, has_work: bool, moves: bool) -> None:
    with (
        watching(tmp_path, LONG, 1.0) as watch,
        engine(tmp_path, has_work=has_work, moves=moves) as well,
    ):
        assert for_a_while(watch, 2.5) == []
        assert well.poll() is None


def test_no_limit(tmp_path: Path) -> None:
    with (
        watching(tmp_path, None, None) as watch,
        engine(tmp_path, has_work=True, moves=False) as stuck,
    ):
        assert for_a_while(watch, 0.5) == []
        stuck.send_signal(signal.SIGSTOP)
        assert for_a_while(watch, 1.0) == []


def test_whoever_did_not_listen_is_not_surprised(tmp_path: Path) -> None:
    """A server that was stopped itself finds no engine silent for it."""
    with (
        watching(tmp_path, 1.0, None) as watch,
        engine(tmp_path, has_work=True, moves=True) as stopped,
    ):
        for_a_while(watch, 0.5)
        stopped.send_signal(signal.SIGSTOP)
        time.sleep(2.0)
        assert watch.kill_hung() == []
        stopped.send_signal(signal.SIGCONT)
        assert for_a_while(watch, 0.5) == []


def test_an_engine_that_ended_is_nobody_else(tmp_path: Path) -> None:
    with watching(tmp_path, 0.3, None) as watch:
        with engine(tmp_path, has_work=True, moves=True):
            for_a_while(watch, 0.2)
        (words,) = until_killed(watch)  # its number may be another process's by now
        assert "no sign of life" in words


def test_every_api_process_hears_it(tmp_path: Path) -> None:
    other = tmp_path / "1.pulse"
    with (
        socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as second,
        watching(tmp_path, LONG, LONG) as watch,
        engine(tmp_path, has_work=False, moves=False) as told,
    ):
        second.bind(str(other))
        second.settimeout(WAIT_SECONDS)
        assert str(told.pid).encode() in second.recv(100)
        for_a_while(watch, 0.2)
        assert list(watch._engines) == [told.pid]
        other.unlink()


def open_files() -> int:
    return sum(1 for _ in Path("/proc/self/fd").iterdir())


def test_no_room_for_a_socket(tmp_path: Path) -> None:
    before = open_files()
    with pytest.raises(OSError, match="AF_UNIX"):
        PulseWatch(str(tmp_path / ("x" * 120)), INTERVAL, 1.0, 1.0)
    assert open_files() == before


def test_it_ends_with_its_folder(tmp_path: Path) -> None:
    folder = tmp_path / "server"
    folder.mkdir()
    ended = ENGINE.replace(
        "while True:",
        "import threading\nwhile any(t.name == 'ragcache-pulse' for t in threading.enumerate()):",
    )
    command = [sys.executable, "-c", ended, str(folder), "yes", "yes"]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"up\n"
        shutil.rmtree(folder)
        assert process.wait(WAIT_SECONDS) == 0
