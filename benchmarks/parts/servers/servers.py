"""``ragcache serve`` on this machine, in processes of its own."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from types import TracebackType
from typing import Self

import psutil

__all__ = ["Server", "free_port", "start_together"]

POLL_SECONDS = 0.25
GRACE_SECONDS = 30.0
LAST_WORDS = 4000


def free_port() -> int:
    """A port on which nobody listens now."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        port: int = taken.getsockname()[1]
        return port


class Server:
    """A server that starts at once, is waited for, and ends with its ``with`` block.

    Args:
        arguments: Behind ``ragcache serve``.
        environment: Variables besides those of this process.
        program: Module and command to run instead of ``ragcache serve``.
    """

    def __init__(
        self,
        arguments: Sequence[str] = (),
        environment: Mapping[str, str] | None = None,
        *,
        program: Sequence[str] = ("ragcache_integrations.cli", "serve"),
    ) -> None:
        self.port = free_port()
        self._log = tempfile.TemporaryFile()  # noqa: SIM115 - lives as long as the process
        command = [sys.executable, "-m", *program, *arguments]
        self._process = subprocess.Popen(  # noqa: S603 - our own server
            [*command, "--host", "127.0.0.1", "--port", str(self.port)],
            stdin=subprocess.DEVNULL,
            stdout=self._log,
            stderr=self._log,
            env={**os.environ, "VLLM_LOGGING_LEVEL": "WARNING", **(environment or {})},
            start_new_session=True,
        )

    @property
    def address(self) -> str:
        """Host and port."""
        return f"127.0.0.1:{self.port}"

    @property
    def base_url(self) -> str:
        """Where the OpenAI protocol is spoken."""
        return f"http://{self.address}/v1"

    def wait(self, seconds: float) -> None:
        """Wait until it is ready.

        Raises:
            RuntimeError: It ended, or was not ready in time.
        """
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            if self._process.poll() is not None:
                break
            with contextlib.suppress(OSError):
                self.get("/health")
                return
            time.sleep(POLL_SECONDS)
        status = self._process.poll()
        what = f"ended with status {status}" if status is not None else "was not ready in time"
        raise RuntimeError(f"the server {what}; its last words:\n{self.last_words()}")

    def last_words(self) -> str:
        """The end of what it printed."""
        size = os.fstat(self._log.fileno()).st_size
        start = max(0, size - LAST_WORDS)
        return os.pread(self._log.fileno(), LAST_WORDS, start).decode(errors="replace")

    def get(self, path: str) -> str:
        """What it answers under a path.

        Raises:
            OSError: It does not answer, or refuses.
        """
        with urllib.request.urlopen(f"http://{self.address}{path}", timeout=30) as answer:
            content: bytes = answer.read()
        return content.decode()

    @property
    def model(self) -> str:
        """The name under which it serves the model."""
        name: str = json.loads(self.get("/v1/models"))["data"][0]["id"]
        return name

    def reset_cache(self) -> None:
        """Empty the KV cache; the server must run with ``VLLM_SERVER_DEV_MODE=1``."""
        request = urllib.request.Request(
            f"http://{self.address}/reset_prefix_cache", method="POST", data=b""
        )
        with urllib.request.urlopen(request, timeout=30):  # noqa: S310 - http
            pass

    def metric(self, name: str) -> float:
        """The sum of a Prometheus metric over all of its labels."""
        lines = self.get("/metrics").splitlines()
        values = (
            line.rpartition(" ")[2] for line in lines if line.startswith((f"{name}{{", f"{name} "))
        )
        return sum(map(float, values))

    def processes(self) -> Iterator[psutil.Process]:
        """Its processes, as far as they are alive."""
        with contextlib.suppress(psutil.NoSuchProcess):
            first = psutil.Process(self._process.pid)
            yield first
            yield from first.children(recursive=True)

    def close(self) -> None:
        """End it, and whatever it started."""
        if self._process.poll() is None:
            self._process.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(GRACE_SECONDS)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        self._log.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()


@contextlib.contextmanager
def start_together(
    count: int, arguments: Sequence[str], environment: Mapping[str, str], seconds: float
) -> Iterator[list[Server]]:
    """Several servers, each on its share of the cores, ready.

    Args:
        count: How many.
        arguments: Behind ``ragcache serve``, of each.
        environment: Variables besides those of this process.
        seconds: How long all may take to start.
    """
    cores = sorted(os.sched_getaffinity(0))
    with contextlib.ExitStack() as stack:
        servers = []
        for number in range(count):
            own = cores[number::count] or cores
            bound = {"VLLM_CPU_OMP_THREADS_BIND": ",".join(map(str, own))}
            servers.append(stack.enter_context(Server(arguments, {**bound, **environment})))
        deadline = time.monotonic() + seconds
        for server in servers:
            server.wait(deadline - time.monotonic())
        yield servers
