"""A request that goes on behind known tokens says what it would have said in one go.

Every place at which an answer can be cut is tried, without killing anything. Characters of several
tokens, which the tiny model hardly ever says, are cut in ``in_vllm/check_continuation.py``.
"""

from __future__ import annotations

import queue
from dataclasses import replace

import pytest

from ragcache_integrations.engine import (
    GenerationChunk,
    Prompt,
    PromptDocument,
    RAGCacheEngine,
    SamplingOptions,
)
from ragcache_integrations.engine.process.requests import Received
from ragcache_integrations.engine.protocol import Output, Submit

pytestmark = pytest.mark.engine

TOKENS = 24
PROMPTS = [
    Prompt.rag("Was ist größer, 東京 oder Zürich?", [PromptDocument("größer 東京 " * 40, "big")]),
    Prompt.rag("how far is it to the moon?"),
    Prompt.raw("🚀🚀🚀 once upon a time"),
]
GREEDY = SamplingOptions(max_tokens=TOKENS, ignore_eos=True, logprobs=2)


def go_on(
    engine: RAGCacheEngine, prompt: Prompt, options: SamplingOptions, emitted: tuple[int, ...]
) -> list[Output]:
    """What comes of a request of which these tokens had come before."""
    rendered = engine.render(prompt)
    documents = tuple((span.id, span.start, span.end) for span in rendered.documents)
    inbox: queue.SimpleQueue[Received] = queue.SimpleQueue()
    request = Submit(0, rendered.token_ids, options, "", documents, emitted)
    engine._process.exchange.send(engine._process.register(inbox.put, request))
    outputs: list[Output] = []
    while not outputs or outputs[-1].finish_reason is None:
        received = inbox.get(timeout=60)
        assert isinstance(received, Output), received
        outputs.append(received)
    return outputs


def check_every_cut(
    engine: RAGCacheEngine, prompt: Prompt, options: SamplingOptions
) -> list[GenerationChunk]:
    chunks = list(engine.stream(prompt, options))
    for cut in range(1, len(chunks)):
        before, after = chunks[:cut], chunks[cut:]
        emitted = sum((chunk.token_ids for chunk in before), ())
        outputs = go_on(engine, prompt, options, emitted)
        assert sum((output.token_ids for output in outputs), ()) == sum(
            (chunk.token_ids for chunk in after), ()
        )
        assert [output.text for output in outputs] == [chunk.text for chunk in after], cut
        assert [token.token for output in outputs for token in output.logprobs] == [
            token.token for chunk in after for token in chunk.logprobs
        ]
        assert outputs[-1].finish_reason == chunks[-1].finish_reason
        for output, chunk in zip(outputs, after, strict=True):
            for logprob, other in zip(output.logprobs, chunk.logprobs, strict=True):
                assert logprob.logprob == pytest.approx(other.logprob, abs=1e-4)
    return chunks


@pytest.mark.parametrize("prompt", PROMPTS)
def test_wherever_it_is_cut(engine: RAGCacheEngine, prompt: Prompt) -> None:
    chunks = check_every_cut(engine, prompt, GREEDY)
    assert len(chunks) == TOKENS


@pytest.mark.parametrize("prompt", PROMPTS)
def test_a_repetition_penalty_counts_what_came(engine: RAGCacheEngine, prompt: Prompt) -> None:
    chunks = check_every_cut(engine, prompt, replace(GREEDY, repetition_penalty=0.3))
    answer = sum((chunk.token_ids for chunk in chunks), ())
    assert answer != engine.generate(prompt, GREEDY).token_ids


@pytest.mark.parametrize("prompt", PROMPTS)
def test_a_stop_string_that_straddles_the_cut(engine: RAGCacheEngine, prompt: Prompt) -> None:
    text = engine.generate(prompt, GREEDY).text
    middle = len(text) // 2
    stop = next(
        text[at : at + 9] for at in range(middle, len(text)) if text.index(text[at : at + 9]) == at
    )
    chunks = check_every_cut(engine, prompt, replace(GREEDY, stop=(stop, "never to be found")))
    assert chunks[-1].finish_reason == "stop"
    assert "".join(chunk.text for chunk in chunks) == text[: text.index(stop)]


def test_the_last_token_of_the_context_window(engine: RAGCacheEngine) -> None:
    room = engine.max_model_len
    rendered = engine.render(Prompt.raw("a"))
    filler = engine.tokenize(" word")[0]
    inbox: queue.SimpleQueue[Received] = queue.SimpleQueue()
    emitted = (filler,) * (room - 1 - len(rendered.token_ids))
    request = Submit(
        0, rendered.token_ids, replace(GREEDY, max_tokens=room), "", (), emitted=emitted
    )
    engine._process.exchange.send(engine._process.register(inbox.put, request))
    output = inbox.get(timeout=60)
    assert isinstance(output, Output)
    assert (len(output.token_ids), output.finish_reason) == (1, "length")


def test_without_a_limit_it_goes_on_to_the_end_of_the_window(engine: RAGCacheEngine) -> None:
    unlimited = replace(GREEDY, max_tokens=None, logprobs=None)
    prompt = Prompt.raw("a " * (engine.max_model_len - 40))
    room = engine.max_model_len - len(engine.render(prompt).token_ids)
    chunks = list(engine.stream(prompt, unlimited))
    answer = sum((chunk.token_ids for chunk in chunks), ())
    assert (len(answer), chunks[-1].finish_reason) == (room, "length")
    for cut in (1, room // 2, room - 1):
        outputs = go_on(engine, prompt, unlimited, answer[:cut])
        assert sum((output.token_ids for output in outputs), ()) == answer[cut:]
        assert outputs[-1].finish_reason == "length"
