"""Whatever the knowledge tree does, the answers are those of an engine that caches nothing.

``float32``, and prompts that fit one chunk: otherwise stock vLLM itself differs between a hit and a
miss, because a hit changes where the prompt is cut.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path

import pytest

from ragcache_integrations.engine import EngineStats, Prompt, RAGCacheEngine, SamplingOptions
from tests.support.bursts import BATCH, answer, make_prompts, options
from tests.support.sizes import scaled

pytestmark = [pytest.mark.engine, pytest.mark.timeout(1200)]

PROMPTS = scaled(300)
SMALL = {"enforce_eager": True, "block_size": 32, "num_gpu_blocks_override": 24, "max_num_seqs": 8}
"""So small that requests push one another's documents, and sometimes one another, out."""

Answers = list[tuple[int, ...]]


def tokens(engine: RAGCacheEngine, prompts: Sequence[Prompt], *, aborts: bool) -> Answers:
    return [generation.token_ids for generation in answer(engine, prompts, aborts=aborts)]


def options_from(begin: int, number: int) -> SamplingOptions:
    return options(begin + number)


@pytest.fixture(scope="module")
def asked() -> list[Prompt]:
    return make_prompts(PROMPTS)


@pytest.fixture(scope="module")
def uncached(asked: list[Prompt]) -> Answers:
    with RAGCacheEngine(
        kv_cache_gib=0.25,
        max_model_len=512,
        dtype="float32",
        knowledge_tree=False,
        vllm_args={
            **SMALL,
            "num_gpu_blocks_override": 600,
            "max_num_seqs": BATCH,
            "enable_prefix_caching": False,
        },
    ) as engine:
        answers = tokens(engine, asked, aborts=False)
        assert engine.stats().cached_prompt_tokens == 0
    return answers


@pytest.fixture
def small_engine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Callable[[str], RAGCacheEngine]:
    """Makes an engine with a host tier whose copies can be altered as they are read back."""

    def make(corrupt: str) -> RAGCacheEngine:
        monkeypatch.setenv("RAGCACHE_TEST_CORRUPT_HOST", corrupt)
        monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parent))
        return RAGCacheEngine(
            kv_cache_gib=0.25,
            max_model_len=512,
            dtype="float32",
            host_cache_gib=0.01,
            reorder_window=8,
            vllm_args={**SMALL, "worker_cls": "corrupting_worker.HostCorruptingWorker"},
        )

    return make


def check_that_it_was_hard(stats: EngineStats) -> None:
    tree = stats.tree
    assert tree is not None
    assert tree.gpu_evicted_blocks > PROMPTS
    assert tree.swap_outs > PROMPTS
    assert tree.swap_ins > PROMPTS / 2
    assert tree.host_evicted_blocks > PROMPTS / 4  # the first ones fill the host tier
    assert tree.preemptions > PROMPTS / 100
    assert tree.reorderings > PROMPTS / 10
    assert 0 < tree.longest_overtaking <= 8
    assert stats.aborted_requests > PROMPTS / 10


def test_the_answers_are_those_of_an_uncached_engine(
    asked: list[Prompt], uncached: Answers, small_engine: Callable[[str], RAGCacheEngine]
) -> None:
    with small_engine("") as engine:
        answers = tokens(engine, asked, aborts=True)
        stats = engine.stats()
    assert len(set(uncached)) >= 0.9 * PROMPTS, "the model must tell the prompts apart"
    different = [number for number in range(PROMPTS) if answers[number] != uncached[number]]
    assert different == []
    check_that_it_was_hard(stats)


def test_so_are_those_with_a_disk_after_a_crash_and_over_damaged_files(
    asked: list[Prompt], uncached: Answers, tmp_path: Path
) -> None:
    """Host and disk are so small that both evict."""
    answers: Answers = []
    with RAGCacheEngine(
        kv_cache_gib=0.25,
        max_model_len=512,
        dtype="float32",
        host_cache_gib=0.002,
        disk_cache_gib=0.02,
        disk_cache_dir=tmp_path,
        reorder_window=8,
        rewarm_tokens=0,
        vllm_args=SMALL,
    ) as engine:
        for begin in range(0, PROMPTS // 2, BATCH):
            part = asked[begin : begin + BATCH]
            lengths = partial(options_from, begin)
            found = answer(engine, part, aborts=True, options=lengths)
            answers += [generation.token_ids for generation in found]
            if begin == 0:
                os.kill(engine.pid, signal.SIGKILL)
            for path in list(tmp_path.rglob("*.safetensors"))[::3]:
                with suppress(FileNotFoundError):
                    content = path.read_bytes()
                    path.unlink()  # files are replaced: what is mapped must not change
                    path.write_bytes(content[:-9] + bytes(9))
        tree = engine.stats().tree
    assert answers == uncached[: len(answers)]
    assert tree is not None
    read = tree.document_tokens_hit_host - tree.swap_ins * SMALL["block_size"]
    assert read > 5 * len(answers)
    size = sum(path.stat().st_size for path in tmp_path.rglob("*.safetensors"))
    assert size < 0.02 * (1 << 30)


def test_altered_host_copies_are_noticed(
    asked: list[Prompt], uncached: Answers, small_engine: Callable[[str], RAGCacheEngine]
) -> None:
    """The proof that the test above can fail."""
    with small_engine("yes") as engine:
        answers = tokens(engine, asked[:100], aborts=False)
    assert sum(one != other for one, other in zip(answers, uncached[:100], strict=True)) > 10
