"""The knowledge tree inside the real engine."""

from __future__ import annotations

import asyncio
import queue
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from typing import Any

import pytest

from ragcache_integrations.engine import (
    EngineStats,
    Prompt,
    PromptDocument,
    RAGCacheEngine,
    SamplingOptions,
)
from ragcache_integrations.engine.protocol import Control, Submit
from ragcache_integrations.errors import ConfigurationError, EngineError
from ragcache_integrations.knowledge_tree import TreeStats
from ragcache_integrations.resources import load_passages
from tests.support.waiting import wait_until

pytestmark = pytest.mark.engine

ONE = SamplingOptions(max_tokens=1)
BLOCK = 32
SMALL: dict[str, Any] = {"enforce_eager": True, "block_size": BLOCK, "num_gpu_blocks_override": 41}
SYSTEM = "Answer from the documents, and from nothing else, in a few words, in plain English. " * 2


@pytest.fixture(scope="module")
def small() -> Iterator[RAGCacheEngine]:
    """An engine with 40 blocks in the GPU tier, and a host tier."""
    with RAGCacheEngine(
        kv_cache_gib=0.25,
        max_model_len=1024,
        dtype="float32",
        host_cache_gib=0.05,
        quotas={"quiet": 0.25},
        vllm_args=SMALL,
    ) as engine:
        yield engine


@pytest.fixture
def engine(small: RAGCacheEngine) -> RAGCacheEngine:
    """The same, empty."""
    assert small.reset_cache()
    return small


def document(number: int, length: int = 400) -> PromptDocument:
    """``length`` characters that no other document begins with."""
    passages = load_passages()
    text = f"Document {number}. " + " ".join(p.text for p in passages[5 * number : 5 * number + 5])
    return PromptDocument(text[:length], f"d{number}")


def ask(engine: RAGCacheEngine, *documents: PromptDocument, namespace: str = "") -> int:
    """Ask something of these documents; how many tokens were cached."""
    prompt = Prompt.rag("What do they say?", documents, system=SYSTEM)
    return engine.generate(prompt, ONE, namespace=namespace).usage.cached_tokens


def since(before: EngineStats, after: EngineStats) -> dict[str, int]:
    """What the tree counted in between."""
    assert before.tree is not None
    assert after.tree is not None
    names = [field for field in TreeStats.__slots__ if "clock" not in field and field != "shares"]
    return {name: getattr(after.tree, name) - getattr(before.tree, name) for name in names}


def warm(engine: RAGCacheEngine) -> EngineStats:
    """Counts to compare with, of an engine that has answered something."""
    ask(engine, document(50))
    engine.reset_cache()
    return engine.stats()


def test_half_the_documents_are_hits_when_the_second_one_differs(engine: RAGCacheEngine) -> None:
    """The paper's example (RAGCache §7.3): [D1, D2] stored, [D1, D3] asked for."""
    ask(engine, document(1), document(2))
    before = engine.stats()
    ask(engine, document(1), document(3))
    counted = since(before, engine.stats())
    assert counted["documents"] == 2
    assert counted["documents_hit_gpu"] == 1
    assert counted["documents_hit_host"] == 0


def test_evicted_documents_come_back_from_the_host(engine: RAGCacheEngine) -> None:
    before = warm(engine)
    first = ask(engine, document(1, 1200), document(2, 1200))
    for number in range(3, 9):
        ask(engine, document(number, 1200), document(number + 10, 1200))
    again = ask(engine, document(1, 1200), document(2, 1200))
    counted = since(before, engine.stats())
    assert first == 0
    assert again > 0
    assert counted["swap_outs"] > 0
    assert counted["swap_ins"] * BLOCK >= counted["document_tokens_hit_host"] > 0
    assert counted["documents_hit_host"] >= 1


def test_the_host_copy_is_written_once(engine: RAGCacheEngine) -> None:
    def churn() -> None:
        for number in range(3, 9):
            ask(engine, document(number, 1200), document(number + 10, 1200))

    for _ in range(3):  # until whatever goes out of the GPU went out of it before
        ask(engine, document(1, 1200), document(2, 1200))
        churn()
    before = engine.stats()
    ask(engine, document(1, 1200), document(2, 1200))
    churn()
    ask(engine, document(1, 1200), document(2, 1200))
    counted = since(before, engine.stats())
    assert counted["swap_ins"] > 0
    assert counted["gpu_evicted_blocks"] > 0
    assert counted["swap_outs"] == 0, "all of it was on the host already"


def test_another_tenant_gets_no_hit(engine: RAGCacheEngine) -> None:
    ask(engine, document(1), document(2), namespace="one")
    assert ask(engine, document(1), document(2), namespace="one") > 0
    assert ask(engine, document(1), document(2), namespace="two") == 0
    assert ask(engine, document(1), document(2)) == 0
    tree = engine.tree()
    assert tree is not None
    assert {root.name for root in tree.roots} == {"one", "two", ""}


def test_another_tenant_gets_no_hit_from_the_host_either(engine: RAGCacheEngine) -> None:
    ask(engine, document(1, 1200), document(2, 1200), namespace="one")
    for number in range(3, 9):
        ask(engine, document(number, 1200), document(number + 10, 1200), namespace="one")
    assert ask(engine, document(1, 1200), document(2, 1200), namespace="two") == 0
    assert ask(engine, document(1, 1200), document(2, 1200), namespace="one") > 0


def test_an_id_reused_for_another_text_is_never_served(
    engine: RAGCacheEngine, caplog: pytest.LogCaptureFixture
) -> None:
    stale = PromptDocument(document(1).text, "same")
    fresh = PromptDocument(document(2).text, "same")
    before = warm(engine)
    ask(engine, stale)
    cold = ask(engine, fresh)
    counted = since(before, engine.stats())
    assert cold <= len(SYSTEM)  # the system text at most
    assert counted["documents_hit_gpu"] == 0
    assert counted["changed_documents"] == 1
    assert ask(engine, fresh) > cold
    assert ask(engine, stale) > cold, "the old text is as good as ever, under whatever id"
    (warning,) = caplog.records
    assert "a document's id came with another text" in warning.getMessage()


def test_cache_depth_keeps_the_first_documents_only() -> None:
    with RAGCacheEngine(
        kv_cache_gib=0.25, max_model_len=1024, cache_depth=1, vllm_args=SMALL
    ) as engine:
        ask(engine, document(1), document(2))
        tree = engine.tree()
        assert tree is not None
        assert [node.name for node in tree.nodes()] == ["", "d1"]


def test_the_tree_can_be_looked_at(engine: RAGCacheEngine) -> None:
    ask(engine, document(1), document(2))
    ask(engine, document(1), document(3))
    tree = engine.tree()
    assert tree is not None
    (root,) = tree.roots
    (first,) = root.children
    assert first.name == "d1"
    assert first.frequency == 2
    assert first.place == "gpu"
    assert {child.name for child in first.children} == {"d2", "d3"}
    assert all(child.frequency == 1 for child in first.children)
    assert "d1: gpu" in str(tree)
    assert tree.as_dict()["roots"][0]["children"][0]["name"] == "d1"
    assert asyncio.run(engine.atree()) == tree


def test_what_is_given_up_is_counted(engine: RAGCacheEngine) -> None:
    before = engine.stats().tree or TreeStats()
    long = SamplingOptions(max_tokens=400, ignore_eos=True)
    with engine.stream(Prompt.rag("Why?", [document(1)]), long) as stream:
        next(stream)
    assert engine.tree() is not None  # asked behind the abort, and so answered
    after = engine.stats().tree or TreeStats()
    assert (after.requests, after.documents) == (before.requests + 1, before.documents + 1)


def test_reset_forgets_the_tree(engine: RAGCacheEngine) -> None:
    ask(engine, document(1), document(2))
    assert engine.reset_cache()
    tree = engine.tree()
    assert tree is not None
    assert tree.roots == ()
    assert engine.load().free_kv_tokens == engine.total_kv_tokens
    assert ask(engine, document(1), document(2)) == 0


def test_no_block_is_lost(engine: RAGCacheEngine) -> None:
    for number in range(12):
        ask(engine, document(number, 900), document(number + 20, 900))
    streams = [
        engine.stream(Prompt.rag("Why?", [document(number)], system=SYSTEM)) for number in range(6)
    ]
    for stream in streams:
        stream.abort()
    ask(engine, document(1))
    assert engine.load().free_kv_tokens == engine.total_kv_tokens


def test_without_the_tree_it_is_stock_vllm() -> None:
    with RAGCacheEngine(
        kv_cache_gib=0.25, max_model_len=1024, knowledge_tree=False, vllm_args=SMALL
    ) as engine:
        ask(engine, document(1))
        assert ask(engine, document(1)) > 0
        assert engine.tree() is None
        assert engine.stats().tree is None


def test_a_host_tier_on_a_cpu_is_part_of_the_kv_cache() -> None:
    eager = {"enforce_eager": True}
    with RAGCacheEngine(kv_cache_gib=0.05, max_model_len=1024, vllm_args=eager) as engine:
        alone = engine.total_kv_tokens
    with RAGCacheEngine(
        kv_cache_gib=0.05, host_cache_gib=0.05, max_model_len=1024, vllm_args=eager
    ) as engine:
        assert engine.total_kv_tokens == pytest.approx(2 * alone, rel=0.01)
        ask(engine, document(1))
        stats = engine.stats().tree
        assert stats is not None
        assert stats.host_blocks == 0


def test_a_host_tier_below_one_block_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="must hold at least one block"):
        RAGCacheEngine(kv_cache_gib=0.25, max_model_len=1024, host_cache_gib=1e-6, vllm_args=SMALL)


@pytest.mark.parametrize(
    ("spans", "words"),
    [
        ((("a", 5, 3),), "must run forwards"),
        ((("a", 3, 3),), "must run forwards"),
        ((("a", 0, 9), ("b", 8, 10)), "must not begin before token 9"),
        ((("a", 4, 9), ("b", 0, 3)), "must not begin before token 9"),
        ((("a", -1, 3),), "must not begin before token 0"),
        ((("a", 0, 41),), "exceeds the prompt of 40 tokens"),
        ((("", 0, 4),), "non-empty string"),
        (((7, 0, 4),), "non-empty string, got 7"),
        ((("a", 0.5, 4),), "whole numbers"),
    ],
)
def test_wrong_spans_never_reach_the_scheduler(
    engine: RAGCacheEngine, spans: Any, words: str
) -> None:
    """Prompts can't make such spans; a process that speaks the protocol could."""
    arrived: list[Any] = []
    process = engine._process
    request = Submit(0, list(range(100, 140)), ONE, "", spans)
    process.exchange.send(process.register(arrived.append, request))
    assert engine.load().running_requests == 0  # an answer behind the refusal
    (error,) = arrived
    assert isinstance(error, ConfigurationError)
    assert words in str(error)
    assert ask(engine, document(1)) == 0, "the engine goes on"


def test_a_question_that_fails_is_answered_so(engine: RAGCacheEngine) -> None:
    """Whoever asks must not wait for ever, and the engine goes on."""
    arrived: queue.SimpleQueue[Any] = queue.SimpleQueue()
    process = engine._process
    process.exchange.send(process.register(arrived.put, Control(0, "no such operation")))
    error = arrived.get(timeout=30)
    assert isinstance(error, EngineError)
    assert "no such operation" in str(error)
    assert ask(engine, document(2)) == 0


def test_a_request_that_cannot_be_sent_fails_alone(engine: RAGCacheEngine) -> None:
    """What callers can give was made plain before; this is the net below."""
    arrived: queue.SimpleQueue[Any] = queue.SimpleQueue()
    process = engine._process
    unsendable: Any = replace(ONE, stop=())
    object.__setattr__(unsendable, "stop", lambda: None)
    process.exchange.send(process.register(arrived.put, Submit(0, [100], unsendable, "", ())))
    error = arrived.get(timeout=30)
    assert isinstance(error, ConfigurationError)
    assert "cannot be sent to the engine's process" in str(error)
    assert ask(engine, document(3)) == 0


async def test_pinned_documents_stay_and_leave_room(engine: RAGCacheEngine) -> None:
    pinned = [document(1), document(2)]
    assert engine.pin(pinned, ttl=1000, system=SYSTEM).cached_tokens == 0
    kept = ask(engine, *pinned)
    assert kept >= 2 * BLOCK
    free = engine.load().free_kv_tokens
    for number in range(3, 23):
        ask(engine, document(number), document(number + 1), document(number + 2))
    before = engine.stats()
    assert ask(engine, *pinned) == kept
    assert since(before, engine.stats())["swap_ins"] == 0
    assert engine.load().free_kv_tokens == free < engine.total_kv_tokens
    snapshot = await engine.atree()
    assert snapshot is not None
    assert any(node.pinned and node.name == "d2" for node in snapshot.nodes())
    with pytest.raises(ConfigurationError, match=r"^\d+ blocks .* longest request of 32 blocks"):
        await engine.apin([document(number) for number in range(30, 34)], system=SYSTEM)
    assert await engine.aunpin(pinned, system=SYSTEM)
    assert not engine.unpin(pinned, system=SYSTEM)
    assert engine.load().free_kv_tokens == engine.total_kv_tokens
    await engine.apin(Prompt.rag("Which?", pinned, system=SYSTEM))
    assert engine.load().free_kv_tokens < engine.total_kv_tokens
    assert engine.reset_cache(), "pins do not outlive it"
    assert engine.load().free_kv_tokens == engine.total_kv_tokens


def test_wrong_pins(engine: RAGCacheEngine) -> None:
    with pytest.raises(ConfigurationError, match="no documents to pin"):
        engine.pin(Prompt.rag("Which?"))
    with pytest.raises(ConfigurationError, match="several documents"):
        engine.pin("a text")
    with pytest.raises(ConfigurationError, match="ttl must be"):
        engine.pin([document(1)], ttl=0)
    with pytest.raises(ConfigurationError, match="priority must be"):
        engine.prefill(Prompt.rag("Which?", [document(1)]), priority=1.5)  # type: ignore[arg-type]
    with pytest.raises(ConfigurationError, match="its own system text"):
        engine.pin(Prompt.rag("Which?", [document(1)]), system=SYSTEM)


def test_a_tenant_keeps_its_quota_under_a_flood(engine: RAGCacheEngine) -> None:
    kept = [ask(engine, document(1), namespace="quiet") for _ in range(2)][-1]
    assert kept
    prompts = [
        Prompt.rag("What do they say?", [document(n), document(n + 1)], system=SYSTEM)
        for n in range(2, 42)
    ]
    engine.generate_batch(prompts, ONE, namespace="loud", priority=-1)
    assert ask(engine, document(1), namespace="quiet") == kept
    tree = engine.stats().tree
    assert tree is not None
    quiet, rest = tree.shares
    assert quiet.namespace == "quiet"
    assert 0 < quiet.gpu_blocks <= 10 < rest.gpu_blocks


AGENTS = ("planner", "writer", "critic")


def test_steps_of_a_workflow_stay_and_are_computed_before_they_come(
    engine: RAGCacheEngine,
) -> None:
    """Each agent's prompt takes more than a third of the GPU's blocks."""
    systems = {
        name: f"You are the {name}. " + document(i, 1400).text for i, name in enumerate(AGENTS)
    }
    options = SamplingOptions(max_tokens=4)

    def run(turn: int, *, hints: bool) -> tuple[tuple[int, ...], int]:
        name = AGENTS[turn % 3]
        later = {AGENTS[(turn + steps) % 3]: steps for steps in (1, 2)}
        call: dict[str, Any] = {"step": name, "next_steps": later} if hints else {}
        prompt = Prompt.rag(f"Turn {turn}?", system=systems[name])
        answer = engine.generate(prompt, options, namespace="flow", **call)
        return answer.token_ids, answer.usage.cached_tokens

    plain = [run(turn, hints=False) for turn in range(9)]
    assert engine.reset_cache()
    hinted = []
    for turn in range(9):
        hinted.append(run(turn, hints=True))
        if turn >= 5:  # all agents are known by now
            wait_until(partial(whole_in_gpu, engine, AGENTS[(turn + 1) % 3]))
    assert [answer for answer, _ in hinted] == [answer for answer, _ in plain]
    assert min(tokens for _, tokens in hinted[6:]) > 200


def whole_in_gpu(engine: RAGCacheEngine, name: str) -> bool:
    tree = engine.tree()
    assert tree is not None
    return any(node.name == name and node.gpu_blocks == node.blocks for node in tree.nodes())


def test_wrong_steps(engine: RAGCacheEngine) -> None:
    prompt = Prompt.rag("Which?", system=SYSTEM)
    with pytest.raises(ConfigurationError, match="next_steps needs step"):
        engine.generate(prompt, ONE, next_steps={"b": 1})
    with pytest.raises(
        ConfigurationError, match=r"next_steps\['b'\] must be a whole number of at least 1"
    ):
        engine.generate(prompt, ONE, step="a", next_steps={"b": 0})
