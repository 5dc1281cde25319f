"""The simulator: hits worked out by hand, memory that adds up, and agreement between policies."""

from __future__ import annotations

import random

import pytest
from parts.traffic.traces import document_stream, sampled_lengths

from ragcache_integrations.errors import ConfigurationError
from ragcache_integrations.knowledge_tree import KnowledgeTree
from ragcache_workbench.simulation.paged_memory import (
    PagedRequest,
    Pager,
    TreeMemory,
)
from ragcache_workbench.simulation.simulator import SIMULATED_POLICIES, simulate
from ragcache_workbench.simulation.traces import Trace, TraceRequest

SIZE = 4
LENGTHS = {"a": 8, "b": 6, "c": 5, "d": 12}


def ask(names: str, *, question: str | None = None, tokens: int = 4) -> TraceRequest:
    return TraceRequest(tuple((name, LENGTHS[name]) for name in names), tokens, question)


def run(*requests: TraceRequest, system_tokens: int = 0, **options: object) -> list[int]:
    settings = {"gpu_blocks": 100, "block_size": SIZE, "output_tokens": 1} | options
    result = simulate(Trace(requests, system_tokens), **settings)  # type: ignore[arg-type]
    return list(result.cached_tokens)


@pytest.mark.parametrize("policy", SIMULATED_POLICIES)
class TestUnlimited:
    """Nothing is evicted, so that all policies agree."""

    def test_a_prefix_of_whole_blocks_is_reused(self, policy: str) -> None:
        # ab: 8 + 6 tokens are three blocks and a half.
        assert run(ask("ab"), ask("ab"), ask("ac"), ask("ba"), policy=policy) == [0, 12, 8, 0]

    def test_the_last_token_is_always_computed(self, policy: str) -> None:
        same = ask("a", question="x")
        assert run(same, same, policy=policy) == [0, 8]

    def test_a_repeated_question_is_reused_too(self, policy: str) -> None:
        same = ask("a", question="x", tokens=9)
        other = ask("a", question="y", tokens=9)
        assert run(same, same, other, policy=policy) == [0, 16, 8]

    def test_a_question_asked_once_is_no_other(self, policy: str) -> None:
        assert run(ask("a", tokens=9), ask("a", tokens=9), policy=policy) == [0, 8]

    def test_the_system_prompt_is_shared_by_all(self, policy: str) -> None:
        found = run(ask("a"), ask("b"), ask(""), system_tokens=9, policy=policy)
        assert found == [0, 8, 8]

    def test_a_document_that_changed_its_length_is_another(self, policy: str) -> None:
        longer = TraceRequest((("a", 9),), 4)
        assert run(ask("a"), longer, policy=policy) == [0, 0]

    def test_hits_by_documents_are_the_papers(self, policy: str) -> None:
        trace = Trace((ask("ad"), ask("ab")))
        result = simulate(trace, gpu_blocks=100, block_size=SIZE, policy=policy)
        assert result.stats.documents_hit_gpu == 1
        assert result.stats.documents == 4

    def test_times_are_those_of_the_cost_model(self, policy: str) -> None:
        result = simulate(
            Trace((ask("ab"), ask("ab"))),
            gpu_blocks=100,
            block_size=SIZE,
            policy=policy,
            prefill_seconds=lambda cached, new: cached + 100 * new,
        )
        assert result.uncached_prefill_seconds == 2 * 1800
        assert result.prefill_seconds == 1800 + 12 + 600
        assert result.saved_share == pytest.approx(1 - 2412 / 3600)


def test_anonymous_blocks_go_before_documents() -> None:
    # Of seven blocks a keeps 2 and its question 3; b needs four.
    question = ask("a", question="x", tokens=12)
    requests = [question, ask("b", tokens=10), ask("b", tokens=10), question]

    assert run(*requests, gpu_blocks=7) == [0, 0, 4, 8]
    assert run(*requests, gpu_blocks=7, policy="vllm") == [0, 0, 4, 0]


def test_the_lowest_priority_leaf_goes_first_and_from_its_end() -> None:
    # Of six blocks a keeps 2 and c 1, three more are free or of no document; d needs five.
    requests = [ask("a"), ask("a"), ask("c"), ask("d", tokens=8), ask("a")]

    assert run(*requests, gpu_blocks=6, policy="lfu") == [0, 8, 0, 0, 4]


def test_what_was_evicted_is_read_back_from_the_host() -> None:
    trace = Trace((ask("d"), ask("aa"), ask("d")))
    options = {"gpu_blocks": 5, "block_size": SIZE, "output_tokens": 1}
    without = simulate(trace, **options)  # type: ignore[arg-type]
    result = simulate(trace, host_blocks=8, **options)  # type: ignore[arg-type]

    assert without.cached_tokens == (0, 0, 0)
    assert result.cached_tokens == (0, 0, 12)
    assert result.host_tokens == (0, 0, 12)
    assert result.stats.documents_hit_host == 1
    assert result.stats.swap_ins == 3


def test_documents_beyond_the_cache_depth_are_not_kept() -> None:
    def kept(cache_depth: int | None) -> int:
        trace = Trace((ask("ad"),))
        result = simulate(trace, gpu_blocks=9, block_size=SIZE, cache_depth=cache_depth)
        return result.stats.gpu_idle_blocks

    assert kept(None) == kept(2) == 5
    assert kept(1) == 2


def test_answers_take_memory() -> None:
    # 4 * 4 tokens, the last of the answer not computed: 4 blocks and none more.
    assert run(ask("a"), gpu_blocks=4, output_tokens=5) == [0]
    with pytest.raises(ConfigurationError, match="at least 4 for the longest prompt of 12 tokens"):
        run(ask("a"), gpu_blocks=3, output_tokens=5)


@pytest.mark.parametrize("policy", SIMULATED_POLICIES)
@pytest.mark.parametrize("share", [0.05, 0.3])
def test_more_memory_finds_no_less_on_a_skewed_stream(policy: str, share: float) -> None:
    trace = skewed_trace()
    small, large = (
        simulate(trace, gpu_blocks=int(part * trace.document_tokens / 16), policy=policy)
        for part in (share, 2 * share)
    )
    assert small.stats.token_hit_rate <= large.stats.token_hit_rate
    assert small.saved_share <= large.saved_share
    assert all(alpha % 16 == 0 for alpha in small.cached_tokens)


def test_the_trees_lru_is_close_to_stocks() -> None:
    trace = skewed_trace()
    blocks = int(0.1 * trace.document_tokens / 16)
    tree, stock = (
        simulate(trace, gpu_blocks=blocks, policy=policy).stats.token_hit_rate
        for policy in ("lru", "vllm")
    )
    assert tree == pytest.approx(stock, abs=0.01)


def skewed_trace() -> Trace:
    lengths = sampled_lengths(map(str, range(200)), low=20, high=400, seed=0)
    return document_stream(lengths, top_k=2, requests=800, exponent=1.0, seed=0)


class CountingMemory(TreeMemory):
    """Counts after every request whether all blocks are still there."""

    def __init__(self, gpu_blocks: int, tree: KnowledgeTree[int]) -> None:
        super().__init__(gpu_blocks, tree)
        self.gpu_blocks = gpu_blocks

    def check(self) -> None:
        slots = [*self._free, *self._anonymous.values(), *self._tree.gpu.slots.values()]
        assert sorted(slots) == list(range(self.gpu_blocks))
        assert not self._anonymous.keys() & self._tree.gpu.slots.keys()


@pytest.mark.parametrize("host_blocks", [0, 10])
def test_no_block_is_lost_or_used_twice(host_blocks: int) -> None:
    rng = random.Random(0)
    requests = [
        ask(
            "".join(rng.sample("abcd", rng.randint(0, 3))),
            question=rng.choice(["x", "y", None]),
            tokens=rng.randint(1, 9),
        )
        for _ in range(2000)
    ]
    tree: KnowledgeTree[int] = KnowledgeTree(block_size=SIZE, gpu_blocks=9, host_blocks=host_blocks)
    pager = Pager(Trace(tuple(requests), 3), SIZE, output_tokens=3)
    memory = CountingMemory(12, tree)
    for request in requests:
        paged: PagedRequest = pager.page(request)
        memory.enter(paged)
        before = memory.find(paged)
        assert memory.serve(paged) == before
        memory.check()
    assert tree.stats().gpu_evicted_blocks > 0
    assert bool(tree.stats().swap_ins) == bool(host_blocks)


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"gpu_blocks": 0}, "gpu_blocks must be at least 1"),
        ({"block_size": 0}, "block_size must be at least 1"),
        ({"output_tokens": 0}, "output_tokens must be at least 1"),
        ({"decode_seconds": -1.0}, "decode_seconds"),
        ({"decode_seconds": float("nan")}, "decode_seconds"),
        ({"host_blocks": -1}, "host_blocks"),
        ({"cache_depth": 0}, "cache_depth"),
        (
            {"policy": "fifo"},
            "unknown policy 'fifo': allowed are lrfu, pgdsf, gdsf, lru, lfu, vllm",
        ),
        ({"policy": "vllm", "host_blocks": 1}, "stock vLLM has no host_blocks"),
        ({"policy": "vllm", "cache_depth": 1}, "stock vLLM has no host_blocks, cache_depth"),
        ({"reorder_window": 4}, "needs queue=True"),
        ({"reorder_window": -1, "queue": True}, "window must be at least 0"),
    ],
)
def test_what_makes_no_sense_is_refused(options: dict[str, object], told: str) -> None:
    with pytest.raises(ConfigurationError, match=told):
        run(ask("a"), **options)  # type: ignore[arg-type]  # wrong on purpose
