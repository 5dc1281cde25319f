"""Cached answers around LangChain chains that retrieve by themselves, or are given documents."""

from __future__ import annotations

import asyncio
import gc
import logging
import pickle
import threading
import tracemalloc
from collections.abc import Callable
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import pytest
from langchain_core.callbacks import BaseCallbackHandler
from langchain_core.documents import Document
from langchain_core.language_models import GenericFakeChatModel
from langchain_core.messages import AIMessage, HumanMessage, SystemMessage
from langchain_core.output_parsers import StrOutputParser
from langchain_core.prompts import ChatPromptTemplate
from langchain_core.retrievers import BaseRetriever
from langchain_core.runnables import (
    ConfigurableField,
    Runnable,
    RunnableConfig,
    RunnableLambda,
    RunnablePassthrough,
)
from langchain_core.vectorstores import InMemoryVectorStore
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import START, MessagesState, StateGraph
from pydantic import BaseModel

from ragcache_integrations.answers.changes import CHANGED
from ragcache_integrations.answers.langchain.values import same_output
from ragcache_integrations.errors import ConfigurationError
from ragcache_integrations.langchain import (
    ANSWER_CACHE_EVENT,
    AnswerCache,
    ApproximateCacheRetriever,
    MiniLMEmbeddings,
)
from tests.answers.traffic import UNREAD, langchain_embeddings
from tests.support.waiting import wait_until

TEXTS = ["rome is a city", "oslo is a town", "kyiv is a place", "bonn is a seat"]


class Chain:
    """A chain that retrieves by itself, and counts its answers."""

    def __init__(self, retriever: Runnable[str, list[Document]]) -> None:
        self.questions: list[str] = []
        self.write: Callable[[str, int], str] = lambda _, count: f"answer {count}"
        self.runnable: Runnable[Any, Any] = {
            "context": retriever,
            "question": RunnablePassthrough(),
        } | RunnableLambda(self._answer)

    def _answer(self, inputs: dict[str, Any]) -> str:
        self.questions.append(inputs["question"])
        return self.write(inputs["question"], len(self.questions))


@pytest.fixture
def store() -> InMemoryVectorStore:
    store = InMemoryVectorStore(langchain_embeddings())
    store.add_texts(TEXTS, ids=[text.split()[0] for text in TEXTS])
    return store


@pytest.fixture
def retriever(store: InMemoryVectorStore) -> ApproximateCacheRetriever:
    return ApproximateCacheRetriever.from_vectorstore(store, k=1)


@pytest.fixture
def chain(retriever: ApproximateCacheRetriever) -> Chain:
    return Chain(retriever)


@pytest.fixture
def cached(chain: Chain, retriever: ApproximateCacheRetriever) -> AnswerCache:
    return AnswerCache(chain=chain.runnable, retriever=retriever, tolerance=0.6)


def given_documents(answer: Callable[[dict[str, Any]], Any], **settings: Any) -> AnswerCache:
    """A cache whose chain gets the documents; a question finds one by its first word."""
    find: Runnable[str, list[Document]] = RunnableLambda(
        lambda question: [Document(question.casefold().split()[0], id="1")]
    )
    settings = {"embeddings": langchain_embeddings(), "tolerance": 0.6} | settings
    return AnswerCache(
        chain=RunnableLambda(answer),
        retriever=find,
        documents_key="context",
        **settings,
    )


def test_the_same_words_and_near_ones_get_the_answer_again(
    cached: AnswerCache, chain: Chain
) -> None:
    assert cached.invoke("rome is it nice") == "answer 1"
    assert cached.invoke("rome is it nice") == "answer 1"
    assert cached.invoke("rome is it pretty") == "answer 1"
    assert cached.invoke("oslo is it nice") == "answer 2"
    assert cached.invoke("rome is it not nice") == "answer 3"
    assert chain.questions == ["rome is it nice", "oslo is it nice", "rome is it not nice"]
    assert cached.batch(["rome is it nice", "oslo is it nice"]) == ["answer 1", "answer 2"]


async def test_coroutines_streams_and_calls_share_answers(
    cached: AnswerCache, chain: Chain
) -> None:
    assert await cached.ainvoke("rome is it nice") == "answer 1"
    assert [piece async for piece in cached.astream("rome is it nice")] == ["answer 1"]
    assert list(cached.stream("oslo is it nice")) == ["answer 2"]
    assert [piece async for piece in cached.astream("kyiv is it nice")] == ["answer 3"]
    assert await cached.ainvoke("oslo is it pretty") == "answer 2"
    assert cached.invoke("kyiv is it nice") == "answer 3"
    assert len(chain.questions) == 3


def test_a_changed_document_ends_its_answers(
    cached: AnswerCache, store: InMemoryVectorStore
) -> None:
    assert cached.invoke("rome is it nice") == "answer 1"
    assert cached.invoke("oslo is it nice") == "answer 2"
    store.add_texts(["rome is a large city"], ids=["rome"])
    assert cached.invoke("rome is it nice") == "answer 3"
    assert cached.invoke("oslo is it nice") == "answer 2"
    store.add_documents([Document("oslo is a town", id="oslo", metadata={"version": 2})])
    assert cached.invoke("oslo is it nice") == "answer 4"
    store.delete(["rome"])
    assert cached.invoke("rome is it nice") == "answer 5"


def test_what_notes_how_near_a_document_is_makes_it_no_other(
    store: InMemoryVectorStore,
) -> None:
    annotated = ApproximateCacheRetriever.from_vectorstore(store, k=1, annotate=True)
    chain = Chain(annotated)
    cached = AnswerCache(chain=chain.runnable, retriever=annotated, tolerance=0)
    for _ in range(3):
        assert cached.invoke("rome is it nice") == "answer 1"


def test_other_inputs_and_arguments_are_part_of_the_question() -> None:
    calls: list[Any] = []

    def answer(inputs: dict[str, Any]) -> str:
        calls.append(inputs)
        return f"answer {len(calls)}"

    cached = given_documents(answer)
    question = {"question": "rome is it nice"}
    history = [HumanMessage("hello"), AIMessage("hi")]
    assert cached.invoke(question) == "answer 1"
    assert cached.invoke(question | {"chat_history": history}) == "answer 2"
    assert cached.invoke(question | {"chat_history": [*history, HumanMessage("so")]}) == "answer 3"
    assert cached.invoke(question | {"chat_history": list(history)}) == "answer 2"
    assert cached.invoke(question | {"language": "de"}) == "answer 4"
    assert cached.invoke(question, namespace="tenant") == "answer 5"
    assert cached.invoke(question, {"configurable": {"model": "large"}}) == "answer 6"
    assert cached.invoke(question, {"configurable": {"thread_id": "7"}}) == "answer 1"
    assert cached.invoke(question, namespace="tenant") == "answer 5"
    assert calls[0]["context"] == [Document("rome", id="1")]


def test_turns_that_are_no_context_are_warned_of_once(caplog: pytest.LogCaptureFixture) -> None:
    cached = given_documents(lambda _: "yes")
    for _ in range(2):
        cached.invoke({"input": "rome is it nice", "history": [HumanMessage("hello")]})
    [record] = caplog.records
    assert "The input has a conversation as 'history'" in record.getMessage()
    assert "Pass context_key='history'" in record.getMessage()


def test_words_behind_the_end_of_what_a_model_reads_are_compared() -> None:
    count = iter(range(1, 9))
    cached = given_documents(
        lambda _: f"answer {next(count)}", embeddings=MiniLMEmbeddings(), context_key="history"
    )
    long = "so it went on and on " * 100

    def ask(end: str) -> Any:
        return cached.invoke({"input": "rome is it nice", "history": [long, end]})

    assert [ask(end) for end in ("peace", "war", "peace")] == ["answer 1", "answer 2", "answer 1"]


def test_what_cannot_be_compared_is_answered_anew() -> None:
    count = iter(range(9))
    cached = given_documents(lambda _: next(count))
    inputs = {"question": "rome is it nice", "filter": lambda document: True}
    assert [cached.invoke(inputs) for _ in range(2)] == [0, 1]
    assert cached.stats().unkept == 2
    assert "can't be compared" in cached.explain(inputs).reason


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ({"text": "rome"}, "under 'input' or 'question' or 'query', got a dict with 'text'"),
        ({}, "got a dict with nothing"),
        (3, "the input must be a question or a dict with one, got 3"),
    ],
)
def test_an_input_without_a_question(cached: AnswerCache, value: Any, message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        cached.invoke(value)


def test_the_question_has_the_name_that_it_is_given() -> None:
    cached = given_documents(lambda inputs: inputs["ask"].upper(), input_key="ask")
    assert cached.invoke({"ask": "rome is it nice"}) == "ROME IS IT NICE"
    assert cached.invoke({"ask": "rome is it pretty"}) == "ROME IS IT NICE"
    with pytest.raises(ConfigurationError, match="under 'ask'"):
        cached.invoke({"question": "rome"})


def fake_model(*answers: str) -> GenericFakeChatModel:
    return GenericFakeChatModel(messages=iter(map(AIMessage, answers)))


def test_a_setting_or_a_prompt_that_changes_ends_all_answers(
    retriever: ApproximateCacheRetriever,
) -> None:
    model = fake_model("one", "two", "three")
    prompt = ChatPromptTemplate.from_messages([("system", "Be brief."), ("human", "{question}")])
    chain = {"context": retriever, "question": RunnablePassthrough()} | prompt | model
    cached = AnswerCache(chain=chain, retriever=retriever, tolerance=0)
    assert cached.invoke("rome is it nice").content == "one"
    assert cached.invoke("rome is it nice").content == "one"
    prompt.messages[0] = prompt.messages[1]
    assert cached.invoke("rome is it nice").content == "two"
    model.metadata = {"temperature": 1}
    assert cached.invoke("rome is it nice").content == "three"
    assert cached.invoke("rome is it nice").content == "three"


def test_configurable_fields_of_the_chain_are_part_of_the_question(
    retriever: ApproximateCacheRetriever,
) -> None:
    class Written(BaseModel):
        style: str = "plain"

    model = fake_model("one", "two").configurable_fields(name=ConfigurableField(id="style"))
    chain = (
        {"context": retriever, "question": RunnablePassthrough()}
        | ChatPromptTemplate.from_template("{question}")
        | model
        | StrOutputParser()
    )
    cached = AnswerCache(chain=chain, retriever=retriever, tolerance=0)
    assert cached.invoke("rome is it nice") == "one"
    style = RunnableConfig(configurable={"style": Written().style})
    assert cached.invoke("rome is it nice", style) == "two"
    assert cached.invoke("rome is it nice", style) == "two"
    assert cached.invoke("rome is it nice") == "one"


class Other(BaseRetriever):
    """Finds something else."""

    def _get_relevant_documents(self, query: str, **_: Any) -> list[Document]:
        return [Document("something else")]


def test_an_answer_from_other_documents_is_not_kept_and_that_is_said_once(
    retriever: ApproximateCacheRetriever, caplog: pytest.LogCaptureFixture
) -> None:
    chain = Chain(Other())
    cached = AnswerCache(chain=chain.runnable, retriever=retriever)
    without = AnswerCache(chain=RunnableLambda(str.upper), retriever=retriever)
    with caplog.at_level(logging.WARNING):
        assert [cached.invoke("rome is it nice") for _ in range(2)] == ["answer 1", "answer 2"]
        assert [without.invoke("rome") for _ in range(2)] == ["ROME", "ROME"]
    assert (cached.stats().unkept, cached.stats().entries) == (2, 0)
    messages = [record.getMessage() for record in caplog.records]
    assert len(messages) == 2
    assert "Give the chain the documents with documents_key=" in messages[0]
    assert messages[0].endswith(": it had 1 documents")
    assert messages[1].endswith(": it had nothing that its callbacks report")


def test_a_caller_who_changes_an_answer_changes_nobody_elses() -> None:
    cached = given_documents(
        lambda inputs: {"answer": AIMessage("yes"), "sources": [{"id": "1"}], **inputs}
    )
    for _ in range(3):
        answer = cached.invoke({"question": "rome is it nice"})
        assert answer["answer"].content == "yes"
        assert answer["sources"] == [{"id": "1"}]
        assert answer["context"][0].page_content == "rome"
        answer["answer"].content = "no"
        answer["sources"][0]["id"] = "2"
        answer["context"][0].page_content = "changed"
    assert cached.stats().hits == 2


class Item(BaseModel):
    number: int = 1


@dataclass
class Found:
    items: list[Item]


@pytest.mark.parametrize(
    ("make", "item"),
    [
        (lambda: Found([Item()]), lambda answer: answer.items[0]),
        (lambda: (Item(),), lambda answer: answer[0]),
        (
            lambda: AIMessage("yes", additional_kwargs={"parsed": Item()}),
            lambda answer: answer.additional_kwargs["parsed"],
        ),
    ],
)
@pytest.mark.parametrize("streams", [False, True])
def test_no_part_of_an_answer_is_shared(
    make: Callable[[], Any], item: Callable[[Any], Item], streams: bool
) -> None:
    cached = given_documents(lambda _: make())
    for _ in range(3):
        question = {"question": "rome is it nice"}
        if streams:
            for piece in cached.stream(question):
                assert item(piece).number == 1
                item(piece).number = 2
        else:
            answer = cached.invoke(question)
            assert item(answer).number == 1
            item(answer).number = 2
    assert cached.stats().hits == 2


def test_an_answer_that_cannot_be_copied_is_not_kept(caplog: pytest.LogCaptureFixture) -> None:
    cached = given_documents(lambda _: {"lock": threading.Lock()})
    for _ in range(2):
        assert "lock" in cached.invoke("rome is it nice")
        assert len(list(cached.stream("rome is it nice"))) == 1
    assert (cached.stats().unkept, cached.stats().entries) == (4, 0)
    assert "can't be copied" in caplog.text


def test_a_chain_that_has_no_more_answers_says_so_in_its_own_words() -> None:
    answers = iter(["five"])
    cached = given_documents(lambda _: next(answers))
    assert cached.invoke("rome is it nice") == "five"
    with pytest.raises(StopIteration):
        cached.invoke("rome is it far")


def test_a_chain_that_changes_itself_keeps_nothing_and_that_is_said(
    caplog: pytest.LogCaptureFixture,
) -> None:
    class Counting(RunnableLambda[Any, Any]):
        calls = 0

    def answer(_: Any) -> int:
        counting.calls += 1
        return counting.calls

    counting = Counting(answer)
    find: Runnable[str, list[Document]] = RunnableLambda(lambda _: [Document("rome", id="1")])
    cached = AnswerCache(chain=counting, retriever=find, documents_key="context")
    assert [cached.invoke("rome") for _ in range(3)] == [1, 2, 3]
    assert cached.stats().unkept == 3
    assert [record.getMessage() for record in caplog.records] == [
        f"An answer is not kept: {CHANGED}"
    ]


def test_a_prompt_that_a_function_names_ends_all_answers_when_it_changes() -> None:
    prompt = ChatPromptTemplate.from_template("{question}")
    cached = given_documents(lambda inputs: prompt.invoke(inputs).to_string())
    question = {"question": "rome is it nice"}
    assert cached.invoke(question) == "Human: rome is it nice"
    prompt.messages.insert(0, SystemMessage("Be brief."))
    assert cached.invoke(question) == "System: Be brief.\nHuman: rome is it nice"


def test_no_text_of_a_document_stays_in_memory() -> None:
    """Answers are compared by hashes; nothing else remembers what a retriever found."""
    size = 1 << 20

    def find(question: str) -> list[Document]:
        return [Document(question * (size // len(question)), id=question)]

    cached = AnswerCache(
        chain=RunnableLambda(lambda _: "an answer"),
        retriever=RunnableLambda(find),
        documents_key="context",
        tolerance=0,
        capacity=4,
    )
    cached.invoke("warm up")
    tracemalloc.start()
    try:
        for number in range(24):
            cached.invoke(f"secret {number:04d}", namespace=f"tenant {number}")
        cached.clear()
        gc.collect()
        assert tracemalloc.get_traced_memory()[0] < 4 * size
    finally:
        tracemalloc.stop()


def test_the_chain_gets_all_of_the_input() -> None:
    cached = given_documents(sorted)
    assert cached.invoke(MappingProxyType({"question": "rome", "history": "hi"})) == [
        *("context", "history", "question")
    ]
    named = given_documents(lambda inputs: inputs["ask"], input_key="ask")
    assert named.invoke("rome") == "rome"


@pytest.mark.parametrize("namespace", [0, ["tenant"]])
def test_a_namespace_is_a_string(cached: AnswerCache, namespace: Any) -> None:
    with pytest.raises(ConfigurationError, match="namespace must be a string, got"):
        cached.invoke("rome is it nice", namespace=namespace)


def test_arguments_that_are_misspelt_or_of_the_wrong_type() -> None:
    find: Runnable[str, list[Document]] = RunnableLambda(lambda _: [])
    right = {"chain": find, "retriever": find}
    for wrong, message in (
        ({"namespce": "tenant"}, "did you mean 'namespace'"),
        ({"chain": "chain"}, "chain: Input should be an instance of Runnable, got 'chain'"),
        ({"judge": "model"}, "judge: Input should be an instance of Runnable, got 'model'"),
    ):
        with pytest.raises(ConfigurationError, match=message):
            AnswerCache(**right | wrong)


def test_a_retriever_of_texts_is_refused() -> None:
    texts: Runnable[str, Any] = RunnableLambda(lambda _: ["rome"])
    cached = AnswerCache(chain=texts, retriever=texts, documents_key="context")
    with pytest.raises(ConfigurationError, match="must return documents, got 'rome'"):
        cached.invoke("rome")


def test_an_error_is_the_callers_and_nothing_is_kept(
    cached: AnswerCache, chain: Chain, store: InMemoryVectorStore
) -> None:
    def fail(question: str, count: int) -> str:
        msg = "no model today"
        raise RuntimeError(msg)

    right, chain.write = chain.write, fail
    with pytest.raises(RuntimeError, match="no model today"):
        cached.invoke("rome is it nice")
    chain.write = right
    assert cached.invoke("rome is it nice") == "answer 2"


class Hears(BaseCallbackHandler):
    """Hears events."""

    run_inline = True

    def __init__(self) -> None:
        self.events: list[tuple[str, dict[str, Any]]] = []

    def on_custom_event(self, name: str, data: Any, **_: Any) -> None:
        if name == ANSWER_CACHE_EVENT:
            self.events.append((name, data))


async def test_callbacks_hear_what_happened(cached: AnswerCache) -> None:
    hears = Hears()
    config = RunnableConfig(callbacks=[hears])
    cached.invoke("rome is it nice", config)
    cached.invoke("rome is it pretty", config)
    await cached.ainvoke("rome is it nice", config)
    hits = [data["hit"] for _, data in hears.events]
    assert hits == [False, True, True]
    assert hears.events[1][1]["question"] == "rome is it nice"
    assert 0.1 < hears.events[1][1]["distance"] < 0.6
    assert hears.events[2][1]["distance"] == 0


@pytest.mark.parametrize("asynchronous", [False, True])
async def test_a_hit_is_checked_in_the_background_where_nothing_is_proven_yet(
    chain: Chain, retriever: ApproximateCacheRetriever, asynchronous: bool
) -> None:
    cached = AnswerCache(chain=chain.runnable, retriever=retriever, start_tolerance=0.6)
    hears = Hears()
    config = RunnableConfig(callbacks=[hears])
    cached.invoke("rome is it nice")
    if asynchronous:
        assert await cached.ainvoke("rome is it pretty", config) == "answer 1"
    else:
        assert cached.invoke("rome is it pretty", config) == "answer 1"
    await asyncio.to_thread(wait_until, lambda: cached.stats().wrong == 1)
    assert chain.questions == ["rome is it nice", "rome is it pretty"]
    assert cached.stats().tolerance == 0
    assert cached.invoke("rome is it pretty") == "answer 3"
    assert len(hears.events) == 1  # the check is a run of nobody's


@pytest.mark.parametrize("wrap", [RunnableLambda, lambda judge: judge])
def test_a_judge_decides_whether_answers_say_the_same(
    chain: Chain, retriever: ApproximateCacheRetriever, wrap: Callable[[Any], Any]
) -> None:
    judged: list[dict[str, str]] = []

    def judge(pair: dict[str, str]) -> AIMessage:
        judged.append(pair)
        return AIMessage("Yes, they do.")

    cached = AnswerCache(
        chain=chain.runnable, retriever=retriever, judge=wrap(judge), start_tolerance=0.6
    )
    cached.invoke("rome is it nice")
    cached.invoke("rome is it pretty")
    wait_until(lambda: bool(judged))
    assert judged == [
        {
            "question": "rome is it pretty",
            "answer": "answer 2",
            "other_question": "rome is it nice",
            "other_answer": "answer 1",
        }
    ]
    assert cached.invoke("rome is it pretty") == "answer 1"
    assert cached.stats().wrong == 0


def test_tenants_share_nothing(cached: AnswerCache, chain: Chain) -> None:
    assert cached.invoke("rome is it nice", namespace="a") == "answer 1"
    assert cached.invoke("rome is it nice", namespace="b") == "answer 2"
    assert cached.invoke("rome is it nice") == "answer 3"
    assert cached.invoke("rome is it nice", namespace="a") == "answer 1"
    of_b = cached.model_copy(update={"namespace": "b"})
    assert of_b.invoke("rome is it nice") == "answer 2"
    assert cached.forget(namespace="a") == 1
    assert cached.invoke("rome is it nice", namespace="a") == "answer 4"
    assert cached.forget(ids=["rome"]) == 3


async def test_explanations_ask_no_chain(cached: AnswerCache, chain: Chain) -> None:
    cached.invoke("rome is it nice")
    assert cached.explain("rome is it pretty").hit
    assert not (await cached.aexplain("rome was it nice in 1950")).hit
    explanation = await cached.aexplain("oslo is it nice")
    assert "shares 0 of its 1 documents" in explanation.reason
    assert len(chain.questions) == 1


@pytest.mark.parametrize("part", ["configurable", "metadata"])
async def test_explanations_are_of_who_asks(cached: AnswerCache, part: str) -> None:
    ann: Any = {part: {"user_id": "ann"}}
    bob: Any = {part: {"user_id": "bob"}}
    cached.invoke("rome is it nice", ann)
    assert cached.explain("rome is it nice", ann).hit
    assert (await cached.aexplain("rome is it nice", config=ann)).hit
    assert not cached.explain("rome is it nice").hit
    assert not (await cached.aexplain("rome is it nice", bob)).hit


@pytest.mark.parametrize("tolerance", ["auto", 0])
def test_without_an_embedding_model_the_same_words_alone_count(tolerance: Any) -> None:
    cached = given_documents(
        lambda inputs: inputs["question"], embeddings=None, tolerance=tolerance
    )
    assert cached.invoke({"question": "rome is it nice"}) == "rome is it nice"
    assert cached.invoke({"question": "rome is it pretty"}) == "rome is it pretty"
    assert cached.invoke({"question": "rome  is it nice?"}) == "rome is it nice"
    explained = cached.explain({"question": "rome is it lovely"})
    assert explained.tolerance == 0
    assert "nothing embeds questions" in explained.reason


@pytest.mark.parametrize("knob", ["tolerance", "start_tolerance"])
def test_a_tolerance_between_questions_that_nothing_embeds_is_refused(
    knob: str, retriever: ApproximateCacheRetriever
) -> None:
    def make(**settings: Any) -> AnswerCache:
        settings = {"tolerance": "auto", knob: 0.7, "embeddings": None} | settings
        return given_documents(lambda _: "answer", **settings)

    with pytest.raises(ConfigurationError, match=rf"{knob}=0.7 .* pass embeddings=, or {knob}=0"):
        make()
    assert make(embeddings=langchain_embeddings()).invoke("rome")
    cached = AnswerCache(chain=RunnableLambda(str), retriever=retriever, **{knob: 0.7})
    assert cached.invoke("rome is it nice")
    with pytest.raises(ConfigurationError, match=f"{knob}=0.7"):
        cached.model_copy(update={"retriever": RunnableLambda(str), "embeddings": None})


def test_a_tag_without_a_cache_is_refused() -> None:
    with pytest.raises(ConfigurationError, match=r"tag='v1' is for answers that are shared"):
        given_documents(lambda _: "answer", tag="v1")


def test_copies_share_answers_where_what_they_do_is_the_same(cached: AnswerCache) -> None:
    cached.invoke("rome is it nice")
    assert cached.model_copy().stats().entries == 1
    assert cached.model_copy(update={"tolerance": 0.1}).stats().entries == 0
    with pytest.raises(ConfigurationError, match="tolerance"):
        cached.model_copy(update={"tolerance": -1})
    with pytest.raises(ConfigurationError, match="model_copy"):
        cached.tolerance = 0.3  # type: ignore[misc] # the point
    assert pickle.loads(pickle.dumps(given_pickled())).stats().entries == 0


def given_pickled() -> AnswerCache:
    prompt = ChatPromptTemplate.from_template("{question}")
    return AnswerCache(chain=prompt, retriever=Other(), documents_key="context")


class Service:
    """An application's object, a method of which answers."""

    def __init__(self) -> None:
        self.settings = {"greeting": ["Hello"]}
        self.asked: list[str] = []

    def answer(self, inputs: dict[str, Any]) -> str:
        self.asked.append(inputs["input"])
        return greet(self.settings["greeting"][0], inputs["input"])


SIGNS = {"end": "."}


def greet(*words: str) -> str:
    return " ".join(words) + SIGNS["end"]


@pytest.mark.parametrize("how", ["invoke", "ainvoke", "stream", "astream"])
async def test_what_a_service_depends_on_is_noticed(
    how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    service = Service()
    cached = given_documents(lambda inputs: service.answer(inputs).strip())

    async def ask() -> Any:
        if how == "invoke":
            return cached.invoke("rome")
        if how == "ainvoke":
            return await cached.ainvoke("rome")
        if how == "stream":
            return "".join(cached.stream("rome"))
        return "".join([piece async for piece in cached.astream("rome")])

    assert [await ask() for _ in range(2)] == ["Hello rome."] * 2
    service.settings["greeting"][0] = "Hi"
    assert [await ask() for _ in range(2)] == ["Hi rome."] * 2
    monkeypatch.setitem(SIGNS, "end", "!")
    assert [await ask() for _ in range(2)] == ["Hi rome!"] * 2
    assert len(service.asked) == cached.stats().hits == 3


@pytest.mark.parametrize("saver", [None, InMemorySaver()])
def test_what_the_steps_of_a_graph_depend_on_is_noticed(
    saver: InMemorySaver | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    def answer(state: MessagesState) -> dict[str, Any]:
        return {"messages": [AIMessage(greet(state["messages"][-1].text))]}

    graph: Any = StateGraph(MessagesState).add_node("answer", answer).add_edge(START, "answer")
    given: Runnable[Any, Any] = RunnableLambda(
        lambda inputs: {"messages": [HumanMessage(inputs["input"])]}
    )
    find: Runnable[str, list[Document]] = RunnableLambda(lambda _: [Document("rome", id="1")])
    chain = given | graph.compile(checkpointer=saver)
    cached = AnswerCache(
        chain=chain, retriever=find, documents_key="context", ignores=["thread_id"]
    )
    run: RunnableConfig = {"configurable": {"thread_id": "1"}}
    names = set()
    for sign in ".!":
        monkeypatch.setitem(SIGNS, "end", sign)
        for _ in range(3):
            answered = cached.invoke("rome", run)["messages"][-1]
            assert answered.text == f"rome{sign}"
            names.add(answered.id)
    assert (cached.stats().hits, len(names)) == (4, 6)


@pytest.mark.parametrize(("text", "other"), UNREAD)
@pytest.mark.parametrize("guard", [True, False])
async def test_what_the_embedding_model_cannot_read_is_near_to_nothing(
    text: str, other: str, guard: bool
) -> None:
    cached = AnswerCache(
        chain=RunnableLambda(lambda inputs: f"answer to {inputs['input']}"),
        retriever=RunnableLambda(lambda _: [Document("the whole FAQ", id="1")]),
        documents_key="context",
        embeddings=MiniLMEmbeddings(),
        tolerance=0.5,
        guard=guard,
    )
    for question in (text, other, text, other):
        assert cached.invoke(question) == f"answer to {question}"
        assert await cached.ainvoke(question) == f"answer to {question}"
        assert "".join(cached.stream(question)) == f"answer to {question}"
    assert cached.stats().hits == cached.stats().same_words == 10


def called(amount: str, text: str = "") -> AIMessage:
    return AIMessage(text, tool_calls=[{"name": "pay", "args": {"amount": amount}, "id": amount}])


@pytest.mark.parametrize(
    ("answer", "other", "same"),
    [
        ("Paris.", "Paris. ", True),
        ("5 MW", "5 mW", False),
        (AIMessage("Paris"), AIMessage("Paris", id="2"), True),
        (called("$5"), called("$5"), True),
        (called("$5"), called("€5"), False),
        (called("$5"), AIMessage(""), False),
        ({"answer": "Paris", "input": "a"}, {"answer": "Paris", "input": "b"}, True),
        ({"answer": "Paris", "asked": "a"}, {"answer": "Paris", "asked": "b"}, True),
        ({"answer": "5", "unit": "MW"}, {"answer": "5", "unit": "mW"}, False),
        ({"answer": called("$5")}, {"answer": called("€5")}, False),
        ({"answer": "a", "context": [Document("b")]}, {"answer": "a", "context": []}, True),
        ([1, 2], [1, 2], True),
        ([1, 2], [2, 1], False),
    ],
)
def test_answers_are_compared_as_a_whole(answer: Any, other: Any, same: bool) -> None:
    assert same_output(None, answer, other, echoed={"asked"}) is same


def test_with_a_name_for_it_the_named_text_is_the_answer() -> None:
    assert same_output("output", {"output": "a", "steps": 3}, {"output": "a", "steps": 4})
