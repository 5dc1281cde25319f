"""Real servers, in processes of their own, for the tests."""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import psutil

from tests.support.programs import start_server

CLI = "ragcache_integrations.cli"
START_SECONDS = 240.0
END_SECONDS = 120.0
ANSWER_SECONDS = 600.0  # two engines and their tests may share two slow cores
MODEL = "ragcache-default"
QUIET = "quiet"  # the tenant of the shared server that has a quota
SMALL = (
    *("--dtype", "float32", "--enforce-eager", "--max-model-len", "2048"),
    *("--kv-cache-gib", "0.25"),
)


def free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port: int = free.getsockname()[1]
        return port


class Server:
    """``ragcache serve`` with the tiny model, and what it said.

    Args:
        folder: For what it says.
        arguments: The command's.
        port: Where it listens; a free one where ``None``.
        anew: As for :func:`start_server`.
    """

    def __init__(
        self, folder: Path, *arguments: str, port: int | None = None, anew: bool = False
    ) -> None:
        self.port = port or free_port()
        self.out, self.err = folder / f"{self.port}.out", folder / f"{self.port}.err"
        command = ("serve", *arguments, "--host", "127.0.0.1", "--port", str(self.port))
        with self.out.open("wb") as out, self.err.open("wb") as err:
            self.process = start_server(CLI, command, out.fileno(), err.fileno(), anew=anew)

    @property
    def base_url(self) -> str:
        return f"http://127.0.0.1:{self.port}/v1"

    def wait_ready(self) -> Self:
        deadline = time.monotonic() + START_SECONDS
        while time.monotonic() < deadline and self.process.poll() is None:
            with contextlib.suppress(OSError):
                if self.ask("GET", "/ready")[0] == 200:
                    return self
            time.sleep(0.2)
        raise AssertionError(f"not ready:\n{self.err.read_text(errors='replace')[-4000:]}")

    def ask(
        self,
        method: str,
        path: str,
        body: Any = None,
        headers: dict[str, str] | None = None,
    ) -> tuple[int, Any]:
        """Status and JSON (or text) of an answer."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=ANSWER_SECONDS)
        try:
            raw = body if isinstance(body, bytes) or body is None else json.dumps(body).encode()
            told = {"Content-Type": "application/json", **(headers or {})}
            connection.request(method, path, raw, told)
            answer = connection.getresponse()
            text = answer.read().decode()
            self.headers = answer.headers
            with contextlib.suppress(ValueError):
                return answer.status, json.loads(text)
            return answer.status, text
        finally:
            connection.close()

    def exchange(self, raw: bytes, address: str = "127.0.0.1") -> bytes:
        """What comes back for raw bytes, until the server closes the connection."""
        end = "127.0.0.1", self.port
        answer = b""
        with (
            socket.create_connection(end, ANSWER_SECONDS, (address, 0)) as connected,
            contextlib.suppress(ConnectionError),  # it had more to say than the server would hear
        ):
            connected.sendall(raw)
            while read := connected.recv(1 << 16):
                answer += read
        return answer

    def chat(self, content: Any, **fields: Any) -> tuple[int, Any]:
        body = {
            "model": MODEL,
            "messages": [{"role": "user", "content": content}],
            "max_tokens": 8,
            "temperature": 0,
            **fields,
        }
        return self.ask("POST", "/v1/chat/completions", body)

    def complete(self, prompt: Any, **fields: Any) -> tuple[int, Any]:
        body = {"model": MODEL, "prompt": prompt, "max_tokens": 8, "temperature": 0, **fields}
        return self.ask("POST", "/v1/completions", body)

    def metrics(self) -> dict[str, float]:
        """The sum over all labels of every metric."""
        status, text = self.ask("GET", "/metrics")
        assert status == 200
        found: dict[str, float] = {}
        for line in text.splitlines():
            if line and not line.startswith("#"):
                name, _, value = line.rpartition(" ")
                name = name.partition("{")[0]
                found[name] = found.get(name, 0) + float(value)
        return found

    def metrics_once(self, name: str, value: float) -> dict[str, float]:
        """The metrics, once this one is so large: a scheduler tells behind the answer."""
        deadline = time.monotonic() + 60
        while (found := self.metrics()).get(name, 0) < value and time.monotonic() < deadline:
            time.sleep(0.02)
        return found

    def log(self) -> list[dict[str, Any]]:
        """What it logged; every line is one JSON object."""
        return [json.loads(line) for line in self.out.read_text(encoding="utf-8").splitlines()]

    def logged(self, request_id: str) -> dict[str, Any]:
        """The line about a request, which may come after its answer."""
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline:
            for line in self.log():
                if line.get("request_id") == request_id:
                    return line
            time.sleep(0.05)
        raise AssertionError(f"{request_id} is not in the log")

    def engine_pid(self) -> int:
        """The process that vLLM's engine runs in."""
        children = psutil.Process(self.process.pid).children(recursive=True)
        named = [
            child for child in children if "EngineCore" in " ".join(child.cmdline()) + child.name()
        ]
        # In a server that is a fork, its only child, which keeps the name of what it is a fork of.
        return int((named or children)[0].pid)

    def end(self) -> int:
        """Told to end, it does, and gives its exit status."""
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(END_SECONDS)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self.process.poll() is None:
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.end()
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()


def events(server: Server, path: str, body: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """The events of a stream."""
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=ANSWER_SECONDS)
    try:
        raw = json.dumps({**body, "stream": True}).encode()
        connection.request("POST", path, raw, {"Content-Type": "application/json"})
        answer = connection.getresponse()
        assert answer.status == 200, answer.read()
        for line in answer:
            data = line.decode().strip().removeprefix("data: ")
            if data and data != "[DONE]":
                yield json.loads(data)
    finally:
        connection.close()
