"""A hit is a new message: its ids are its own, and no tokens were used for it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from langchain_core.documents import Document
from langchain_core.language_models import GenericFakeChatModel
from langchain_core.messages import (
    AIMessage,
    AIMessageChunk,
    BaseMessage,
    HumanMessage,
    RemoveMessage,
    ToolMessage,
)
from langchain_core.output_parsers import StrOutputParser
from langchain_core.outputs import (
    ChatGeneration,
    ChatGenerationChunk,
    ChatResult,
    LLMResult,
)
from langchain_core.retrievers import BaseRetriever
from langchain_core.runnables import Runnable, RunnableLambda, RunnablePassthrough
from langchain_core.tools import ToolException, tool
from langgraph.types import Command

from ragcache_integrations.answers.langchain.values import names_in, renewed, same_output
from ragcache_integrations.langchain import AnswerCache
from tests.answers.traffic import langchain_embeddings
from tests.support.waiting import wait_until

USAGE = {"input_tokens": 7, "output_tokens": 3, "total_tokens": 10}
NONE = {"input_tokens": 0, "output_tokens": 0, "total_tokens": 0, "total_cost": 0}
TOLD = {
    "finish_reason": "stop",
    "model_name": "m",
    "token_usage": {"total_tokens": 10},
    "usage": {"input_tokens": 7},
    "eval_count": 3,
    "id": "resp_1",
}


def message(text: str = "Homer", **fields: Any) -> AIMessage:
    return AIMessage(text, id="lc_run--1", usage_metadata=USAGE, response_metadata=TOLD, **fields)


def cache_of(answer: Callable[[Any], Any] | Runnable[Any, Any], **settings: Any) -> AnswerCache:
    find: Runnable[str, list[Document]] = RunnableLambda(lambda _: [Document("rome", id="1")])
    chain = answer if isinstance(answer, Runnable) else RunnableLambda(answer)
    return AnswerCache(chain=chain, retriever=find, documents_key="context", **settings)


def messages_of(answer: Any) -> list[BaseMessage]:
    if isinstance(answer, BaseMessage):
        return [answer]
    if isinstance(answer, dict):
        answer = list(answer.values())
    if isinstance(answer, list | tuple):
        return [message for item in answer for message in messages_of(item)]
    return []


@pytest.mark.parametrize(
    "wrap",
    [
        lambda message: message,
        lambda message: {"answer": message, "sources": [Document("rome", id="1")]},
        lambda message: {"messages": [HumanMessage("who", id="lc_run--2"), message]},
        lambda message: [message],
        lambda message: {"deep": [({"answer": message},)], "text": "Homer"},
    ],
)
async def test_every_message_of_a_hit_is_a_new_one(wrap: Any) -> None:
    cached = cache_of(lambda _: wrap(message()))
    first = cached.invoke("who")
    served = [cached.invoke("who"), await cached.ainvoke("who"), *cached.stream("who")]
    served += [piece async for piece in cached.astream("who")]
    assert cached.stats().hits == 4
    names = [each.id for answer in (first, *served) for each in messages_of(answer)]
    assert len(set(names)) == len(names)
    for answer in served:
        for before, after in zip(messages_of(first), messages_of(answer), strict=True):
            assert after.content == before.content
            if isinstance(after, AIMessage):
                assert after.usage_metadata == NONE
                assert after.response_metadata == {
                    "finish_reason": "stop",
                    "model_name": "m",
                    "token_usage": {"total_tokens": 0},
                    "usage": {"input_tokens": 0},
                    "eval_count": 0,
                }
    assert [each.usage_metadata for each in messages_of(first) if isinstance(each, AIMessage)] == [
        USAGE
    ]


def test_a_message_without_id_and_usage_gets_neither() -> None:
    served = renewed(AIMessage("Homer"))
    assert (served.id, served.usage_metadata) == (None, None)


def test_a_message_that_is_there_twice_is_one_message() -> None:
    one = message()
    served = renewed({"answer": one, "messages": [HumanMessage("who"), one], "same": message()})
    assert served["answer"] is served["messages"][1]
    assert served["answer"].id == served["same"].id != one.id


def test_tool_calls_have_new_ids_and_their_results_follow() -> None:
    call = {"name": "search", "args": {"id": "call_1"}, "id": "call_1"}
    asked = message(
        tool_calls=[call],
        additional_kwargs={"tool_calls": [{"id": "call_1"}], "signatures": {"call_1": "x"}},
    )
    asked.content = [{"type": "tool_use", "id": "call_1", "name": "search", "input": {}}]
    found = ToolMessage("found", tool_call_id="call_1")
    of_input = ToolMessage("found", tool_call_id="call_0")
    served = renewed([asked, found, of_input], {"call_0"})
    [renamed] = served[0].tool_calls
    assert renamed["id"] not in {"call_1", None}
    assert renamed["id"].startswith("call_")
    assert renamed["args"] == {"id": "call_1"}
    assert served[0].content[0]["id"] == renamed["id"]
    assert served[0].additional_kwargs["tool_calls"] == [{"id": renamed["id"]}]
    assert served[0].additional_kwargs["signatures"] == {renamed["id"]: "x"}
    assert served[1].tool_call_id == renamed["id"]
    assert served[2].tool_call_id == "call_0"
    assert asked.tool_calls[0]["id"] == "call_1"


def test_what_refers_to_messages_of_the_input_stays() -> None:
    own = message()
    answer = [RemoveMessage(id="old"), own, HumanMessage("who", id="new")]
    served = renewed(answer, names_in([own]))
    assert [each.id for each in served[:2]] == ["old", "lc_run--1"]
    assert served[1].usage_metadata == USAGE
    assert served[2].id != "new"


def test_messages_as_dicts_and_results_of_models() -> None:
    written = {"role": "assistant", "content": "Homer", "id": "1"}
    article = {"type": "article", "content": "a text", "id": "1"}
    served = renewed([written, article, Command(update={"messages": [message()]})])
    assert served[0]["id"] != "1"
    assert served[1] == article
    assert served[2].update["messages"][0].id != "lc_run--1"
    generation = ChatGeneration(message=message())
    result = renewed(
        ChatResult(
            generations=[generation], llm_output={"token_usage": {"total_tokens": 10}, "a": 1}
        )
    )
    assert result.llm_output == {"token_usage": {"total_tokens": 0}, "a": 1}
    assert result.generations[0].message.usage_metadata == NONE
    assert (
        renewed(LLMResult(generations=[[generation]])).generations[0][0].message.id != "lc_run--1"
    )


def test_items_that_openai_keeps_are_not_named_again() -> None:
    thought = {"type": "reasoning", "id": "rs_1", "summary": []}
    said = {"type": "text", "text": "Homer", "id": "msg_1"}
    served = renewed(AIMessage([thought, said], additional_kwargs={"reasoning": thought}))
    assert served.content == [{"type": "text", "text": "Homer"}]
    assert served.additional_kwargs == {}


def test_a_hit_in_an_answer_with_its_conversation() -> None:
    cached = cache_of(RunnablePassthrough.assign(answer=RunnableLambda(lambda _: message())))
    history = [HumanMessage("hello", id="h"), AIMessage("hi", id="a", usage_metadata=USAGE)]
    inputs = {"input": "who", "history": history}
    cached.invoke(inputs)
    served = cached.invoke(inputs)
    assert cached.stats().hits == 1
    assert served["history"] == history
    assert served["answer"].id != "lc_run--1"


def test_messages_of_a_conversation_that_is_only_compared_by_its_texts_are_not_kept() -> None:
    cached = cache_of(RunnablePassthrough.assign(answer=lambda _: "yes"), context_key="history")
    for name in "ab":
        served = cached.invoke({"input": "who", "history": [HumanMessage("hello", id=name)]})
        assert served["history"][0].id == name
    assert (cached.stats().hits, cached.stats().unkept) == (0, 2)


BAD = {
    "empty": AIMessage(""),
    "cut off": AIMessage("first,", response_metadata={"finish_reason": "length"}),
    "filtered": AIMessage("", response_metadata={"finish_reason": "content_filter"}),
    "refused": AIMessage("", additional_kwargs={"refusal": "I can't help."}),
}


class Streaming(GenericFakeChatModel):
    """Streams with the metadata in the last piece, as models do."""

    def _stream(self, *_: Any, **__: Any) -> Iterator[ChatGenerationChunk]:
        message = next(self.messages)
        assert isinstance(message, AIMessage)
        for text in message.text.split(" "):
            yield ChatGenerationChunk(message=AIMessageChunk(content=text))
        fields = {"content": "", "response_metadata": message.response_metadata}
        more = {"additional_kwargs": message.additional_kwargs}
        yield ChatGenerationChunk(message=AIMessageChunk(**fields, **more))


def model_of(*messages: AIMessage) -> GenericFakeChatModel:
    return Streaming(messages=iter(messages))


@pytest.mark.parametrize("how", ["invoke", "ainvoke", "stream", "astream"])
@pytest.mark.parametrize(
    "end", [None, StrOutputParser(), RunnableLambda(lambda m: {"own": m.text})]
)
@pytest.mark.parametrize("name", BAD)
async def test_what_is_no_answer_is_asked_again(name: str, end: Any, how: str) -> None:
    model = model_of(BAD[name], AIMessage("five"), AIMessage("never"))
    chain: Runnable[Any, Any] = RunnableLambda(lambda inputs: inputs["input"]) | model
    cached = cache_of(chain if end is None else chain | end)

    async def ask() -> Any:
        if how == "invoke":
            return cached.invoke("what is the fee")
        if how == "ainvoke":
            return await cached.ainvoke("what is the fee")
        if how == "stream":
            return list(cached.stream("what is the fee"))
        return [piece async for piece in cached.astream("what is the fee")]

    await ask()
    assert (cached.stats().entries, cached.stats().unkept) == (0, 1)
    for _ in range(2):
        await ask()
        served = cached.invoke("what is the fee")
        served = served["own"] if isinstance(served, dict) else served
        assert (served if isinstance(served, str) else served.text) == "five"


def test_a_chain_that_hides_the_failure_of_its_model() -> None:
    def fails(_: Any) -> Iterator[Any]:
        msg = "overloaded"
        raise TimeoutError(msg)
        yield

    broken = GenericFakeChatModel(messages=iter(()))  # which has nothing to say
    calls: list[int] = []

    def answer(_: Any) -> str:
        calls.append(1)
        try:
            return str(broken.invoke("who").text)
        except (RuntimeError, StopIteration):
            return "Sorry, something went wrong."

    cached = cache_of(answer)
    for _ in range(2):
        assert cached.invoke("who") == "Sorry, something went wrong."
    assert (len(calls), cached.stats().unkept) == (2, 2)
    helped = cache_of(
        (RunnableLambda(lambda _: "q") | broken).with_fallbacks(
            [RunnableLambda(lambda _: "q") | model_of(AIMessage("Homer"))]
        )
    )
    assert [helped.invoke("who").text for _ in range(2)] == ["Homer", "Homer"]


@pytest.mark.parametrize("handles", [False, True])
def test_a_tool_or_a_retriever_that_failed(handles: bool) -> None:
    broken = iter([True, True, False])

    def fail_at_first() -> None:
        if next(broken, False):
            msg = "closed"
            raise ToolException(msg)

    @tool
    def search(query: str) -> str:
        """Search the archive."""
        fail_at_first()
        return f"{query} found"

    search.handle_tool_error = handles
    call = {"type": "tool_call", "name": "search", "args": {"query": "rome"}, "id": "1"}

    def answer(_: Any) -> str:
        try:
            return str(search.invoke(call).text)
        except ToolException:
            return "I could not look it up."

    find: Runnable[str, list[Document]] = RunnableLambda(lambda question: [Document(question)])

    class Retriever(BaseRetriever):
        def _get_relevant_documents(self, query: str, **_: Any) -> list[Document]:
            fail_at_first()
            return find.invoke(query)

    retriever = Retriever()

    def answer_from_documents(_: Any) -> str:
        try:
            return retriever.invoke("rome")[0].page_content
        except ToolException:
            return "I could not look it up."

    cached = cache_of(answer)
    answers = [cached.invoke("rome") for _ in range(4)]
    assert answers == ["closed" if handles else "I could not look it up."] * 2 + ["rome found"] * 2
    assert (cached.stats().unkept, cached.stats().hits) == (2, 1)
    broken = iter([True, False])
    cached = cache_of(answer_from_documents)
    answers = [cached.invoke("rome") for _ in range(3)]
    assert answers == ["I could not look it up.", "rome", "rome"]


def test_keep_decides_instead() -> None:
    count = iter(range(9))
    cached = cache_of(lambda _: f"no {next(count)}", keep=lambda answer: "no" not in answer)
    assert [cached.invoke("who") for _ in range(2)] == ["no 0", "no 1"]
    assert cached.stats().unkept == 2
    for keep in (lambda _: 1 / 0, lambda _: "yes"):
        failing: AnswerCache = cache_of(lambda _: "five", keep=keep)
        assert [failing.invoke("who") for _ in range(2)] == ["five", "five"]
        assert failing.stats().unkept == 2
    anything = cache_of(lambda _: "", keep=lambda _: True)
    assert [anything.invoke("who") for _ in range(2)] == ["", ""]
    assert anything.stats().hits == 1


def test_a_check_in_the_background_learns_nothing_of_what_is_no_answer() -> None:
    answers = iter(["Homer", ""])
    cached = cache_of(
        lambda _: next(answers), start_tolerance=0.7, embeddings=langchain_embeddings()
    )
    assert cached.invoke("rome is it nice") == "Homer"
    assert cached.invoke("rome is it pretty") == "Homer"
    wait_until(lambda: cached.stats().failed_checks == 1)
    assert cached.stats().wrong == 0


def test_a_chunk_of_a_hit_can_be_added_to() -> None:
    cached = cache_of(lambda _: message())
    cached.invoke("who")
    [piece] = cached.stream("who")
    assert isinstance(piece, AIMessageChunk)
    assert (piece + AIMessageChunk(content="!", usage_metadata=USAGE)).usage_metadata is not None


def test_answers_that_say_the_same_are_the_same_whatever_their_ids() -> None:
    def conversation(name: str, text: str = "Homer") -> Any:
        call = {"name": "search", "args": {}, "id": f"call_{name}"}
        asked = AIMessage("", id=name, tool_calls=[call], usage_metadata=USAGE)
        found = ToolMessage("found", tool_call_id=f"call_{name}", id=f"t{name}")
        return {"messages": [asked, found, AIMessage(text, id=f"b{name}")]}

    assert same_output(None, conversation("1"), conversation("2"))
    assert not same_output(None, conversation("1"), conversation("2", "Virgil"))
