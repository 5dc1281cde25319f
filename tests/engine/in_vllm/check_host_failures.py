"""A host tier that fails costs computations, and no wrong block is ever left for anybody."""

from __future__ import annotations

import contextlib
import pickle
from collections import Counter
from typing import Any

import pytest
import torch
from vllm.distributed.kv_transfer.kv_connector.v1.base import KVConnectorRole
from vllm.v1.outputs import KVConnectorOutput
from vllm.v1.request import RequestStatus

from ragcache_integrations.engine.in_vllm import connector as _connector
from ragcache_integrations.engine.in_vllm.connector import DocumentConnector, Failures, Transfers
from ragcache_integrations.engine.in_vllm.unread import RequestsLeftError
from tests.engine.in_vllm.invariants import check_at_rest
from tests.engine.in_vllm.simulation import Case, Engine
from tests.engine.in_vllm.traffic import SHAPES, Specs, Traffic

SEEDS = 120


# With vLLM's real scheduler


@pytest.mark.parametrize("asynchronous", [False, True])
@pytest.mark.parametrize("specs", [None, *SHAPES])
def test_random_traffic_over_a_tier_that_fails_reads_what_it_should(
    specs: Specs | None, asynchronous: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_connector, "FAILED_STEPS_TOLERATED", 10_000)
    total: Counter[str] = Counter()
    seeds = SEEDS // 6 if specs else SEEDS
    for seed in range(seeds):
        traffic = Traffic(seed, asynchronous=asynchronous, specs=specs)
        engine = traffic.engine
        engine.worker.copies_fail = 0.3
        with contextlib.ExitStack() as stack:
            if asynchronous:  # the engine would be started again
                stack.enter_context(contextlib.suppress(RequestsLeftError))
            total["ended"] += 1
            traffic.run()
            total["ended"] -= 1
        if engine.scheduler.connector is not None:
            total["failed"] += engine.documents.host_failures[0]
        total["swap_ins"] += engine.documents.stats().swap_ins
        total["given up"] += sum(
            request.status == RequestStatus.FINISHED_ERROR for request in traffic.engine.ended
        )
    for what in ("failed", "swap_ins", "given up"):
        assert total[what] >= (1 if specs else 10), f"too few {what} to have tried them"
    assert total["ended"] < seeds / 2


def swapped_out(case: Case) -> tuple[Engine, list[int], list[tuple[str, int, int]]]:
    """An engine with a document on the host, and a prompt with that document."""
    engine = Engine(case)
    document, spans = list(range(100, 108)), [("d", 0, 8)]
    engine.ask([*document, 1], spans)
    engine.ask([7] * (case.block_size * (case.gpu_blocks - 1) - 1), max_tokens=1)
    assert engine.documents.stats().swap_outs >= 2
    return engine, [*document, 1], spans


def test_two_who_share_what_cannot_be_read_leave_nothing_wrong() -> None:
    engine, tokens, spans = swapped_out(Case(host_blocks=20))
    engine.worker.copies_fail = 1.0
    both = [engine.add([*tokens, *range(20, 30), number], spans) for number in (50, 51)]
    engine.step()
    assert [request.status for request in both] == [RequestStatus.FINISHED_ERROR] * 2
    for request in both:
        assert engine.documents.unread.take(request.request_id)
        assert not engine.documents.unread.take(request.request_id)
    assert engine.documents.host_failures == (2, "back")
    engine.worker.copies_fail = 0.0
    read = engine.documents.stats().swap_ins
    again = engine.ask([*tokens, *range(20, 30), 50], spans)
    assert again.status == RequestStatus.FINISHED_STOPPED
    assert engine.documents.stats().swap_ins == read, "what was not readable is not read again"


@pytest.mark.parametrize("specs", SHAPES)
def test_with_windows_whoever_comes_after_what_could_not_be_read_is_ended_too(
    specs: Specs,
) -> None:
    """In the same step, whatever of the first one's blocks it still has."""
    engine = Engine(Case(gpu_blocks=11 * len(specs) + 1, host_blocks=60, specs=specs))
    document, spans = list(range(100, 108)), [("d", 0, 8)]
    engine.ask([*document, 1], spans)
    engine.ask([7] * 43, max_tokens=1)
    assert engine.documents.stats().swap_outs >= 2
    engine.worker.copies_fail = 1.0
    both = [engine.add([*document, *range(20, 32), number], spans) for number in (50, 51)]
    engine.step()
    stats = engine.documents.stats()
    assert (stats.documents_hit_host, stats.documents_hit_gpu) == (1, 1)
    assert [request.status for request in both] == [RequestStatus.FINISHED_ERROR] * 2
    assert all(engine.documents.unread.take(request.request_id) for request in both)
    engine.worker.copies_fail = 0.0
    again = engine.ask([*document, *range(20, 32), 51], spans)
    assert again.status == RequestStatus.FINISHED_STOPPED
    check_at_rest(engine)


def test_a_tier_that_fails_again_and_again_is_left_alone(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(_connector, "FAILED_STEPS_TOLERATED", 3)
    engine, tokens, spans = swapped_out(Case(host_blocks=60))
    engine.worker.copies_fail = 1.0
    for number in range(8):
        engine.ask([*range(200 + 20 * number, 216 + 20 * number), 1], [("e", 0, 16)])
        engine.ask([7] * 91, max_tokens=1)
    connector: Any = engine.scheduler.connector
    assert connector.disabled
    assert "has failed too often and is disabled" in caplog.text
    engine.worker.copies_fail = 0.0
    engine.ask(tokens, spans)
    assert engine.documents.stats().swap_ins == 0


# The connector by itself


def connector(role: KVConnectorRole) -> DocumentConnector:
    case = Case(gpu_blocks=24, host_blocks=6)
    return DocumentConnector(case.config(), role, case.memory())


def worker() -> tuple[DocumentConnector, torch.Tensor]:
    made = connector(KVConnectorRole.WORKER)
    layer = torch.arange(24 * 8, dtype=torch.float32).reshape(24, 2, 4)
    made.register_kv_caches({"one": layer.clone(), "two": layer})
    return made, layer


def load(side: DocumentConnector, *back: tuple[int, int]) -> set[int]:
    side.bind_connector_metadata(Transfers(back=list(back)))
    side.start_load_kv(None)
    return side.get_block_ids_with_load_errors()


def spoil(side: DocumentConnector, *, on_host: bool, writeable: bool = False) -> None:
    """The second of two layers can't be written: the first was, by then."""
    copies: Any = side._copies
    pair = [array.view() for array in copies._parts[1]]
    pair[on_host].flags.writeable = writeable
    copies._parts[1] = (pair[0], pair[1])


def test_what_was_not_copied_is_not_read() -> None:
    side, layer = worker()
    spoil(side, on_host=True)
    side.handle_preemptions(Transfers(out=[(3, 5), (4, 2)]))
    failures = side.build_connector_worker_meta()
    assert failures is not None
    assert (failures.slots, failures.blocks) == ({2, 5}, 2)
    assert "read-only" in failures.error
    assert side.build_connector_worker_meta() is None
    before = layer.clone()
    assert load(side, (5, 11)) == {11}
    assert load(side) == set()
    assert torch.equal(layer, before)
    spoil(side, on_host=True, writeable=True)
    side.handle_preemptions(Transfers(out=[(3, 5)]))  # another block takes the place
    assert load(side, (5, 11)) == set()


def test_what_could_not_be_read_is_told() -> None:
    side, _ = worker()
    side.handle_preemptions(Transfers(out=[(3, 5), (4, 2)]))
    assert side.build_connector_worker_meta() is None
    spoil(side, on_host=False)
    assert load(side, (5, 11), (2, 12)) == {11, 12}
    failures = side.build_connector_worker_meta()
    assert failures is not None
    assert failures.slots == {2, 5}


def test_without_memory_nothing_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    side = connector(KVConnectorRole.WORKER)
    side.host_blocks = 1 << 60
    side.register_kv_caches({"one": torch.zeros(24, 2, 4)})
    side.handle_preemptions(Transfers(out=[(3, 5)]))
    failures = side.build_connector_worker_meta()
    assert failures is not None
    assert "there was no memory for it" in failures.error
    assert load(side, (5, 11)) == {11}


def test_what_the_workers_say_is_put_together_and_understood() -> None:
    one, other = Failures({1}, 1, "first"), Failures({2, 3}, 2)
    both = pickle.loads(pickle.dumps(one.aggregate(other)))
    assert (both.slots, both.blocks, both.error) == ({1, 2, 3}, 3, "first")
    side = connector(KVConnectorRole.SCHEDULER)
    side.update_connector_output(KVConnectorOutput(kv_connector_worker_meta=both))
    side.update_connector_output(KVConnectorOutput())
    assert (side._bad, side.failed_blocks, side.last_error) == ({1, 2, 3}, 3, "first")
