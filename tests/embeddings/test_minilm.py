from __future__ import annotations

import asyncio
import copy
import pickle
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest
from blockbuster import blockbuster_ctx

from ragcache_integrations.embeddings import minilm as embeddings
from ragcache_integrations.embeddings.minilm import MiniLM
from ragcache_integrations.errors import ConfigurationError, EmbeddingError, MissingExtraError

TEXTS = ["What is a tree?", "", "A tree is a plant.", "Jaký je čas? 🌳", "word " * 2000]


@pytest.fixture(scope="module")
def model() -> MiniLM:
    return MiniLM()


@pytest.mark.parametrize("batch_size", [1, 5, 32])
def test_vectors_are_those_of_sentence_transformers(batch_size: int) -> None:
    """Those of its version 6.2.0: of English, other scripts, and texts that are cut off."""
    with np.load(Path(__file__).with_name("sentence_transformers.npz")) as recorded:
        vectors = MiniLM(batch_size=batch_size).embed_batch(recorded["texts"].tolist())
        np.testing.assert_allclose(vectors, recorded["vectors"], atol=1e-5, rtol=0)


def test_a_batch_is_what_its_texts_are_one_by_one(model: MiniLM) -> None:
    batch = model.embed_batch(TEXTS)
    assert batch.shape == (len(TEXTS), 384)
    assert batch.dtype == np.float32
    np.testing.assert_allclose(np.linalg.norm(batch, axis=1), np.ones(len(TEXTS)), atol=1e-5)
    for text, row in zip(TEXTS, batch, strict=True):
        np.testing.assert_allclose(model.embed(text), row, atol=1e-5)


def test_likeness_of_meaning_is_nearness(model: MiniLM) -> None:
    question, same, other = model.embed_batch(
        ["who wrote Hamlet", "Hamlet was written by whom?", "how do magnets work"]
    )
    assert question @ same > 0.8
    assert question @ other < 0.3


def test_no_texts_give_no_rows(model: MiniLM) -> None:
    assert model.embed_batch([]).shape == (0, 384)


async def test_the_async_twins_give_the_same_and_block_nothing(model: MiniLM) -> None:
    with blockbuster_ctx("ragcache_integrations"):
        assert (await model.aembed("a tree")).tolist() == model.embed("a tree").tolist()
        batch = await model.aembed_batch(["a tree", "a bee"])
    assert batch.shape == (2, 384)


@pytest.mark.slow
async def test_the_event_loop_goes_on_while_the_model_is_busy(model: MiniLM) -> None:
    ticks = 0

    async def tick() -> None:
        nonlocal ticks
        while True:
            await asyncio.sleep(0)
            ticks += 1

    ticker = asyncio.create_task(tick())
    await model.aembed_batch(["some words " * 50] * 64)
    ticker.cancel()
    assert ticks > 10


def test_threads_load_the_weights_once(monkeypatch: pytest.MonkeyPatch) -> None:
    loads = 0
    session = embeddings._session

    def counting(path: Path, device: str | None) -> Any:
        nonlocal loads
        loads += 1
        return session(path, device)

    monkeypatch.setattr(embeddings, "_session", counting)
    model, barrier = MiniLM("cpu"), threading.Barrier(8)

    def embed(number: int) -> bytes:
        barrier.wait()
        return model.embed("same text" if number % 2 else "other, longer text").tobytes()

    with ThreadPoolExecutor(8) as pool:
        results = list(pool.map(embed, range(8)))
    assert loads == 1
    assert results[0::2] == [results[0]] * 4
    assert results[1::2] == [results[1]] * 4


@pytest.mark.parametrize("text", [None, 1, b"bytes", "lone \ud800 surrogate"])
def test_what_is_no_text_is_refused(model: MiniLM, text: Any) -> None:
    with pytest.raises(ConfigurationError, match="text must be"):
        model.embed(text)
    with pytest.raises(ConfigurationError, match="text must be"):
        model.embed_batch(["fine", text])


def test_a_string_is_no_batch(model: MiniLM) -> None:
    with pytest.raises(ConfigurationError, match="sequence of strings"):
        model.embed_batch("text")


@pytest.mark.parametrize("size", [0, -1, 1.0, True, "8"])
def test_a_batch_size_that_cannot_be_is_refused(size: Any) -> None:
    with pytest.raises(ConfigurationError, match="batch_size"):
        MiniLM(batch_size=size)


def test_vectors_that_are_not_finite_are_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    model = MiniLM()
    monkeypatch.setattr(
        model._loaded(), "embed", lambda tokens: np.full((len(tokens), 384), np.nan)
    )
    with pytest.raises(EmbeddingError, match="not finite"):
        model.embed_batch(["one", "two"])


@pytest.mark.parametrize("device", ["gpu", "cuda:", "cuda:x", "CPU", 0])
def test_a_device_that_cannot_be_is_refused(device: Any) -> None:
    with pytest.raises(ConfigurationError, match="device must be"):
        MiniLM(device)


def test_a_device_that_the_runtime_cannot_use_names_the_install() -> None:
    if "CUDAExecutionProvider" in onnxruntime.get_available_providers():
        pytest.skip("it can use it")
    with pytest.raises(ConfigurationError, match="pip install onnxruntime-gpu"):
        MiniLM("cuda:1").embed("text")


@pytest.mark.parametrize("module", ["ragcache_minilm", "onnxruntime", "tokenizers"])
def test_a_missing_extra_names_the_install(monkeypatch: pytest.MonkeyPatch, module: str) -> None:
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(MissingExtraError, match=r"ragcache-integrations\[embeddings\]"):
        MiniLM().embed("text")


def test_it_can_be_copied_and_sent_to_other_processes(model: MiniLM) -> None:
    model.embed("loaded")
    for other in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        assert other._model is None
        assert other._batch_size == model._batch_size


@pytest.mark.slow
def test_it_is_silent_and_needs_no_network() -> None:
    """In a process of its own: no socket may connect, nothing is printed, torch is not loaded."""
    script = """
import socket, sys
def refuse(*args, **kwargs):
    raise AssertionError("network")
socket.socket.connect = socket.getaddrinfo = refuse
from ragcache_integrations.embeddings.minilm import MiniLM
model = MiniLM("cpu")
assert "onnxruntime" not in sys.modules
assert model.embed("text").shape == (384,)
assert not {"torch", "transformers"} & sys.modules.keys()
"""
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


@pytest.mark.slow
def test_forked_processes_embed_and_exit() -> None:
    """Also while the parent computes; ``sys.exit`` ends what a plain fork leaves running."""
    script = """
import os, sys, threading
from ragcache_integrations.embeddings import MiniLM
model = MiniLM()
texts = ["some words"] * 16
expected = model.embed_batch(texts)
busy = threading.Thread(target=model.embed_batch, args=[texts * 50])
busy.start()
children = []
for _ in range(3):
    child = os.fork()
    if not child:
        sys.exit(0 if (model.embed_batch(texts) == expected).all() else 1)
    children.append(child)
assert [os.waitpid(child, 0)[1] for child in children] == [0, 0, 0]
busy.join()
"""
    subprocess.run([sys.executable, "-W", "ignore", "-c", script], check=True, timeout=120)
