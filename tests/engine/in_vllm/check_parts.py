"""What is relied upon in vLLM's parts, taken one by one."""

from __future__ import annotations

import inspect
import logging
import pickle
import random
import re
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from vllm.config import CUDAGraphMode
from vllm.distributed.kv_transfer.kv_connector.v1.base import KVConnectorBase_V1, KVConnectorRole
from vllm.forward_context import ForwardContext
from vllm.model_executor.layers.attention import attention as attention_layer
from vllm.v1.core.kv_cache_utils import FreeKVCacheBlockQueue, make_block_hash_with_group_id
from vllm.v1.kv_cache_interface import (
    ChunkedLocalAttentionSpec,
    FullAttentionSpec,
    MambaSpec,
    SlidingWindowSpec,
)
from vllm.v1.request import Request

from ragcache_integrations.core.generation import SamplingOptions
from ragcache_integrations.engine.in_vllm import scheduler as _scheduler
from ragcache_integrations.engine.in_vllm.connector import DocumentConnector, Transfers, host_blocks
from ragcache_integrations.engine.in_vllm.driver import (
    VLLM,
    _Running,
    connector_config,
    errors_of,
)
from ragcache_integrations.engine.in_vllm.kv_cache import (
    block_bytes,
    longest_reused,
    unsuited_for_files,
    unsuited_for_reuse,
)
from ragcache_integrations.engine.in_vllm.queues import CacheAwareRequestQueue, DocumentFreeQueue
from ragcache_integrations.engine.in_vllm.scheduler import (
    FIRST_GROUP,
    scheduler_class,
    unsupported,
)
from ragcache_integrations.engine.protocol import CacheSettings, FailureKind, RequestFailed
from tests.engine.in_vllm.invariants import check, check_gpu_tier
from tests.engine.in_vllm.simulation import Case, Engine, make_scheduler

BLOCK = 4
SLIDING = partial(SlidingWindowSpec, sliding_window=8)
CHUNKED = partial(ChunkedLocalAttentionSpec, attention_chunk_size=8)


def linear(block_size: int, dtype: torch.dtype, **_: int) -> MambaSpec:
    """Layers as in Qwen3-Next, as vLLM sets them up where prefix caching is on."""
    shapes = ((1, 8),)
    return MambaSpec(block_size, shapes=shapes, dtypes=(dtype,), mamba_cache_mode="align")


# The queue of free blocks


def test_its_operations_are_those_we_know() -> None:
    operations = {name for name in vars(FreeKVCacheBlockQueue) if not name.startswith("_")}
    inherited = {"prepend_n"}  # blocks without content belong to no document
    ours = {name for name in vars(DocumentFreeQueue) if not name.startswith("_")}
    counted = {"num_free_blocks"}  # an attribute of vLLM's queue
    assert operations == (ours | inherited) - counted - {"forget_documents"}


def test_a_hash_is_the_block_s_and_its_group_s() -> None:
    assert make_block_hash_with_group_id(b"block", 0) == b"block" + FIRST_GROUP


class Pool:
    """vLLM's pool of blocks, driven as its KV cache manager drives it."""

    def __init__(self, dice: random.Random) -> None:
        self.engine = Engine(Case(block_size=BLOCK, gpu_blocks=24, host_blocks=0))
        self._pool = self.engine.pool
        self._dice = dice
        self._held: dict[Request, list[Any]] = {}

    def allocate(self) -> None:
        """Some documents, whose blocks are used again where they are, and are computed else."""
        tokens, spans = [9, 9], []
        for number in self._dice.sample(range(1, 6), self._dice.randint(0, 3)):
            spans.append((f"d{number}", len(tokens), len(tokens) + 2 * number))
            tokens += [10 * number] * 2 * number
        tokens += [7] * self._dice.randint(0, 6)  # a question, of no document
        request = self.engine.request(tokens, spans)
        size = -(-len(tokens) // BLOCK)
        hits = []
        for key in request.block_hashes:
            found = self._pool.get_cached_block(key, [0])
            if found is None:
                break
            hits += found
        free = self._pool.get_num_free_blocks() - sum(not block.ref_cnt for block in hits)
        if size - len(hits) > free:
            return
        self.engine.documents.enter(request)
        self._pool.touch(hits)
        new = self._take(size - len(hits))
        full = len(request.block_hashes)
        self._pool.cache_full_blocks(request, hits + new, len(hits), full, BLOCK, 0)
        self._held[request] = hits + new
        self.engine.requests[request.request_id] = request
        self.engine._note_contents()
        for block in new:  # as if it were computed
            key = block.block_hash and block.block_hash[:-4]
            self.engine.worker.gpu[block.block_id] = self.engine.content.get(key, ())

    def _take(self, count: int) -> list[Any]:
        """Blocks without content first, then those of no document, then by the tree."""
        tree = self.engine.documents.tree
        free = [(block, block.block_hash) for block in self._queue.get_all_free_blocks()]
        owned = set(tree.gpu.slots)
        ranks = {
            block.block_id: 0 if key is None else 1 if key[:-4] not in owned else 2
            for block, key in free
        }
        others = [block for block, _ in free if ranks[block.block_id] < 2][:count]
        new: list[Any] = self._pool.get_new_blocks(count)
        assert new[: len(others)] == others
        assert [ranks[block.block_id] for block in new] == sorted(
            ranks[block.block_id] for block in new
        )
        check_gpu_tier(self.engine)  # what stays can be reached: leaves went first
        return new

    @property
    def _queue(self) -> DocumentFreeQueue:
        queue: DocumentFreeQueue = self._pool.free_block_queue
        return queue

    def free(self) -> None:
        """A request ends."""
        if self._held:
            request = self._dice.choice(list(self._held))
            self._pool.free_blocks(reversed(self._held.pop(request)))
            self.engine.documents._leave([request.request_id])

    def take_one(self) -> None:
        """A block that is given back without content."""
        if self._pool.get_num_free_blocks():
            block = self._queue.popleft()
            self._pool._maybe_evict_cached_block(block)
            self._queue.prepend_n([block])

    def reset(self) -> None:
        """vLLM refuses while blocks are in use."""
        assert self.engine.scheduler.reset_prefix_cache() == (not self._held)


@settings(max_examples=40, deadline=None)
@given(st.randoms(use_true_random=False))
def test_every_block_is_in_one_place_and_goes_in_its_turn(dice: random.Random) -> None:
    pool = Pool(dice)
    deeds = {pool.allocate: 50, pool.free: 40, pool.take_one: 5, pool.reset: 5}
    for deed in dice.choices(list(deeds), list(deeds.values()), k=60):
        deed()
        check(pool.engine)


def test_an_empty_queue_gives_nothing() -> None:
    pool = Engine(Case(gpu_blocks=4)).pool
    queue = pool.free_block_queue
    assert len(queue.popleft_n(3)) == 3
    assert queue.popleft_n(0) == []
    with pytest.raises(ValueError, match="No free blocks"):
        queue.popleft()


# The waiting queue


def test_it_does_all_that_a_queue_must() -> None:
    assert not CacheAwareRequestQueue.__abstractmethods__


def test_who_was_shown_is_who_comes_although_the_cache_changes() -> None:
    engine = Engine(Case(max_num_seqs=1))
    document = list(range(100, 108))
    engine.ask(document, [("cached", 0, 8)])
    running = engine.add(list(range(200, 208)), [("other", 0, 8)])
    engine.step()
    engine.add(list(range(300, 308)), [("first", 0, 8)])
    cached = engine.add([*document, 1], [("cached", 0, 8)])
    waiting = engine.scheduler.waiting
    assert waiting.peek_request() is cached
    taken = engine.pool.get_new_blocks(engine.pool.get_num_free_blocks())
    assert engine.documents._cached_blocks(cached) == 0
    assert waiting.peek_request() is cached
    assert waiting.pop_request() is cached
    waiting.prepend_requests([cached])
    engine.pool.free_blocks(taken)
    assert not running.is_finished()
    engine.run()


# The check on start-up


class Lacking:
    """Another object, without what stands at the end of a path."""

    def __init__(self, real: Any, path: str) -> None:
        self._real, (self._name, _, self._rest) = real, path.partition(".")

    def __getattr__(self, name: str) -> Any:
        value = getattr(self._real, name)
        if name != self._name:
            return value
        if not self._rest:
            raise AttributeError(name)
        return Lacking(value, self._rest)


def ours(caplog: pytest.LogCaptureFixture) -> list[logging.LogRecord]:
    return [
        record
        for record in caplog.records
        if record.name.startswith("ragcache_integrations.engine.in_vllm")
    ]


@pytest.mark.parametrize("path", _scheduler._RELIED_UPON)
def test_what_is_missing_is_named(path: str) -> None:
    scheduler = make_scheduler(Case(cache=None))
    assert unsupported(scheduler) is None
    reason = unsupported(Lacking(scheduler, path))
    assert reason == f"this version of vLLM has no {path} in its scheduler"


def test_an_operation_that_is_new_is_named_and_the_scheduler_stays_vllm_s(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(FreeKVCacheBlockQueue, "swap", lambda self: None, raising=False)
    with caplog.at_level(logging.WARNING, logger="ragcache_integrations"):
        engine = Engine(Case(host_blocks=8))
    (record,) = ours(caplog)
    reason = "this version of vLLM has unknown operations on free blocks: ['swap']"
    assert record.getMessage() == f"the knowledge tree is off: {reason}"
    assert engine.scheduler.fallback_reason == reason
    assert engine.documents is None
    assert type(engine.pool.free_block_queue) is FreeKVCacheBlockQueue
    request = engine.ask(list(range(100, 108)), [("d", 0, 8)])
    assert request.num_output_tokens > 0


@pytest.mark.parametrize(
    ("case", "words"),
    [
        (Case(prefix_caching=False), "prefix caching is off"),
        (Case(specs=(CHUNKED,)), r"the model's layers need of a prompt \(ChunkedLocalAttention"),
        (
            Case(specs=(FullAttentionSpec, CHUNKED)),
            r"the model's layers need of a prompt \(ChunkedLocalAttention",
        ),
        (
            Case(specs=(linear, FullAttentionSpec)),
            "keeps their states where a step of the",
        ),
    ],
)
def test_a_model_that_does_not_suit_is_refused_with_the_reason(
    case: Case, words: str, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING, logger="ragcache_integrations"):
        scheduler = make_scheduler(case)
    assert scheduler.documents is None
    (record,) = ours(caplog)
    assert re.search(words, record.getMessage())


def test_the_scheduler_can_be_sent_to_another_process() -> None:
    kind = scheduler_class(CacheSettings(policy="lru", reorder_window=None), asynchronous=True)
    assert repr(pickle.loads(pickle.dumps(kind))) == repr(kind)


# The host tier's connector


def connector(case: Case, role: KVConnectorRole) -> DocumentConnector:
    return DocumentConnector(case.config(), role, case.memory())


@pytest.mark.parametrize(
    "shape",
    [
        (24, 2, 4, 16),  # as vLLM 0.32 and most others have it
        (2, 24, 4, 2, 8),  # keys and values first
        (72, 2, 4, 8),  # each block cut into three
        (2, 72, 4, 2, 8),
    ],
)
def test_blocks_come_back_as_they_went_in_every_layout(shape: tuple[int, ...]) -> None:
    case = Case(gpu_blocks=24, host_blocks=6)
    worker = connector(case, KVConnectorRole.WORKER)
    layers = {name: torch.rand(shape).transpose(-1, -2) for name in ("one", "two")}
    before = {name: layer.clone() for name, layer in layers.items()}
    worker.register_kv_caches(layers)
    worker.handle_preemptions(Transfers(out=[(3, 5), (7, 0)]))
    for layer in layers.values():
        layer.zero_()
    worker.bind_connector_metadata(Transfers(back=[(0, 11), (5, 4)]))
    worker.start_load_kv(None)
    dimension = shape.index(next(size for size in shape if size % 24 == 0))
    cut = shape[dimension] // 24
    for name, layer in layers.items():
        now, then = (at.movedim(dimension, 0) for at in (layer, before[name]))
        for source, target in ((7, 11), (3, 4)):
            of, to = (
                slice(cut * source, cut * (source + 1)),
                slice(cut * target, cut * (target + 1)),
            )
            assert torch.equal(now[to], then[of])
        assert torch.count_nonzero(now) == torch.count_nonzero(now[cut * 4 : cut * 5]) * 2


def test_a_layout_that_it_does_not_know_is_refused() -> None:
    worker = connector(Case(host_blocks=1), KVConnectorRole.WORKER)
    with pytest.raises(RuntimeError, match=r"no dimension of 24 blocks .* \(5, 7\)"):
        worker.register_kv_caches({"layer": torch.zeros(5, 7)})


class Waits:
    """Records who waits for copies."""

    def __init__(self) -> None:
        self.calls: list[Any] = []

    def read_back(self, slots: Any, blocks: Any) -> None:
        self.calls.append("read")

    def wait(self, layer: str | None = None) -> None:
        self.calls.append(layer)


@pytest.mark.parametrize(
    ("attention", "mode", "drafts", "early"),
    [
        ({"layer": None}, CUDAGraphMode.NONE, 0, False),
        ({"layer": None}, CUDAGraphMode.PIECEWISE, 0, False),
        ({"layer": None}, CUDAGraphMode.FULL, 0, True),
        ({}, CUDAGraphMode.NONE, 0, True),
        (None, CUDAGraphMode.NONE, 0, True),  # so Model Runner V2 calls before a full graph
        # The draft model runs before the end, and may be a graph of its own.
        ({"layer": None}, CUDAGraphMode.PIECEWISE, 2, True),
    ],
)
def test_a_pass_that_does_not_call_for_each_layer_waits_before_it_starts(
    attention: Any, mode: CUDAGraphMode, drafts: int, early: bool
) -> None:
    worker = connector(Case(host_blocks=6, drafts=drafts), KVConnectorRole.WORKER)
    copies = worker._copies = Waits()  # type: ignore[assignment]  # a double
    worker.bind_connector_metadata(Transfers(back=[(0, 11)]))
    worker.start_load_kv(SimpleNamespace(attn_metadata=attention, cudagraph_runtime_mode=mode))
    assert copies.calls == (["read", None] if early else ["read"])
    worker.wait_for_layer_load("layer")
    worker.wait_for_save()
    assert copies.calls[-2:] == ["layer", None], "and never later than the end of the pass"


def test_a_real_pass_calls_as_the_connector_expects() -> None:
    source = inspect.getsource(attention_layer)
    assert "@maybe_transfer_kv_layer\ndef unified_attention_with_output(" in source
    assert {"attn_metadata", "cudagraph_runtime_mode"} <= set(ForwardContext.__annotations__)


def test_it_takes_no_memory_where_the_tree_is_off() -> None:
    worker = connector(Case(host_blocks=8, prefix_caching=False), KVConnectorRole.WORKER)
    worker.register_kv_caches({"layer": torch.zeros(5, 7)})
    assert worker._copies is None
    worker.handle_preemptions(Transfers())
    worker.bind_connector_metadata(Transfers())
    worker.start_load_kv(None)


@pytest.mark.parametrize("reuse", ["prefix", "anywhere"])
def test_sleep_mode_is_refused(reuse: str) -> None:
    """It gives the GPU's memory away, with the blocks of which there are copies."""
    assert not DocumentConnector.supports_sleep_mode(None)
    config = Case(host_blocks=8).config()
    config.kv_transfer_config = connector_config(CacheSettings(host_cache_gib=1, reuse=reuse))
    config.model_config.enable_sleep_mode = True
    if hasattr(KVConnectorBase_V1, "supports_sleep_mode"):  # older versions do not ask
        with pytest.raises(ValueError, match="DocumentConnector does not support sleep mode"):
            config._verify_kv_transfer_compat()


def test_it_may_lose_what_it_holds() -> None:
    assert not connector(Case(host_blocks=1), KVConnectorRole.SCHEDULER).requires_kv_delivery


def test_pipeline_parallelism_is_refused() -> None:
    case = Case(host_blocks=8)
    config = case.config()
    config.parallel_config.pipeline_parallel_size = 2
    with pytest.raises(ValueError, match="does not work with pipeline parallelism"):
        DocumentConnector(config, KVConnectorRole.SCHEDULER, case.memory())


def test_its_size_is_counted_over_all_workers() -> None:
    memory = Case().memory()
    gib = 12 * block_bytes(memory) / (1 << 30)
    assert host_blocks(gib, memory, workers=1) == 12
    assert host_blocks(gib, memory, workers=4) == 3
    with pytest.raises(ValueError, match="must hold at least one block"):
        host_blocks(gib, memory, workers=13)


def test_prompts_that_are_not_computed_in_chunks_are_not_reused_anywhere() -> None:
    """One that needs all tokens of a step would wait for ever: rows have a share of each."""
    config, memory = Case().config(), Case().memory()
    assert unsuited_for_reuse(config, memory) is None
    config.scheduler_config.enable_chunked_prefill = False
    assert "in chunks" in str(unsuited_for_reuse(config, memory))
    assert unsuited_for_files(config, memory) is None


@pytest.mark.parametrize("specs", [(SLIDING,), (FullAttentionSpec, SLIDING)])
def test_a_model_with_windows_is_on_disk_and_reused_anywhere_within_them(specs: Any) -> None:
    case = Case(specs=specs)
    assert unsuited_for_files(case.config(), case.memory()) is None
    assert unsuited_for_reuse(case.config(), case.memory()) is None
    assert longest_reused(case.memory()) == 8
    assert longest_reused(Case().memory()) is None


# The driver


def test_why_a_request_fails_is_passed_on() -> None:
    engine = Engine(Case())
    request = engine.request([7, 7, 7], grammar=True)
    grammar: Any = request.structured_output_request
    grammar.grammar = ValueError("no such rule")
    engine.scheduler.add_request(request)
    plan = engine.scheduler.schedule()
    outputs = engine.scheduler.update_from_output(plan, engine.worker.execute(plan, {}))
    (output,) = outputs[0].outputs
    assert output.finished
    said = {request.request_id: (FailureKind.INVALID, "Invalid structured outputs: no such rule")}
    assert errors_of([output]) == (said if hasattr(output, "error") else {})


class Refusing:
    """A stand-in for vLLM's engine, which says why a request failed only from version 0.33 on."""

    def __init__(self, error: Any) -> None:
        step = SimpleNamespace(outputs=[SimpleNamespace(request_id="7.1-0a1b", error=error)])
        self.engine_core = SimpleNamespace(get_output=lambda: step)

    def step(self) -> list[Any]:
        self.engine_core.get_output()
        completion = SimpleNamespace(finish_reason="error")
        return [SimpleNamespace(request_id="7.1", finished=True, outputs=[completion])]


@pytest.mark.parametrize(
    ("error", "kind", "words"),
    [
        (None, FailureKind.OTHER, "vLLM ended it with an error"),
        (SimpleNamespace(code="paused", message="asleep"), FailureKind.OTHER, "asleep"),
        (SimpleNamespace(code="validation_error", message="bad"), FailureKind.INVALID, "bad"),
    ],
)
def test_the_application_hears_why_a_request_failed(
    error: Any, kind: FailureKind, words: str
) -> None:
    vllm: Any = VLLM.__new__(VLLM)
    vllm._engine = Refusing(error)
    vllm._documents = None
    vllm._running, vllm._names = {"7.1": _Running(7, 1, SamplingOptions())}, {7: "7.1"}
    vllm._note_errors()
    assert vllm.step() == (RequestFailed(7, kind, words, 1),)
