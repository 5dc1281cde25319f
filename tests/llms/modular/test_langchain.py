"""LangChain's classes on the modular engine: one argument away from the exact one."""

from __future__ import annotations

import asyncio
import gc
import pickle
import weakref
from collections.abc import Iterator
from typing import Any

import pytest
import torch
import transformers
from blockbuster import BlockBuster
from langchain_community.vectorstores import FAISS
from langchain_core.documents import Document
from langchain_core.messages import AIMessage, AIMessageChunk
from langchain_core.prompts import ChatPromptTemplate
from langchain_core.runnables import ConfigurableField, Runnable, RunnablePassthrough

from ragcache_integrations.chains.speculative.langchain import SpeculativeRAG
from ragcache_integrations.core.prompt import PromptRenderer
from ragcache_integrations.engine import Prompt, RAGCacheEngine
from ragcache_integrations.engine.tiny_model import default_model_path
from ragcache_integrations.errors import (
    ConfigurationError,
    EngineClosedError,
    ModelNotFoundError,
    PromptTooLongError,
)
from ragcache_integrations.llms.base import BaseRAGCacheLLM
from ragcache_integrations.llms.langchain.models import ChatRAGCache, RAGCacheLLM
from ragcache_integrations.retrievers.cached.langchain.retriever import ApproximateCacheRetriever
from ragcache_modular import CacheBlend, Epic, ModularEngine
from ragcache_modular.backend import DTYPES
from ragcache_modular.model import DTYPES as MODULAR_DTYPES
from tests.llms.retrieving import TEXTS, embedding
from tests.support.embeddings import LangChainEmbeddings

from .engines import CONTEXT, DOCUMENTS, NAMES, QUESTION, made

ASKED = f"{CONTEXT}\n\n{QUESTION}"


@pytest.fixture(scope="module")
def shared() -> Iterator[ModularEngine]:
    with made() as engine:
        yield engine


def chat_on(engine: Any, **knobs: Any) -> ChatRAGCache:
    return ChatRAGCache(engine=engine, **{"max_tokens": 5, **knobs})


def asked(llm: ChatRAGCache, **call: Any) -> AIMessage:
    return llm.invoke(ASKED, documents=DOCUMENTS, **call)


def share_of(message: AIMessage | AIMessageChunk) -> float:
    share: float = message.response_metadata["recomputed_share"]
    return share


def merged(chunks: list[Any]) -> AIMessageChunk:
    first: AIMessageChunk
    first, *rest = chunks
    for chunk in rest:
        first += chunk
    return first


# Strategies


def test_each_answer_says_what_was_computed_again(shared: ModularEngine) -> None:
    said = {name: asked(chat_on(shared, strategy=name)) for name in NAMES}
    shares = {name: share_of(message) for name, message in said.items()}
    assert [said[name].response_metadata["strategy"] for name in NAMES] == list(NAMES)
    assert shares["prompt_cache"] == 0 < shares["epic"] < shares["cacheblend"] < 1
    assert 0 < shares["kvlink"] < shares["exact"] == 1
    halves = share_of(asked(chat_on(shared, strategy=CacheBlend(share=0.5))))
    assert shares["cacheblend"] < halves < 1
    for name, message in said.items():
        assert message.usage_metadata is not None
        cached = message.usage_metadata["input_token_details"]["cache_read"]
        assert (cached > 0) == (name != "exact")


def test_exact_is_full_prefill(shared: ModularEngine) -> None:
    path = default_model_path()
    tokenizer = transformers.AutoTokenizer.from_pretrained(path)
    model: Any = transformers.AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32)
    prompt = Prompt.rag(QUESTION, DOCUMENTS)
    ids = torch.tensor([PromptRenderer(tokenizer).render(prompt).token_ids])
    with torch.inference_mode():
        whole = model.generate(ids, max_new_tokens=5, do_sample=False)
    expected = tokenizer.decode(whole[0, ids.shape[1] :], skip_special_tokens=True)
    assert asked(chat_on(shared, strategy="exact")).content == expected
    # That the strategies are not all the same thing.
    exact, approximate = (
        asked(chat_on(shared, strategy=strategy, max_tokens=40)).content
        for strategy in ("exact", "prompt_cache")
    )
    assert str(exact).startswith(str(expected))
    assert exact != approximate


@pytest.mark.engine
def test_the_same_chain_on_the_exact_engine(engine: RAGCacheEngine, shared: ModularEngine) -> None:
    assert engine.reset_cache()
    first = asked(chat_on(engine, max_tokens=40))
    before = engine.stats()
    exact, blended = (
        asked(chat_on(shared, strategy=strategy, max_tokens=40))
        for strategy in ("exact", "cacheblend")
    )
    assert first.content == exact.content != blended.content
    assert "strategy" not in first.response_metadata
    # Nothing of what the other computed is in its cache.
    assert engine.stats() == before
    again = asked(chat_on(engine, max_tokens=40))
    assert again.content == first.content


def test_chosen_for_a_call(shared: ModularEngine) -> None:
    field = ConfigurableField(id="strategy")
    model = chat_on(shared, strategy="epic").configurable_fields(strategy=field)
    bound = model.bind(documents=DOCUMENTS)
    for name in ("epic", "exact"):
        message = bound.invoke(ASKED, {"configurable": {"strategy": name}})
        assert message.response_metadata["strategy"] == name


def test_a_given_engine_keeps_its_own(shared: ModularEngine) -> None:
    few = shared.with_strategy(Epic(link_tokens=1))
    own, other = chat_on(few), chat_on(few, strategy="epic")
    assert 0 < share_of(asked(own)) < share_of(asked(other))
    assert own._identifying_params["strategy"] == "Epic(link_tokens=1)"
    assert other._identifying_params["strategy"] == "Epic(link_tokens=16)"


# Documents


def test_retrieved_documents_become_modules(shared: ModularEngine) -> None:
    store = FAISS.from_texts(TEXTS, LangChainEmbeddings(embedding))
    retriever = ApproximateCacheRetriever.from_vectorstore(store, k=1, tolerance=0.1)
    prompt = ChatPromptTemplate.from_template("{context}\n\nQuestion: {question}")

    def chain(model: ChatRAGCache) -> Runnable[str, AIMessage]:
        context = retriever | (lambda found: "\n\n".join(one.page_content for one in found))
        return {"context": context, "question": RunnablePassthrough()} | prompt | model

    first = chain(chat_on(shared)).invoke("What is said on topic 3 ?")
    assert 0 < share_of(first) < 0.5
    misses = shared.stats().store.misses
    again = chain(chat_on(shared, strategy="prompt_cache")).invoke("And what on topic 3 ?")
    assert shared.stats().store.misses == misses
    assert share_of(again) == 0
    assert again.usage_metadata is not None
    assert again.usage_metadata["input_token_details"]["cache_read"] > 200
    off = chain(chat_on(shared, find_documents=False)).invoke("And what on topic 3 ?")
    assert off.usage_metadata is not None
    assert off.usage_metadata["input_token_details"]["cache_read"] == 0


def test_in_another_order_they_are_found(shared: ModularEngine) -> None:
    model = chat_on(shared, strategy="prompt_cache")
    asked(model)
    misses = shared.stats().store.misses
    turned = model.invoke("\n\n".join([*DOCUMENTS[::-1], QUESTION]), documents=DOCUMENTS)
    assert shared.stats().store.misses == misses
    assert share_of(turned) == 0


def test_tenants_share_no_module(shared: ModularEngine) -> None:
    asked(chat_on(shared, namespace="a"))
    misses = shared.stats().store.misses
    asked(chat_on(shared, namespace="b"))
    assert shared.stats().store.misses >= misses + len(DOCUMENTS)


def test_speculation_falls_back_to_one_after_the_other(shared: ModularEngine) -> None:
    store = FAISS.from_texts(DOCUMENTS, LangChainEmbeddings(embedding))
    retriever = ApproximateCacheRetriever.from_vectorstore(store, k=1)
    found = SpeculativeRAG(retriever=retriever, llm=chat_on(shared)).invoke("Say topic 1 ")
    assert found["answer"]
    assert found["speculation"] is None


@pytest.mark.parametrize("text", [DOCUMENTS[0], CONTEXT])
def test_a_completion_that_ends_in_a_document(shared: ModularEngine, text: str) -> None:
    """It stays text, as something has to be computed."""
    llm = RAGCacheLLM(engine=shared, max_tokens=3)
    result = llm.generate([text, "Hello"], documents=DOCUMENTS)
    (first,), (second,) = result.generations
    for one in (first, second):
        assert one.text
        assert one.generation_info is not None
        assert one.generation_info["strategy"] == "epic"
    assert second.generation_info is not None
    assert second.generation_info["recomputed_share"] == 0


# Every way


async def test_every_way_gives_the_same_message(
    shared: ModularEngine, no_blocking: BlockBuster
) -> None:
    model = chat_on(shared, logprobs=2).bind(documents=DOCUMENTS)
    first = await asyncio.to_thread(model.invoke, ASKED)
    messages = [
        await model.ainvoke(ASKED),
        *(await model.abatch([ASKED] * 2)),
        *(await asyncio.to_thread(model.batch, [ASKED] * 2)),
        merged(await asyncio.to_thread(lambda: list(model.stream(ASKED)))),
        merged([chunk async for chunk in model.astream(ASKED)]),
    ]
    for message in messages:
        assert message.content == first.content
        assert message.usage_metadata == first.usage_metadata
        for name in ("strategy", "recomputed_share", "finish_reason", "model_name"):
            assert message.response_metadata[name] == first.response_metadata[name]
        tokens = message.response_metadata["logprobs"]["content"]
        assert [token["token"] for token in tokens] == [
            token["token"] for token in first.response_metadata["logprobs"]["content"]
        ]
        assert all(len(token["top_logprobs"]) == 2 for token in tokens)


def test_completions_stream_too(shared: ModularEngine) -> None:
    llm = RAGCacheLLM(engine=shared, strategy="cacheblend", max_tokens=4)
    whole = llm.generate([ASKED], documents=DOCUMENTS).generations[0][0]
    seen = [one.generation_info or {} for one in llm._stream(ASKED, documents=DOCUMENTS)]
    assert seen[-1] == whole.generation_info
    assert seen[-1]["strategy"] == "cacheblend"
    assert all("strategy" not in info for info in seen[:-1])


def test_sampling(shared: ModularEngine) -> None:
    model = chat_on(shared, max_tokens=12)
    greedy = str(asked(model).content)
    warm = [asked(model, temperature=1.5, seed=seed).content for seed in (1, 1, 2)]
    assert warm[0] == warm[1] != warm[2]
    stop = greedy[len(greedy) // 2 :][:3]
    cut = asked(model, stop=[stop])
    assert cut.content == greedy[: greedy.index(stop)]
    assert cut.response_metadata["finish_reason"] == "stop"
    assert asked(model, max_tokens=2).response_metadata["finish_reason"] == "length"
    assert model.get_num_tokens("Hello there") == len(model.get_token_ids("Hello there")) > 0


# What is refused


@pytest.mark.parametrize(
    ("knobs", "match"),
    [
        ({"strategy": "epic"}, 'strategy needs engine="modular"'),
        ({"strategy": "epic", "base_url": "http://x/v1", "model": "m"}, "strategy needs"),
        ({"device": "cpu"}, 'device is for engine="modular"'),
        (
            {"engine": "modular", "strategy": "fast"},
            "strategy must be one of prompt_.*, got 'fast'",
        ),
        ({"engine": "modular", "strategy": 3}, "strategy must be one of .*, got 3"),
        ({"engine": "modula"}, "engine must be a RAGCacheEngine, got str"),
        ({"engine": "modular", "base_url": "http://x/v1"}, 'engine="modular" excludes base_url'),
        ({"engine": "modular", "vllm_args": {}}, 'engine="modular" excludes vllm_args'),
        ({"engine": "modular", "host_cache_gib": 1.0}, "excludes host_cache_gib"),
        ({"engine": "modular", "knowledge_tree": False}, "excludes knowledge_tree"),
        ({"engine": "modular", "max_model_len": 64}, "excludes max_model_len"),
        ({"engine": "modular", "tokenizer": "t"}, "excludes tokenizer"),
        (
            {"engine": "modular", "policy": "arc"},
            "policy must be one of lrfu, pgdsf, gdsf, lru, lfu",
        ),
        ({"engine": "modular", "kv_cache_gib": 0.0}, "kv_cache_gib must be a number above 0"),
        ({"engine": "modular", "dtype": "half"}, "dtype must be one of float32, bfloat16, float16"),
    ],
)
def test_bad_knobs(knobs: dict[str, Any], match: str) -> None:
    with pytest.raises(ConfigurationError, match=match):
        BaseRAGCacheLLM(**knobs)


def test_the_numeric_types_are_those_of_the_model() -> None:
    assert DTYPES == MODULAR_DTYPES


def test_no_such_model() -> None:
    with pytest.raises(ModelNotFoundError):
        BaseRAGCacheLLM(engine="modular", model="/no/such/model")


def test_grammars_are_refused(shared: ModularEngine) -> None:
    schema = {"title": "Answer", "type": "object", "properties": {"x": {"type": "string"}}}
    for model in (chat_on("modular"), chat_on(shared)):
        with pytest.raises(ConfigurationError, match="need a grammar, which a modular engine has"):
            model.with_structured_output(schema)
        with pytest.raises(ConfigurationError, match="need a grammar"):
            model.invoke("Yes or no?", choice=("yes", "no"))


def test_a_prompt_that_is_too_long(shared: ModularEngine) -> None:
    with pytest.raises(PromptTooLongError):
        chat_on(shared).invoke(ASKED, documents=DOCUMENTS, max_tokens=100_000)


# One model for all who ask for it


def test_objects_share_a_model_whatever_their_strategies() -> None:
    knobs: dict[str, Any] = {"engine": "modular", "kv_cache_gib": 0.125, "max_tokens": 2}
    one = ChatRAGCache(**knobs)
    two = RAGCacheLLM(**knobs, strategy="exact", temperature=0.5)
    copied = pickle.loads(pickle.dumps(one))
    engines = [llm._source.get() for llm in (one, two, copied)]
    assert all(isinstance(engine, ModularEngine) for engine in engines)
    models = [engine.modular_model for engine in engines if isinstance(engine, ModularEngine)]
    assert models[0] is models[1] is models[2]
    assert models[0].stats().store.capacity_bytes == 2**27
    one.close()
    with pytest.raises(EngineClosedError):
        one.invoke("Hello")
    assert two.invoke("Hello") is not None
    model = weakref.ref(models[0])
    copied.close()
    two.close()
    assert models[0].closed
    del models, engines
    gc.collect()
    assert model() is None, "the weights are given back"


def test_a_given_one_is_not_closed(shared: ModularEngine) -> None:
    llm = chat_on(shared)
    llm.close()
    assert not shared.closed
    with pytest.raises(TypeError, match="cannot be pickled"):
        pickle.dumps(chat_on(shared))


def test_documents_of_langchain(shared: ModularEngine) -> None:
    documents = [Document(text, id=f"d{n}") for n, text in enumerate(DOCUMENTS)]
    message = chat_on(shared, strategy="epic").invoke(ASKED, documents=documents)
    assert 0 < share_of(message) < 1
