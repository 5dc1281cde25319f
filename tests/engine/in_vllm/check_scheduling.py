"""vLLM's scheduler with the knowledge tree, in every state a request can be in."""

from __future__ import annotations

import os
import random
from collections import Counter
from dataclasses import asdict, replace
from typing import Any

import pytest
from vllm.config import VllmConfig
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.kv_cache_interface import FullAttentionSpec
from vllm.v1.request import Request

from ragcache_integrations.core.prompt import STEP_CHARACTERS
from ragcache_integrations.engine.in_vllm.scheduler import FIRST_GROUP
from ragcache_integrations.engine.in_vllm.steps import KNOWN
from ragcache_integrations.engine.protocol import CacheSettings
from tests.engine.in_vllm.invariants import check, check_at_rest
from tests.engine.in_vllm.simulation import Case, Engine, make_scheduler
from tests.engine.in_vllm.traffic import SHAPES, Specs, Traffic

SEEDS = 75
REQUESTS = int(os.environ.get("WINDOWED_REQUESTS", "200"))

DOCUMENT = list(range(100, 108))
SPANS = [("d", 0, 8)]


def cached_blocks(engine: Engine, request: Request) -> int:
    cached = engine.pool.cached_block_hash_to_block.get_one_block
    return sum(cached(key + FIRST_GROUP) is not None for key in request.block_hashes)


def evict_all(engine: Engine) -> None:
    """A request needs all the memory for a moment."""
    case = engine.case
    engine.ask([7] * (case.block_size * (case.gpu_blocks - 1) - 1), max_tokens=1)


@pytest.fixture(params=["0", "1"])
def runner(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """vLLM's two model runners, for which it plans differently; the second is CUDA's default."""
    make_scheduler(Case())  # a CPU's configuration, kept for later, can't be made for the second
    monkeypatch.setenv("VLLM_USE_V2_MODEL_RUNNER", request.param)
    return str(request.param)


@pytest.mark.usefixtures("runner")
@pytest.mark.parametrize("asynchronous", [False, True])
def test_random_traffic_reads_what_it_should_and_loses_nothing(asynchronous: bool) -> None:
    total: Counter[str] = Counter()
    for seed in range(SEEDS):
        traffic = Traffic(seed, asynchronous=asynchronous)
        stats = traffic.run()
        cache = traffic.engine.case.cache
        assert cache is not None
        if cache.reorder_window is not None:
            assert stats.longest_overtaking <= cache.reorder_window
        total.update({name: n for name, n in asdict(stats).items() if isinstance(n, int)})
        total.update(aborts=traffic.aborts, resets=traffic.resets)
    for what in ("preemptions", "swap_ins", "swap_outs", "dropped", "reorderings", "aborts"):
        assert total[what] >= 20, f"too few {what} to have tried them"
    assert total["resets"] >= 10


@pytest.mark.usefixtures("runner")
@pytest.mark.parametrize("asynchronous", [False, True])
@pytest.mark.parametrize("specs", SHAPES)
def test_random_traffic_with_windows_reads_what_it_should_and_loses_nothing(
    specs: Specs, asynchronous: bool
) -> None:
    total: Counter[str] = Counter()
    for seed in range(SEEDS // 15):
        stats = Traffic(seed, asynchronous=asynchronous, specs=specs).run()
        total.update({name: n for name, n in asdict(stats).items() if isinstance(n, int)})
    for what in ("documents_hit_gpu", "gpu_evicted_nodes", "reorderings", "swap_ins"):
        assert total[what], f"too few {what} to have tried them"


@pytest.mark.usefixtures("runner")
@pytest.mark.parametrize("asynchronous", [False, True])
def test_random_traffic_with_steps_reads_what_it_should_and_loses_nothing(
    asynchronous: bool,
) -> None:
    total: Counter[str] = Counter()
    for seed in range(SEEDS):
        traffic = Traffic(seed, asynchronous=asynchronous, steps=True)
        stats = traffic.run()
        total.update(ahead=len(traffic.engine.ahead), aborts=traffic.aborts, resets=traffic.resets)
        total.update(swap_ins=stats.swap_ins, hit=stats.documents_hit_gpu)
    for what in ("ahead", "aborts", "swap_ins", "hit"):
        assert total[what] >= 20, f"too few {what} to have tried them"
    assert total["resets"] >= 10


def test_a_step_of_a_conversation_that_grows_is_no_document_that_changes() -> None:
    engine = Engine(Case(gpu_blocks=60))
    turns = list(range(100, 140))
    for length in (10, 20, 30, 40):
        engine.ask(turns[:length], max_tokens=1, step="a", next_steps=[("a", 1)])
    stats = engine.documents.tree.stats()
    assert stats.documents_hit_gpu == 3, "what its latest two prompts have in common"
    assert stats.changed_documents == 0


def test_a_tenant_with_many_steps_forgets_its_own() -> None:
    engine = Engine(Case(gpu_blocks=60))
    steps = engine.documents._steps._steps
    for name in ("planner", "writer"):
        engine.ask([*DOCUMENT, 5], max_tokens=1, step=name, salt="few")
    for number in range(KNOWN + 5):
        engine.ask([*DOCUMENT, 5], max_tokens=1, step=f"{number}", salt="many")
    assert len(steps) == KNOWN
    assert [name for salt, name in steps if salt == "few"] == ["planner", "writer"]
    assert ("many", "0") not in steps
    assert ("many", f"{KNOWN + 4}") in steps
    engine.ask([*DOCUMENT, 5], max_tokens=1, step="x" * (STEP_CHARACTERS + 1))
    assert len(steps) == KNOWN, "no name that a server's client may not send"
    assert steps.keys() >= {("few", "planner")}


def test_a_step_that_waits_while_the_cache_is_emptied_is_learnt_once() -> None:
    engine = Engine(Case(gpu_blocks=60))
    for question in (1, 2):
        engine.ask([*DOCUMENT, *[question] * 8], step="a")
    waiting = engine.add([*DOCUMENT, *[3] * 8], step="a", next_steps=[("a", 2)])
    assert engine.scheduler.reset_prefix_cache()
    assert engine.documents._steps._steps["", "a"].begins == 2, "not all of its own prompt"
    assert engine.documents.tree.hints.steps(("", "a")) == 2, "with its new path"
    engine.run()
    assert waiting.is_finished()
    assert engine.scheduler.reset_prefix_cache()
    assert len(engine.documents.tree.hints) == 0, "nobody waits who could say it again"
    assert list(engine.documents.tree.nodes()) == []
    assert cached_blocks(engine, engine.ask([*DOCUMENT, 5], max_tokens=1)) == 2
    check_at_rest(engine)


def documents_found(case: Case, *, exponent: float, drift: bool) -> float:
    """The share of documents that a stream of requests finds whole."""
    dice = random.Random(5)
    engine = Engine(case)
    coordinator = engine.scheduler.kv_cache_manager.coordinator
    documents = list(range(40))
    lengths = {number: dice.randint(8, 24) for number in documents}
    weights = [1 / (rank + 1) ** exponent for rank in range(len(documents))]
    found = total = 0
    for number in range(REQUESTS):
        if drift and number % 10 == 0:
            one, other = dice.sample(range(len(documents)), 2)
            documents[one], documents[other] = documents[other], documents[one]
        chosen = dict.fromkeys(dice.choices(documents, weights, k=2))
        tokens, spans = [3] * 4, []
        for name in chosen:
            spans.append((str(name), len(tokens), len(tokens) + lengths[name]))
            tokens += [100 + name] * lengths[name]
        prompt = ([*tokens, 10_000 + number], spans)
        request = engine.request(*prompt)
        hit = coordinator.find_longest_cache_hit(request.block_hashes, len(prompt[0]) - 1)[1]
        engine.ask(*prompt, max_tokens=1)
        total += len(spans)
        found += sum(end // case.block_size * case.block_size <= hit for _, _, end in spans)
    return found / total


@pytest.mark.parametrize("specs", SHAPES[:2])
@pytest.mark.parametrize(
    ("exponent", "drift", "least"), [(1.0, False, 1.15), (1.0, True, 1.0), (0.0, False, 1.0)]
)
def test_with_windows_more_documents_are_found_than_by_stock_vllm(
    specs: Specs, exponent: float, drift: bool, least: float
) -> None:
    case = Case(gpu_blocks=30 + 20 * len(specs), specs=specs, max_num_batched_tokens=512)
    ours = documents_found(case, exponent=exponent, drift=drift)
    stock = documents_found(replace(case, cache=None), exponent=exponent, drift=drift)
    assert ours >= least * stock > 0


AHEAD = "num_hash_lookahead_tokens"
LOOKS_AHEAD = hasattr(VllmConfig, AHEAD)
"""From vLLM 0.33 on, hashes cover tokens behind a block where a draft model needs them."""


# The last shape is left out of the latter: vLLM itself looks for hashes that are not there yet.
SPECULATIVE: list[tuple[Specs | None, int | None]] = [
    *((specs, None) for specs in (None, *SHAPES)),
    *((specs, 3) for specs in (None, *SHAPES[:-1]) if LOOKS_AHEAD),
]


@pytest.mark.parametrize(("specs", "ahead"), SPECULATIVE)
def test_random_traffic_with_eagle_reads_what_it_should(
    specs: Specs | None, ahead: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    if ahead is not None:
        monkeypatch.setattr(VllmConfig, AHEAD, property(lambda _: ahead))
    total: Counter[str] = Counter()
    for seed in range(SEEDS // (15 if specs else 3)):
        # The draft model's layers are a group of their own, or in all of them.
        drafting = len(specs) - 1 if specs and seed % 2 else None
        stats = Traffic(seed, asynchronous=False, drafts=2, specs=specs, drafting=drafting).run()
        total.update({name: n for name, n in asdict(stats).items() if isinstance(n, int)})
    for what in ("documents_hit_gpu", "gpu_evicted_blocks", "preemptions"):
        assert total[what] >= (1 if specs else 5), f"too few {what} to have tried them"


@pytest.mark.parametrize("modules", [1, 3])
@pytest.mark.parametrize("specs", [(FullAttentionSpec,), *SHAPES])
def test_with_eagle_or_mtp_a_document_is_one_node_whatever_follows_it(
    specs: Specs, modules: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """EAGLE looks one token ahead; MTP one for each of its modules, which the tiny model lacks."""
    if LOOKS_AHEAD and modules > 1:
        monkeypatch.setattr(VllmConfig, AHEAD, property(lambda _: modules))
    engine = Engine(Case(gpu_blocks=60 * len(specs), drafts=3, specs=specs))
    assert getattr(engine.scheduler, AHEAD, modules) == modules
    for follower in (200, 300, 200):
        tokens = [*DOCUMENT, *range(follower, follower + 8), 1, 1, 1]
        engine.ask(tokens, [*SPANS, (f"d{follower}", 8, 16)])
    (namespace,) = engine.documents.snapshot().roots
    (document,) = namespace.children
    assert (document.name, document.frequency, document.place) == ("d", 3, "gpu")
    assert [child.frequency for child in document.children] == [2, 1]
    stats = engine.documents.stats()
    # Older versions compute the last block that they find again, because of the draft model.
    assert stats.documents_hit_gpu == (3 if LOOKS_AHEAD else 1)
    assert stats.changed_documents == 0
    check_at_rest(engine)


def test_spoilt_host_copies_are_noticed() -> None:
    engine = Engine(Case(host_blocks=20))
    engine.ask([*DOCUMENT, 1], SPANS)
    evict_all(engine)
    assert engine.documents.stats().swap_outs >= 2
    engine.worker.host = dict.fromkeys(engine.worker.host, (1, 2, 3, 4))
    with pytest.raises(AssertionError, match="the host holds something else"):
        check(engine)
    with pytest.raises(AssertionError, match="the KV cache is wrong at token 0"):
        engine.ask([*DOCUMENT, 1], SPANS)


@pytest.mark.parametrize("asynchronous", [False, True])
def test_documents_are_kept_whenever_vllm_frees_their_blocks(asynchronous: bool) -> None:
    """Asynchronously it waits for the step that it had planned when the answer ended."""
    engine = Engine(Case(host_blocks=20, asynchronous=asynchronous))
    request = engine.ask([*DOCUMENT, 1], SPANS)
    assert engine.documents.tree.gpu.slots.keys() >= set(request.block_hashes[:2])
    (namespace,) = engine.documents.snapshot().roots
    (node,) = namespace.children
    assert (node.name, node.place) == ("d", "gpu")
    check_at_rest(engine)


def test_whoever_waits_through_a_reset_is_still_known() -> None:
    engine = Engine(Case(max_num_seqs=1, cache=CacheSettings(reorder_window=5)))
    engine.add([*range(200, 208), 1], [("other", 0, 8)])
    leader = engine.add([*DOCUMENT, 1], SPANS)
    follower = engine.add([*DOCUMENT, 2], SPANS)
    assert engine.scheduler.reset_prefix_cache()
    engine.add([*range(300, 308), 1], [("another", 0, 8)])
    while not leader.is_finished():
        engine.step()
    engine.step()
    assert follower.num_computed_tokens >= 8
    engine.run()
    assert engine.documents.stats().reorderings == 0
    assert engine.documents.stats().documents_hit_gpu == 1
    check_at_rest(engine)


def test_a_reset_preempts_who_runs_and_forgets_nobody() -> None:
    engine = Engine(Case())
    requests = [engine.add([*DOCUMENT, n], SPANS, ignore_eos=True) for n in range(3)]
    engine.step()
    engine.step()
    assert engine.scheduler.reset_prefix_cache(reset_running_requests=True)
    assert [request.num_preemptions for request in requests] == [1, 1, 1]
    engine.run()
    assert all(request.num_output_tokens == 20 for request in requests)
    check_at_rest(engine)


def test_who_is_preempted_accesses_its_documents_once(runner: str) -> None:
    engine = Engine(Case(gpu_blocks=10))
    second = runner == "1"  # older versions have only the first
    assert getattr(engine.scheduler, "use_v2_model_runner", second) == second
    for number in range(3):
        engine.add([*DOCUMENT, number], SPANS, ignore_eos=True)
    engine.run()
    stats = engine.documents.stats()
    assert stats.preemptions > 0
    assert (stats.requests, stats.documents) == (3, 3)
    check_at_rest(engine)


def test_who_waits_for_a_grammar_lets_others_pass_and_keeps_its_place() -> None:
    engine = Engine(Case(max_num_seqs=1))
    engine.ask([*DOCUMENT, 1], SPANS)
    blocked = engine.add([*DOCUMENT, 2], SPANS, grammar=True)
    free = engine.add([*range(200, 208), 1], [("other", 0, 8)])
    last = engine.add([*range(300, 308), 1], [("another", 0, 8)])
    engine.step()
    assert [blocked.num_computed_tokens, last.num_computed_tokens] == [0, 0]
    assert free.num_computed_tokens > 0
    engine.grammar_ready(blocked)
    while not free.is_finished():
        engine.step()
    engine.step()
    assert blocked.num_computed_tokens > 0
    assert last.num_computed_tokens == 0
    engine.run()
    check_at_rest(engine)


@pytest.mark.parametrize("grammar", [False, True])
def test_who_is_given_up_while_waiting_leaves_nothing(grammar: bool) -> None:
    engine = Engine(Case(max_num_seqs=1))
    running = engine.add([*range(200, 208), 1], [("other", 0, 8)])
    waiting = engine.add([*DOCUMENT, 1], SPANS, grammar=grammar)
    engine.step()
    assert engine.scheduler.get_request_counts() == (1, 1)
    engine.abort(waiting)
    assert engine.scheduler.get_request_counts() == (1, 0)
    engine.run()
    assert running.is_finished()
    check_at_rest(engine)


def test_who_is_not_taken_in_leaves_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = Engine(Case())

    def refuse(*_: Any) -> None:
        raise ValueError("no room for it")

    with monkeypatch.context() as patch:
        patch.setattr(Scheduler, "add_request", refuse)
        with pytest.raises(ValueError, match="no room"):
            engine.scheduler.add_request(engine.request([*DOCUMENT, 1], SPANS))
    assert engine.documents.snapshot().roots == ()
    engine.ask([*DOCUMENT, 1], SPANS)
    check_at_rest(engine)


def test_prompts_in_chunks_are_hits_before_they_are_done() -> None:
    engine = Engine(Case(max_num_batched_tokens=8, max_num_seqs=2))
    text = list(range(100, 130))
    engine.add(text, [("d", 0, 30)])
    engine.step()
    second = engine.add([*text[:12], *range(50, 60)], [("e", 0, 12)])
    assert cached_blocks(engine, second) == 2
    engine.run()
    check_at_rest(engine)


def test_who_is_given_up_in_the_middle_of_a_prompt_leaves_what_was_computed() -> None:
    engine = Engine(Case(max_num_batched_tokens=8))
    text = list(range(100, 130))
    request = engine.add(text, [("d", 0, 30)])
    engine.step()
    engine.abort(request)
    engine.run()
    assert cached_blocks(engine, request) == 2
    assert engine.ask(text, [("d", 0, 30)]).num_output_tokens > 0
    check_at_rest(engine)


def host_hits(engine: Engine, request: Request, computed: int) -> int:
    """Tokens that the host offers behind ``computed`` ones of the GPU's."""
    tokens, asynchronous = engine.scheduler.connector.get_num_new_matched_tokens(request, computed)
    assert asynchronous is False
    assert isinstance(tokens, int)
    return tokens


@pytest.fixture
def swapped_out() -> Engine:
    """Its document is on the host and nowhere else."""
    engine = Engine(Case(host_blocks=20))
    request = engine.ask([*DOCUMENT, 1], SPANS)
    evict_all(engine)
    assert cached_blocks(engine, request) == 0
    return engine


def test_the_host_serves_whole_blocks_but_never_the_last_token(swapped_out: Engine) -> None:
    longer = swapped_out.request([*DOCUMENT, 1, 1], SPANS)
    assert host_hits(swapped_out, longer, 0) == 8
    assert host_hits(swapped_out, longer, 4) == 4
    assert host_hits(swapped_out, longer, 8) == 0
    assert host_hits(swapped_out, swapped_out.request(DOCUMENT, SPANS), 0) == 4


def test_whose_prompt_is_to_be_scored_reads_nothing(swapped_out: Engine) -> None:
    request = swapped_out.request([*DOCUMENT, 1], SPANS, prompt_logprobs=1)
    assert host_hits(swapped_out, request, 0) == 0
    swapped_out.run()
    swapped_out.ask([*DOCUMENT, 1], SPANS, prompt_logprobs=1)
    assert swapped_out.documents.stats().swap_ins == 0


def test_what_the_gpu_has_too_is_not_read_from_the_host(swapped_out: Engine) -> None:
    swapped_out.ask([*DOCUMENT, 1], SPANS)
    assert swapped_out.documents.stats().swap_ins == 2
    again = swapped_out.request([*DOCUMENT, 1], SPANS)
    assert host_hits(swapped_out, again, 0) == 0
    assert host_hits(swapped_out, again, 4) == 0


@pytest.mark.parametrize("kept", [0, 4, 8])
def test_vllm_may_take_less_than_it_was_offered(swapped_out: Engine, kept: int) -> None:
    connector = swapped_out.scheduler.connector
    request = swapped_out.request([*DOCUMENT, 1, 1], SPANS)
    assert host_hits(swapped_out, request, 0) == 8
    manager: Any = swapped_out.scheduler.kv_cache_manager
    blocks = manager.create_kv_cache_blocks((swapped_out.pool.get_new_blocks(3),))
    connector.update_state_after_alloc(request, blocks, kept)
    transfers = connector.build_connector_meta(None)
    assert [block for _, block in transfers.back] == blocks.get_block_ids()[0][: kept // 4]
    assert swapped_out.documents.stats().swap_ins == kept // 4
    assert connector.take_loaded(request.request_id) == kept
    assert connector.build_connector_meta(None).back == []


def test_a_tenant_s_host_copies_serve_nobody_else(swapped_out: Engine) -> None:
    stranger = swapped_out.request([*DOCUMENT, 1], SPANS, salt="tenant")
    assert host_hits(swapped_out, stranger, 0) == 0
