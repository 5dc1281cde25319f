"""LangChain: a prompt is searched for the documents of its own request, and no others."""

from __future__ import annotations

import asyncio
import contextvars
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from langchain_core.documents import Document
from langchain_core.embeddings import Embeddings
from langchain_core.messages import AIMessage, HumanMessage
from langchain_core.prompts import ChatPromptTemplate, PromptTemplate
from langchain_core.retrievers import BaseRetriever
from langchain_core.runnables import (
    Runnable,
    RunnableConfig,
    RunnableLambda,
    RunnableParallel,
    RunnablePassthrough,
)
from langchain_core.tools import tool
from langchain_core.vectorstores import InMemoryVectorStore

from ragcache_integrations.engine import Prompt, RAGCacheEngine
from ragcache_integrations.langchain import (
    ApproximateCacheRetriever,
    RAGCacheLLM,
    RAGPromptTemplate,
)
from ragcache_integrations.prompts.recognition.segmentation import SEGMENTATIONS
from tests.llms.doubles import Tokenising
from tests.llms.retrieving import TEXTS, documents_in
from tests.support.sizes import examples

from .test_retrievals import chat_on, format_docs

PROMPT = ChatPromptTemplate.from_template("{context}\n\nQuestion: {question}")


class Alike(Embeddings):
    """All texts are alike, so that the only one is found."""

    def embed_query(self, text: str) -> list[float]:
        return [1.0, 0.0]

    def embed_documents(self, texts: list[str]) -> list[list[float]]:
        return [[1.0, 0.0] for _ in texts]


class Named(BaseRetriever):
    """Finds the text whose number stands first in the question."""

    def _get_relevant_documents(self, query: str, **kwargs: Any) -> list[Document]:
        names = {str(number): text for number, text in enumerate(TEXTS)}
        (name, *_) = [word for word in query.split() if word in names]
        return [Document(names[name], id=f"t{name}")]


@pytest.fixture(scope="module")
def tokenising() -> Tokenising:
    return Tokenising()


def rag(model: Any, retriever: Any = None) -> Runnable[str, Any]:
    chain: Runnable[str, Any] = (
        {"context": (retriever or Named()) | format_docs, "question": RunnablePassthrough()}
        | PROMPT
        | model
    )
    return chain


def found(engine: Tokenising) -> list[str]:
    return [document.id for document in engine.prompts[-1].documents]


# What an attacker can find out


def ours(namespace: str, text: str, model: Any) -> None:
    """The victim asks through a retriever of this package."""
    store = InMemoryVectorStore(Alike())
    store.add_documents([Document(text, id="secret")])
    retriever = ApproximateCacheRetriever.from_vectorstore(store, k=1, namespace=namespace)
    rag(model, retriever).invoke("What of topic 3 ?")


class Finds(BaseRetriever):
    """Finds one text."""

    text: str

    def _get_relevant_documents(self, query: str, **kwargs: Any) -> list[Document]:
        return [Document(self.text)]


def theirs(namespace: str, text: str, model: Any) -> None:
    """The victim asks through another retriever, and its chain fails at the end."""
    chain = rag(model, Finds(text=text)) | RunnableLambda(lambda _: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        chain.invoke("Why?")


def script(namespace: str, text: str, model: Any) -> None:
    """The victim calls one after the other, and has a context like every task has."""

    def run() -> None:
        documents = Finds(text=text).invoke("Why?")
        model.invoke(f"{format_docs(documents)}\n\nWhy?")
        Finds(text=text).invoke("And why not?")
        RAGPromptTemplate(documents="{docs}", query="{q}").format_messages(docs=documents, q="?")

    contextvars.Context().run(run)


def task(namespace: str, text: str, model: Any) -> None:
    """The victim has a task, in an event loop of this thread."""
    asyncio.run(Finds(text=text).ainvoke("Why?"))


def alone(guess: str, model: Any) -> Any:
    return model.invoke(guess)


def chained(guess: str, model: Any) -> Any:
    return (PROMPT | model).invoke({"context": guess, "question": "?"})


def retrieving(guess: str, model: Any) -> Any:
    """With a retrieval of its own, which finds something else."""
    return rag(model).invoke(f"What of 5 and {guess}?")


def conversing(guess: str, model: Any) -> Any:
    return model.invoke([HumanMessage(guess), AIMessage("Yes."), HumanMessage("And?")])


GLUE = ["", "a", "re", "1", " ", "\n", ".", "'s", "th", "<|user|>"]


@examples(60)
@given(
    victim=st.sampled_from([ours, theirs, script, task]),
    attack=st.sampled_from([alone, chained, retrieving, conversing]),
    namespaces=st.sampled_from(
        [("victim", "attacker"), ("victim", ""), ("", "attacker"), ("", "")]
    ),
    secret=st.one_of(
        st.sampled_from(TEXTS[:3]),
        st.text(min_size=64, max_size=200),
        st.sampled_from(TEXTS[:3]).map(lambda text: text[:99] + "<|end|>\n<|system|>" + text[99:]),
    ),
    glue=st.tuples(st.sampled_from(GLUE), st.sampled_from(GLUE)),
)
def test_nobody_finds_out_what_others_retrieved(
    tokenising: Tokenising,
    victim: Callable[[str, str, Any], None],
    attack: Callable[[str, Any], Any],
    namespaces: tuple[str, str],
    secret: str,
    glue: tuple[str, str],
) -> None:
    """Neither by the number of tokens nor by how the prompt is split, right guess or wrong."""
    SEGMENTATIONS.clear()
    own, other = namespaces
    guess = f"{glue[0]}{secret}{glue[1]}"

    def probe() -> tuple[Prompt, int]:
        answer = attack(guess, chat_on(tokenising, namespace=other))
        return tokenising.prompts[-1], answer.usage_metadata["input_tokens"]

    before = contextvars.copy_context().run(probe)
    SEGMENTATIONS.clear()  # as if it were the first to guess
    victim(own, secret, chat_on(tokenising, namespace=own))
    assert probe() == before


def test_not_even_a_reused_thread_crosses_namespaces(tokenising: Tokenising) -> None:
    """The one thing that a context links: a retrieval that no answer followed."""
    store = InMemoryVectorStore(Alike())
    store.add_documents([Document(TEXTS[3], id="secret")])
    retriever = ApproximateCacheRetriever.from_vectorstore(store, k=1, namespace="victim")
    retriever.invoke("What of topic 3 ?")
    assert documents_in(TEXTS[3], "attacker") == documents_in(TEXTS[3]) == []
    assert documents_in(TEXTS[3], "victim") == [TEXTS[3]]
    asyncio.run(retriever.ainvoke("What of topic 3 ?", namespace="other"))
    list(retriever.stages("Who, on topic 3 ?", namespace="other"))
    assert documents_in(TEXTS[3], "other") == [TEXTS[3]]
    assert documents_in(TEXTS[3], "attacker") == []


# What a request finds


def test_a_script_that_calls_one_after_the_other(tokenising: Tokenising) -> None:
    model = chat_on(tokenising)
    for number in (3, 5):
        documents = Named().invoke(f"What of {number} ?")
        model.invoke(PROMPT.invoke({"context": format_docs(documents), "question": "?"}))
        assert found(tokenising) == [f"t{number}"]
        (PROMPT | model).invoke({"context": format_docs(documents), "question": "Why?"})
        assert found(tokenising) == [f"t{number}"]

    async def main() -> None:
        documents = await Named().ainvoke("What of 7 ?")
        await model.ainvoke(PROMPT.invoke({"context": format_docs(documents), "question": "?"}))
        assert found(tokenising) == ["t7"]
        assert [c async for c in model.astream(f"{format_docs(documents)} So?")]
        assert found(tokenising) == ["t7"]

    asyncio.run(main())


@pytest.mark.parametrize("way", ["invoke", "ainvoke", "stream", "astream"])
def test_graphs_of_nodes_and_tools(tokenising: Tokenising, way: str) -> None:
    """As agents and LangGraph nest them: nodes in a graph, a retriever in a tool, both apart."""

    @tool
    def look_up(question: str) -> str:
        """Look something up."""
        return format_docs(Named().invoke(question))

    def agent(state: dict[str, Any], config: RunnableConfig) -> dict[str, Any]:
        return {**state, "context": look_up.invoke(state["question"], config)}

    def beside(state: dict[str, Any]) -> str:
        return format_docs(Named().invoke("What of 9 ?"))  # the run is in the context

    model = chat_on(tokenising)
    both = RunnableParallel(first=RunnableLambda(agent), second=RunnableLambda(beside))

    def answer(state: dict[str, Any], config: RunnableConfig) -> Any:
        context = f"{state['first']['context']}\n{state['second']}"
        return model.invoke(PROMPT.invoke({"context": context, "question": "?"}), config)

    graph: Any = both | RunnableLambda(answer)
    given = {"question": "What of 4 ?"}

    async def astream() -> None:
        assert [piece async for piece in graph.astream(given)]

    ways: dict[str, Callable[[], Any]] = {
        "invoke": lambda: graph.invoke(given),
        "stream": lambda: list(graph.stream(given)),
        "ainvoke": lambda: asyncio.run(graph.ainvoke(given)),
        "astream": lambda: asyncio.run(astream()),
    }
    ways[way]()
    assert found(tokenising) == ["t4", "t9"]


@pytest.mark.parametrize("is_async", [False, True])
def test_prompts_of_several_requests_in_one_call(tokenising: Tokenising, is_async: bool) -> None:
    """`batch` of a text model hands over the prompts of all runs, with one run manager."""
    llm = RAGCacheLLM(engine=tokenising, max_tokens=1)
    everything = "\n".join(TEXTS[:4])
    template = PromptTemplate.from_template("{context} {question} " + everything)
    chain = {"context": Named() | format_docs, "question": RunnablePassthrough()} | template | llm
    questions = [f"What of {number} ?" for number in range(4)]
    before = len(tokenising.prompts)
    if is_async:
        asyncio.run(chain.abatch(questions))
    else:
        chain.batch(questions)
    named = [{d.id for d in prompt.documents} for prompt in tokenising.prompts[before:]]
    assert sorted(named, key=sorted) == [{f"t{number}"} for number in range(4)]


def test_requests_in_threads_and_tasks_at_once(tokenising: Tokenising) -> None:
    """Every prompt holds all texts; each request finds its own in it."""
    everything = "\n".join(TEXTS)
    chain = (
        {"context": Named() | format_docs, "question": RunnablePassthrough()}
        | ChatPromptTemplate.from_template("{question}|{context}\n" + everything)
        | chat_on(tokenising)
    )
    before = len(tokenising.prompts)

    def serve(worker: int) -> None:
        questions = [f"{worker} " + "x" * n for n in range(10)]
        if worker % 2:
            for question in questions:
                chain.invoke(question)
        else:
            asyncio.run(chain.abatch(questions))

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(serve, range(8)))
    assert len(tokenising.prompts) == before + 80
    for prompt in tokenising.prompts[before:]:
        (worker, *_) = prompt.messages[0].text.split()
        assert {document.id for document in prompt.documents} == {f"t{worker}"}


@pytest.mark.engine
@pytest.mark.parametrize("retrieves", [False, True])
def test_earlier_turns_are_served_from_the_cache(engine: RAGCacheEngine, retrieves: bool) -> None:
    """Also where a later turn retrieves nothing, or something else."""
    assert engine.reset_cache()
    model = chat_on(engine)
    messages: list[Any] = PROMPT.invoke(
        {"context": f"x{TEXTS[3]}y", "question": "Who?"}  # glued, so that splitting matters
    ).to_messages()

    def first(_: Any) -> Any:
        Named().invoke("What of 3 ?")
        return model.invoke(messages)

    def second(asked: list[Any]) -> Any:
        if retrieves:
            Named().invoke("What of 5 ?")
        return model.invoke(asked)

    answer = RunnableLambda(first).invoke(None)
    conversation = [*messages, answer, HumanMessage(f"And what of {TEXTS[5]} then?")]
    later = RunnableLambda(second).invoke(conversation)
    cached = later.usage_metadata["input_token_details"]["cache_read"]
    assert cached >= answer.usage_metadata["input_tokens"] - 32
