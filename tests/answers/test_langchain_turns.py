"""Follow-up questions of LangChain chains: the turns before one are part of it."""

from __future__ import annotations

from typing import Any

import pytest
from langchain_core.documents import Document
from langchain_core.messages import AIMessage, HumanMessage, SystemMessage
from langchain_core.runnables import RunnableLambda

from ragcache_integrations.langchain import AnswerCache
from tests.answers.traffic import langchain_embeddings


def test_a_follow_up_is_served_in_like_conversations_alone(
    caplog: pytest.LogCaptureFixture,
) -> None:
    asked: list[str] = []

    def find(text: str) -> list[Document]:
        asked.append(text)
        return [Document("rome", id="1")]

    count = iter(range(1, 9))
    cached = AnswerCache(
        chain=RunnableLambda(lambda _: f"answer {next(count)}"),
        retriever=RunnableLambda(find),
        documents_key="context",
        context_key="chat_history",
        embeddings=langchain_embeddings(),
        tolerance=0.2,
    )

    def ask(question: str, *turns: str) -> Any:
        return cached.invoke({"input": question, "chat_history": [HumanMessage(t) for t in turns]})

    assert ask("and later", "rome in the war") == "answer 1"
    assert asked == ["and later\nrome in the war"]
    assert ask("and later", "Rome  in the war") == "answer 1"
    assert ask("and later?", "rome in a war") == "answer 1"
    assert ask("and later", "rome without the war") == "answer 2"
    assert (
        ask("and later", "oslo fell by hunger and plague, and burnt, and was built") == "answer 3"
    )
    assert caplog.records == []
    assert ask("and later") == "answer 4"
    assert "without the turns before it" in caplog.text


CALL = {"name": "search", "args": {"query": "rome"}, "id": "1"}


@pytest.mark.parametrize(
    "turns",
    [
        [HumanMessage("rome fell\nYes."), HumanMessage("so")],
        [HumanMessage("rome fell"), AIMessage("Yes. so")],
        [HumanMessage("rome"), AIMessage("fell Yes."), HumanMessage("so")],
        [HumanMessage("rome fell"), HumanMessage("Yes."), HumanMessage("so")],
        [SystemMessage("rome fell"), AIMessage("Yes."), HumanMessage("so")],
        [HumanMessage("rome fell", name="ann"), AIMessage("Yes."), HumanMessage("so")],
        [HumanMessage("rome fell"), AIMessage("Yes.", tool_calls=[CALL]), HumanMessage("so")],
        "rome fell\nYes.\nso",
    ],
)
@pytest.mark.parametrize("tolerance", [0, 1e-5])
def test_no_turn_passes_for_another_one(turns: Any, tolerance: float) -> None:
    cached = AnswerCache(
        chain=RunnableLambda(lambda inputs: repr(inputs["chat_history"])),
        retriever=RunnableLambda(lambda _: [Document("rome", id="1")]),
        documents_key="context",
        context_key="chat_history",
        embeddings=langchain_embeddings(),
        tolerance=tolerance,
    )

    def answers(turns: Any) -> Any:
        return cached.invoke({"input": "and later", "chat_history": turns})

    def conversation(call: str = "1", reply: str = "Yes.") -> list[Any]:
        ids = {"id": call, "response_metadata": {"seconds": call}}
        return [HumanMessage("rome fell", id=call), AIMessage(reply, **ids), HumanMessage("so")]

    assert answers(conversation()) == repr(conversation())
    assert answers(turns) == repr(turns)
    assert answers(conversation("2", "Yes. ")) == repr(conversation())
    assert cached.stats().hits == 1


def test_an_input_without_a_name_is_no_context() -> None:
    cached = AnswerCache(
        chain=RunnableLambda(lambda inputs: inputs[""]),
        retriever=RunnableLambda(lambda _: [Document("rome", id="1")]),
        documents_key="context",
    )
    assert cached.invoke({"input": "and later", "": 5}) == 5
