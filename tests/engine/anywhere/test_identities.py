"""Reuse anywhere computes what it says: compared with transformers, and with exact answers."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from transformers import (
    AutoTokenizer,
    MistralConfig,
    MistralForCausalLM,
    PreTrainedModel,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
)

from ragcache_integrations.core.generation import Generation, SamplingOptions
from ragcache_integrations.core.prompt import Prompt, PromptRenderer
from ragcache_integrations.engine import RAGCacheEngine
from ragcache_integrations.engine.in_vllm.anywhere.codecs import CODECS
from ragcache_integrations.engine.tiny_model import default_model_path
from ragcache_integrations.prompts.pml import Schema
from ragcache_modular import ModularModel
from tests.engine.anywhere.reference import Reference

pytestmark = pytest.mark.engine

WORDS = tuple(
    "river stone cloud paper green seven north south winter summer engine metal".split()  # noqa: SIM905
)
DOCUMENTS = [
    " ".join(random.Random(number).choice(WORDS) for _ in range(35 + 9 * number))
    for number in range(6)
]
GREEDY = SamplingOptions(max_tokens=8, logprobs=5, ignore_eos=True)
SHAPE = {
    "hidden_size": 128,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "max_position_embeddings": 2048,
    "tie_word_embeddings": False,
}
FAMILIES: dict[str, tuple[type, type[PreTrainedModel], dict[str, object]]] = {
    "mistral": (MistralConfig, MistralForCausalLM, {"sliding_window": None}),
    "qwen2": (Qwen2Config, Qwen2ForCausalLM, {}),
    "qwen3": (Qwen3Config, Qwen3ForCausalLM, {}),
    # All layers have a window, which is longer than the prompts; or one has it, the other not.
    "mistral with windows": (MistralConfig, MistralForCausalLM, {"sliding_window": 512}),
    "mistral with a window": (
        MistralConfig,
        MistralForCausalLM,
        {"sliding_window": 512, "layer_types": ["sliding_attention", "full_attention"]},
    ),
}


def prompt_of(number: int, count: int = 3) -> Prompt:
    documents = [DOCUMENTS[(number + 2 * place) % len(DOCUMENTS)] for place in range(count)]
    return Prompt.rag(f"What is {WORDS[number % 12]} {number}?", documents, system="Answer.")


def model_of(family: str, folder: Path) -> Path:
    """A model with random weights, and the random model's tokenizer."""
    if family == "llama":
        return default_model_path()
    tokenizer = AutoTokenizer.from_pretrained(default_model_path())
    configuration, kind, more = FAMILIES[family]
    torch.manual_seed(3)
    model = kind(configuration(vocab_size=len(tokenizer), **SHAPE, **more))
    for weight in model.parameters():
        if weight.dim() > 1:
            torch.nn.init.normal_(weight, std=0.3)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


@pytest.fixture(scope="module", params=["llama", *FAMILIES])
def folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return model_of(request.param, tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="module")
def dtype(request: pytest.FixtureRequest) -> str:
    """How documents are kept."""
    return str(getattr(request, "param", "raw"))


@pytest.fixture(scope="module")
def engine(folder: Path, dtype: str) -> Iterator[RAGCacheEngine]:
    with RAGCacheEngine(
        folder,
        kv_cache_gib=0.05,
        max_model_len=1024,
        dtype="float32",
        reuse="anywhere",
        document_dtype=dtype,
        vllm_args={"enforce_eager": True},
    ) as running:
        running.encode(DOCUMENTS)
        yield running


def check(
    reference: Reference,
    folder: Path,
    number: int,
    links: int,
    answer: Generation,
    exact_until: int = 0,
) -> None:
    rendered = PromptRenderer(AutoTokenizer.from_pretrained(folder)).render(prompt_of(number))
    spans = [(span.start, span.end) for span in rendered.documents]
    tokens, scores = reference.answer(rendered.token_ids, spans, links, 8, exact_until)
    assert answer.logprobs is not None
    assert [token.token_id for token in answer.logprobs] == tokens
    for token in answer.logprobs[0].top:
        assert token.logprob == pytest.approx(float(scores[token.token_id]), abs=1e-3)


@pytest.mark.parametrize(
    ("folder", "dtype"),
    [
        ("llama", "int8"),
        ("qwen3", "int8"),
        ("mistral with a window", "int8"),
        ("llama", "int8-int4"),
    ],
    indirect=True,
)
def test_documents_are_read_as_they_were_quantised(
    folder: Path, dtype: str, engine: RAGCacheEngine
) -> None:
    """One by one, and together with others; scores, as a rounding may tip over either way."""
    exact, reference = Reference(folder), Reference(folder, CODECS[dtype])
    prompts = [prompt_of(number) for number in range(6)]
    together = engine.generate_batch(prompts, GREEDY, link_tokens=3)
    tokenizer, lost = AutoTokenizer.from_pretrained(folder), 0.0
    for prompt, answer in zip(prompts, together, strict=True):
        rendered = PromptRenderer(tokenizer).render(prompt)
        spans = [(span.start, span.end) for span in rendered.documents]
        (_, right), (_, raw) = (
            each.answer(rendered.token_ids, spans, 3, 1) for each in (reference, exact)
        )
        alone = engine.generate(prompt, GREEDY, link_tokens=3)
        for one in (answer, alone):
            assert one.logprobs is not None
            assert one.usage.cached_tokens > 100
            for token in one.logprobs[0].top:
                assert token.logprob == pytest.approx(float(right[token.token_id]), abs=0.01)
        lost = max(lost, float((right - raw).abs().max()))
    assert lost > 0.01  # what is compared is not what raw documents would have given


@pytest.mark.parametrize("links", [0, 5, 16])
def test_answers_are_those_of_stored_documents_one_after_the_other(
    folder: Path, links: int, engine: RAGCacheEngine
) -> None:
    reference = Reference(folder)
    prompts = [prompt_of(number) for number in range(6)]
    together = engine.generate_batch(prompts, GREEDY, link_tokens=links)
    for number, answer in enumerate(together):
        check(reference, folder, number, links, answer)
        read = sum(max(0, length - links) for length in lengths_of(folder, number))
        assert answer.usage.cached_tokens >= read > 0
        assert answer.usage.cached_tokens < answer.usage.prompt_tokens
        assert engine.generate(prompts[number], GREEDY, link_tokens=links).text == answer.text


@pytest.mark.parametrize("links", [0, 5])
def test_the_beginning_that_is_cached_exactly_is_not_read(
    folder: Path, links: int, engine: RAGCacheEngine
) -> None:
    """Documents begin the prompt as they began another: their exact KV cache serves, as ever."""
    tenant, reference = f"beginning {links}", Reference(folder)
    engine.encode(DOCUMENTS, namespace=tenant)
    prompt = prompt_of(7)
    first, _, third = engine.render(prompt).documents
    alike = prompt_of(7, count=2)
    engine.generate(alike, GREEDY, namespace=tenant, reuse="prefix")
    exact_until = third.start // engine.block_size * engine.block_size
    assert exact_until > first.end + links
    answer = engine.generate(prompt, GREEDY, namespace=tenant, link_tokens=links)
    check(reference, folder, 7, links, answer, exact_until)
    assert answer.usage.cached_tokens >= exact_until + third.end - third.start - links
    others = engine.generate(prompt, GREEDY, link_tokens=links)
    check(reference, folder, 7, links, others)
    assert others.text == engine.generate(prompt, GREEDY, link_tokens=links).text
    again = engine.generate(prompt, GREEDY, namespace=tenant, reuse="prefix")
    assert again.usage.cached_tokens == exact_until  # and nothing of what is approximate
    assert again.text == engine.generate(prompt, GREEDY, namespace="x", reuse="prefix").text


SCHEMA = f"""
<schema name="cities">
  Answer briefly and from these alone.
  <module name="first">{DOCUMENTS[1]}</module>
  <module name="outer"><module name="inner">{DOCUMENTS[2]}</module> {DOCUMENTS[0]}</module>
  <module name="about">It is about <param name="what" len="2"/></module>
  <union>
    <module name="long">{DOCUMENTS[4]}</module>
    <module name="short">{DOCUMENTS[3]}</module>
  </union>
  SCAFFOLD
</schema>
"""


@pytest.mark.parametrize("folder", ["llama"], indirect=True)
@pytest.mark.parametrize("scaffold", ["", '<scaffold modules="first outer/inner outer"/>'])
def test_a_schema_s_prompts_are_those_of_the_modular_engine(
    folder: Path, engine: RAGCacheEngine, scaffold: str
) -> None:
    model = ModularModel(str(folder), dtype="float32")
    tokenizer = AutoTokenizer.from_pretrained(default_model_path())
    schema = Schema.from_pml(SCHEMA.replace("SCAFFOLD", scaffold)).compile(tokenizer)
    two = next(word for word in WORDS if len(schema.tokens(f" {word}", None)) == 2)
    engine.encode(schema.documents())
    prompts = [
        f'<prompt schema="cities"><first/><outer><inner/></outer><about what=" {two}"/><{last}/>'
        "Which is it?</prompt>"
        for last in ("long", "short")
    ]
    rendered = [schema.render(prompt) for prompt in prompts]
    answers = engine.generate_batch(rendered, GREEDY, link_tokens=0)
    for prompt, tokens, answer in zip(prompts, rendered, answers, strict=True):
        assembly = schema.assemble(prompt)
        right = model.generate(assembly, "prompt_cache", max_tokens=8, ignore_eos=True)
        assert answer.token_ids == right.token_ids
        assert len(tokens.documents) == (3 if scaffold else 5)
        read = sum(span.end - span.start for span in tokens.documents)
        assert read <= answer.usage.cached_tokens < answer.usage.prompt_tokens


def test_what_is_exact_finds_nothing_approximate(engine: RAGCacheEngine) -> None:
    prompt = prompt_of(8)
    before = engine.generate(prompt, GREEDY, namespace="other", reuse="prefix")
    approximate = engine.generate(prompt, GREEDY, link_tokens=0)
    exact = engine.generate(prompt, GREEDY, reuse="prefix")
    assert exact.usage.cached_tokens == 0 < approximate.usage.cached_tokens
    assert exact.text == before.text
    whole = engine.generate(prompt, GREEDY, link_tokens=10_000)
    assert whole.text == exact.text
    assert engine.generate(prompt, GREEDY, reuse="prefix").usage.cached_tokens > 0


def test_what_stands_before_the_first_document_is_shared(engine: RAGCacheEngine) -> None:
    """It is exact wherever it was computed; the answers stay what they were."""
    system = "Answer in a few words, and from nothing but these documents. " * 6
    prompts = [
        Prompt.rag(f"What is {word}?", DOCUMENTS[place : place + 2], system=system)
        for place, word in enumerate(WORDS[:4])
    ]
    expected = [
        engine.generate(one, GREEDY, reuse="prefix", namespace=f"apart {place}").text
        for place, one in enumerate(prompts)
    ]
    block = engine.block_size
    engine.generate(prompts[0], GREEDY, link_tokens=0)
    for number, prompt in enumerate(prompts[1:], 1):
        begin = engine.render(prompt).documents[0].start
        assert begin > 2 * block
        exact = engine.generate(prompt, GREEDY, reuse="prefix")
        assert exact.usage.cached_tokens == begin // block * block
        assert exact.text == expected[number]
        again = engine.generate(prompt, GREEDY, link_tokens=4)
        assert again.usage.cached_tokens >= begin // block * block


def test_tenants_do_not_share_documents(engine: RAGCacheEngine) -> None:
    mine = engine.generate(prompt_of(9), GREEDY, link_tokens=0)
    theirs = engine.generate(prompt_of(9), GREEDY, link_tokens=0, namespace="somebody else's")
    assert theirs.usage.cached_tokens == 0 < mine.usage.cached_tokens


def lengths_of(folder: Path, number: int) -> list[int]:
    rendered = PromptRenderer(AutoTokenizer.from_pretrained(folder)).render(prompt_of(number))
    return [span.end - span.start for span in rendered.documents]
