"""Synthesis as LangChain Runnables: with any model, and like the chains of old."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator
from functools import reduce
from operator import add
from pathlib import Path
from typing import Any

import pytest
from blockbuster import blockbuster_ctx
from langchain_core.callbacks import BaseCallbackHandler
from langchain_core.documents import Document
from langchain_core.language_models import (
    FakeListChatModel,
    FakeListLLM,
    FakeMessagesListChatModel,
)
from langchain_core.messages import AIMessage
from langchain_core.prompts import PromptTemplate
from langchain_core.runnables import Runnable, RunnableLambda, RunnablePassthrough

from ragcache_integrations.adaptive import Synthesised, SynthesisPrompts
from ragcache_integrations.adaptive.synthesis import NOTHING_TO_READ
from ragcache_integrations.chains.synthesis.langchain import (
    MapReduceSynthesis,
    MapRerankSynthesis,
    StuffSynthesis,
    SynthesisRunnable,
    synthesis_chain,
)
from ragcache_integrations.core.generation import Usage
from ragcache_integrations.engine import RAGCacheEngine
from ragcache_integrations.errors import ConfigurationError
from ragcache_integrations.llms.langchain.models import ChatRAGCache, RAGCacheLLM
from tests.chains.scripted import documents

QUESTION = "what do they say"
INPUT = {"input_documents": documents("abc"), "question": QUESTION}
CHAINS = (StuffSynthesis, MapReduceSynthesis, MapRerankSynthesis)
CALLS = {"stuff": 1, "map_reduce": 4, "map_rerank": 3}
every_chain = pytest.mark.parametrize("chain", CHAINS)


def ask(chain: Runnable[Any, Any], given: Any) -> list[dict[str, Any]]:
    """The output in every way there is."""

    async def awaited() -> tuple[dict[str, Any], dict[str, Any]]:
        pieces = [piece async for piece in chain.astream(given)]
        return await chain.ainvoke(given), reduce(add, pieces)

    return [chain.invoke(given), reduce(add, list(chain.stream(given))), *asyncio.run(awaited())]


# With any model


@every_chain
def test_with_a_fake_chat_model(chain: type[SynthesisRunnable]) -> None:
    model = FakeListChatModel(responses=["Cats.\nScore: 70"])
    for output in ask(chain(llm=model), INPUT):
        assert output["output_text"].startswith("Cats.")
        assert output["question"] == QUESTION
        assert output["input_documents"] == INPUT["input_documents"]
        result = output["synthesis"]
        assert result.calls == CALLS[chain.method]
        assert result.usage is None
        assert output["citations"]


@every_chain
def test_with_a_fake_text_model(chain: type[SynthesisRunnable]) -> None:
    for output in ask(chain(llm=FakeListLLM(responses=["Cats."])), INPUT):
        assert output["output_text"] == "Cats."


def test_with_a_function_for_a_model() -> None:
    model: Any = RunnableLambda(lambda messages: f"{len(messages)} messages")
    assert StuffSynthesis(llm=model).invoke(INPUT)["output_text"] == "2 messages"


def message(text: str, *logprobs: float) -> AIMessage:
    content = [{"token": "x", "logprob": logprob, "top_logprobs": []} for logprob in logprobs]
    return AIMessage(
        text,
        response_metadata={"logprobs": {"content": content}} if content else {},
        usage_metadata={
            "input_tokens": 10,
            "output_tokens": 2,
            "total_tokens": 12,
            "input_token_details": {"cache_read": 4},
        },
    )


def test_map_rerank_takes_the_surest_by_the_models_logprobs() -> None:
    said = [message("a", -0.9), message("b", -0.1, -0.3), message("c", -0.6)]
    model = FakeMessagesListChatModel(responses=list(said)).bind(logprobs=True)
    chain = MapRerankSynthesis(llm=model, max_concurrency=1, return_intermediate_steps=True)
    output = chain.invoke(INPUT)
    assert output["output_text"] == "b"
    assert output["citations"] == documents("b")
    assert output["intermediate_steps"] == [
        {"answer": "a", "score": -0.9},
        {"answer": "b", "score": -0.2},
        {"answer": "c", "score": -0.6},
    ]
    assert output["synthesis"].usage == Usage(30, 6, 12)
    assert output["synthesis"].confidence_kind == "logprob"


def test_intermediate_steps_of_a_model_that_was_asked_twice() -> None:
    said = [message("x")] * 3 + [message(f"{score}\nScore: {score}") for score in (10, 80, 30)]
    model = FakeMessagesListChatModel(responses=list(said)).bind(logprobs=True)
    chain = MapRerankSynthesis(llm=model, max_concurrency=1, return_intermediate_steps=True)
    output = chain.invoke(INPUT)
    assert output["synthesis"].calls == 6
    assert output["output_text"] == "80"
    assert [step["score"] for step in output["intermediate_steps"]] == [0.1, 0.8, 0.3]


def test_what_a_model_does_not_know_is_not_asked_of_it() -> None:
    """Hosted models refuse arguments that they do not know."""
    seen: list[dict[str, Any]] = []

    class Strict(FakeListChatModel):
        def _call(self, *args: Any, **kwargs: Any) -> str:
            seen.append(kwargs)
            return "fine"

    class Limited(Strict):
        max_tokens: int | None = None
        logprobs: bool | None = None

    for kind in (Strict, Limited):
        MapReduceSynthesis(llm=kind(responses=[])).invoke(INPUT)
    own = [{k: v for k, v in call.items() if k in {"max_tokens", "logprobs"}} for call in seen]
    assert own == [*[{}] * 4, *[{"max_tokens": 134}] * 3, {"logprobs": True}]


def test_the_model_runs_are_children_of_the_chains() -> None:
    class Runs(BaseCallbackHandler):
        def __init__(self) -> None:
            self.chains: list[Any] = []
            self.models: list[Any] = []

        def on_chain_start(self, *_: Any, run_id: Any, **kwargs: Any) -> None:
            self.chains.append(run_id)

        def on_chat_model_start(self, *_: Any, **kwargs: Any) -> None:
            self.models.append(kwargs["parent_run_id"])

    runs = Runs()
    chain = MapReduceSynthesis(llm=FakeListChatModel(responses=["Cats."]))
    chain.invoke(INPUT, {"callbacks": [runs]})
    assert len(runs.chains) == 1
    assert runs.models == runs.chains * 4


@pytest.mark.engine
@every_chain
@pytest.mark.parametrize("kind", [ChatRAGCache, RAGCacheLLM])
def test_with_our_models(
    engine: RAGCacheEngine, chain: type[SynthesisRunnable], kind: type[Any]
) -> None:
    model = kind(engine=engine, max_tokens=6, find_documents=False)
    short: Any = {"intermediate_length": 6} if chain is MapReduceSynthesis else {}
    with blockbuster_ctx(scanned_modules=["ragcache_integrations"]):
        outputs = ask(chain(llm=model, **short), INPUT)
    assert len({output["output_text"].strip() for output in outputs}) == 1
    for output in outputs:
        result = output["synthesis"]
        assert result.calls == CALLS[chain.method]
    for output in (outputs[0], outputs[2]):
        assert output["synthesis"].usage is not None
        assert output["synthesis"].confidence_kind == "logprob"


@pytest.mark.engine
@pytest.mark.parametrize("kind", [ChatRAGCache, RAGCacheLLM])
def test_our_models_are_told_the_documents(engine: RAGCacheEngine, kind: type[Any]) -> None:
    model = kind(engine=engine, max_tokens=2, find_documents=False)
    before = _ids(engine)
    # Apart from the beginning on: documents that share all their blocks are one to the tree.
    given = [Document(f"{kind.__name__} {document.page_content}") for document in documents("abc")]
    for number, document in enumerate(given):
        document.id = f"{kind.__name__}-{number}"
    MapRerankSynthesis(llm=model).invoke({"context": given, "question": QUESTION})
    assert {document.id for document in given} <= _ids(engine) - before


def _ids(engine: RAGCacheEngine) -> set[str]:
    tree = engine.tree()
    assert tree is not None
    return {node.name for node in tree.nodes()}


# Like the chains of old


@pytest.mark.parametrize("chain_type", CALLS)
def test_load_qa_chains_call(chain_type: Any) -> None:
    chain = synthesis_chain(FakeListChatModel(responses=["Cats."]), chain_type=chain_type)
    output = chain.invoke(INPUT)
    assert output["output_text"] == "Cats."
    assert "intermediate_steps" not in output
    assert isinstance(output["synthesis"], Synthesised)


def test_intermediate_steps_of_map_reduce() -> None:
    model = FakeListChatModel(responses=["one", "two", "three", "end"])
    chain = synthesis_chain(model, "map_reduce", return_intermediate_steps=True, max_concurrency=1)
    output = chain.invoke(INPUT)
    assert output["intermediate_steps"] == ["one", "two", "three"]
    assert output["output_text"] == "end"


def test_behind_a_retriever() -> None:
    retriever: Any = RunnableLambda(lambda question: documents("ab"))
    chain = {"context": retriever, "question": RunnablePassthrough()} | StuffSynthesis(
        llm=FakeListChatModel(responses=["Cats."])
    )
    assert chain.invoke(QUESTION)["output_text"] == "Cats."


def test_strings_and_own_layouts() -> None:
    seen: list[Any] = []

    def note(messages: Any) -> str:
        seen.append(messages)
        return "x"

    chain = StuffSynthesis(
        llm=RunnableLambda(note),
        document_prompt=PromptTemplate.from_template("<{source}> {page_content}"),
        prompts=SynthesisPrompts(system="", answer="? {question}"),
    )
    chain.invoke({"context": [Document("a", metadata={"source": "s"})], "question": "why"})
    assert [one.content for one in seen.pop()] == ["<s> a\n\n? why"]
    StuffSynthesis(llm=RunnableLambda(note)).invoke({"context": ["plain"], "question": "why"})
    assert seen[0][1].content.startswith("plain\n\n")


@every_chain
def test_without_documents_no_model_is_asked(chain: type[SynthesisRunnable]) -> None:
    model = FakeListChatModel(responses=[])
    for output in ask(chain(llm=model), {"context": [], "question": QUESTION}):
        assert output["output_text"] == NOTHING_TO_READ
        assert output["citations"] == []


async def test_closing_a_stream_gives_the_answer_up() -> None:
    closed = asyncio.Event()

    class Slow(FakeListChatModel):
        async def _astream(self, *args: Any, **kwargs: Any) -> AsyncIterator[Any]:
            try:
                async for chunk in super()._astream(*args, **kwargs):
                    yield chunk
            finally:
                closed.set()

    stream: Any = StuffSynthesis(llm=Slow(responses=["a long answer"])).astream(INPUT)
    async for piece in stream:
        if "output_text" in piece:
            break
    await stream.aclose()
    assert closed.is_set()


def test_batches() -> None:
    chain = MapRerankSynthesis(llm=FakeListChatModel(responses=["Cats.\nScore: 70"]))
    outputs = chain.batch([INPUT] * 5)
    assert [output["output_text"] for output in outputs] == ["Cats."] * 5


# Bad input


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ("question", "the input must be a dict, got str"),
        ({"question": "q"}, "the input must have input_documents or context, and question"),
        ({"context": []}, "the input must have input_documents or context, and question"),
        ({"context": "text", "question": "q"}, "context must be a list of documents, got str"),
        ({"context": [3], "question": "q"}, "context must hold documents or strings, got int"),
        ({"context": ["x"], "question": " "}, "the question must be a non-empty string"),
    ],
)
def test_wrong_input(given: Any, message: str) -> None:
    chain = StuffSynthesis(llm=FakeListChatModel(responses=["x"]))
    for call in (chain.invoke, lambda given: list(chain.stream(given))):
        with pytest.raises(ConfigurationError, match=message):
            call(given)


@pytest.mark.parametrize(
    ("knobs", "message"),
    [
        ({"num_chunk": 3}, "unknown argument 'num_chunk': allowed are .*num_chunks"),
        ({"num_chunks": 0}, "num_chunks"),
        ({"intermediate_length": 30}, "unknown argument 'intermediate_length'"),
        ({"llm": "gpt"}, "llm"),
        ({"document_prompt": "{page_content}"}, "document_prompt must be one of LangChain's templ"),
    ],
)
def test_wrong_knobs(knobs: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        StuffSynthesis(**{"llm": FakeListChatModel(responses=["x"]), **knobs})


def test_an_unknown_type_of_chain() -> None:
    with pytest.raises(ConfigurationError, match="chain_type must be one of stuff, map_reduce"):
        synthesis_chain(FakeListChatModel(responses=["x"]), chain_type="refine")  # type: ignore[arg-type]  # what users may pass


def test_the_documented_example_prints_what_it_says(capsys: pytest.CaptureFixture[str]) -> None:
    page = (Path(__file__).parents[3] / "docs/adaptive.md").read_text(encoding="utf-8")
    examples = re.findall(r"^```python\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)
    (example,) = (example for example in examples if "synthesis_chain" in example)
    exec(compile(example, "docs/adaptive.md", "exec"), {})
    shown = capsys.readouterr().out.splitlines()
    assert shown == ["Rome.", "Rome is the capital of Italy.", "2 0.9"]
    assert "# Rome." in example
    assert "# 2 0.9" in example
