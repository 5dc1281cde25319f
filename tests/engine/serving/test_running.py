"""How servers start and end."""

from __future__ import annotations

import contextlib
import http.client
import os
import signal
import socket
import threading
import time
from pathlib import Path
from typing import Any

import psutil
import pytest

from ragcache_integrations.engine.tiny_model import default_model_path

from .starting import END_SECONDS, MODEL, SMALL, Server, events

pytestmark = pytest.mark.engine

TOKENS = 400
LONG = {"model": MODEL, "prompt": "x", "max_tokens": TOKENS, "ignore_eos": True, "temperature": 0}


def test_it_drains(tmp_path: Path) -> None:
    """Told to end, it finishes what runs, takes nothing new, and leaves nothing behind."""
    with Server(tmp_path, *SMALL, "--drain-seconds", "300") as server:
        server.wait_ready()
        own = psutil.Process(server.process.pid)
        children = own.children(recursive=True)
        sockets = {
            Path(str(connection.laddr))
            for process in (own, *children)
            for connection in process.net_connections(kind="unix")
            if str(connection.laddr).startswith("/")
        }
        answers: list[int] = []

        def stream() -> None:
            asked = {**LONG, "stream_options": {"include_usage": True}}
            *_, last = events(server, "/v1/completions", asked)
            answers.append(last["usage"]["completion_tokens"])

        def plain() -> None:
            _, said = server.complete("x", max_tokens=TOKENS, ignore_eos=True)
            answers.append(said["usage"]["completion_tokens"])

        threads = [threading.Thread(target=work) for work in (stream, plain)]
        for thread in threads:
            thread.start()
        while server.metrics()["vllm:num_requests_running"] != 2:
            assert all(thread.is_alive() for thread in threads)
            time.sleep(0.01)
        held = socket.create_connection(("127.0.0.1", server.port))  # open before, asked after
        server.process.send_signal(signal.SIGTERM)
        while not any(line["event"] == "draining" for line in server.log()):
            time.sleep(0.02)
        held.sendall(b"GET /ready HTTP/1.1\r\nHost: x\r\n\r\n")
        assert held.recv(100).startswith(b"HTTP/1.1 503")
        held.close()
        for thread in threads:
            thread.join()
        assert answers == [TOKENS, TOKENS]
        assert server.process.wait(END_SECONDS) == 0
        assert server.log()[-1]["aborted"] == 0
        psutil.wait_procs(children, timeout=10)
        assert not [child for child in children if child.is_running()]
    assert sockets
    assert not [one for one in sockets if one.exists()]


def test_what_takes_too_long_is_cut_off(tmp_path: Path) -> None:
    with Server(tmp_path, *SMALL, "--drain-seconds", "0.2") as server:
        server.wait_ready()
        body = {**LONG, "max_tokens": 2000}
        stream = events(server, "/v1/completions", body)
        next(stream)
        # A body that never comes must not keep the server for ever, either.
        stalled = socket.create_connection(("127.0.0.1", server.port))
        stalled.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 9\r\n\r\n{")
        time.sleep(0.3)
        server.process.send_signal(signal.SIGTERM)
        said: list[Any] = []
        with contextlib.suppress(http.client.HTTPException, OSError):
            said = list(stream)
        assert len(said) < 1999
        assert server.process.wait(END_SECONDS) == 0
        assert [line["aborted"] for line in server.log() if line["event"] == "ending"] == [2]
        assert stalled.recv(100).startswith(b"HTTP/1.1 503")
        stalled.close()


@pytest.mark.parametrize(("number", "status"), [(signal.SIGTERM, 0), (signal.SIGINT, 130)])
def test_told_to_end_while_the_model_loads(
    tmp_path: Path, number: signal.Signals, status: int
) -> None:
    # As for users: in a fork, a signal may meet what makes forks of it.
    with Server(tmp_path, *SMALL, anew=True) as server:
        own = psutil.Process(server.process.pid)
        while not (children := own.children(recursive=True)):
            assert server.process.poll() is None
            time.sleep(0.02)
        server.process.send_signal(number)
        assert server.process.wait(END_SECONDS) == status
        psutil.wait_procs(children, timeout=10)
        assert not [child for child in children if child.is_running()]
        assert "asked to end before the server was ready" in server.err.read_text()


def test_a_dead_engine_ends_the_server(tmp_path: Path) -> None:
    with Server(tmp_path, *SMALL) as server:
        server.wait_ready()
        os.kill(server.engine_pid(), signal.SIGKILL)
        statuses = set()
        while server.process.poll() is None:
            try:
                statuses.add(server.ask("GET", "/ready")[0])
            except OSError:
                break
            time.sleep(0.02)
        assert server.process.wait(END_SECONDS) == 1
        assert 503 in statuses
        assert "the engine's process ended" in server.err.read_text()
        assert "engine died" in [line["event"] for line in server.log()]


def test_a_hung_engine_ends_the_server(tmp_path: Path) -> None:
    with Server(tmp_path, *SMALL, "--hang-timeout", "3", anew=True) as server:
        server.wait_ready()
        assert server.complete("x", max_tokens=2)[0] == 200
        engine = psutil.Process(server.engine_pid())
        engine.suspend()
        statuses: list[int] = []

        def ask() -> None:
            with contextlib.suppress(http.client.HTTPException, OSError):
                statuses.append(server.complete("x", max_tokens=2)[0])

        asking = threading.Thread(target=ask)
        asking.start()
        assert server.process.wait(END_SECONDS) == 1
        asking.join()
        assert 200 not in statuses
        psutil.wait_procs([engine], timeout=10)
        assert not engine.is_running()
        assert f"process {engine.pid} hung: no sign of life for 3 s" in server.err.read_text()
        named = [line["event"] for line in server.log()]
        assert named.index("engine hung") < named.index("engine died")


def test_a_port_that_is_taken(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        with Server(tmp_path, *SMALL, port=taken.getsockname()[1]) as server:
            assert server.process.wait(END_SECONDS) == 2
            said = server.err.read_text()
        assert f"port {server.port} of 127.0.0.1 is in use by another process" in said
        assert "Traceback" not in said


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("/no/such/model",), "/no/such/model"),
        (("no-such-organisation/no-such-model",), "no-such-organisation/no-such-model"),
    ],
)
def test_a_model_that_fails_to_load(tmp_path: Path, arguments: tuple[str, ...], words: str) -> None:
    with Server(tmp_path, *arguments) as server:
        assert server.process.wait(END_SECONDS) == 2
        said = server.err.read_text()
    assert "ragcache: " in said
    assert words in said
    assert server.log() == []


def test_a_model_whose_files_are_damaged(tmp_path: Path) -> None:
    """That shows in the engine's process alone."""
    model = tmp_path / "model"
    model.mkdir()
    for file in Path(default_model_path()).iterdir():
        damaged = file.suffix == ".safetensors"
        (model / file.name).write_bytes(b"damaged" if damaged else file.read_bytes())
    with Server(tmp_path, str(model), *SMALL) as server:
        assert server.process.wait(120) == 2
        said = server.err.read_text()
    assert f"ragcache: the server of {str(model)!r} did not start" in said


def test_without_a_tokenizer(tmp_path: Path) -> None:
    with Server(tmp_path, *SMALL, "--skip-tokenizer-init") as server:
        server.wait_ready()
        assert "documents get no spans" in server.log()[0]["message"]
        said = [{"role": "user", "content": "Who?"}]
        chat = {"model": MODEL, "messages": said, "max_tokens": 2}
        for path in ("/v1/chat/completions", "/v1/messages"):
            status, told = server.ask("POST", path, chat)
            assert status == 400
            assert "send tokens to /v1/completions" in told["error"]["message"]
        tokens = {"model": MODEL, "prompt": [1, 2, 3], "max_tokens": 2, "ignore_eos": True}
        status, told = server.ask("POST", "/v1/completions", tokens)
        assert status == 200
        assert told["usage"]["completion_tokens"] == 2
