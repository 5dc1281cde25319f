"""An engine's process that is stopped or killed while it loads the model."""

from __future__ import annotations

import logging
import os
import signal
import subprocess
import threading
from functools import partial
from pathlib import Path
from typing import Any

import psutil
import pytest

from ragcache_integrations.engine import Prompt, RAGCacheEngine, SamplingOptions
from ragcache_integrations.engine.arguments import engine_settings
from ragcache_integrations.engine.process import client as _client
from ragcache_integrations.engine.process.client import EngineProcess
from ragcache_integrations.errors import EngineError, EngineOutOfMemoryError, EngineStartError
from tests.support import waiting
from tests.support.waiting import gone

wait_until = partial(waiting.wait_until, seconds=90.0)

PROMPT = Prompt.rag("how far is it to the moon?")
SHORT = SamplingOptions(max_tokens=3)


def starting(
    monkeypatch: pytest.MonkeyPatch, *signals: signal.Signals | None
) -> list[subprocess.Popen[bytes]]:
    """Have the processes that start next get a signal each, at once; returns them."""
    start, left = _client.start_process, list(signals)
    started: list[subprocess.Popen[bytes]] = []

    def starting_badly(*arguments: Any) -> subprocess.Popen[bytes]:
        process = start(*arguments)
        started.append(process)
        number = left.pop(0) if left else None
        if number is not None:
            os.kill(process.pid, number)
        return process

    monkeypatch.setattr(_client, "start_process", starting_badly)
    return started


def make_engine(**knobs: Any) -> RAGCacheEngine:
    return RAGCacheEngine(kv_cache_gib=0.125, vllm_args={"enforce_eager": True}, **knobs)


@pytest.mark.engine
def test_a_stopped_process_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    started = starting(monkeypatch, signal.SIGSTOP)
    with pytest.raises(EngineStartError, match=r"was stopped for 1 s while it loaded") as caught:
        make_engine(hang_timeout=1)
    assert "start the engine again" in str(caught.value)
    assert "hang_timeout" in str(caught.value)
    assert isinstance(caught.value, EngineError)
    assert [gone(process.pid) for process in started] == [True]


@pytest.mark.engine
def test_a_killed_process_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    started = starting(monkeypatch, signal.SIGKILL)
    with pytest.raises(EngineOutOfMemoryError, match=r"killed by SIGKILL.*start it again"):
        make_engine()
    assert [gone(process.pid) for process in started] == [True]


@pytest.mark.engine
def test_a_pause_while_it_loads_is_no_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    started = starting(monkeypatch, signal.SIGSTOP)

    def resume() -> None:
        wait_until(lambda: bool(started))
        wait_until(lambda: psutil.Process(started[0].pid).status() == psutil.STATUS_STOPPED)
        threading.Event().wait(2)
        os.kill(started[0].pid, signal.SIGCONT)

    thread = threading.Thread(target=resume)
    thread.start()
    with make_engine(hang_timeout=60) as engine:
        thread.join()
        assert engine.generate(PROMPT, SHORT).usage.completion_tokens == 3


@pytest.mark.engine
def test_one_that_is_stopped_while_it_comes_back_is_replaced(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    started = starting(monkeypatch, None, signal.SIGSTOP)
    with make_engine(max_restarts=2, hang_timeout=8) as engine:
        os.kill(engine.pid, signal.SIGKILL)
        wait_until(lambda: len(started) == 2)
        assert engine.generate(PROMPT, SHORT).usage.completion_tokens == 3
        assert [gone(process.pid) for process in started] == [True, True, False]


def impostor(monkeypatch: pytest.MonkeyPatch, script: str) -> EngineProcess:
    """A shell script where the engine's process should be."""

    def start(connection: int, log: int, _: dict[str, str]) -> subprocess.Popen[bytes]:
        return subprocess.Popen(
            ["/bin/sh", "-c", script],
            pass_fds=[connection],
            stdout=log,
            stderr=log,
            start_new_session=True,
        )

    monkeypatch.setattr(_client, "start_process", start)
    return EngineProcess(engine_settings(), print, lambda: None)


def test_an_end_that_the_socket_hides_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """What the process has started holds a copy."""
    process = impostor(monkeypatch, "sleep 600 & echo of a shell; exit 3")
    with pytest.raises(EngineStartError, match=r"exit status 3.*\n.*of a shell"):
        process.wait_ready(None, None)
    assert gone(process.pid)


def test_a_stopped_worker_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    process = impostor(monkeypatch, "sleep 600 & kill -STOP $!; wait")
    with pytest.raises(EngineStartError, match=r"was stopped for 0\.5 s"):
        process.wait_ready(None, 0.5)
    assert gone(process.pid)


def test_a_slow_start_is_explained_once(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    """It is slow from its beginning: the application may load something before it waits."""
    monkeypatch.setattr(_client, "LOOK_SECONDS", 0.01)
    heard = tmp_path / "heard"
    process = impostor(monkeypatch, f"until [ -e {heard} ]; do sleep 0.1; done; exit 3")
    process._started_at -= _client.SLOW_START_SECONDS

    def listen() -> None:
        wait_until(lambda: _client.SLOW_START in caplog.messages)
        heard.touch()

    thread = threading.Thread(target=listen)
    thread.start()
    with pytest.raises(EngineStartError, match="exit status 3"):
        process.wait_ready(60, None)
    thread.join()
    assert caplog.messages == [_client.SLOW_START]
    assert caplog.records[0].levelno == logging.WARNING  # seen without any logging configuration


def test_without_a_limit_the_start_is_bounded_all_the_same(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    process = impostor(monkeypatch, "kill -STOP $$")
    with pytest.raises(EngineStartError, match=r"not ready after 2 s: startup_timeout"):
        process.wait_ready(2, None)
    assert gone(process.pid)
