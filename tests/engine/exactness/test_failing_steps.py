"""Steps of the model that fail, last for ever, or take too long, and a host tier that fails."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from ragcache_integrations.engine import (
    Prompt,
    PromptDocument,
    RAGCacheEngine,
    SamplingOptions,
)
from ragcache_integrations.errors import EngineDeadError, GenerationTimeoutError
from ragcache_integrations.resources import load_passages

pytestmark = pytest.mark.engine

OPTIONS = SamplingOptions(max_tokens=12, ignore_eos=True)
BLOCKS = 40

Fail = Callable[[str], None]


@pytest.fixture(scope="module")
def trigger(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("failing") / "trigger"


@pytest.fixture(scope="module")
def frail(trigger: Path) -> Iterator[RAGCacheEngine]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RAGCACHE_TEST_FAIL", str(trigger))
        patch.setenv("PYTHONPATH", str(Path(__file__).parent))
        with RAGCacheEngine(
            kv_cache_gib=0.125,
            max_model_len=1024,
            dtype="float32",
            host_cache_gib=0.02,
            restart_window=0,
            step_timeout=6,
            request_timeout=2,
            max_retries=3,
            vllm_args={
                "enforce_eager": True,
                "worker_cls": "failing_worker.FailingWorker",
                "num_gpu_blocks_override": BLOCKS,
                "max_num_seqs": 4,
            },
        ) as engine:
            yield engine


@pytest.fixture
def fail(trigger: Path) -> Iterator[Fail]:
    def write(what: str) -> None:
        trigger.write_text(what)

    yield write
    trigger.unlink(missing_ok=True)


def question(number: int) -> Prompt:
    passage = load_passages()[number]
    return Prompt.rag("what is this about?", [PromptDocument(passage.text, passage.id)])


def test_a_step_that_fails_ends_the_process_and_no_request(
    frail: RAGCacheEngine, fail: Fail, caplog: pytest.LogCaptureFixture
) -> None:
    long = SamplingOptions(max_tokens=300, ignore_eos=True)
    expected = frail.generate(question(1), long)
    stream = frail.stream(question(1), long)
    next(stream)
    fail("raise")
    assert stream.result().token_ids == expected.token_ids
    assert "the device fell off the bus" in caplog.text, "its last words are told"


def test_a_request_that_ends_the_process_takes_no_other_with_it(
    frail: RAGCacheEngine, fail: Fail
) -> None:
    """It is given up when a third process has ended with it; whoever waited beside it is not."""
    # More than run at once, before and behind it. Those before it end one after the other, so that
    # it begins while the rest of them go on.
    lengths = [40, 80, 120, 160, 12, 12, 12, 12]
    others = [
        (number, SamplingOptions(max_tokens=length, ignore_eos=True))
        for number, length in enumerate(lengths)
    ]
    expected = [frail.generate(question(number), options) for number, options in others]
    poison = question(9)
    tokens = len(frail.render(poison).token_ids)
    assert tokens not in {len(frail.render(question(number)).token_ids) for number in range(8)}
    restarts, failed = frail.stats().restarts, frail.stats().failed_requests
    with ThreadPoolExecutor(9) as pool:
        first = [pool.submit(frail.generate, question(n), options) for n, options in others[:4]]
        fail(f"poison {tokens}")
        bad = pool.submit(frail.generate, poison, OPTIONS)
        rest = [pool.submit(frail.generate, question(n), options) for n, options in others[4:]]
        with pytest.raises(EngineDeadError, match=r"ended 3 times in a row .* it was aborted"):
            bad.result(180)
        answers = [one.result(180) for one in [*first, *rest]]
    assert [answer.token_ids for answer in answers] == [one.token_ids for one in expected]
    # Whoever comes next is answered, which waits for the last restart.
    assert frail.generate(question(0), OPTIONS).token_ids == expected[0].token_ids[:12]
    assert frail.stats().restarts == restarts + 3
    assert frail.stats().failed_requests == failed + 1
    assert frail.load().running_requests == 0


def test_a_step_without_an_end_is_a_hang(
    frail: RAGCacheEngine, fail: Fail, caplog: pytest.LogCaptureFixture
) -> None:
    expected = frail.generate(question(2), OPTIONS)
    before = frail.stats().restarts
    fail("sleep")
    # Tried again after request_timeout, too, which the process can't see to before it is replaced.
    assert frail.generate(question(2), OPTIONS).token_ids == expected.token_ids
    assert frail.stats().restarts == before + 1
    assert "it hung: one step took more than 6 s" in caplog.text


def test_a_request_of_which_nothing_comes_is_tried_again(
    frail: RAGCacheEngine, fail: Fail, trigger: Path
) -> None:
    expected = frail.generate(question(3), OPTIONS)
    before = frail.stats()
    fail("slow")
    stream = frail.stream(question(3), OPTIONS)
    deadline = time.monotonic() + 30
    while frail.stats().retried_requests == before.retried_requests:
        assert time.monotonic() < deadline
        time.sleep(0.05)
    trigger.unlink()  # what the step still computes comes too late to count
    answer = stream.result()
    assert answer.token_ids == expected.token_ids
    assert answer.text == expected.text
    after = frail.stats()
    assert after.finished_requests == before.finished_requests + 1
    assert after.restarts == before.restarts


def test_in_the_end_it_is_given_up(frail: RAGCacheEngine, fail: Fail) -> None:
    frail.generate(question(4), OPTIONS)
    fail("slow")
    with pytest.raises(GenerationTimeoutError, match=r"no output for 2 s, 4 times"):
        frail.generate(question(4), OPTIONS)


# The host tier


@pytest.mark.parametrize("what", ["host save", "host load", "host save load"])
def test_a_host_tier_that_fails_costs_computations_and_no_token(
    frail: RAGCacheEngine,
    fail: Fail,
    trigger: Path,
    what: str,
    caplog: pytest.LogCaptureFixture,
) -> None:
    def ask(first: int) -> list[tuple[int, ...]]:
        numbers = [*range(first, first + 18)] * 2
        return [frail.generate(question(number), OPTIONS).token_ids for number in numbers]

    expected = ask(10)
    healthy = frail.stats()
    assert healthy.tree is not None
    assert healthy.tree.swap_ins > 0, "the tier is used"
    fail(what)
    assert ask(10) == expected
    answers = ask(40)
    after = frail.stats()
    assert after.host_tier_failures > healthy.host_tier_failures
    assert after.failed_requests == healthy.failed_requests
    assert after.restarts == healthy.restarts
    assert caplog.text.count("the host tier fails") <= 1
    trigger.unlink()
    os.kill(frail.pid, signal.SIGKILL)  # the next one's tier has not failed yet
    assert ask(40) == answers
