"""Steps that look something up for a user, and graphs around them."""

from __future__ import annotations

import contextvars
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, TypedDict

from langchain_core.callbacks import (
    CallbackManagerForRetrieverRun,
)
from langchain_core.documents import Document
from langchain_core.messages import AIMessage, ToolMessage
from langchain_core.retrievers import BaseRetriever
from langchain_core.runnables import RunnableLambda
from langchain_core.tools import BaseTool, StructuredTool
from langgraph.graph import START, StateGraph
from langgraph.prebuilt import ToolNode
from llama_index.core.response_synthesizers import BaseSynthesizer
from llama_index.core.retrievers import BaseRetriever as LlamaRetriever
from llama_index.core.schema import NodeWithScore, QueryBundle, TextNode

from ragcache_integrations.langchain import (
    AnswerCache,
    ApproximateCacheRetriever,
    cached_node,
    cached_tool,
)
from tests.answers.traffic import langchain_embeddings
from tests.attacks.faces import check_refusal

QUESTION = "what is my balance"
REFUSED = "refused"
WHO: ContextVar[str] = ContextVar("who_asks")

Step = Callable[[str], str]


def configurable(user: str, name: str = "user") -> dict[str, Any]:
    return {"configurable": {name: user}}


def put(user: str, store: Any) -> None:
    store.put(("users",), "current", {"user": user})


class Messages(TypedDict, total=False):
    messages: list[Any]
    question: str
    found: str


def one_node(node: Any, store: Any = None, **settings: Any) -> Any:
    graph = StateGraph(Messages, context_schema=Any)  # type: ignore[type-var]
    graph.add_node("n", node)
    graph.add_edge(START, "n")
    return graph.compile(store=store, **settings)


def call(name: str = "look_up", tool_id: str = "1", **others: Any) -> dict[str, Any]:
    args = {"query": QUESTION}
    asked = {"name": name, "args": args, "id": tool_id, "type": "tool_call"}
    return {"messages": [AIMessage("", tool_calls=[asked])], **others}


def told(state: dict[str, Any]) -> str:
    message = state["messages"][-1]
    if isinstance(message, ToolMessage) and message.status == "error":
        return REFUSED
    return str(message.content)


def plain_tool(look_up: Step) -> BaseTool:
    def run(query: str) -> str:
        return look_up(query)

    async def arun(query: str) -> str:
        return look_up(query)

    return StructuredTool.from_function(run, arun, name="look_up", description="Look it up.")


LOOK_UPS: list[Step] = []
"""What retrievers call by its number: one that holds a function counts as a filter that is code."""


class Found(BaseRetriever):
    number: int

    def _get_relevant_documents(
        self, query: str, *, run_manager: CallbackManagerForRetrieverRun
    ) -> list[Document]:
        return [Document(LOOK_UPS[self.number](query), id="1")]


def page(_: Any) -> list[Document]:
    return [Document("All balances are in the table.", id="1")]


def answers_by(chain: Any) -> AnswerCache:
    return AnswerCache(
        chain=chain, retriever=RunnableLambda(page), documents_key="context", tolerance=0
    )


def answers_of(look_up: Step) -> AnswerCache:
    return answers_by(RunnableLambda(lambda inputs: look_up(inputs["input"])))


def retriever_of(look_up: Step, **settings: Any) -> ApproximateCacheRetriever:
    LOOK_UPS.append(look_up)
    return ApproximateCacheRetriever.from_retriever(
        Found(number=len(LOOK_UPS) - 1), embeddings=langchain_embeddings(), **settings
    )


def node_of(look_up: Step) -> Any:
    return cached_node(lambda state: {"found": look_up(state["question"])}, reads=["question"])


def answer_node(look_up: Step) -> Any:
    cached = answers_of(look_up)
    return lambda state: {"found": cached.invoke(state["question"])}


def answer_stream_node(look_up: Step) -> Any:
    cached = answers_of(look_up)
    return lambda state: {"found": "".join(cached.stream(state["question"]))}


def retriever_node(look_up: Step, **settings: Any) -> Any:
    cached = retriever_of(look_up, **settings)
    return lambda state: {"found": cached.invoke(state["question"])[0].page_content}


def tool_called(look_up: Step) -> Any:
    tool = cached_tool(plain_tool(look_up))
    return lambda state: {"found": tool.invoke({"query": state["question"]})}


def tools(look_up: Step, query_argument: str | None = "query") -> Any:
    return ToolNode([cached_tool(plain_tool(look_up), query_argument=query_argument)])


def subgraph(look_up: Step) -> Any:
    inner = one_node(lambda state: {"found": look_up(state["question"])})
    return cached_node(inner, reads=["question"])


def noting(calls: list[str]) -> Step:
    """Return a step whose result is the same for all, and which notes its calls itself.

    A list that it handed to another function would count as a setting that has changed.
    """

    def look_up(query: str) -> str:
        calls.append(query)
        return "the table"

    return look_up


def refused(make: Callable[..., Any], *arguments: Any) -> Any:
    """What comes of it, or that it was refused in words."""
    try:
        return make(*arguments)
    except ValueError as error:
        check_refusal(error)
        return REFUSED


class LlamaFound(LlamaRetriever):
    def __init__(self, look_up: Step) -> None:
        super().__init__()
        LOOK_UPS.append(look_up)
        self._number = len(LOOK_UPS) - 1

    def _retrieve(self, query_bundle: QueryBundle) -> list[NodeWithScore]:
        text = LOOK_UPS[self._number](query_bundle.query_str)
        return [NodeWithScore(node=TextNode(text=text, id_="1"), score=1.0)]


class Says(BaseSynthesizer):
    """Answers by what it looks up."""

    def __init__(self, look_up: Step) -> None:
        from llama_index.core.llms import MockLLM  # noqa: PLC0415 # makes an event loop

        super().__init__(llm=MockLLM())
        self._look_up = look_up

    def _get_prompts(self) -> dict[str, Any]:
        return {}

    def _update_prompts(self, prompts: Any) -> None:
        pass

    def get_response(self, query_str: str, text_chunks: Any, **_: Any) -> str:
        return self._look_up(query_str)

    async def aget_response(self, query_str: str, text_chunks: Any, **_: Any) -> str:
        return self._look_up(query_str)


@contextmanager
def variable(user: str) -> Iterator[None]:
    token = WHO.set(user)
    try:
        yield
    finally:
        WHO.reset(token)


def in_a_request(user: str, ask: Callable[[], Any]) -> str:
    """One request of a user whom a context variable names."""

    def request() -> Any:
        WHO.set(user)
        return ask()

    return str(contextvars.copy_context().run(request))


def each_has_a_result_of_their_own(ask: Callable[[str], str]) -> None:
    for user in ("ann", "bob"):
        assert refused(ask, user) in {user, REFUSED}
