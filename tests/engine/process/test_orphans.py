"""Whether an engine ends with its application, however that ends, and be the engine stopped."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from ragcache_integrations.engine.process.client import is_group_stopped
from tests.support import waiting
from tests.support.programs import run_program
from tests.support.waiting import gone

wait_until = partial(waiting.wait_until, seconds=60.0)
ENDINGS = {
    "the end of the script": "",
    "an exception": "raise RuntimeError",
    "os._exit": "os._exit(3)",
    "SIGTERM": "os.kill(os.getpid(), signal.SIGTERM)",
    "SIGKILL": "os.kill(os.getpid(), signal.SIGKILL)",
}

# Loading, the process does not look at its socket.
LOADING = """
import os, signal, sys, threading, time
from ragcache_integrations.engine.process.client import EngineProcess
from ragcache_integrations.engine.arguments import engine_settings, with_bundled_model

def start():
    global engine
    engine = EngineProcess(with_bundled_model(engine_settings()), print, lambda: None)

def wait_until_it_watches():
    while len(os.listdir(f"/proc/{engine.pid}/task")) < 2:
        time.sleep(0.01)
"""
WHOLE = """
import os, signal
import psutil
from ragcache_integrations.engine import Prompt, RAGCacheEngine, SamplingOptions
arguments = {"enforce_eager": True, "distributed_executor_backend": "mp"}
engine = RAGCacheEngine(kv_cache_gib=0.125, vllm_args=arguments)
stream = engine.stream(Prompt.rag("why?"), SamplingOptions(max_tokens=4000, ignore_eos=True))
next(stream)
family = [psutil.Process(engine.pid), *psutil.Process(engine.pid).children(recursive=True)]
"""


@contextlib.contextmanager
def application(
    script: str, *, anew: bool = False, leaves_files: bool = False
) -> Iterator[list[int]]:
    """Run a script to its end; yields the numbers of processes that it printed.

    Args:
        script: Its text.
        anew: As for :func:`run_program`.
        leaves_files: Whether its engine's files may be left behind.
    """
    with tempfile.TemporaryDirectory() as place:  # pytest's own are too long for sockets
        file = Path(place, "script.py")
        file.write_text(script)
        ended = run_program(file, environment={**os.environ, "TMPDIR": place}, anew=anew)
        pids = [int(word) for word in ended.stdout.split()]
        assert pids
        try:
            yield pids
            if not leaves_files:
                wait_until(lambda: not list(Path(place).glob("ragcache-engine-*")))
        finally:
            for pid in pids:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)


@pytest.mark.parametrize("stop", ["", "os.kill(engine.pid, signal.SIGSTOP)"], ids=["", "stopped"])
@pytest.mark.parametrize("ending", ENDINGS)
def test_while_it_loads(ending: str, stop: str) -> None:
    lines = ["start()", "wait_until_it_watches()", stop, "print(engine.pid, flush=True)"]
    script = "\n".join([LOADING, *lines, ENDINGS[ending]])
    with application(script, anew=True) as (pid,):
        wait_until(lambda: gone(pid))


def test_the_end_of_the_thread_that_started_it_is_not_the_applications() -> None:
    lines = [
        "thread = threading.Thread(target=start)",
        "thread.start()",
        "thread.join()",
        "wait_until_it_watches()",
        "time.sleep(1)",
        "assert engine._process.poll() is None",
        "os.kill(engine.pid, signal.SIGSTOP)",
        "print(engine.pid, flush=True)",
        ENDINGS["SIGKILL"],
    ]
    with application("\n".join([LOADING, *lines]), anew=True) as (pid,):
        wait_until(lambda: gone(pid))


def test_a_fork_of_the_application_keeps_no_engine_alive() -> None:
    lines = [
        "start()",
        "wait_until_it_watches()",
        "child = os.fork()",
        "if not child:",
        "    os.close(1)",
        "    time.sleep(600)",
        "print(engine.pid, child, flush=True)",
        ENDINGS["SIGKILL"],
    ]
    with application("\n".join([LOADING, *lines]), anew=True) as (pid, child):
        wait_until(lambda: gone(pid))
        assert not gone(child)


@pytest.mark.engine
@pytest.mark.parametrize("ending", ["SIGKILL", "an exception"])
def test_with_workers_and_all_of_them_stopped(ending: str) -> None:
    lines = [
        "for process in family: process.suspend()",
        "print(*(process.pid for process in family), flush=True)",
        ENDINGS[ending],
    ]
    with application("\n".join([WHOLE, *lines])) as pids:
        assert len(pids) > 1
        wait_until(lambda: all(map(gone, pids)))


@pytest.mark.engine
def test_workers_end_without_engine_and_application() -> None:
    """Nobody is left to end them, and stopped they see no end."""
    lines = [
        "(worker,) = (one for one in family if 'Worker' in ' '.join(one.cmdline()))",
        "worker.suspend()",
        "print(worker.pid, flush=True)",
        "os.kill(engine.pid, signal.SIGKILL)",
        ENDINGS["SIGKILL"],
    ]
    with application("\n".join([WHOLE, *lines]), leaves_files=True) as (pid,):
        wait_until(lambda: gone(pid))


# What Linux says of processes


def sleeper() -> subprocess.Popen[bytes]:
    # Its name must not be taken for what stands behind it.
    named = "open('/proc/self/comm', 'w').write(') T 1 (x'); print(flush=True)"
    command = [sys.executable, "-c", f"{named}; import time; time.sleep(600)"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, start_new_session=True)
    assert process.stdout is not None
    process.stdout.readline()
    return process


def test_which_groups_are_stopped() -> None:
    with sleeper() as stopped, sleeper() as running:
        try:
            stopped.send_signal(signal.SIGSTOP)
            wait_until(lambda: is_group_stopped(stopped.pid))
            assert not is_group_stopped(running.pid)
            stopped.send_signal(signal.SIGCONT)
            wait_until(lambda: not is_group_stopped(stopped.pid))
        finally:
            stopped.kill()
            running.kill()


def test_a_group_is_stopped_where_a_child_is() -> None:
    script = "sleep 600 & kill -STOP $!; echo; wait"
    with subprocess.Popen(
        ["/bin/sh", "-c", script], stdout=subprocess.PIPE, start_new_session=True
    ) as shell:
        try:
            wait_until(lambda: is_group_stopped(shell.pid))
        finally:
            os.killpg(shell.pid, signal.SIGKILL)
