"""The engine's whole interface, on real vLLM with the tiny model."""

from __future__ import annotations

import asyncio
import gc
import json
import math
import threading
from dataclasses import replace
from enum import StrEnum
from types import MappingProxyType
from typing import Any

import pytest

from ragcache_integrations.engine import (
    Generation,
    Prompt,
    PromptDocument,
    RAGCacheEngine,
    SamplingOptions,
)
from ragcache_integrations.errors import (
    ConfigurationError,
    GenerationTimeoutError,
    PromptTooLongError,
)
from ragcache_integrations.resources import load_passages
from tests.support.waiting import wait_until

pytestmark = pytest.mark.engine

SHORT = SamplingOptions(max_tokens=6)
LONG = SamplingOptions(max_tokens=4000, ignore_eos=True)
SYSTEM = "Answer from the documents."


def question(number: int, documents: int = 3) -> Prompt:
    passages = load_passages()[number * documents : (number + 1) * documents]
    return Prompt.rag(
        f"what is document {number} about?",
        [PromptDocument(passage.text, passage.id) for passage in passages],
        system=SYSTEM,
    )


def idle(engine: RAGCacheEngine) -> bool:
    load = engine.load()
    return (load.running_requests, load.waiting_requests) == (0, 0)


def test_generate_answers_and_tells_what_it_took(engine: RAGCacheEngine) -> None:
    engine.reset_cache()
    prompt = question(0)
    cold = engine.generate(prompt, SHORT)
    warm = engine.generate(prompt, SHORT)
    assert len(cold.token_ids) == 6
    assert cold.finish_reason == "length"
    assert cold.usage.prompt_tokens == len(engine.render(prompt).token_ids)
    assert cold.usage.completion_tokens == 6
    assert cold.usage.cached_tokens == 0
    assert warm.text == cold.text
    full_blocks = (cold.usage.prompt_tokens - 1) // engine.block_size * engine.block_size
    assert warm.usage.cached_tokens == full_blocks > 0
    assert warm.usage.total_tokens == cold.usage.prompt_tokens + 6


def test_a_shared_leading_document_is_reused(engine: RAGCacheEngine) -> None:
    engine.reset_cache()
    texts = [passage.text for passage in load_passages()[:20]]
    head = " ".join(texts[:4])
    first = Prompt.rag("why?", [head, texts[10]], system=SYSTEM)
    other = Prompt.rag("how?", [head, texts[11]], system=SYSTEM)
    engine.generate(first, SHORT)
    cached = engine.generate(other, SHORT).usage.cached_tokens
    assert cached == engine.render(other).documents[0].end // engine.block_size * engine.block_size
    assert cached > 0


def test_streaming_yields_what_generate_returns(engine: RAGCacheEngine) -> None:
    prompt = question(1)
    whole = engine.generate(prompt, SHORT)
    chunks = list(engine.stream(prompt, SHORT))
    assert len(chunks) == 6
    assert "".join(chunk.text for chunk in chunks) == whole.text
    assert chunks[0].usage is not None
    assert chunks[0].usage.cached_tokens > 0
    assert [chunk.usage for chunk in chunks[1:-1]] == [None] * 4
    assert chunks[-1].usage is not None
    assert chunks[-1].usage.completion_tokens == 6
    assert [chunk.finish_reason for chunk in chunks] == [None] * 5 + ["length"]


def test_a_stream_remembers_what_was_read(engine: RAGCacheEngine) -> None:
    prompt = question(1)
    with engine.stream(prompt, SHORT) as stream:
        next(stream)
        assert stream.result().text == engine.generate(prompt, SHORT).text


async def test_the_async_twins_agree(engine: RAGCacheEngine) -> None:
    prompts = [question(number) for number in range(4)]
    expected = [engine.generate(prompt, SHORT).text for prompt in prompts]
    assert [(await engine.agenerate(prompt, SHORT)).text for prompt in prompts] == expected
    streamed = []
    for prompt in prompts:
        async with await engine.astream(prompt, SHORT) as stream:
            streamed.append("".join([chunk.text async for chunk in stream]))
    assert streamed == expected
    assert [g.text for g in await engine.agenerate_batch(prompts, SHORT)] == expected
    assert [g.text for g in engine.generate_batch(prompts, SHORT)] == expected


def test_log_probabilities(engine: RAGCacheEngine) -> None:
    generation = engine.generate(question(2), SamplingOptions(max_tokens=4, logprobs=3))
    assert len(generation.logprobs) == 4
    for token, token_id in zip(generation.logprobs, generation.token_ids, strict=True):
        assert token.token_id == token_id
        assert token.top[0].token_id == token_id  # greedy takes the likeliest
        assert token.logprob == token.top[0].logprob < 0
        assert len(token.top) == 3
        assert sorted((other.logprob for other in token.top), reverse=True) == [
            other.logprob for other in token.top
        ]
        assert math.fsum(math.exp(other.logprob) for other in token.top) < 1
    assert "".join(token.token for token in generation.logprobs) == generation.text
    chosen_alone = engine.generate(question(2), SamplingOptions(max_tokens=4, logprobs=0))
    assert [token.top for token in chosen_alone.logprobs] == [()] * 4
    assert engine.generate(question(2), SHORT).logprobs == ()


def test_a_stop_string_ends_the_answer(engine: RAGCacheEngine) -> None:
    prompt = question(3)
    text = engine.generate(prompt, SamplingOptions(max_tokens=12)).text
    stop = text[len(text) // 2 :][:3]
    stopped = engine.generate(prompt, SamplingOptions(max_tokens=12, stop=(stop,)))
    assert stopped.finish_reason == "stop"
    assert stopped.text == text[: text.index(stop)]


def test_a_seed_makes_sampling_repeatable(engine: RAGCacheEngine) -> None:
    def sample(seed: int) -> str:
        options = SamplingOptions(max_tokens=12, temperature=1.5, seed=seed)
        return engine.generate(question(4), options).text

    assert sample(1) == sample(1)
    assert len({sample(seed) for seed in range(5)}) > 1


def test_json_schema_and_choice_constrain_the_answer(engine: RAGCacheEngine) -> None:
    schema = {
        "type": "object",
        "properties": {"grade": {"enum": ["low", "high"]}, "sure": {"type": "boolean"}},
        "required": ["grade", "sure"],
        "additionalProperties": False,
    }
    options = SamplingOptions(max_tokens=60, json_schema=schema, stop=("}",))
    answer = json.loads(engine.generate(question(5), options).text + "}")
    assert answer["grade"] in {"low", "high"}
    assert isinstance(answer["sure"], bool)
    choice = SamplingOptions(choice=("certainly", "never"))
    assert engine.generate(question(5), choice).text in choice.choice


class Tenant(StrEnum):
    """Of this module, which the engine's process does not know."""

    ADA = "ada"


def test_what_the_engines_process_does_not_know_reaches_it_as_plain_parts(
    engine: RAGCacheEngine,
) -> None:
    engine.reset_cache()
    prompt = Prompt.rag("why?", [PromptDocument("Because. " * 40, Tenant.ADA)])
    plain = engine.generate(prompt, SHORT, namespace="ada")
    again = engine.generate(prompt, replace(SHORT, stop=(Tenant.ADA,)), namespace=Tenant.ADA)
    assert again.usage.cached_tokens > plain.usage.cached_tokens
    schema = MappingProxyType({"type": "object", "properties": MappingProxyType({})})
    engine.generate(prompt, replace(SHORT, json_schema=schema))
    assert engine.stats().restarts == 0


def test_prefill_fills_the_cache(engine: RAGCacheEngine) -> None:
    engine.reset_cache()
    prompt = question(6)
    usage = engine.prefill(prompt)
    assert (usage.completion_tokens, usage.cached_tokens) == (0, 0)
    assert engine.generate(prompt, SHORT).usage.cached_tokens > 0


async def test_prefill_fills_the_cache_asynchronously(engine: RAGCacheEngine) -> None:
    await engine.areset_cache()
    prompt = question(6)
    assert (await engine.aprefill(prompt)).cached_tokens == 0
    assert (await engine.agenerate(prompt, SHORT)).usage.cached_tokens > 0


def test_a_namespace_shares_no_cache_with_another(engine: RAGCacheEngine) -> None:
    engine.reset_cache()
    prompt = question(7)
    mine = engine.generate(prompt, SHORT, namespace="mine")
    assert engine.generate(prompt, SHORT, namespace="mine").usage.cached_tokens > 0
    yours = engine.generate(prompt, SHORT, namespace="yours")
    assert yours.usage.cached_tokens == 0
    assert engine.generate(prompt, SHORT).usage.cached_tokens == 0
    assert yours.text == mine.text


def test_load_counts_cached_blocks_as_free(engine: RAGCacheEngine) -> None:
    wait_until(lambda: idle(engine))
    engine.generate(question(8), SHORT)
    resting = engine.load()
    assert resting.free_kv_tokens == resting.total_kv_tokens == engine.total_kv_tokens
    with engine.stream(question(8), LONG) as stream:
        next(stream)
        busy = engine.load()
        assert busy.running_requests == 1
        assert busy.free_kv_tokens <= resting.free_kv_tokens - stream.prompt_tokens
    wait_until(lambda: idle(engine))
    assert engine.load().free_kv_tokens == resting.free_kv_tokens


async def test_load_asynchronously(engine: RAGCacheEngine) -> None:
    assert (await engine.aload()).total_kv_tokens == engine.total_kv_tokens


def test_the_cache_is_not_emptied_under_a_request(engine: RAGCacheEngine) -> None:
    with engine.stream(question(8), LONG) as stream:
        next(stream)
        assert engine.reset_cache() is False
    wait_until(lambda: idle(engine))
    assert engine.reset_cache() is True


def test_stats_count_every_request_once(engine: RAGCacheEngine) -> None:
    wait_until(lambda: idle(engine))
    before = engine.stats()
    used = engine.generate(question(9), SHORT).usage
    with engine.stream(question(9), LONG) as stream:
        next(stream)
    with pytest.raises(ConfigurationError):
        engine.generate(question(9), SamplingOptions(json_schema={"type": "nonsense"}))
    after = engine.stats()
    assert after.requests - before.requests == 3
    assert after.finished_requests - before.finished_requests == 1
    assert after.aborted_requests - before.aborted_requests == 1
    assert after.failed_requests - before.failed_requests == 1
    assert after.prompt_tokens - before.prompt_tokens == used.prompt_tokens
    assert after.cached_prompt_tokens - before.cached_prompt_tokens == used.cached_tokens
    assert after.completion_tokens - before.completion_tokens == 6


# Giving up


def test_leaving_dropping_and_aborting_end_the_request(engine: RAGCacheEngine) -> None:
    def leave() -> None:
        with engine.stream(question(10), LONG) as stream:
            next(stream)

    def drop() -> None:
        next(engine.stream(question(10), LONG))
        gc.collect()

    def abort() -> None:
        stream = engine.stream(question(10), LONG)
        next(stream)
        stream.abort()
        stream.abort()
        assert list(stream) == []
        assert stream.result().finish_reason == "abort"
        assert len(stream.result().token_ids) == 1

    for give_up in (leave, drop, abort):
        give_up()
        wait_until(lambda: idle(engine))
    assert not engine._process.exchange._pending


def test_another_thread_may_abort(engine: RAGCacheEngine) -> None:
    stream = engine.stream(question(10), LONG)
    threading.Timer(0.2, stream.abort).start()
    assert len(list(stream)) < 4000
    wait_until(lambda: idle(engine))


def test_an_aborted_request_leaves_its_full_blocks(engine: RAGCacheEngine) -> None:
    engine.reset_cache()
    prompt = question(11)
    with engine.stream(prompt, LONG) as stream:
        next(stream)
    assert engine.generate(prompt, SHORT).usage.cached_tokens > 0


def test_a_timeout_aborts(engine: RAGCacheEngine) -> None:
    with pytest.raises(GenerationTimeoutError, match=r"within 0\.3 s"):
        engine.generate(question(12), LONG, timeout=0.3)
    wait_until(lambda: idle(engine))


async def test_a_timeout_aborts_asynchronously(engine: RAGCacheEngine) -> None:
    with pytest.raises(GenerationTimeoutError, match=r"within 0\.3 s"):
        await engine.agenerate(question(12), LONG, timeout=0.3)
    await asyncio.to_thread(wait_until, lambda: idle(engine))


async def test_cancelling_aborts(engine: RAGCacheEngine) -> None:
    task = asyncio.create_task(engine.agenerate(question(12), LONG))
    await asyncio.sleep(0.3)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    await asyncio.to_thread(wait_until, lambda: idle(engine))


def test_an_event_loop_closed_under_us_costs_only_its_own_request(engine: RAGCacheEngine) -> None:
    loop = asyncio.new_event_loop()

    async def start() -> Any:
        stream = await engine.astream(question(12), LONG)
        await anext(stream)
        return stream

    stream = loop.run_until_complete(start())
    loop.run_until_complete(loop.shutdown_default_executor())
    loop.close()
    wait_until(lambda: idle(engine))  # noticed without anybody reading
    assert engine.generate(question(12), SHORT).finish_reason == "length"
    del stream


def test_a_failing_batch_aborts_the_rest(engine: RAGCacheEngine) -> None:
    with pytest.raises(PromptTooLongError):
        engine.generate_batch([question(13), Prompt.rag("word " * 9000)], LONG)
    with pytest.raises(GenerationTimeoutError):
        engine.generate_batch([question(13), question(14)], LONG, timeout=0.5)
    wait_until(lambda: idle(engine))


async def test_a_failing_batch_aborts_the_rest_asynchronously(engine: RAGCacheEngine) -> None:
    with pytest.raises(GenerationTimeoutError):
        await engine.agenerate_batch([question(13), question(14)], LONG, timeout=0.5)
    await asyncio.to_thread(wait_until, lambda: idle(engine))


# Bad input


def test_a_prompt_longer_than_the_context(engine: RAGCacheEngine) -> None:
    with pytest.raises(PromptTooLongError, match="at most 8191 are allowed") as caught:
        engine.generate(Prompt.rag("word " * 9000))
    assert caught.value.prompt_tokens is not None
    assert caught.value.prompt_tokens > 8191 == caught.value.max_prompt_tokens


def test_the_longest_prompt_still_gets_a_token(engine: RAGCacheEngine) -> None:
    room = engine.max_model_len - 1
    unit = engine.tokenize(" word")
    fixed = len(engine.render(Prompt.raw(" word")).token_ids) - len(unit)
    prompt = Prompt.raw(" word" * ((room - fixed) // len(unit)))
    generation = engine.generate(prompt, SamplingOptions(max_tokens=50, ignore_eos=True))
    assert generation.finish_reason == "length"
    assert generation.usage.total_tokens <= engine.max_model_len


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"options": {"max_tokens": 3}}, "options must be SamplingOptions, got dict"),
        ({"namespace": 3}, "namespace must be a string, got 3"),
        ({"timeout": 0}, "timeout must be a number of seconds above 0"),
        ({"timeout": float("nan")}, "timeout must be a number of seconds above 0"),
        ({"timeout": "3"}, "timeout must be a number of seconds above 0"),
    ],
)
def test_bad_arguments(engine: RAGCacheEngine, arguments: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigurationError, match=said):
        engine.generate(question(0), **arguments)


def test_vllm_refuses_an_impossible_schema(engine: RAGCacheEngine) -> None:
    with pytest.raises(ConfigurationError, match="vLLM refuses the request"):
        engine.generate(question(0), SamplingOptions(json_schema={"type": "nonsense"}))
    assert engine.generate(question(0), SHORT).finish_reason == "length"


def test_wrong_constructor_arguments_start_nothing() -> None:
    with pytest.raises(ConfigurationError, match="kv_cache_gib must be a number above 0"):
        RAGCacheEngine(kv_cache_gib=0)
    with pytest.raises(ConfigurationError, match=r"unknown argument 'kv_cache'.*'kv_cache_gib'"):
        RAGCacheEngine(kv_cache=3)  # type: ignore[call-overload] # bad input is the point
    with pytest.raises(TypeError, match=r"RAGCacheEngine\(\) too many positional arguments"):
        RAGCacheEngine("model", 3)  # type: ignore[call-overload] # bad input is the point


# Sharing


def test_many_threads_and_loops_share_it(engine: RAGCacheEngine) -> None:
    answers: dict[int, Generation] = {}
    errors: list[BaseException] = []

    def ask(number: int) -> None:
        options = SamplingOptions(choice=(f"answer {number}", f"answer {number}!"))
        try:
            if number % 2:
                answers[number] = engine.generate(question(number % 7), options)
            else:
                answers[number] = asyncio.run(engine.agenerate(question(number % 7), options))
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=ask, args=(number,)) for number in range(24)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not errors
    assert all(answers[number].text.rstrip("!") == f"answer {number}" for number in range(24))
