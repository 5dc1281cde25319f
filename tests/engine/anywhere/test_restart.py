"""Documents that survive the engine: killed in the middle of writing, and started again."""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import signal
import threading
import time
from pathlib import Path

import pytest

from ragcache_integrations.core.generation import SamplingOptions
from ragcache_integrations.core.prompt import Prompt
from ragcache_integrations.engine import RAGCacheEngine
from ragcache_integrations.errors import DocumentsNotKeptError

pytestmark = pytest.mark.engine

WORDS = [f"word{number}" for number in range(40)]
GREEDY = SamplingOptions(max_tokens=8, ignore_eos=True)
DICE = random.Random(3)
KNOWN, NEW = (
    [" ".join(DICE.choices(WORDS, k=length)) for _ in range(count)]
    for count, length in ((6, 30), (60, 90))
)


def test_documents_survive_what_ends_the_engine(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    prompts = [Prompt.rag("Which?", [KNOWN[number], KNOWN[number + 1]]) for number in range(5)]
    with RAGCacheEngine(
        kv_cache_gib=0.1,
        max_model_len=1024,
        dtype="float32",
        reuse="anywhere",
        link_tokens=0,
        document_cache_gib=0.01,
        disk_cache_gib=1.0,
        disk_cache_dir=tmp_path,
        rewarm_tokens=0,
        vllm_args={"enforce_eager": True},
    ) as engine:
        usage = asyncio.run(engine.aencode(iter([*KNOWN, *KNOWN])))
        assert usage.prompt_tokens > 0 == usage.cached_tokens
        answers = [engine.generate(prompt, GREEDY) for prompt in prompts]
        (folder,) = (path for path in (tmp_path / "documents").iterdir() if path.is_dir())

        def write() -> None:
            # What was encoded and not written yet is lost with the process, which is an error.
            with contextlib.suppress(DocumentsNotKeptError):
                engine.encode(NEW)

        writer = threading.Thread(target=write)
        writer.start()
        until = time.monotonic() + 60
        while len(list(folder.iterdir())) < len(KNOWN) + 5:
            assert time.monotonic() < until
        os.kill(engine.pid, signal.SIGKILL)
        writer.join()  # what was not encoded is, by the next process
        again = [engine.generate(prompt, GREEDY) for prompt in prompts]
        assert [answer.text for answer in again] == [answer.text for answer in answers]
        assert all(answer.usage.cached_tokens > 0 for answer in again)
        assert engine.stats().restarts == 1
        engine.encode([*KNOWN, *NEW])  # adds the rest
        usage = engine.encode([*KNOWN, *NEW], show_progress=True)
        assert usage.cached_tokens == usage.prompt_tokens
        assert "66/66" in capsys.readouterr().err
        assert engine.encode(KNOWN, namespace="somebody else's").cached_tokens == 0

        engine.reset_cache()
        exact = engine.generate(prompts[2], GREEDY, reuse="prefix", namespace="exact")
        for path in folder.glob("*.safetensors"):
            content = bytearray(path.read_bytes())
            content[-3] ^= 64
            path.write_bytes(content)
        damaged = engine.generate(prompts[2], GREEDY)
        assert damaged.text == exact.text
        assert damaged.usage.cached_tokens == 0
        engine.reset_cache()  # what was just computed is exact, and as fast
        engine.encode(KNOWN)
        assert engine.generate(prompts[2], GREEDY).text == answers[2].text
        assert engine.stats().restarts == 1
