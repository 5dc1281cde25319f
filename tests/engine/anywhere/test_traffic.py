"""Exact requests and approximate ones together: crowded, preempted, aborted, failing."""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from ragcache_integrations.core.generation import Generation, SamplingOptions
from ragcache_integrations.core.prompt import Message, Prompt, PromptDocument
from ragcache_integrations.engine import RAGCacheEngine
from ragcache_integrations.engine.tiny_model import default_model_path
from ragcache_integrations.errors import EngineDeadError
from tests.support.sizes import scaled
from tests.support.waiting import wait_until

pytestmark = [pytest.mark.engine, pytest.mark.timeout(900)]

WORDS = [f"word{number}" for number in range(40)]
DOCUMENTS = [
    " ".join(random.Random(number).choice(WORDS) for _ in range(20 + 5 * number))
    for number in range(12)
]
TENANTS = ("", EXACT := "exact")
"""Approximate answers depend on what exact ones of the same tenant have left."""
GREEDY = SamplingOptions(max_tokens=24, ignore_eos=True)
SETTINGS: dict[str, Any] = {
    "max_model_len": 1024,
    "dtype": "float32",
    "reuse": "anywhere",
}


def prompt_of(dice: random.Random, number: int, system: str = "Answer.") -> Prompt:
    documents = dice.sample(DOCUMENTS, dice.randint(1, 3))
    return Prompt.rag(f"Which {dice.choice(WORDS)} is {number}?", documents, system=system)


def requests(count: int, seed: int) -> list[tuple[Prompt, dict[str, Any]]]:
    dice = random.Random(seed)
    kinds: list[dict[str, Any]] = [{"reuse": "prefix", "namespace": EXACT}]
    kinds += [{"link_tokens": links} for links in (0, 8, 16)]
    kinds += [{"link_tokens": 10_000, "namespace": EXACT}]
    return [(prompt_of(dice, number), dice.choice(kinds)) for number in range(count)]


@pytest.fixture(scope="module")
def model() -> Path:
    return default_model_path()


@pytest.fixture(scope="module")
def alone(model: Path) -> Iterator[list[Generation]]:
    """Answers of an engine with plenty of room that is asked one by one."""
    with RAGCacheEngine(
        model, kv_cache_gib=0.1, vllm_args={"enforce_eager": True}, **SETTINGS
    ) as engine:
        for tenant in TENANTS:
            engine.encode(DOCUMENTS, namespace=tenant)
        yield [engine.generate(prompt, GREEDY, **kind) for prompt, kind in requests(100, 1)]


@pytest.fixture(scope="module")
def crowded(model: Path) -> Iterator[RAGCacheEngine]:
    """A pool for two or three requests, with a step's budget below a prompt's length."""
    arguments = {
        "enforce_eager": True,
        "max_num_batched_tokens": 128,
        "max_num_seqs": 16,
        "enable_chunked_prefill": True,
        "num_gpu_blocks_override": 40,
    }
    with RAGCacheEngine(
        model,
        kv_cache_gib=0.1,
        host_cache_gib=0.01,
        reorder_window=32,
        vllm_args=arguments,
        **SETTINGS,
    ) as engine:
        for tenant in TENANTS:
            engine.encode(DOCUMENTS, namespace=tenant)
        yield engine


@pytest.fixture(scope="module")
def stock(model: Path) -> Iterator[RAGCacheEngine]:
    with RAGCacheEngine(
        model,
        kv_cache_gib=0.1,
        max_model_len=1024,
        dtype="float32",
        knowledge_tree=False,
        vllm_args={"enforce_eager": True},
    ) as engine:
        yield engine


def is_exact(kind: dict[str, Any]) -> bool:
    return kind.get("reuse") == "prefix" or kind.get("link_tokens") == 10_000


def test_a_hundred_that_wait_are_answered_as_alone(
    crowded: RAGCacheEngine, alone: list[Generation]
) -> None:
    dice = random.Random(5)
    streams = [crowded.stream(prompt, GREEDY, **kind) for prompt, kind in requests(100, 1)]
    others = [crowded.stream(prompt, GREEDY, **kind) for prompt, kind in requests(40, 2)]
    for stream in others:
        if dice.random() < 0.5:
            next(stream)
        stream.abort()
    answers = [stream.result() for stream in streams]
    load, stats = crowded.load(), crowded.stats()
    assert stats.tree is not None
    assert stats.tree.preemptions > 0
    for (_, kind), answer, right in zip(requests(100, 1), answers, alone, strict=True):
        # Rows that need more than half of a step's budget are computed exactly.
        if is_exact(kind):
            assert answer.text == right.text
        assert answer.finish_reason == "length"
    same = sum(a.text == b.text for a, b in zip(answers, alone, strict=True))
    assert same > 80
    assert load.running_requests == load.waiting_requests == 0
    assert load.free_kv_tokens == load.total_kv_tokens


def test_exact_answers_are_stock_vllm_s(stock: RAGCacheEngine, alone: list[Generation]) -> None:
    exact = [
        (prompt, answer)
        for (prompt, kind), answer in zip(requests(100, 1), alone, strict=True)
        if is_exact(kind)
    ]
    for prompt, answer in exact:
        assert stock.generate(prompt, GREEDY).text == answer.text
    assert len(exact) > 20


def test_random_requests_do_not_meet(crowded: RAGCacheEngine, stock: RAGCacheEngine) -> None:
    """Exact answers are stock vLLM's, and find no more than exact requests have left."""
    dice, count, crowd = random.Random(9), scaled(1000), 250
    few = SamplingOptions(max_tokens=3, ignore_eos=True)
    # No two of them begin alike for a whole block.
    pool = [prompt_of(dice, number, f"Answer as {number}.") for number in range(count // 4)]
    expected = [answer.token_ids for answer in stock.generate_batch(pool, few)]
    tenants = ("", "a", "b")
    kinds: list[dict[str, Any]] = [{"link_tokens": links} for links in (0, 3, 16)]
    kinds += [{"reuse": "prefix"}] * len(kinds)
    for tenant in tenants:
        crowded.encode(DOCUMENTS, namespace=tenant)
    left: set[tuple[int, str]] = set()
    exact = reused = 0
    for begin in range(0, count, crowd):
        drawn = [
            (
                dice.randrange(len(pool)),
                dice.choice(tenants),
                dice.choice(kinds),
            )
            for _ in range(min(crowd, count - begin))
        ]
        streams = [
            crowded.stream(pool[number], few, namespace=tenant, **kind)
            for number, tenant, kind in drawn
        ]
        answers = [stream.result() for stream in streams]
        together = Counter((number, tenant) for number, tenant, kind in drawn if is_exact(kind))
        for (number, tenant, kind), answer in zip(drawn, answers, strict=True):
            cached = answer.usage.cached_tokens
            if not is_exact(kind):
                reused += cached
                continue
            exact += 1
            assert answer.token_ids == expected[number]
            if (number, tenant) not in left and together[number, tenant] == 1:
                assert cached == 0
        left |= together.keys()
    assert exact > count // 3
    assert reused > 20 * count


def test_a_conversation_that_a_step_has_no_room_for_is_exact_and_grows(
    crowded: RAGCacheEngine,
) -> None:
    """What stands between its documents is more than the 64 tokens that rows may take."""
    few, tenant = SamplingOptions(max_tokens=3, ignore_eos=True), "turns"
    crowded.encode(DOCUMENTS[:3], namespace=tenant)
    messages = [Message("user", [PromptDocument(DOCUMENTS[0]), "So?"])]
    before = 0
    for document in DOCUMENTS[1:3]:
        messages += [
            Message("assistant", " ".join(WORDS)),
            Message("user", [PromptDocument(document), "And?"]),
        ]
        prompt = Prompt(tuple(messages))
        answer = crowded.generate(prompt, few, namespace=tenant)
        exact = crowded.generate(prompt, few, namespace="stock", reuse="prefix")
        assert answer.token_ids == exact.token_ids
        assert answer.usage.cached_tokens >= before - 32
        before = answer.usage.prompt_tokens
    assert answer.usage.cached_tokens > 100


def test_what_was_met_is_encoded_though_requests_come(crowded: RAGCacheEngine) -> None:
    """Each of them ends what is being encoded then, which begins again when there is time."""
    dice, few = random.Random(11), SamplingOptions(max_tokens=3, ignore_eos=True)
    met = [" ".join(dice.choices(WORDS, k=150)) for _ in range(2)]
    exact = crowded.generate(Prompt.rag("What is it?", met), few, reuse="prefix", namespace="z")
    first = crowded.generate(Prompt.rag("What is it?", met), few, link_tokens=0)
    assert first.token_ids == exact.token_ids
    for number in range(5):
        crowded.generate(prompt_of(dice, number), few, reuse="prefix")

    def idle() -> bool:  # between two steps what is encoded next waits
        load = crowded.load()
        return load.running_requests == load.waiting_requests == 0

    wait_until(idle)
    again = crowded.generate(Prompt.rag("And now?", met[::-1]), few, link_tokens=0)
    assert again.usage.cached_tokens > 300
    others = [" ".join(dice.choices(WORDS, k=60)) for _ in range(4)]
    crowded.generate(Prompt.rag("What is it?", [DOCUMENTS[0], *others]), few, link_tokens=0)
    # Nobody's request is in flight: what is encoded for later does not count.
    assert crowded.reset_cache()


def test_a_kill_ends_approximate_requests_as_it_does_exact_ones(
    model: Path, alone: list[Generation]
) -> None:
    long = SamplingOptions(max_tokens=700, ignore_eos=True)
    settings = {"kv_cache_gib": 0.1, "vllm_args": {"enforce_eager": True}, **SETTINGS}
    with RAGCacheEngine(model, max_restarts=0, **settings) as engine:
        engine.encode(DOCUMENTS)
        streams = [engine.stream(prompt, long, **kind) for prompt, kind in requests(12, 1)]
        for stream in streams:
            next(stream)
        os.kill(engine.pid, signal.SIGKILL)
        for stream in streams:
            with pytest.raises(EngineDeadError, match="SIGKILL"):
                stream.result()
        with pytest.raises(EngineDeadError, match="SIGKILL"):
            engine.generate(requests(1, 1)[0][0], GREEDY, link_tokens=0)
    with RAGCacheEngine(model, **settings) as engine:
        engine.encode(DOCUMENTS)
        for (prompt, kind), right in zip(requests(12, 1), alone, strict=False):
            assert engine.generate(prompt, GREEDY, **kind).text == right.text


def test_a_document_that_cannot_be_read_is_computed(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trigger = tmp_path / "trigger"
    monkeypatch.setenv("RAGCACHE_TEST_FAIL", str(trigger))
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[1] / "exactness"))
    with RAGCacheEngine(
        model,
        kv_cache_gib=0.1,
        vllm_args={"enforce_eager": True, "worker_cls": "failing_worker.FailingWorker"},
        **SETTINGS,
    ) as engine:
        engine.encode(DOCUMENTS)
        prompts = [prompt for prompt, _ in requests(8, 3)]
        exact = [
            engine.generate(prompt, GREEDY, reuse="prefix", namespace="a") for prompt in prompts
        ]
        trigger.write_text("store")
        engine.encode(DOCUMENTS, namespace="b")
        with ThreadPoolExecutor(8) as pool:
            answers = list(
                pool.map(
                    lambda prompt: engine.generate(prompt, GREEDY, link_tokens=0, namespace="b"),
                    prompts,
                )
            )
        assert [answer.text for answer in answers] == [answer.text for answer in exact]
        trigger.unlink()
        engine.encode(DOCUMENTS, namespace="b")
        again = engine.generate(prompts[0], GREEDY, link_tokens=0, namespace="b")
        assert again.usage.cached_tokens > 0
        assert engine.stats().restarts == 0


def test_a_model_that_it_is_wrong_for_answers_exactly(
    model: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The angles of its RoPE depend on the prompt's length."""
    folder = tmp_path / "model"
    shutil.copytree(model, folder)
    config = json.loads((folder / "config.json").read_text())
    rope = {"rope_type": "dynamic", "factor": 2.0, "rope_theta": 10_000.0}
    config |= {"rope_parameters": rope}
    (folder / "config.json").write_text(json.dumps(config))
    prompt = prompt_of(random.Random(1), 1)
    with RAGCacheEngine(
        folder, kv_cache_gib=0.1, vllm_args={"enforce_eager": True}, **SETTINGS
    ) as engine:
        assert "dynamic" in str(engine.reuse_is_off)
        assert "dynamic" in caplog.text
        engine.encode(DOCUMENTS)
        loose = engine.generate(prompt, GREEDY, link_tokens=0)
        assert loose.usage.cached_tokens == 0
        assert engine.generate(prompt, GREEDY, reuse="prefix").text == loose.text
