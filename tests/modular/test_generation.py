from __future__ import annotations

import asyncio
import inspect
import math
import threading
import time
from functools import cache
from typing import Any

import pytest
import torch
import transformers

from ragcache_integrations.core.generation import Sampling
from ragcache_integrations.core.prompt import PromptRenderer
from ragcache_integrations.engine import Prompt, PromptDocument, SamplingOptions
from ragcache_integrations.engine.tiny_model import default_model_path
from ragcache_integrations.errors import (
    ConfigurationError,
    GenerationTimeoutError,
    PromptTooLongError,
)
from ragcache_integrations.prompts.pml.layout import Assembly, Placed
from ragcache_modular.answers import Answer
from ragcache_modular.engine import ModularEngine
from ragcache_modular.kv import memory
from ragcache_modular.kv.encoding import Cancelled, Patience
from ragcache_modular.kv.plan import plan_assembly
from ragcache_modular.kv.strategies import Epic
from ragcache_modular.model import ModularModel

from .models import documents, make, served

DOCUMENTS = ("The tower was built in 1889.", "It is 330 metres high, naïve readers hear 🗼.")


@cache
def with_text() -> ModularModel:
    """A small model that reads and writes with the bundled tokenizer."""
    tokenizer = transformers.AutoTokenizer.from_pretrained(default_model_path())
    return ModularModel(make("llama", attention="sdpa", vocab_size=len(tokenizer)), tokenizer)


def prompt() -> Assembly:
    return with_text().assemble("Answer in one line.", DOCUMENTS, "How high is it?")


def sampled(**knobs: Any) -> tuple[int, ...]:
    return with_text().generate(prompt(), max_tokens=20, ignore_eos=True, **knobs).token_ids


def test_a_stream_is_the_answer_in_pieces() -> None:
    model = with_text()
    whole = model.generate(prompt(), max_tokens=30, ignore_eos=True, logprobs=2)
    with model.stream(prompt(), max_tokens=30, ignore_eos=True, logprobs=2) as stream:
        chunks = list(stream)
    assert "".join(chunk.text for chunk in chunks) == whole.text
    assert tuple(token for chunk in chunks for token in chunk.token_ids) == whole.token_ids
    assert tuple(logprob for chunk in chunks for logprob in chunk.logprobs) == whole.logprobs
    assert [chunk.finish_reason for chunk in chunks] == [None] * 29 + ["length"]
    assert chunks[0].usage is not None
    assert chunks[-1].usage == whole.usage
    assert whole.usage.completion_tokens == 30
    assert whole.usage.cached_tokens == len(whole_prompt()) - len(model.tokenize("How high is it?"))
    assert (whole.strategy, whole.recomputed_share) == ("prompt_cache", 0.0)
    assert whole.ttft > 0
    assert whole.text == model.tokenizer.decode(whole.token_ids, skip_special_tokens=True)


def whole_prompt() -> list[int]:
    ids: list[int] = plan_assembly(prompt()).token_ids.tolist()
    return ids


def test_logprobs_are_those_of_the_logits() -> None:
    model = with_text()
    with model.prefill(prompt()) as prefilled:
        expected = prefilled.logits().float().log_softmax(-1)
        answer = model.generate(prefilled, max_tokens=1, logprobs=3)
    (token,) = answer.logprobs
    assert token.logprob == pytest.approx(float(expected.max()), abs=1e-5)
    assert [one.token_id for one in token.top] == expected.topk(3).indices.tolist()
    assert token.top[0].logprob == token.logprob
    assert token.token == model.tokenizer.decode([token.token_id])


def test_a_stop_string_ends_the_answer_before_it() -> None:
    model = with_text()
    whole = model.generate(prompt(), max_tokens=40, ignore_eos=True).text
    stop = whole[20:26]
    cut = whole[: whole.index(stop)]
    with model.stream(prompt(), max_tokens=40, ignore_eos=True, stop=["zzzz", stop]) as stream:
        texts = [chunk.text for chunk in stream]
        answer = stream.result()
    assert answer.text == "".join(texts) == cut
    assert answer.finish_reason == "stop"
    assert answer.usage.completion_tokens < 40


def test_the_models_own_end_ends_it() -> None:
    model = with_text()
    first = model.generate(prompt(), max_tokens=10, ignore_eos=True).token_ids
    ended = ModularModel(model._parts.decoder.model, model.tokenizer)
    ended._ends = frozenset({first[4]})
    answer = ended.generate(prompt(), max_tokens=10)
    assert answer.token_ids == first[: first.index(first[4]) + 1]
    assert answer.finish_reason == "stop"


def test_sampling_follows_its_seed() -> None:
    one = sampled(temperature=1.0, seed=3)
    assert one == sampled(temperature=1.0, seed=3)
    assert one != sampled(temperature=1.0, seed=4)
    assert one != sampled()


def test_narrow_sampling_is_greedy() -> None:
    greedy = sampled()
    assert sampled(temperature=1.0, seed=1, top_k=1) == greedy
    assert sampled(temperature=1.0, seed=1, top_p=1e-6) == greedy
    assert sampled(temperature=1e-3, seed=1) == greedy


def test_sampled_tokens_have_the_probabilities_of_the_model() -> None:
    model = with_text()
    with model.prefill(prompt()) as prefilled:
        logits = prefilled.logits().float()
        answer = model._answer(prefilled, Sampling(temperature=2.0, top_k=3, seed=1))
    best = logits.topk(3)
    expected = (best.values / 2.0).softmax(-1)
    drawn = torch.tensor([answer._choose(logits) for _ in range(1500)])
    shares = torch.stack([(drawn == token).float().mean() for token in best.indices])
    torch.testing.assert_close(shares, expected, atol=0.05, rtol=0)


@pytest.mark.parametrize("count", [1, 3])
@pytest.mark.slow
def test_without_a_limit_an_answer_goes_on_to_the_last_position(count: int) -> None:
    model = served("llama")
    asked = [documents(model, (20, 20 + number), 5, 1) for number in range(count)]
    answers = model.generate_batch(asked, max_tokens=None, ignore_eos=True)
    for one, answer in zip(asked, answers, strict=True):
        room = len(answer.token_ids)
        assert room > model.max_model_len / 2
        assert (answer.finish_reason, answer.usage.total_tokens) == (
            "length",
            model.max_model_len + 1,
        )
        assert model.generate(one, max_tokens=room, ignore_eos=True).token_ids == answer.token_ids
        with pytest.raises(PromptTooLongError):
            model.generate(one, max_tokens=room + 1)
        with model.prefill(one) as prefilled:
            begun = model.generate(prefilled, max_tokens=5, ignore_eos=True).token_ids
            rest = model.generate(prefilled, max_tokens=None, ignore_eos=True)
        assert begun + rest.token_ids == answer.token_ids


@pytest.mark.parametrize(
    "penalties",
    [
        {"repetition_penalty": 1.3},
        {"frequency_penalty": 1.5},
        {"presence_penalty": -2},
        {"repetition_penalty": 0.8, "frequency_penalty": 0.2, "presence_penalty": 0.1},
    ],
)
@pytest.mark.parametrize("masked", [(), ("d0",)])
def test_penalties_are_those_of_the_formula(
    penalties: dict[str, float], masked: tuple[str, ...]
) -> None:
    model = served("llama")
    asked = documents(model, (20, 20), 5, 1)
    in_prompt = set(
        plan_assembly(asked, masked, ()).token_ids[~plan_assembly(asked, masked, ()).masked]
    )
    repetition = penalties.get("repetition_penalty", 1.0)
    said: list[int] = []
    with model.prefill(asked, masked=masked) as prefilled:
        logits = prefilled.logits()
        for _ in range(24):
            scores = logits.tolist()
            for token, score in enumerate(scores):
                if token in in_prompt or token in said:
                    scores[token] = score / repetition if score > 0 else score * repetition
                scores[token] -= said.count(token) * penalties.get("frequency_penalty", 0.0)
                scores[token] -= (token in said) * penalties.get("presence_penalty", 0.0)
            said.append(scores.index(max(scores)))
            logits = prefilled.extend(said[-1:])
    call: Any = {"max_tokens": 24, "ignore_eos": True, **penalties}
    assert model.generate(asked, masked=masked, **call).token_ids == tuple(said)
    plain = model.generate(asked, masked=masked, max_tokens=24, ignore_eos=True)
    assert plain.token_ids != tuple(said)
    if not masked:
        (batched, _) = model.generate_batch([asked] * 2, **call)
        assert batched.token_ids == tuple(said)


def test_characters_of_several_tokens_come_whole() -> None:
    model = with_text()
    text = "naïve 🗼 tower"
    ids = model.tokenize(text)
    with model.prefill(prompt()) as prefilled:
        answer = Answer(prefilled, Sampling(max_tokens=len(ids)), model.tokenizer, ())
    chunks = []
    for token in ids:
        logits = torch.zeros(len(model.tokenizer))
        logits[token] = 1
        chunks.append(answer.take(logits)[1].text)
    assert "".join(chunks) == text
    assert not any("\ufffd" in chunk for chunk in chunks)


async def test_async_twins_give_the_same() -> None:
    model = with_text()
    expected = model.generate(prompt(), "epic", max_tokens=8, ignore_eos=True)
    answer = await model.agenerate(prompt(), "epic", max_tokens=8, ignore_eos=True)
    assert answer.token_ids == expected.token_ids
    stream = await model.astream(prompt(), "epic", max_tokens=8, ignore_eos=True)
    async with stream:
        texts = [chunk.text async for chunk in stream]
    assert "".join(texts) == expected.text
    batch = await model.agenerate_batch([prompt()] * 2, "epic", max_tokens=8, ignore_eos=True)
    assert [one.token_ids for one in batch] == [expected.token_ids] * 2
    with await model.aprefill(prompt(), "epic") as prefilled:
        assert prefilled.about.recomputed_share == expected.recomputed_share
    await model.aencode([])


async def test_the_event_loop_goes_on_meanwhile() -> None:
    model = with_text()
    ticks = 0

    async def tick() -> None:
        nonlocal ticks
        while True:
            ticks += 1
            await asyncio.sleep(0.001)

    ticking = asyncio.create_task(tick())
    await model.agenerate(prompt(), max_tokens=40, ignore_eos=True)
    ticking.cancel()
    assert ticks > 10


async def test_cancelling_ends_the_answer_and_frees_its_buffer() -> None:
    model = ModularModel(make("llama", attention="sdpa"))
    task = asyncio.create_task(
        model.agenerate(documents(model, (20, 20), 5, 1), max_tokens=500, ignore_eos=True)
    )
    await asyncio.sleep(0.2)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    until = time.monotonic() + 10
    while not model.stats().buffer_bytes:
        assert time.monotonic() < until
        await asyncio.sleep(0.01)


def test_aborting_from_another_thread_ends_the_iteration() -> None:
    model = served("llama")
    stream = model.stream(documents(model, (20, 20), 5, 1), max_tokens=500, ignore_eos=True)
    next(stream)
    threading.Timer(0.05, stream.abort).start()
    tokens = sum(len(chunk.token_ids) for chunk in stream)
    assert tokens < 499
    assert stream.result().finish_reason == "abort"
    assert list(stream) == []


def test_an_answer_given_up_before_it_began_has_no_result() -> None:
    stream = served("llama").stream(documents(served("llama"), (20,), 5, 1))
    stream.abort()
    with pytest.raises(Cancelled):
        stream.result()


def test_a_timeout_ends_the_answer() -> None:
    model = served("llama")
    with pytest.raises(GenerationTimeoutError, match=r"within 0\.05 s"):
        model.generate(
            documents(model, (20, 20), 5, 1), max_tokens=550, ignore_eos=True, timeout=0.05
        )
    patience = Patience(1e-9)
    time.sleep(0.001)
    with pytest.raises(GenerationTimeoutError):
        patience.check()


def test_one_buffer_serves_prompt_after_prompt(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "STEP", 64)
    model = ModularModel(make("llama", attention="sdpa"))
    asked = documents(model, (20, 20), 5, 1)
    for _ in range(3):
        model.generate(asked, max_tokens=3)
    one = model.stats().buffer_bytes
    assert one == 64 * model.bytes_per_token
    with model.prefill(asked) as prefilled:
        assert model.stats().buffer_bytes == 0
        # More than there is room for: another buffer, the same answer.
        long = model.generate(prefilled, max_tokens=90, ignore_eos=True).token_ids
    assert long == model.generate(asked, max_tokens=90, ignore_eos=True).token_ids
    assert prefilled.closed
    with pytest.raises(ConfigurationError, match="closed"):
        prefilled.extend((3,))


def test_an_answer_is_part_of_what_follows() -> None:
    model = served("llama")
    asked, further = documents(model, (20, 20), 5, 1), (7, 8, 9)
    with model.prefill(asked) as one, model.prefill(asked) as other:
        answer = model.generate(one, max_tokens=6, ignore_eos=True).token_ids
        assert one.next_position == 51
        rest = model.generate(one, max_tokens=4, ignore_eos=True).token_ids
        torch.testing.assert_close(
            one.extend(further), other.extend((*answer, *rest, *further)), atol=2e-3, rtol=1e-3
        )
        assert one.length == other.length == 58
    whole = model.generate(asked, max_tokens=10, ignore_eos=True).token_ids
    assert whole == answer + rest


def test_an_answer_given_up_is_part_of_what_follows_as_far_as_it_came() -> None:
    model = served("llama")
    asked = documents(model, (20, 20), 5, 1)
    whole = model.generate(asked, max_tokens=10, ignore_eos=True).token_ids
    with model.prefill(asked) as prompt:
        stream = model.stream(prompt, max_tokens=10, ignore_eos=True)
        seen = [token for _ in range(3) for token in next(stream).token_ids]
        stream.close()
        rest = model.generate(prompt, max_tokens=10 - len(seen), ignore_eos=True).token_ids
    assert (*seen, *rest) == whole


def test_out_of_time_nothing_is_added() -> None:
    model = served("llama")
    asked = documents(model, (20, 20), 5, 1)
    expected = model.generate(asked, max_tokens=6, ignore_eos=True).token_ids
    late = Patience(1e-9)
    time.sleep(0.001)
    with model.prefill(asked) as prompt:
        length, behind = prompt.length, prompt.next_position
        for _ in range(2):
            with pytest.raises(GenerationTimeoutError):
                prompt.extend((7, 8, 9), late)
            assert (prompt.length, prompt.next_position) == (length, behind)
        first = model.generate(prompt, max_tokens=2, ignore_eos=True).token_ids
        with pytest.raises(GenerationTimeoutError):
            prompt.extend((), late)  # the answer's last token waits to be computed
        rest = model.generate(prompt, max_tokens=4, ignore_eos=True).token_ids
    assert first + rest == expected


def test_an_engine_with_documents_in_its_prompts() -> None:
    model = with_text()
    engine = ModularEngine(model, PromptRenderer(model.tokenizer), strategy=Epic(4))
    asked = Prompt.rag(
        "How high?", [PromptDocument(text) for text in DOCUMENTS], system="Be short."
    )
    options = SamplingOptions(max_tokens=6, ignore_eos=True)
    before = model.stats().store.misses
    answer = engine.generate(asked, options)
    assert model.stats().store.misses == before + 3  # the beginning and two documents
    assert 0 < answer.recomputed_share < 1
    other = Prompt.rag("And when?", [PromptDocument(DOCUMENTS[1])], system="Be short.")
    engine.generate(other, options)
    assert model.stats().store.misses == before + 3
    assert engine.generate(asked, options, namespace="another").token_ids == answer.token_ids
    assert model.stats().store.misses == before + 6
    assert engine.generate_batch([asked, other], options)[0].token_ids == answer.token_ids
    assert engine.prefill(asked).prompt_tokens == answer.usage.prompt_tokens
    exact = ModularEngine(model, PromptRenderer(model.tokenizer), strategy="exact")
    assert exact.generate(asked, options).recomputed_share == 1
    assert [span.id for span in engine.render(asked).documents] == [
        part.module.name for part in engine.assemble(asked).parts[1:] if isinstance(part, Placed)
    ]
    with pytest.raises(ConfigurationError, match="grammar"):
        engine.generate(asked, SamplingOptions(choice=("yes", "no")))


async def test_the_engines_async_twins() -> None:
    model = with_text()
    engine = ModularEngine(model, PromptRenderer(model.tokenizer), strategy="cacheblend")
    asked = Prompt.rag("How high?", DOCUMENTS)
    options = SamplingOptions(max_tokens=6)
    expected = engine.generate(asked, options)
    assert (await engine.agenerate(asked, options)).token_ids == expected.token_ids
    assert (await engine.agenerate_batch([asked], options))[0].token_ids == expected.token_ids
    chunks = [chunk async for chunk in await engine.astream(asked, options)]
    assert "".join(chunk.text for chunk in chunks) == expected.text
    assert (await engine.aprefill(asked)).cached_tokens == engine.prefill(asked).cached_tokens
    assert await engine.areset_cache()


@pytest.mark.parametrize("kind", [ModularModel, ModularEngine])
def test_sync_and_async_go_together(kind: type) -> None:
    methods = dict(inspect.getmembers(kind, inspect.isfunction))
    immediate = {"assemble", "clear", "count_tokens", "render", "stats", "tokenize"}
    immediate |= {"with_strategy"}
    names = {name for name in methods if not name.startswith("_")}
    twins = {name for name in names if f"{name[1:]}" in names and name.startswith("a")}
    assert {f"a{name}" for name in names - twins - immediate} == twins
    for twin in twins:
        sync, other = (inspect.signature(methods[one]) for one in (twin[1:], twin))
        assert sync.parameters == other.parameters, twin


@pytest.mark.parametrize(
    ("knobs", "says"),
    [
        ({"max_tokens": 0}, "max_tokens"),
        ({"temperature": -1}, "temperature"),
        ({"temperature": math.nan}, "temperature"),
        ({"top_p": 0}, "top_p"),
        ({"top_p": 1.5}, "top_p"),
        ({"top_k": 1.5}, "top_k"),
        ({"frequency_penalty": 3}, "frequency_penalty"),
        ({"presence_penalty": math.nan}, "presence_penalty"),
        ({"repetition_penalty": 0}, "repetition_penalty must be a number above 0"),
        ({"stop": [""]}, "stop"),
        ({"logprobs": 21}, "logprobs"),
        ({"seed": "1"}, "seed"),
        ({"maxtokens": 3}, "unknown argument 'maxtokens'"),
    ],
)
def test_sampling_is_checked(knobs: dict[str, Any], says: str) -> None:
    with pytest.raises(ConfigurationError, match=says):
        served("llama").generate(documents(served("llama"), (5,), 3, 1), **knobs)
