"""Servers and engines for the tests of the LLM classes."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest
from blockbuster import BlockBuster, blockbuster_ctx

from ragcache_integrations.engine import RAGCacheEngine
from ragcache_integrations.engine.tiny_model import default_model_path

from .doubles import Recorder, StubServer


@pytest.fixture
def stub() -> Iterator[StubServer]:
    with StubServer() as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield server
        server.released.set()
        server.shutdown()
        thread.join()


@pytest.fixture
def refused_url() -> str:
    """An address where nobody listens."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        return f"http://127.0.0.1:{taken.getsockname()[1]}/v1"


@pytest.fixture
def no_blocking() -> Iterator[BlockBuster]:
    """Whatever blocks the event loop from within our code raises ``BlockingError``."""
    with blockbuster_ctx(scanned_modules=["ragcache_integrations"]) as blockbuster:
        yield blockbuster


@pytest.fixture
def recorder(engine: RAGCacheEngine) -> Recorder:
    return Recorder(engine)


@pytest.fixture(scope="session")
def vllm_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """vLLM's own OpenAI server with the tiny model, under the name ``tiny``: its base URL."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    log = tmp_path_factory.mktemp("vllm") / "server.log"
    with log.open("wb") as sink:
        process = subprocess.Popen(
            [
                *(sys.executable, "-m", "vllm.entrypoints.openai.api_server"),
                *("--host", "127.0.0.1", "--port", str(port)),
                *("--model", str(default_model_path()), "--served-model-name", "tiny"),
                *("--dtype", "float32", "--enforce-eager", "--max-model-len", "2048"),
                "--enable-prompt-tokens-details",
            ],
            stdout=sink,
            stderr=sink,
            start_new_session=True,
            env={
                **os.environ,
                "VLLM_CPU_KVCACHE_SPACE": "1",
                "VLLM_CPU_NUM_OF_RESERVED_CPU": "0",
                "VLLM_NO_USAGE_STATS": "1",
            },
        )
    try:
        _wait_until_healthy(f"http://127.0.0.1:{port}/health", process, log)
        yield f"http://127.0.0.1:{port}/v1"
    finally:
        process.terminate()
        try:
            process.wait(20)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, 9)
            process.wait()


def _wait_until_healthy(url: str, process: subprocess.Popen[bytes], log: Path) -> None:
    deadline = time.monotonic() + 240
    while time.monotonic() < deadline:
        if process.poll() is not None:
            break
        try:
            with urllib.request.urlopen(url, timeout=2):
                return
        except (urllib.error.URLError, OSError):
            time.sleep(0.25)
    pytest.fail(f"vLLM's server did not come up:\n{log.read_text(errors='replace')[-4000:]}")
