"""Chains that are made from others: by LangChain for each call, by copies, and by pickles."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import pytest
from langchain_core.documents import Document
from langchain_core.embeddings import DeterministicFakeEmbedding
from langchain_core.language_models import FakeListChatModel
from langchain_core.retrievers import BaseRetriever
from langchain_core.runnables import ConfigurableField
from llama_index.core.base.base_retriever import BaseRetriever as LlamaIndexRetriever
from llama_index.core.llms import MockLLM
from llama_index.core.schema import NodeWithScore, QueryBundle, TextNode

from ragcache_integrations import langchain, llama_index
from ragcache_integrations.adaptive import QueryProfile
from ragcache_integrations.adaptive.profile import ProfileEstimate
from ragcache_integrations.errors import ConfigurationError
from tests.chains.schemas import TRIP


class Found(BaseRetriever):
    """Finds one document."""

    def _get_relevant_documents(self, query: str, **kwargs: Any) -> list[Document]:
        return [Document("Cats purr.", id="cats")]


class FoundNode(LlamaIndexRetriever):
    """Finds one node."""

    def _retrieve(self, query_bundle: QueryBundle) -> list[NodeWithScore]:
        return [NodeWithScore(node=TextNode(text="Cats purr.", id_="cats"))]


class Profiler:
    """Counts how often it is asked."""

    def __init__(self) -> None:
        self.asked = 0

    def profile(self, question: str) -> ProfileEstimate:
        self.asked += 1
        profile = QueryProfile("low", joint_reasoning=True, pieces=2, summary_words=(30, 60))
        return ProfileEstimate(profile, "llm", 1.0)

    async def aprofile(self, question: str) -> ProfileEstimate:
        return self.profile(question)


def adaptive(**knobs: Any) -> langchain.AdaptiveRAG:
    return langchain.AdaptiveRAG(
        retriever=Found(), llm=FakeListChatModel(responses=["They purr."]), **knobs
    )


CHAINS = [
    adaptive(corpus="Cats."),
    adaptive(profiler="heuristic", max_tokens=5),
    langchain.SpeculativeRAG(retriever=Found(), llm=FakeListChatModel(responses=["They purr."])),
    langchain.SpeculativeRAG(retriever=Found(), llm=langchain.ChatRAGCache(), max_prefill_bs=3),
    langchain.StuffSynthesis(llm=FakeListChatModel(responses=["x"]), num_chunks=2),
    langchain.MapReduceSynthesis(llm=FakeListChatModel(responses=["x"])),
    langchain.MapRerankSynthesis(llm=langchain.RAGCacheLLM()),
    langchain.ModularPrompt(schema=TRIP, llm=langchain.ChatRAGCache(engine="modular")),
]
ENGINES = [
    llama_index.AdaptiveQueryEngine(FoundNode(), llm=MockLLM(), corpus="Cats.", max_chunks=3),
    llama_index.SpeculativeQueryEngine(FoundNode(), llm=MockLLM(), max_prefill_bs=3),
    llama_index.SpeculativeQueryEngine(FoundNode(), llm=llama_index.RAGCacheLLM()),
    llama_index.StuffSynthesis(MockLLM(), num_chunks=2),
    llama_index.MapReduceSynthesis(MockLLM(), intermediate_length=30),
    llama_index.MapRerankSynthesis(llama_index.RAGCacheLLM(), streaming=True),
    llama_index.ModularPrompt(TRIP, llm=llama_index.RAGCacheLLM(engine="modular")),
]


def mutable(chain: Any) -> dict[int, str]:
    """What a chain has of its own and changes in use."""
    names = ("_pipeline", "_pipelines", "_speculators", "_prompts", "_support", "_model")
    own = {id(getattr(chain, name)): name for name in names if hasattr(chain, name)}
    return own | {id(getattr(chain, "shared_state", None)): "shared_state"}


@pytest.mark.parametrize("chain", CHAINS, ids=lambda chain: type(chain).__name__)
@pytest.mark.parametrize("way", ["deepcopy", "pickle", "model_copy"])
def test_copies_of_runnables_share_nothing(chain: Any, way: str) -> None:
    copied = {
        "deepcopy": lambda: copy.deepcopy(chain),
        "pickle": lambda: pickle.loads(pickle.dumps(chain)),
        "model_copy": lambda: chain.model_copy(deep=True),
    }[way]()
    assert type(copied) is type(chain)
    assert not set(mutable(copied)) & set(mutable(chain)) - {id(None)}
    for name in type(chain).model_fields.keys() - {"shared_state", "retriever", "llm", "schema_"}:
        assert getattr(copied, name) == getattr(chain, name)
    assert copied.llm == chain.llm


@pytest.mark.parametrize("engine", ENGINES, ids=lambda engine: type(engine).__name__)
@pytest.mark.parametrize("way", ["copy", "deepcopy", "pickle"])
def test_copies_of_query_engines_share_nothing(engine: Any, way: str) -> None:
    copied = {
        "copy": lambda: copy.copy(engine),
        "deepcopy": lambda: copy.deepcopy(engine),
        "pickle": lambda: pickle.loads(pickle.dumps(engine)),
    }[way]()
    assert type(copied) is type(engine)
    if way == "copy":
        assert vars(copied) == vars(engine)
        return
    assert not set(mutable(copied)) & set(mutable(engine)) - {id(None)}
    assert copied._arguments().keys() == engine._arguments().keys()
    for name in ("streaming", "num_chunks", "max_prefill_bs", "max_chunks", "prompts"):
        assert copied._arguments().get(name) == engine._arguments().get(name)
    if way == "deepcopy":
        assert copied.callback_manager is engine.callback_manager


def test_a_copied_query_engine_answers() -> None:
    engine = llama_index.SpeculativeQueryEngine(FoundNode(), llm=MockLLM())
    expected = str(engine.query("Why?"))
    assert "Cats purr." in expected
    assert str(copy.deepcopy(engine).query("Why?")) == expected
    assert str(pickle.loads(pickle.dumps(engine)).query("Why?")) == expected


def test_profiles_are_kept_from_call_to_call() -> None:
    profiler = Profiler()
    chain = adaptive(
        profiler=profiler, embeddings=DeterministicFakeEmbedding(size=8)
    ).configurable_fields(
        max_tokens=ConfigurableField("tokens"), min_confidence=ConfigurableField("sure")
    )
    for tokens in (10, 20, 10, 20):
        config: Any = {"configurable": {"tokens": tokens}}
        assert chain.invoke("Why do they purr?", config)["answer"] == "They purr."
    assert profiler.asked == 1
    chain.invoke("Why do they purr?", {"configurable": {"sure": 0.5}})
    assert profiler.asked == 2  # what was kept depends on it
    other = adaptive(profiler=profiler, embeddings=DeterministicFakeEmbedding(size=8))
    other.invoke("Why do they purr?")
    assert profiler.asked == 3  # independent objects share nothing


def test_what_a_changed_setting_leaves_alone_is_shared() -> None:
    chain = adaptive(corpus="Cats.", golden_every=2)
    same = chain.model_copy(update={"input_key": "question"})
    other = chain.model_copy(update={"max_tokens": 5})
    assert same._pipeline is chain._pipeline
    assert other._pipeline is not chain._pipeline
    assert other._pipeline._profiler is chain._pipeline._profiler
    chain.close()
    late = chain.model_copy(update={"max_tokens": 6})
    for pipeline in (chain._pipeline, other._pipeline, late._pipeline):
        assert pipeline.golden is not None
        assert pipeline.golden._stopping.is_set()
    speculative = langchain.SpeculativeRAG(retriever=Found(), llm=langchain.ChatRAGCache())
    assert (
        speculative.model_copy(update={"input_key": "q"})._speculators is speculative._speculators
    )
    eager = speculative.model_copy(update={"speculate": False})
    assert eager._speculators is not speculative._speculators
    modular: Any = CHAINS[-1]
    assert modular.model_copy(update={"input_key": "q"})._prompts is modular._prompts
    stuff = langchain.StuffSynthesis(llm=FakeListChatModel(responses=["x"]))
    assert stuff.model_copy(update={"num_chunks": 1})._model is stuff._model


@pytest.mark.parametrize("chain", CHAINS, ids=lambda chain: type(chain).__name__)
def test_settings_are_checked_and_not_assigned(chain: Any) -> None:
    with pytest.raises(ConfigurationError, match="unknown"):
        chain.model_copy(update={"modle": 1})
    with pytest.raises(ConfigurationError, match="model_copy"):
        chain.llm = chain.llm
