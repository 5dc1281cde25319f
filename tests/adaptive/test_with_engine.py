"""Per-query configuration on the real engine, in a memory that is scarce."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator, Sequence

import pytest
from parts.adaptive.recorded import RecordedProfiler

from ragcache_integrations.adaptive import (
    AdaptiveAnswer,
    AdaptivePipeline,
    AdaptiveSettings,
    EngineAsker,
    LLMProfiler,
    ProfileEstimate,
    PrunedSpace,
    QueryProfile,
    SynthesisConfig,
    SynthesisSettings,
    synthesise,
)
from ragcache_integrations.adaptive.best_fit import (
    BestFit,
    Measures,
    Region,
    Situation,
    pruned_space,
    size,
)
from ragcache_integrations.adaptive.resources import CachedChunks, resources_of
from ragcache_integrations.engine import (
    Prompt,
    PromptDocument,
    RAGCacheEngine,
    SamplingOptions,
)
from ragcache_integrations.resources import load_passages

pytestmark = pytest.mark.engine

QUESTION = "Who got the first Nobel prize in physics?"
SETTINGS = SynthesisSettings(max_tokens=16)
CHUNKS = [
    PromptDocument(passage.text[:400], f"chunk-{number}")
    for number, passage in enumerate(load_passages()[:24])
]


def find(question: str, count: int) -> Sequence[PromptDocument]:
    return CHUNKS[:count]


async def afind(question: str, count: int) -> Sequence[PromptDocument]:
    return CHUNKS[:count]


@pytest.fixture(scope="module")
def small() -> Iterator[RAGCacheEngine]:
    """An engine with room for little more than one long prompt."""
    with RAGCacheEngine(
        kv_cache_gib=0.25,
        max_model_len=4096,
        dtype="float32",
        vllm_args={"enforce_eager": True, "num_gpu_blocks_override": 160, "block_size": 32},
    ) as engine:
        yield engine


def recorded(profile: QueryProfile) -> RecordedProfiler:
    return RecordedProfiler({QUESTION: ProfileEstimate(profile, "recorded", 1.0)})


def pipeline_of(
    engine: RAGCacheEngine, profile: QueryProfile, asker: EngineAsker | None = None
) -> AdaptivePipeline:
    return AdaptivePipeline(
        asker or EngineAsker(engine),
        recorded(profile),
        AdaptiveSettings(),
        SETTINGS,
        resources=lambda: resources_of(engine),
    )


def test_a_profile_takes_a_dozen_tokens_at_most(engine: RAGCacheEngine) -> None:
    profiler = LLMProfiler(EngineAsker(engine), "Articles of Wikipedia.", 200)
    for estimate in (profiler.profile(QUESTION), asyncio.run(profiler.aprofile(QUESTION))):
        # The weights are random, and the grammar holds all the same.
        assert estimate.profile is not None, estimate.problem
        assert estimate.usage is not None
        assert estimate.usage.completion_tokens <= 12
        assert estimate.confidence is not None
        assert 0 <= estimate.confidence <= 1


@pytest.mark.parametrize("joint", [True, False])
def test_what_it_plans_is_what_it_takes(engine: RAGCacheEngine, *, joint: bool) -> None:
    profile = QueryProfile("low", joint_reasoning=joint, pieces=2)
    pipeline = pipeline_of(engine, profile)
    for answer in (
        pipeline.answer(QUESTION, find),
        asyncio.run(pipeline.aanswer(QUESTION, afind)),
    ):
        choice = answer.explanation.choice
        assert choice is not None
        assert choice.config.num_chunks == 6
        assert answer.cost.usage is not None
        assert answer.cost.usage.prompt_tokens == sum(call.prompt for call in choice.plan.calls)
        assert answer.cost.calls == len(choice.plan.calls)


def test_figure_8_stuff_queues_and_map_reduce_starts(small: RAGCacheEngine) -> None:
    """While another request holds much of the memory."""
    asker = EngineAsker(small)
    space = PrunedSpace((Region("stuff", (20, 20)), Region("map_reduce", (20, 20), (30, 30))))
    measures = Measures(asker, SETTINGS)
    sizes = measures.sizes(QUESTION, space)
    lengths = measures.lengths(CHUNKS[:20])
    facts = CachedChunks(small).facts([chunk.id for chunk in CHUNKS[:20]], lengths)
    stuff = SynthesisConfig("stuff", 20)
    stuff_prompt = SETTINGS.prompts.stuff(QUESTION, CHUNKS[:20])
    held = small.total_kv_tokens - size(stuff, facts, sizes).need + small.block_size
    word = small.count_tokens(" word" * 100) / 100
    hog = Prompt.rag("Go on.", [PromptDocument(" word" * int(held / word), "hog")])
    options = SamplingOptions(max_tokens=900, ignore_eos=True)
    with small.stream(hog, options) as holding:
        next(holding)
        free = small.load().free_kv_tokens
        assert free < size(stuff, facts, sizes).need
        choice = BestFit().choose(space, facts, sizes, Situation(free))
        assert choice.config == SynthesisConfig("map_reduce", 20, 30)
        assert choice.reason == "fits"

        with small.stream(stuff_prompt, SamplingOptions(max_tokens=16)):
            waiting = _until_waiting(small)
        assert waiting, "stuff should have queued"

        began = small.load().running_requests
        answer = synthesise(asker, QUESTION, CHUNKS, choice.config, SETTINGS)
        assert answer.calls == 21
        # It has begun and ended, and what held the memory is still there.
        assert began == small.load().running_requests == 1
        holding.abort()


def _until_waiting(engine: RAGCacheEngine) -> bool:
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline:
        load = engine.load()
        if load.waiting_requests == 1 and load.running_requests == 1:
            return True
    return False


def test_with_the_tree_warm_a_latency_budget_reads_more(engine: RAGCacheEngine) -> None:
    engine.reset_cache()
    asker = EngineAsker(engine)
    space = pruned_space(QueryProfile("low", joint_reasoning=True, pieces=6))
    measures = Measures(asker, SETTINGS)
    sizes, lengths = measures.sizes(QUESTION, space), measures.lengths(CHUNKS[:18])
    ids = [chunk.id for chunk in CHUNKS[:18]]
    fit = BestFit(decode_seconds=0.0)
    cold = CachedChunks(engine).facts(ids, lengths)
    nine = size(SynthesisConfig("stuff", 9), cold, sizes)
    budget = fit.seconds(nine, Situation(100_000))
    before = fit.choose(space, cold, sizes, Situation(100_000, budget))
    assert before.config == SynthesisConfig("stuff", 9)
    synthesise(asker, QUESTION, CHUNKS, SynthesisConfig("stuff", 18), SETTINGS)
    warm = CachedChunks(engine).facts(ids, lengths)
    after = fit.choose(space, warm, sizes, Situation(100_000, budget))
    assert after.config.num_chunks > before.config.num_chunks
    assert after.seconds <= budget
    # The tree's lengths are those of the prompt.
    whole = size(SynthesisConfig("stuff", 18), warm, sizes)
    assert 0 <= whole.calls[0].prompt - whole.calls[0].cached < sizes.stuff + 2 * engine.block_size


def test_many_questions_at_once_in_little_memory(small: RAGCacheEngine) -> None:
    profile = QueryProfile("high", joint_reasoning=True, pieces=4, summary_words=(30, 40))
    pipeline = pipeline_of(small, profile)

    async def ask_all() -> list[AdaptiveAnswer]:
        return await asyncio.gather(*(pipeline.aanswer(QUESTION, afind) for _ in range(8)))

    answers = asyncio.run(ask_all())
    choices = [answer.explanation.choice for answer in answers]
    assert all(choice is not None for choice in choices)
    # Not all of them got the most that suits, and none was refused.
    assert len({choice.config.num_chunks for choice in choices if choice is not None}) > 1
    assert pipeline._reservations.idle
    assert small.load().running_requests == small.load().waiting_requests == 0
