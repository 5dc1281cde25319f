"""AdaptiveRAG: a LangChain Runnable like any other, over any retriever and any model."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import aclosing
from typing import Any, TypedDict

import pytest
from langchain_core.callbacks import BaseCallbackHandler
from langchain_core.documents import Document
from langchain_core.embeddings import DeterministicFakeEmbedding
from langchain_core.language_models import FakeListChatModel
from langchain_core.output_parsers import StrOutputParser
from langchain_core.prompts import PromptTemplate
from langchain_core.retrievers import BaseRetriever
from langchain_core.runnables import RunnableLambda, RunnablePassthrough
from langchain_core.vectorstores import InMemoryVectorStore
from langgraph.graph import START, StateGraph

from ragcache_integrations.adaptive import (
    AdaptiveCost,
    Explanation,
    SynthesisConfig,
    Synthesised,
)
from ragcache_integrations.chains.adaptive.langchain import AdaptiveRAG
from ragcache_integrations.chains.langchain import INNER_TAG
from ragcache_integrations.engine import RAGCacheEngine
from ragcache_integrations.errors import ConfigurationError
from ragcache_integrations.llms.langchain.models import ChatRAGCache
from tests.chains.loads import Busy, Memory

MISSING = "It is not in the text."
QUESTION = "Why do cats and dogs differ?"
DOCUMENTS = [Document(f"Fact {number} about cats. " * 5, id=f"d{number}") for number in range(20)]


class Found(BaseRetriever):
    """Finds the first ones."""

    count: int = 20

    def _get_relevant_documents(self, query: str, **kwargs: Any) -> list[Document]:
        return DOCUMENTS[: self.count]

    async def _aget_relevant_documents(self, query: str, **kwargs: Any) -> list[Document]:
        return DOCUMENTS[: self.count]


def fake(*answers: str) -> FakeListChatModel:
    return FakeListChatModel(responses=list(answers) or ["Purring."])


def chain(**knobs: Any) -> AdaptiveRAG:
    return AdaptiveRAG(**{"retriever": Found(), "llm": fake(), "profiler": "heuristic", **knobs})


def invoked(one: Any, given: Any = QUESTION, **config: Any) -> dict[str, Any]:
    result: dict[str, Any] = one.invoke(given, **config)
    return result


def ainvoked(one: Any, given: Any = QUESTION, **config: Any) -> dict[str, Any]:
    result: dict[str, Any] = asyncio.run(one.ainvoke(given, **config))
    return result


def streamed(one: Any, given: Any = QUESTION, **config: Any) -> dict[str, Any]:
    whole: Any = None
    for piece in one.stream(given, **config):
        whole = piece if whole is None else whole + piece
    return dict(whole)


def astreamed(one: Any, given: Any = QUESTION, **config: Any) -> dict[str, Any]:
    async def collect() -> dict[str, Any]:
        whole: Any = None
        async with aclosing(one.astream(given, **config)) as pieces:
            async for piece in pieces:
                whole = piece if whole is None else whole + piece
        return dict(whole)

    return asyncio.run(collect())


WAYS = (invoked, ainvoked, streamed, astreamed)
every_way = pytest.mark.parametrize("way", WAYS)
Way = Callable[..., dict[str, Any]]

KEYS = ["input", "context", "explain", "answer", "citations", "synthesis", "cost"]


@every_way
def test_an_earlier_output_may_be_the_input(way: Way) -> None:
    one = chain(load=Memory(100_000))
    result = way(one, {**way(one), "input": QUESTION, "user": "Ada"})
    assert {*result} == {*KEYS, "user"}
    assert result["answer"] == "Purring."
    assert result["context"] == way(one)["context"]


def test_how_documents_stand_in_the_prompt_and_bound_retrievers() -> None:
    store = InMemoryVectorStore(DeterministicFakeEmbedding(size=8))
    store.add_documents([Document(one.page_content, metadata={"n": "7"}) for one in DOCUMENTS])
    said: list[str] = []

    class Listening(BaseCallbackHandler):
        def on_chat_model_start(self, serialized: Any, messages: Any, **kwargs: Any) -> None:
            said.extend(str(message.content) for message in messages[0])

    one = chain(
        retriever=store.as_retriever().with_config(tags=["bound"]),
        document_prompt=PromptTemplate.from_template("<{n}> {page_content}"),
        mode="fixed",
        config=SynthesisConfig("stuff", 9),
    )
    result = invoked(one, config={"callbacks": [Listening()]})
    assert len(result["context"]) == 9
    assert "".join(said).count("<7> Fact") == 9


@every_way
def test_with_any_retriever_and_any_model(way: Way) -> None:
    result = way(chain(load=Memory(100_000)))
    assert list(result) == KEYS
    assert result["input"] == QUESTION
    assert result["answer"] == "Purring."
    assert isinstance(result["explain"], Explanation)
    assert result["explain"].why == "fits"
    assert result["context"] == DOCUMENTS[: result["explain"].config.num_chunks]
    assert isinstance(result["synthesis"], Synthesised)
    assert all(one in result["context"] for one in result["citations"])
    assert isinstance(result["cost"], AdaptiveCost)
    assert result["cost"].calls == result["synthesis"].calls


@every_way
def test_what_nobody_tells_of_is_the_middle_of_what_suits(way: Way) -> None:
    assert way(chain())["explain"].why == "load unknown"


@every_way
def test_modes_for_comparison(way: Way) -> None:
    config = SynthesisConfig("map_reduce", 4, 50)
    fixed = way(chain(mode="fixed", config=config, profiler="llm"))
    assert (fixed["explain"].config, fixed["cost"].calls) == (config, 5)
    assert way(chain(mode="median"))["explain"].why == "median"
    assert way(chain(mode="largest", load=Memory(0)))["explain"].why == "largest"
    gradual = way(chain(mode="gradual", load=Memory(100_000)))
    assert (gradual["explain"].why, gradual["cost"].calls) == ("enough", 1)
    assert gradual["context"] == DOCUMENTS[: gradual["explain"].config.num_chunks]


@every_way
def test_a_knob_is_held_for_all_questions(way: Way) -> None:
    free = way(chain(load=Memory(100_000)))["explain"].config
    assert free.method == "map_reduce"
    assert free.num_chunks != 3
    held = way(chain(load=Memory(100_000), method="stuff"))
    assert held["explain"].config == SynthesisConfig("stuff", free.num_chunks)
    held = way(chain(load=Memory(100_000), num_chunks=3, intermediate_length=40))
    assert held["explain"].config == SynthesisConfig("map_reduce", 3, 40)
    assert [one.id for one in held["context"]] == ["d0", "d1", "d2"]


@every_way
def test_a_dict_goes_through(way: Way) -> None:
    one = chain(input_key="question", load=Memory(10_000))
    result = way(one, {"question": QUESTION, "user": 3})
    assert result["user"] == 3
    assert result["question"] == QUESTION
    assert "input" not in result


@pytest.mark.parametrize("given", [3, {"other": "x"}, {"input": None}, ["a"]])
def test_other_inputs_are_refused(given: Any) -> None:
    with pytest.raises(ConfigurationError, match="input"):
        chain().invoke(given)


def test_it_composes_and_runs_batches() -> None:
    one = chain(load=Memory(100_000))
    composed: Any = RunnablePassthrough() | one | RunnableLambda(lambda result: result["answer"])
    assert (composed | StrOutputParser()).batch([QUESTION] * 5) == ["Purring."] * 5
    assert len(asyncio.run(one.abatch([QUESTION] * 3))) == 3
    bound = one.with_config(tags=["t"]).with_retry()
    assert bound.invoke(QUESTION)["answer"] == "Purring."


class Runs(BaseCallbackHandler):
    """Notes which runs are whose children."""

    def __init__(self) -> None:
        self.parents: dict[str, list[Any]] = {}
        self.own: list[Any] = []

    def on_chain_start(self, serialized: Any, inputs: Any, **run: Any) -> None:
        self.own.append(run["run_id"])

    def on_retriever_start(self, serialized: Any, query: str, **run: Any) -> None:
        self.parents.setdefault("retriever", []).append(run["parent_run_id"])

    def on_chat_model_start(self, serialized: Any, messages: Any, **run: Any) -> None:
        name = "profiler" if "Profile:" in messages[0][-1].content else "model"
        self.parents.setdefault(name, []).append(run["parent_run_id"])


@every_way
def test_the_runs_of_its_parts_are_its_children(way: Way) -> None:
    runs = Runs()
    one = chain(profiler="llm", profiler_llm=fake("low yes 2 medium"), load=Memory(100_000))
    result = way(one, config={"callbacks": [runs]})
    assert result["explain"].trusted
    assert len(runs.own) == 1
    assert runs.parents == {"retriever": runs.own, "profiler": runs.own, "model": runs.own}


def test_stores_are_asked_for_as_many_documents_as_any_profile_wants() -> None:
    store = InMemoryVectorStore(DeterministicFakeEmbedding(size=8))
    store.add_documents(DOCUMENTS)
    result = chain(retriever=store.as_retriever(), load=Memory(100_000)).invoke(QUESTION)
    assert result["explain"].found == 18
    few = chain(retriever=store.as_retriever(), max_chunks=5, load=Memory(100_000))
    assert few.invoke(QUESTION)["explain"].found == 5


def test_close_questions_share_a_profile() -> None:
    profiler = fake("low yes 2 medium", "high yes 3 long")
    one = chain(
        profiler="llm", profiler_llm=profiler, embeddings=DeterministicFakeEmbedding(size=8)
    )
    first, again = (one.invoke(QUESTION)["explain"].estimate for _ in range(2))
    assert (first.source, again.source) == ("llm", "cache")
    assert first.profile == again.profile


def test_a_corpus_is_drafted() -> None:
    one = chain(profiler_llm=fake("Facts about cats."))
    assert one.draft_corpus([*DOCUMENTS, "text"]) == "Facts about cats."
    assert asyncio.run(one.adraft_corpus(DOCUMENTS)) == "Facts about cats."


@pytest.mark.parametrize("close", [AdaptiveRAG.close, lambda one: asyncio.run(one.aclose())])
def test_closing_ends_what_is_learnt_in_the_background(close: Callable[[Any], None]) -> None:
    profiler = fake("low yes 2 medium")
    one = chain(profiler="llm", profiler_llm=profiler, load=Busy(10**6), golden_every=1)
    golden = one._pipeline.golden
    assert golden is not None
    one.invoke(QUESTION)
    assert not golden.join(0.1)  # it waits for an idle moment
    close(one)
    assert golden.join(60)
    assert one.invoke(QUESTION)["answer"] == "Purring."
    assert golden.join(0)
    close(one)


def test_a_call_of_another_tenant_teaches_nothing() -> None:
    profiler = fake("low yes 2 medium")
    one = chain(profiler="llm", profiler_llm=profiler, load=Busy(10**6), golden_every=1)
    golden = one._pipeline.golden
    assert golden is not None
    one.invoke(QUESTION, namespace="another")
    asyncio.run(one.ainvoke(QUESTION, namespace="another"))
    assert golden.join(0)  # nothing waits for an idle moment
    one.invoke(QUESTION)
    assert not golden.join(0.1)
    one.close()
    assert golden.join(60)


def test_nothing_found() -> None:
    result = chain(retriever=Found(count=0)).invoke(QUESTION)
    assert result["explain"].why == "nothing found"
    assert (result["context"], result["citations"]) == ([], [])


@pytest.mark.parametrize(
    ("knobs", "said"),
    [
        ({"modus": "fixed"}, "unknown argument 'modus'"),
        ({"mode": "fixed"}, "SynthesisConfig"),
        ({"profiler": "psychic"}, "profiler must be"),
        ({"profiler": 3}, "profiler must be"),
        ({"load": "not an address"}, "address"),
        ({"load": 3}, "load must be"),
        ({"golden_every": 30}, "LLMProfiler"),
        ({"llm": 3}, "llm"),
        ({"corpus": "two\nlines", "profiler": "llm"}, "one line"),
        ({"methods": "stuff"}, "did you mean 'method'"),
        ({"method": "stuff", "num_chunks": 2}, "leave nothing to choose"),
    ],
)
def test_wrong_arguments_are_refused(knobs: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigurationError, match=said):
        chain(**knobs)


@every_way
def test_with_our_engine(way: Way, engine: RAGCacheEngine) -> None:
    model = ChatRAGCache(engine=engine, max_tokens=8)
    adaptive = AdaptiveRAG(
        retriever=Found(),
        llm=model,
        corpus="Facts about cats.",
        chunk_size=40,
        profile_timeout=300,
    )
    result = way(adaptive)
    explanation = result["explain"]
    assert explanation.load is not None
    assert explanation.why == "fits"
    assert explanation.estimate.profile is not None
    assert explanation.estimate.usage.completion_tokens <= 12
    assert result["cost"].usage.prompt_tokens > 0
    # The documents are documents to the engine.
    tree = engine.tree()
    assert tree is not None
    assert {"d0", "d1"} <= {node.name for node in tree.nodes()}


def tokens_of_events(one: AdaptiveRAG) -> str:
    async def collect() -> str:
        events = one.astream_events(QUESTION, version="v2", exclude_tags=[INNER_TAG])
        kind = "on_chat_model_stream"
        return "".join(
            [each["data"]["chunk"].text async for each in events if each["event"] == kind]
        )

    return asyncio.run(collect())


def tokens_of_a_graph(one: AdaptiveRAG) -> str:
    class State(TypedDict):
        answer: str

    graph = StateGraph(State)
    graph.add_node("answer", lambda _: {"answer": one.invoke(QUESTION)["answer"]})
    graph.add_edge(START, "answer")
    pieces: Any = graph.compile().stream({"answer": ""}, stream_mode="messages")
    return "".join(message.text for message, _ in pieces)


@pytest.mark.parametrize("tokens", [tokens_of_events, tokens_of_a_graph])
@pytest.mark.parametrize(
    ("knobs", "said", "shown"),
    [
        # What may turn out to be no answer is not shown as one.
        (
            {"mode": "gradual", "method": "stuff"},
            [MISSING, MISSING, "Purring."],
            "Purring.",
        ),
        ({"mode": "gradual", "method": "stuff"}, ["Purring."], ""),
        ({"method": "stuff"}, ["Purring."], "Purring."),
        ({"method": "map_reduce", "max_chunks": 2}, ["Cats.", "Dogs.", "Purring."], "Purring."),
        ({"method": "map_rerank", "max_chunks": 2}, ["Purring.", "Barking."], ""),
        ({"profiler": "llm", "mode": "median"}, ["low yes 1 short", "Purring."], "Purring."),
    ],
)
def test_only_tokens_of_the_answer_are_streamed_to_others(
    tokens: Callable[[AdaptiveRAG], str], knobs: dict[str, Any], said: list[str], shown: str
) -> None:
    # One call after the other, so that they get the answers in their order.
    assert tokens(chain(llm=fake(*said), load=Memory(100_000), max_concurrency=1, **knobs)) == shown
