"""An engine and a server whose model can end a JSON string."""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest
from safetensors import numpy as safetensors
from tokenizers import Tokenizer

from ragcache_integrations.engine import RAGCacheEngine
from ragcache_integrations.engine.tiny_model import default_model_path

CLOSING = 5.0  # the quotation mark's logit spreads this many times wider than other tokens'

# Without it, the model goes on with white space as long as it would within a string.
COMPACT_JSON = {"backend": "xgrammar", "disable_any_whitespace": True}


@pytest.fixture(scope="session")
def closing_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The tiny model, but one that closes its strings.

    A model that draws from thousands of tokens at random writes hundreds of them before it hits
    the one that ends a JSON string. Nothing else differs.
    """
    folder = tmp_path_factory.mktemp("models") / "closing"
    shutil.copytree(default_model_path(), folder)
    weights = safetensors.load_file(folder / "model.safetensors")
    quote = Tokenizer.from_file(str(folder / "tokenizer.json")).token_to_id('"')
    weights["lm_head.weight"][quote] *= CLOSING
    safetensors.save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    return folder


@pytest.fixture(scope="session")
def closing_engine(closing_model: Path) -> Iterator[RAGCacheEngine]:
    """The real engine with that model."""
    with RAGCacheEngine(
        closing_model,
        kv_cache_gib=0.25,
        dtype="float32",
        vllm_args={
            "enforce_eager": True,
            "structured_outputs_config": COMPACT_JSON,
        },
    ) as shared:
        yield shared


@pytest.fixture(scope="session")
def vllm_server(closing_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """vLLM's own OpenAI server with that model, under the name ``tiny``: its base URL."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    log = tmp_path_factory.mktemp("vllm") / "server.log"
    with log.open("wb") as sink:
        process = subprocess.Popen(
            [
                *(sys.executable, "-m", "vllm.entrypoints.openai.api_server"),
                *("--host", "127.0.0.1", "--port", str(port)),
                *("--model", str(closing_model), "--served-model-name", "tiny"),
                *("--dtype", "float32", "--enforce-eager", "--max-model-len", "2048"),
                "--enable-prompt-tokens-details",
                *("--structured-outputs-config", json.dumps(COMPACT_JSON)),
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
