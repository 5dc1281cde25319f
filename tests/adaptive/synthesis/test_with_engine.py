"""Synthesis on the real engine: tokens counted, KV caches shared."""

from __future__ import annotations

import asyncio
from contextlib import aclosing

import pytest

from ragcache_integrations.adaptive import (
    EngineAsker,
    ModelRequest,
    Synthesis,
    SynthesisConfig,
    Synthesised,
    SynthesisSettings,
    astream_synthesis,
    asynthesise,
    stream_synthesis,
    synthesise,
)
from ragcache_integrations.adaptive.synthesis import DEFAULT_PROMPTS, mean_logprob
from ragcache_integrations.engine import Prompt, PromptDocument, RAGCacheEngine, SamplingOptions
from ragcache_integrations.errors import ConfigurationError
from ragcache_integrations.resources import load_passages

pytestmark = pytest.mark.engine

QUESTION = "who got the first nobel prize in physics"
CHUNKS = [
    # Several blocks of the KV cache each.
    PromptDocument(f"{passage.text} " * 3, passage.id)
    for passage in load_passages()[:4]
]
METHODS: tuple[Synthesis, ...] = ("stuff", "map_reduce", "map_rerank")
every_method = pytest.mark.parametrize("method", METHODS)


@pytest.fixture
def asker(engine: RAGCacheEngine, request: pytest.FixtureRequest) -> EngineAsker:
    return EngineAsker(engine, SamplingOptions(max_tokens=8), namespace=request.node.name)


def config(method: Synthesis) -> SynthesisConfig:
    return SynthesisConfig(method, 4, 9 if method == "map_reduce" else None)


def prompts_of(result: Synthesised) -> list[Prompt]:
    """What must have been asked for these steps, written down once more."""
    prompts = []
    for step in result.steps:
        read = [CHUNKS[place] for place in step.chunks]
        if step.kind == "answer":
            prompts.append(DEFAULT_PROMPTS.stuff(QUESTION, read))
        elif step.kind == "summary":
            prompts.append(DEFAULT_PROMPTS.map(QUESTION, read, 9))
        elif step.kind == "candidate":
            prompts.append(DEFAULT_PROMPTS.rerank(QUESTION, read))
        else:
            said = [PromptDocument(one.text) for one in result.steps[:-1] if one.text]
            prompts.append(DEFAULT_PROMPTS.combine(QUESTION, said))
    return prompts


@every_method
def test_token_and_call_counts_are_the_papers(
    engine: RAGCacheEngine, asker: EngineAsker, method: Synthesis
) -> None:
    before = engine.stats()
    result = synthesise(asker, QUESTION, CHUNKS, config(method))
    after = engine.stats()
    assert after.requests - before.requests == result.calls
    assert result.calls == {"stuff": 1, "map_reduce": 5, "map_rerank": 4}[method]
    expected = [len(engine.render(prompt).token_ids) for prompt in prompts_of(result)]
    counted = [step.usage.prompt_tokens for step in result.steps if step.usage is not None]
    assert counted == expected
    assert result.usage is not None
    assert result.usage.prompt_tokens == sum(expected)
    assert after.prompt_tokens - before.prompt_tokens == sum(expected)
    assert after.completion_tokens - before.completion_tokens == result.usage.completion_tokens
    for step in result.steps:
        assert step.usage is not None
        # Twelve tokens make nine words.
        assert step.usage.completion_tokens <= (12 if step.kind == "summary" else 8)


def test_a_prompt_takes_its_parts_and_no_more(engine: RAGCacheEngine, asker: EngineAsker) -> None:
    """Packing adds up what stands in a prompt: the sum must be what the engine counts."""
    frame = asker.count_prompt(DEFAULT_PROMPTS.stuff(QUESTION, ()))
    behind = asker.count_tokens("\n\n")
    whole = asker.count_prompt(DEFAULT_PROMPTS.stuff(QUESTION, CHUNKS))
    parts = frame + sum(asker.count_tokens(chunk.text) + behind for chunk in CHUNKS)
    assert whole <= parts <= whole + 2


def test_a_chunk_is_found_by_every_method(engine: RAGCacheEngine, asker: EngineAsker) -> None:
    first = synthesise(asker, QUESTION, CHUNKS, config("map_rerank"))
    again = synthesise(asker, "why is that so", CHUNKS, config("map_reduce"))
    stuffed = synthesise(asker, "where was it", CHUNKS, config("stuff"))
    for step in [*again.steps[:-1], *stuffed.steps]:
        assert step.usage is not None
        prefix = len(engine.render(Prompt.rag("x", [CHUNKS[step.chunks[0]]])).token_ids)
        # All of the chunk but what does not fill a block.
        assert step.usage.cached_tokens >= prefix - 2 * 128
        assert step.usage.cached_tokens > 0
    assert first.calls == 4


@every_method
def test_every_way_gives_the_same_answer(asker: EngineAsker, method: Synthesis) -> None:
    async def both() -> tuple[Synthesised, list[str | Synthesised]]:
        whole = await asynthesise(asker, QUESTION, CHUNKS, config(method))
        stream = astream_synthesis(asker, QUESTION, CHUNKS, config(method))
        async with aclosing(stream) as pieces:
            return whole, [piece async for piece in pieces]

    plain = synthesise(asker, QUESTION, CHUNKS, config(method))
    awaited, astreamed = asyncio.run(both())
    streamed = list(stream_synthesis(asker, QUESTION, CHUNKS, config(method)))
    for result in (awaited, streamed[-1], astreamed[-1]):
        assert isinstance(result, Synthesised)
        assert result.text == plain.text
        assert result.citations == plain.citations
        assert result.confidence == pytest.approx(plain.confidence, abs=1e-4)
        assert result.usage is not None
        assert plain.usage is not None
        assert result.usage.total_tokens == plain.usage.total_tokens
    for said in (streamed[:-1], astreamed[:-1]):
        assert "".join(map(str, said)).strip() == plain.text
        assert method == "map_rerank" or len(said) > 1


def test_confidence_is_the_models_own(engine: RAGCacheEngine, asker: EngineAsker) -> None:
    result = synthesise(asker, QUESTION, CHUNKS, config("map_rerank"))
    options = SamplingOptions(max_tokens=8, logprobs=0)
    for prompt, step in zip(prompts_of(result), result.steps, strict=True):
        answer = engine.generate(prompt, options)
        assert step.confidence == pytest.approx(mean_logprob(answer.logprobs), abs=1e-4)
    found = [step for step in result.steps if step.found]
    assert result.confidence == max(step.confidence or 0.0 for step in found or result.steps)


def test_a_small_window_is_kept_to(engine: RAGCacheEngine, asker: EngineAsker) -> None:
    settings = SynthesisSettings(context_window=300)
    for method in METHODS:
        result = synthesise(asker, QUESTION, CHUNKS, config(method), settings)
        assert result.left_out or result.shortened
        for step in result.steps:
            assert step.usage is not None
            assert step.usage.prompt_tokens + 8 <= 300


def test_closing_a_stream_aborts_the_request(engine: RAGCacheEngine, asker: EngineAsker) -> None:
    before = engine.stats().aborted_requests
    request = ModelRequest(Prompt.rag("go on", [CHUNKS[0]]), max_tokens=2000)
    stream = asker.stream(request)
    next(stream)
    stream.close()
    assert engine.stats().aborted_requests == before + 1


def test_only_an_engine_will_do() -> None:
    with pytest.raises(ConfigurationError, match="engine must be a RAGCacheEngine, got str"):
        EngineAsker("engine")
