"""Relevance checks in both frameworks, on the real engine and on models that answer freely."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from blockbuster import blockbuster_ctx
from langchain_core.documents import Document
from langchain_core.language_models import FakeListChatModel
from langchain_core.prompts import ChatPromptTemplate
from langchain_core.runnables import RunnableLambda, RunnablePassthrough
from llama_index.core.llms import MockLLM
from llama_index.core.schema import NodeWithScore, QueryBundle, TextNode

from ragcache_integrations.engine import Generation, Prompt, RAGCacheEngine
from ragcache_integrations.errors import ConfigurationError
from ragcache_integrations.llms.langchain.models import ChatRAGCache
from ragcache_integrations.llms.llama_index import RAGCacheLLM
from ragcache_integrations.prompts.langchain import RelevanceFilter as LangChainFilter
from ragcache_integrations.prompts.llama_index import RelevanceFilter as LlamaIndexFilter
from ragcache_integrations.resources import load_passages

QUERY = "who got the first nobel prize in physics"
PROMPT = ChatPromptTemplate.from_template("{context}\n\nQuestion: {question}")
PASSAGES = load_passages()
TEXTS = [" ".join(p.text for p in PASSAGES[3 * n : 3 * n + 3]) for n in range(3)]
DOCUMENTS = [Document(text, id=f"d{n}") for n, text in enumerate(TEXTS)]
NODES = [NodeWithScore(node=TextNode(text=t, id_=f"d{n}")) for n, t in enumerate(TEXTS)]


class Watched:
    """An engine that remembers what it was asked and said."""

    def __init__(self, engine: RAGCacheEngine) -> None:
        self._engine = engine
        self.asked: list[Prompt] = []
        self.answers: list[Generation] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._engine, name)

    def generate(self, prompt: Prompt, *arguments: Any, **more: Any) -> Generation:
        answer = self._engine.generate(prompt, *arguments, **more)
        self.asked.append(prompt)
        self.answers.append(answer)
        return answer

    async def agenerate(self, prompt: Prompt, *arguments: Any, **more: Any) -> Generation:
        answer = await self._engine.agenerate(prompt, *arguments, **more)
        self.asked.append(prompt)
        self.answers.append(answer)
        return answer


@pytest.fixture
def watched(engine: RAGCacheEngine) -> Watched:
    assert engine.reset_cache()
    return Watched(engine)


def said(watched: Watched) -> set[tuple[str, str]]:
    """Of each document, what was said of it."""
    pairs = zip(watched.asked, watched.answers, strict=True)
    return {(prompt.documents[0].id, answer.text[0]) for prompt, answer in pairs}


@pytest.mark.engine
@pytest.mark.parametrize("asynchronous", [False, True])
def test_langchain_drops_what_the_engine_calls_irrelevant(
    watched: Watched, asynchronous: bool
) -> None:
    check = LangChainFilter(llm=ChatRAGCache(engine=watched))
    values = {"context": DOCUMENTS, "question": QUERY, "more": 1}
    found = asyncio.run(check.ainvoke(values)) if asynchronous else check.invoke(values)
    assert found["question"] == QUERY
    assert found["more"] == 1
    assert all(len(answer.token_ids) == 1 for answer in watched.answers)
    verdicts = dict(said(watched))
    assert set(verdicts) == {"d0", "d1", "d2"}
    assert [doc.id for doc in found["context"]] == [
        n for n in sorted(verdicts) if verdicts[n] == "y"
    ]
    assert check.compress_documents(DOCUMENTS, QUERY) == found["context"]
    assert asyncio.run(check.acompress_documents(DOCUMENTS, QUERY)) == found["context"]


@pytest.mark.engine
@pytest.mark.parametrize("asynchronous", [False, True])
def test_llama_index_drops_what_the_engine_calls_irrelevant(
    watched: Watched, asynchronous: bool
) -> None:
    check = LlamaIndexFilter(llm=RAGCacheLLM(engine=watched))
    if asynchronous:
        found = asyncio.run(check.apostprocess_nodes(NODES, query_str=QUERY))
    else:
        found = check.postprocess_nodes(NODES, query_str=QUERY)
    assert all(len(answer.token_ids) == 1 for answer in watched.answers)
    verdicts = dict(said(watched))
    assert set(verdicts) == {"d0", "d1", "d2"}
    assert [node.node_id for node in found] == [n for n in sorted(verdicts) if verdicts[n] == "y"]


@pytest.mark.engine
def test_a_langchain_answer_reuses_the_documents_of_a_shared_check(watched: Watched) -> None:
    model = ChatRAGCache(engine=watched, max_tokens=1)

    def format_docs(values: dict[str, Any]) -> str:
        return "\n\n".join(doc.page_content for doc in values["context"])

    chain: Any = (
        LangChainFilter(llm=model, mode="shared", prompt=PROMPT)
        | RunnablePassthrough.assign(context=RunnableLambda(format_docs))
        | PROMPT
        | model.bind(documents=DOCUMENTS)
    )
    chain.invoke({"context": DOCUMENTS, "question": QUERY})
    check, answer = watched.answers
    assert [doc.text for doc in watched.asked[0].documents] == TEXTS
    assert check.usage.cached_tokens == 0
    assert answer.usage.cached_tokens > 0.7 * answer.usage.prompt_tokens


@pytest.mark.engine
def test_a_llama_index_check_begins_as_the_answer_does(watched: Watched) -> None:
    check = LlamaIndexFilter(llm=RAGCacheLLM(engine=watched), mode="shared")
    found = check.postprocess_nodes(NODES, QueryBundle(QUERY))
    assert found[:3] == NODES
    assert len(found) in {3, 4}
    (prompt,) = watched.asked
    assert [doc.text for doc in prompt.documents] == TEXTS
    assert prompt.messages[-1].text.index(TEXTS[2]) < prompt.messages[-1].text.index(QUERY)


def test_a_model_that_answers_freely_is_understood() -> None:
    llm = FakeListChatModel(responses=["Yes.", "No, it does not.", "Perhaps"])
    found = LangChainFilter(llm=llm).batch(
        [{"context": [doc], "question": QUERY} for doc in DOCUMENTS]
    )
    kept = sorted(doc.id or "" for values in found for doc in values["context"])
    assert len(kept) == 2
    assert (
        len(LlamaIndexFilter(llm=MockLLM(max_tokens=1)).postprocess_nodes(NODES, query_str="no?"))
        == 3
    )


def test_documents_stay_within_a_limit_of_tokens() -> None:
    settings: dict[str, Any] = {"max_document_tokens": len(TEXTS[0]), "count_tokens": len}
    found = LangChainFilter(llm=FakeListChatModel(responses=["yes"]), **settings)
    assert found.compress_documents(DOCUMENTS, QUERY) == DOCUMENTS[:1]
    nodes = LlamaIndexFilter(llm=MockLLM(max_tokens=1), **settings)
    assert nodes.postprocess_nodes(NODES, query_str="yes?") == NODES[:1]


def test_shared_names_the_irrelevant_ones_in_a_last_document() -> None:
    llm = FakeListChatModel(responses=["[true, false, true]"])
    check = LangChainFilter(llm=llm, mode="shared", prompt=PROMPT)
    *kept, note = check.compress_documents(DOCUMENTS, QUERY)
    assert kept == DOCUMENTS
    assert note.page_content.endswith("document 2 is not relevant to the question: disregard it.")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"mode": "joint"}, "mode"),
        ({"min_documents": -1}, "min_documents must be a whole number"),
        ({"modus": "shared"}, "modus"),
    ],
)
def test_wrong_arguments_are_refused_in_words(arguments: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigurationError, match=said):
        LangChainFilter(llm=FakeListChatModel(responses=["yes"]), **arguments)
    with pytest.raises(ConfigurationError, match=said):
        LlamaIndexFilter(llm=MockLLM(), **arguments)


def test_what_is_no_model_is_refused_in_words() -> None:
    with pytest.raises(ConfigurationError, match="llm must be a BaseLanguageModel, got str"):
        LangChainFilter(llm="gpt")
    with pytest.raises(ConfigurationError, match="llm"):
        LlamaIndexFilter(llm="gpt")


def test_what_is_missing_is_said() -> None:
    check = LangChainFilter(llm=FakeListChatModel(responses=["yes"]))
    with pytest.raises(ConfigurationError, match="must have question, got context"):
        check.invoke({"context": DOCUMENTS})
    with pytest.raises(ConfigurationError, match="needs the question"):
        LlamaIndexFilter(llm=MockLLM()).postprocess_nodes(NODES)


@pytest.mark.engine
async def test_the_async_twins_block_nothing(watched: Watched) -> None:
    with blockbuster_ctx(scanned_modules=["ragcache_integrations"]):
        llama = LlamaIndexFilter(llm=RAGCacheLLM(engine=watched), mode="shared")
        await llama.apostprocess_nodes(NODES, query_str=QUERY)
        check = LangChainFilter(llm=ChatRAGCache(engine=watched))
        await check.ainvoke({"context": DOCUMENTS, "question": QUERY})
