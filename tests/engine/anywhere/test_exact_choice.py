"""A prompt is exact where the KV cache of its beginning leaves no more to compute than reuse."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping
from typing import Any

import pytest

from ragcache_integrations.core.generation import Generation, SamplingOptions
from ragcache_integrations.core.prompt import Prompt
from ragcache_integrations.engine import RAGCacheEngine
from ragcache_integrations.engine.in_vllm.anywhere.codecs import CODECS
from ragcache_integrations.engine.tiny_model import default_model_path
from tests.engine.anywhere.reference import Reference

pytestmark = pytest.mark.engine

WORDS = [f"word{number}" for number in range(30)]
DOCUMENTS = [
    " ".join(random.Random(number).choice(WORDS) for _ in range(40 + 9 * number))
    for number in range(4)
]
GREEDY = SamplingOptions(max_tokens=6, logprobs=1, ignore_eos=True)


def prompt_of(documents: list[str], number: int) -> Prompt:
    return Prompt.rag(f"Which {WORDS[number]} is it?", documents, system="Answer.")


def scores(answer: Generation) -> list[float]:
    assert answer.logprobs is not None
    return [token.logprob for token in answer.logprobs]


def start(vllm_args: Mapping[str, Any] | None = None, **knobs: Any) -> RAGCacheEngine:
    return RAGCacheEngine(
        default_model_path(),
        kv_cache_gib=0.1,
        max_model_len=1024,
        dtype="float32",
        reuse="anywhere",
        link_tokens=4,
        vllm_args={"enforce_eager": True, **(vllm_args or {})},
        **knobs,
    )


@pytest.fixture(scope="module")
def engine() -> Iterator[RAGCacheEngine]:
    with start() as running:
        yield running


@pytest.fixture
def tenant(engine: RAGCacheEngine, request: pytest.FixtureRequest) -> str:
    """A namespace of the test's own, in which all documents are stored."""
    name: str = request.node.name
    engine.encode(DOCUMENTS, namespace=name)
    return name


def test_what_an_exact_prompt_has_left_is_taken_before_stored_documents(
    engine: RAGCacheEngine, tenant: str
) -> None:
    first, second = prompt_of(DOCUMENTS, 1), prompt_of(DOCUMENTS, 2)
    loose = engine.generate(second, GREEDY, namespace=tenant)
    engine.encode(DOCUMENTS, namespace="other")
    engine.generate(first, GREEDY, namespace="other", reuse="prefix")
    chosen = engine.generate(second, GREEDY, namespace="other")
    exact = engine.generate(second, GREEDY, namespace="exact", reuse="prefix")
    assert scores(chosen) == pytest.approx(scores(exact), abs=1e-4)
    assert scores(loose) != pytest.approx(scores(exact), abs=1e-3)
    assert chosen.usage.cached_tokens >= loose.usage.cached_tokens


def test_documents_in_other_company_are_read(engine: RAGCacheEngine, tenant: str) -> None:
    engine.generate(prompt_of(DOCUMENTS[:2], 1), GREEDY, namespace=tenant, reuse="prefix")
    turned = engine.generate(prompt_of(DOCUMENTS[::-1], 2), GREEDY, namespace=tenant)
    behind = engine.generate(prompt_of(DOCUMENTS[:1] + DOCUMENTS[2:], 3), GREEDY, namespace=tenant)
    for answer in (turned, behind):
        assert answer.usage.cached_tokens > answer.usage.prompt_tokens - 60


def test_an_approximate_prompt_that_comes_again_is_not_computed_anew(
    engine: RAGCacheEngine, tenant: str
) -> None:
    """Its own KV cache leaves less to compute than the exact one of its first documents."""
    engine.generate(prompt_of(DOCUMENTS[:3], 1), GREEDY, namespace=tenant, reuse="prefix")
    prompt = prompt_of(DOCUMENTS, 4)
    before = engine.generate(prompt, GREEDY, namespace=tenant)
    again = engine.generate(prompt, GREEDY, namespace=tenant)
    assert again.usage.cached_tokens >= before.usage.cached_tokens
    assert again.text == before.text


def test_no_more_is_computed_than_either_way_would(engine: RAGCacheEngine, tenant: str) -> None:
    dice = random.Random(3)
    for number in range(20):
        documents = dice.sample(DOCUMENTS, dice.randint(1, 4))
        prompt = prompt_of(documents, number)
        engine.generate(prompt_of(documents, 29), GREEDY, namespace=tenant, reuse="prefix")
        chosen = engine.generate(prompt, GREEDY, namespace=tenant)
        exact = engine.generate(prompt, GREEDY, namespace=tenant, reuse="prefix")
        assert scores(chosen) == pytest.approx(scores(exact), abs=1e-4)
        assert chosen.usage.cached_tokens > 0


def test_as_many_documents_as_wanted_are_exact() -> None:
    reference = Reference(default_model_path(), CODECS["int8"])
    with start(exact_documents=2) as engine:
        engine.encode(DOCUMENTS)
        for number, documents in enumerate((DOCUMENTS, DOCUMENTS[::-1], DOCUMENTS[1:])):
            prompt = prompt_of(documents, number)
            rendered = engine.render(prompt)
            spans = [(span.start, span.end) for span in rendered.documents]
            answer = engine.generate(prompt, GREEDY)
            tokens, right = reference.answer(rendered.token_ids, spans, 4, 6, spans[1][1])
            assert answer.token_ids == tuple(tokens)
            assert scores(answer)[0] == pytest.approx(float(right[tokens[0]]), abs=1e-3)
            read = sum(end - begin - 4 for begin, end in spans[2:])
            assert answer.usage.cached_tokens >= read
            # What was computed of the first two serves exact prompts, and nothing else does.
            exact = engine.generate(prompt, GREEDY, reuse="prefix")
            assert exact.usage.cached_tokens == spans[1][1] // engine.block_size * engine.block_size
            alone = engine.generate(prompt, GREEDY, reuse="prefix", namespace="alone")
            assert scores(exact) == pytest.approx(scores(alone), abs=1e-4)


def test_a_prompt_with_no_more_documents_than_are_exact_is_exact() -> None:
    with start(exact_documents=2) as engine:
        engine.encode(DOCUMENTS)
        for count in (1, 2):
            prompt = prompt_of(DOCUMENTS[-count:], count)
            answer = engine.generate(prompt, GREEDY)
            exact = engine.generate(prompt, GREEDY, reuse="prefix", namespace="alone")
            assert answer.usage.cached_tokens == 0
            assert scores(answer) == pytest.approx(scores(exact), abs=1e-4)


def test_an_exact_document_on_the_host_counts_as_computed() -> None:
    """Nothing of the host tier is read for approximate prompts: with it, exact is cheaper here."""
    long, short, *others = DOCUMENTS[3] * 4, DOCUMENTS[0], *(text * 4 for text in DOCUMENTS[1:3])
    small = {"num_gpu_blocks_override": 45, "block_size": 32}
    with start(small, exact_documents=1, host_cache_gib=0.05) as engine:
        engine.encode([long, short])
        engine.generate(prompt_of([long], 1), GREEDY, reuse="prefix")
        for number in range(6):  # they push it out of the GPU
            engine.generate(prompt_of([f"{number} {others[0]}"], 2), GREEDY, reuse="prefix")
        prompt = prompt_of([long, short], 3)
        first, second = engine.render(prompt).documents
        answer = engine.generate(prompt, GREEDY)
        stats = engine.stats().tree
        assert stats is not None
        assert stats.swap_ins > 0
        assert answer.usage.cached_tokens > first.end - first.start - 2 * engine.block_size
        alone = engine.generate(prompt, GREEDY, reuse="prefix", namespace="alone")
        assert scores(answer) == pytest.approx(scores(alone), abs=1e-4)
        assert second.end - second.start < first.end - first.start
