"""A warm cache changes nothing but the time.

In ``float32`` a hit may still move a log-probability in its last digits, because it changes where
vLLM cuts the prompt into chunks; with a bfloat16 model stock vLLM itself differs by more.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from ragcache_integrations.engine import (
    Generation,
    Prompt,
    PromptDocument,
    RAGCacheEngine,
    SamplingOptions,
)
from ragcache_integrations.resources import load_passages, load_questions
from tests.support.sizes import scaled

pytestmark = [pytest.mark.engine, pytest.mark.timeout(900)]

GREEDY = SamplingOptions(max_tokens=10, logprobs=1, ignore_eos=True)
TOLERANCE = 1e-5


def prompts(count: int) -> list[Prompt]:
    """Questions over four passages each; neighbours share their first two."""
    passages = load_passages()
    questions = load_questions()
    result = []
    for number in range(count):
        shared = 2 * (number // 2)
        chosen = [shared, shared + 1, 300 + 2 * number, 301 + 2 * number]
        result.append(
            Prompt.rag(
                questions[number].text,
                [PromptDocument(passages[i].text, passages[i].id) for i in chosen],
                system="Answer from the documents.",
            )
        )
    return result


def cold(engine: RAGCacheEngine, prompt: Prompt) -> Generation:
    assert engine.reset_cache()
    generation = engine.generate(prompt, GREEDY)
    assert generation.usage.cached_tokens == 0
    return generation


def differs(one: Generation, other: Generation) -> bool:
    drift = abs(one.logprobs[0].logprob - other.logprobs[0].logprob)
    return one.token_ids != other.token_ids or drift > TOLERANCE


def test_warm_answers_equal_cold_ones(engine: RAGCacheEngine) -> None:
    asked = prompts(scaled(40))
    answers = [cold(engine, prompt) for prompt in asked]
    assert len({answer.token_ids for answer in answers}) >= 0.9 * len(asked), (
        "the model must tell them apart"
    )

    engine.reset_cache()
    partly = [engine.generate(prompt, GREEDY) for prompt in asked]  # neighbours' documents
    fully = [engine.generate(prompt, GREEDY) for prompt in asked]  # what the first pass left

    for number, (before, some, most) in enumerate(zip(answers, partly, fully, strict=True)):
        assert not differs(before, some), number
        assert not differs(before, most), number
        assert most.usage.cached_tokens >= before.usage.prompt_tokens - 2 * engine.block_size
    assert all(some.usage.cached_tokens > 0 for some in partly[1::2]), "documents are shared"


@pytest.fixture
def corruptible(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[tuple[RAGCacheEngine, Path]]:
    trigger = tmp_path / "corrupt"
    monkeypatch.setenv("RAGCACHE_TEST_CORRUPT", str(trigger))
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parent))
    with RAGCacheEngine(
        kv_cache_gib=0.25,
        dtype="float32",
        vllm_args={
            "enforce_eager": True,
            "worker_cls": "corrupting_worker.CorruptingWorker",
        },
    ) as engine:
        yield engine, trigger


def test_altered_blocks_are_noticed(corruptible: tuple[RAGCacheEngine, Path]) -> None:
    engine, trigger = corruptible
    noticed = 0
    for prompt in prompts(10):
        before = cold(engine, prompt)
        assert not differs(before, engine.generate(prompt, GREEDY))
        trigger.touch()
        after = engine.generate(prompt, GREEDY)
        assert not trigger.exists()
        assert after.usage.cached_tokens > 0
        noticed += differs(before, after)
    assert noticed == 10
