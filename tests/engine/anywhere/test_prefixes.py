"""The knowledge tree's documents on disk: exact, each tenant's own, and there after a restart."""

from __future__ import annotations

import os
import random
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import cast

import pytest
import torch

from ragcache_integrations.core.generation import SamplingOptions
from ragcache_integrations.core.prompt import Prompt
from ragcache_integrations.engine import RAGCacheEngine
from ragcache_integrations.engine.in_vllm.anywhere.codecs import CODECS, Codec, Encoded
from ragcache_integrations.engine.in_vllm.anywhere.paged import GroupedMemory, Tables
from ragcache_integrations.engine.in_vllm.anywhere.prefixes import prefix_keys
from ragcache_integrations.engine.in_vllm.anywhere.worker import Moves, Save, StoreWorker
from ragcache_integrations.engine.process import control

WORDS = [f"word{number}" for number in range(40)]
DICE = random.Random(5)
A, B, C = (" ".join(DICE.choices(WORDS, k=70)) for _ in range(3))
FEW = SamplingOptions(max_tokens=8, ignore_eos=True)


def prompt(*documents: str) -> Prompt:
    return Prompt.rag("Which word is it?", documents, system="Answer with a single word.")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("disk")


@pytest.fixture(scope="module")
def engine(folder: Path) -> Iterator[RAGCacheEngine]:
    with RAGCacheEngine(
        kv_cache_gib=0.1,
        max_model_len=1024,
        dtype="float32",
        host_cache_gib=0.01,
        disk_cache_gib=0.1,
        disk_cache_dir=folder,
        rewarm_tokens=0,
        # A fixed number of blocks keeps the host tier on a CPU.
        vllm_args={"enforce_eager": True, "num_gpu_blocks_override": 546},
    ) as started:
        yield started


def blocks(engine: RAGCacheEngine, *documents: str) -> int:
    """Tokens in whole blocks up to the end of the last document."""
    end = engine.render(prompt(*documents)).documents[-1].end
    return end // engine.block_size * engine.block_size


def forget(engine: RAGCacheEngine) -> None:
    """Leave what is on disk."""
    control(engine._process, "count_missing", [])  # all is written
    assert engine.reset_cache()


def test_what_was_computed_is_there_after_a_restart(engine: RAGCacheEngine) -> None:
    first = engine.generate(prompt(A, B), FEW)
    assert first.usage.cached_tokens == 0
    control(engine._process, "count_missing", [])
    os.kill(engine.pid, signal.SIGKILL)
    again = engine.generate(prompt(A, B), FEW, timeout=120)
    assert engine.stats().restarts == 1
    assert again.usage.cached_tokens == blocks(engine, A, B)
    assert again.token_ids == first.token_ids
    forget(engine)
    # Of another list of documents what it begins with, and of an order of its own the system text.
    assert engine.generate(prompt(A, C), FEW).usage.cached_tokens == blocks(engine, A)
    assert engine.generate(prompt(B, A), FEW).usage.cached_tokens < engine.block_size
    forget(engine)
    for number, documents in enumerate([(A, B), (A, C), (B, A), (B, A)]):
        answer = engine.generate(prompt(*documents), FEW)
        assert answer.usage.cached_tokens == blocks(engine, *documents)
        assert number or answer.token_ids == first.token_ids


def test_what_stands_first_was_used_last(engine: RAGCacheEngine, folder: Path) -> None:
    """So that a full disk removes it last after a restart: without it, the rest is of no use."""
    known = set(folder.rglob("*.safetensors"))
    documents = [" ".join(DICE.choices(WORDS, k=words)) for words in (90, 60, 30)]
    for count in (1, 2, 3):
        engine.generate(prompt(*documents[:count]), FEW, namespace="order")
    forget(engine)
    new = sorted((path.stat() for path in set(folder.rglob("*.safetensors")) - known), key=_used)
    third, second, first = (status.st_size for status in new[:3])
    assert third < second < first


def _used(status: os.stat_result) -> int:
    return status.st_mtime_ns


def test_a_tenant_finds_nothing_of_another(engine: RAGCacheEngine) -> None:
    for namespace in ("mine", "yours"):
        answer = engine.generate(prompt(C, A), FEW, namespace=namespace)
        assert answer.usage.cached_tokens == 0
    forget(engine)
    assert engine.generate(prompt(C, A), FEW, namespace="").usage.cached_tokens == 0
    answer = engine.generate(prompt(C, A), FEW, namespace="mine")
    assert answer.usage.cached_tokens == blocks(engine, C, A)


def test_what_is_damaged_is_computed_again(engine: RAGCacheEngine, folder: Path) -> None:
    """And what was computed after it in the same step is not kept."""
    right = engine.generate(prompt(C, A), FEW, namespace="right")
    engine.generate(prompt(C), FEW, namespace="damaged")
    forget(engine)
    for path in folder.rglob("*.safetensors"):
        content = bytearray(path.read_bytes())
        content[-3] ^= 64
        path.write_bytes(content)
    restarts = engine.stats().restarts
    for cached in (0, blocks(engine, C, A)):
        answer = engine.generate(prompt(C, A), FEW, namespace="damaged")
        assert answer.token_ids == right.token_ids
        assert answer.usage.cached_tokens == cached
        forget(engine)
    assert engine.stats().restarts == restarts


def test_each_part_is_known_by_all_before_it() -> None:
    tokens = list(range(100, 200))
    keys = prefix_keys("", tokens, (0, 32, 64))
    assert prefix_keys("", tokens[:70], (0, 32, 64)) == keys
    assert prefix_keys("", tokens, (0, 32, 64, 96))[:2] == keys
    others = [
        prefix_keys("tenant", tokens, (0, 32, 64)),
        prefix_keys("", [1, *tokens[1:]], (0, 32, 64)),
        prefix_keys("", tokens, (0, 16, 64)),
    ]
    assert all(set(keys).isdisjoint(known) for known in others)


def test_no_name_of_a_tenant_makes_other_tokens_of_its_own() -> None:
    number = (2).to_bytes(4, sys.byteorder).decode() + (7).to_bytes(4, sys.byteorder).decode()
    names = [f"a{joined}" for joined in (number, "0 a" + number, " " + number)]
    assert all(prefix_keys(name, [8], (0, 1)) != prefix_keys("a", [7, 8], (0, 2)) for name in names)


class Memory:
    """Paged memory that nothing is wrong with."""

    def read(self, codec: Codec, blocks: Tables, begin: int, end: int) -> Encoded:
        tensor = torch.zeros(1, end - begin, 1, 1)
        return Encoded(codec, codec.encode(tensor, tensor), begin)


def test_nothing_is_kept_that_came_from_blocks_which_could_not_be_filled() -> None:
    """Nor in the steps that were planned before anybody knew."""
    worker = StoreWorker(cast("GroupedMemory", Memory()), 4, steps=2)
    kept = {"stays": True, "written": False}
    clean, later = Save(b"clean", 0, 8, ((1, 2),), **kept), ((5, 6, 7),)
    for unread, lost in (({6}, True), (set[int](), True), (set(), False)):
        worker.save(Moves(saves=[clean, Save(b"wrong", 8, 12, later, **kept)]), unread)
        assert worker.lost == ({b"wrong"} if lost else set())
        worker.lost = set()
        assert b"clean" in worker._documents
    worker.save(Moves(saves=[Save(b"before", 0, 4, later, **kept)]), {6})
    assert worker.lost == set()


class TooLarge(Memory):
    """Paged memory with numbers that no codec but raw can keep."""

    def read(self, codec: Codec, blocks: Tables, begin: int, end: int) -> Encoded:
        keys = torch.full((1, end - begin, 1, 2), 1e30)
        return Encoded(codec, codec.encode(keys, keys), begin)


def test_what_cannot_be_quantised_is_lost_and_says_what_helps() -> None:
    worker = StoreWorker(cast("GroupedMemory", TooLarge()), 4)
    key = CODECS["int8"].key(b"k" * 20)
    worker.save(Moves(saves=[Save(key, 0, 8, ((1, 2),), stays=True, written=False)]))
    assert worker.lost == {key}
    assert "document_dtype='raw'" in worker.fault
