"""Golden feedback: off the user's path, within its budget, and only when there is nothing else."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from ragcache_integrations.adaptive import (
    AdaptivePipeline,
    HeuristicProfiler,
    LLMProfiler,
    ModelAnswer,
    ModelRequest,
)
from ragcache_integrations.adaptive.pipeline import GOLDEN_CONFIG
from ragcache_integrations.adaptive.resources import Resources
from ragcache_integrations.core.prompt import PromptDocument
from ragcache_integrations.errors import ConfigurationError, EngineDeadError

from .askers import ScriptedAsker, said
from .test_pipeline import CHUNKS, JOINT, QUESTION, Memory, aretrieve, make, retrieve


def golden_pipeline(
    memory: Memory | None = None, **settings: Any
) -> tuple[AdaptivePipeline, ScriptedAsker, LLMProfiler]:
    asker = ScriptedAsker(lambda request: said("Purring heals."))
    profiles = ScriptedAsker(lambda request: ModelAnswer(JOINT.answer))
    profiler = LLMProfiler(profiles)
    return make(profiler, memory or Memory(), asker, **settings), asker, profiler


def test_every_third_question_teaches_the_profiler() -> None:
    pipeline, asker, profiler = golden_pipeline(golden_every=3, golden_token_budget=10**6)
    golden = pipeline.golden
    assert golden is not None
    fetched: list[int] = []

    def find(question: str, count: int) -> Sequence[PromptDocument]:
        fetched.append(count)
        return CHUNKS[:count]

    for number in range(1, 7):
        before = len(asker.requests)
        answer = pipeline.answer(f"{QUESTION} {number}", find)
        assert golden.join(60)
        calls = len(asker.requests) - before - answer.cost.calls
        # 30 chunks summarised and one reduction, unless it is none of the golden ones.
        assert calls == (GOLDEN_CONFIG.num_chunks + 1 if number % 3 == 0 else 0)
        assert answer.explanation.found == (30 if number % 3 == 0 else 18)
        assert answer.explanation.config.num_chunks <= 6
    assert fetched == [18, 18, 30] * 2
    assert [example.question for example in profiler.examples] == [f"{QUESTION} 3", f"{QUESTION} 6"]
    assert profiler.examples[0].profile == JOINT
    assert golden.spent_tokens > 0


def test_golden_feedback_keeps_to_its_budget() -> None:
    pipeline, asker, profiler = golden_pipeline(golden_every=1, golden_token_budget=100)
    assert pipeline.golden is not None
    answer = pipeline.answer(QUESTION, retrieve)
    assert pipeline.golden.join(60)
    assert len(asker.requests) == answer.cost.calls
    assert profiler.examples == ()


def test_golden_feedback_waits_until_there_is_nothing_else_to_do() -> None:
    memory = Memory()
    memory.load = replace(memory.load, running_requests=1)
    pipeline, asker, profiler = golden_pipeline(memory, golden_every=1)
    assert pipeline.golden is not None
    calls = pipeline.answer(QUESTION, retrieve).cost.calls
    assert not pipeline.golden.join(0.3)
    assert len(asker.requests) == calls
    memory.load = replace(memory.load, running_requests=0)
    assert pipeline.golden.join(60)
    assert len(profiler.examples) == 1


def test_closing_ends_what_waits_for_its_turn() -> None:
    memory = Memory()
    memory.load = replace(memory.load, waiting_requests=1)
    pipeline, _, profiler = golden_pipeline(memory, golden_every=1)
    assert pipeline.golden is not None
    pipeline.answer(QUESTION, retrieve)
    pipeline.close()
    assert pipeline.golden.join(60)
    asyncio.run(pipeline.aclose())
    assert not pipeline.golden.start(QUESTION, CHUNKS)
    assert profiler.examples == ()


def test_closing_ends_it_after_the_call_that_is_under_way() -> None:
    golden_calls = 0

    def answer(request: ModelRequest) -> ModelAnswer:
        nonlocal golden_calls
        golden_calls += "Summarise" in request.prompt.messages[-1].text
        if golden_calls == 3:
            pipeline.close()
        return said("Purring heals.")

    profiler = LLMProfiler(ScriptedAsker(lambda request: ModelAnswer(JOINT.answer)))
    pipeline = make(profiler, Memory(), ScriptedAsker(answer), golden_every=1)
    golden = pipeline.golden
    assert golden is not None
    assert golden.start(QUESTION, CHUNKS)
    assert golden.join(60)
    assert golden_calls == 3
    assert golden.spent_tokens > 0
    assert profiler.examples == ()


def test_questions_of_other_tenants_teach_nothing() -> None:
    pipeline, own, profiler = golden_pipeline(golden_every=1)
    assert pipeline.golden is not None
    others = ScriptedAsker(lambda request: said("Purring heals."))
    others.namespace = "another tenant"
    pipeline.answer("What does the secret document say?", retrieve, others)
    assert pipeline.golden.join(60)
    asyncio.run(pipeline.aanswer("What does the secret document say?", aretrieve, others))
    assert pipeline.golden.join(60)
    assert own.requests == []
    assert list(profiler.examples) == []
    others.namespace = ""
    pipeline.answer(QUESTION, retrieve, others)
    assert pipeline.golden.join(60)
    assert [example.question for example in profiler.examples] == [QUESTION]


def test_golden_feedback_that_breaks_harms_nobody() -> None:
    def answer(request: ModelRequest) -> ModelAnswer:
        if "Summarise" in request.prompt.messages[-1].text:
            msg = "gone"
            raise EngineDeadError(msg)
        return said("yes")

    profiler = LLMProfiler(ScriptedAsker(lambda request: ModelAnswer(JOINT.answer)))
    pipeline = make(profiler, Memory(), ScriptedAsker(answer), golden_every=1)
    assert pipeline.golden is not None
    for _ in range(3):
        assert pipeline.answer(QUESTION, retrieve).text == "yes"
        assert pipeline.golden.join(60)
    assert profiler.examples == ()


def test_only_a_profiler_that_learns_is_taught() -> None:
    with pytest.raises(ConfigurationError, match="LLMProfiler"):
        make(HeuristicProfiler(), Memory(), golden_every=30)


def test_without_a_load_source_other_answers_go_first() -> None:
    pipeline, asker, profiler = golden_pipeline(golden_every=2)
    pipeline._make_resources = lambda: Resources(None)
    assert pipeline.golden is not None
    other = pipeline.stream(QUESTION, retrieve)
    next(other)  # being answered
    calls = pipeline.answer(QUESTION, retrieve).cost.calls
    assert not pipeline.golden.join(0.3)
    assert len(asker.requests) == calls
    other.close()
    assert pipeline.golden.join(60)
    assert len(profiler.examples) == 1


def test_what_breaks_down_or_tells_no_usage_is_charged_all_the_same() -> None:
    def answer(request: ModelRequest) -> ModelAnswer:
        if "Summarise" in request.prompt.messages[-1].text:
            msg = "gone"
            raise EngineDeadError(msg)
        return said("yes")

    profiler = LLMProfiler(ScriptedAsker(lambda request: ModelAnswer(JOINT.answer)))
    pipeline = make(profiler, Memory(), ScriptedAsker(answer), golden_every=1)
    golden = pipeline.golden
    assert golden is not None
    pipeline.answer(QUESTION, retrieve)
    assert golden.join(60)
    assert golden.spent_tokens == golden._cost(QUESTION, CHUNKS[: GOLDEN_CONFIG.num_chunks])

    pipeline, *_ = golden_pipeline(golden_every=1)
    golden = pipeline.golden
    assert golden is not None
    pipeline.answer(QUESTION, retrieve)
    assert golden.join(60)
    usage = said("Purring heals.").usage
    assert usage is not None
    calls = GOLDEN_CONFIG.num_chunks + 1
    assert golden.spent_tokens > calls * usage.total_tokens  # the review told no usage


def test_a_review_that_tells_no_usage_is_charged_with_its_instructions() -> None:
    asker = ScriptedAsker(lambda request: said("Purring heals."))
    profiles = ScriptedAsker(lambda request: ModelAnswer(JOINT.answer))
    pipeline = make(LLMProfiler(profiles), Memory(), asker, golden_every=1)
    golden = pipeline.golden
    assert golden is not None
    assert golden.start(QUESTION, CHUNKS)
    assert golden.join(60)
    usage = said("Purring heals.").usage
    assert usage is not None
    (review,) = profiles.requests
    told = len(asker.requests) * usage.total_tokens
    assert golden.spent_tokens >= told + profiles.count_prompt(review.prompt)


def test_a_budget_that_does_not_reach_for_the_instructions_is_not_touched() -> None:
    chunks = CHUNKS[: GOLDEN_CONFIG.num_chunks]
    texts = sum(len(chunk.text) for chunk in chunks)
    summaries = 2 * len(chunks) * GOLDEN_CONFIG.summary_tokens
    pipeline, asker, _ = golden_pipeline(
        golden_every=1, golden_token_budget=texts + summaries + 1000
    )
    golden = pipeline.golden
    assert golden is not None
    assert golden.start(QUESTION, chunks)
    assert golden.join(60)
    assert asker.requests == []
    assert golden.spent_tokens == 0
