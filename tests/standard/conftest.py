"""vLLM's own server, to run the suites against."""

from __future__ import annotations

import os
import socket
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from ragcache_integrations.engine.tiny_model import default_model_path
from tests.support.programs import start_server


@pytest.fixture(scope="session")
def vllm_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """vLLM's own OpenAI server with the tiny model, under the name ``tiny``: its base URL."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    log = tmp_path_factory.mktemp("vllm") / "server.log"
    with log.open("wb") as sink:
        process = start_server(
            "vllm.entrypoints.openai.api_server",
            [
                *("--host", "127.0.0.1", "--port", str(port)),
                *("--model", str(default_model_path()), "--served-model-name", "tiny"),
                *("--dtype", "float32", "--enforce-eager", "--max-model-len", "2048"),
                *("--kv-cache-memory-bytes", str(1 << 30), "--enable-prompt-tokens-details"),
            ],
            sink.fileno(),
            sink.fileno(),
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
