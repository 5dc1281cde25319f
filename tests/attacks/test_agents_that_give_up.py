"""Texts of agents that give up are not kept: the next who asks gets an answer."""

from __future__ import annotations

import asyncio
import warnings
from typing import Any

import pytest
from langchain.agents import create_agent
from langchain.agents.middleware import (
    AgentMiddleware,
    ModelCallLimitMiddleware,
    ToolCallLimitMiddleware,
    hook_config,
)
from langchain_classic.agents import AgentExecutor, BaseSingleActionAgent
from langchain_core.agents import AgentAction, AgentFinish
from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, BaseMessage, HumanMessage
from langchain_core.outputs import ChatGeneration, ChatResult
from langchain_core.runnables import RunnableLambda
from langchain_core.tools import StructuredTool
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.prebuilt import create_react_agent
from llama_index.core.base.response.schema import Response
from llama_index.core.tools import FunctionTool

from ragcache_integrations import llama_index as llama
from ragcache_integrations.langchain import cached_node
from tests.attacks.scripted import (
    CALL,
    GOOD,
    QUESTION,
    SCRIPTS,
    WAYS,
    Script,
    ask_llama,
    cache_of,
    failing_tool,
    finished,
    model_of,
    scripted,
    stream_of,
    text_of,
)

GAVE_UP = (
    "Sorry, need more steps to process this request.",
    "Agent stopped due to iteration limit or time limit.",
    "Agent stopped due to max iterations.",
    "Model call limits exceeded: run limit (3/3)",
    "Model call limits exceeded: thread limit (9/9), run limit (3/3)",
    "Tool call limit reached: run limit exceeded (2/1 calls).",
    "'f' tool call limit reached: thread limit exceeded (4/3 calls).",
    "Tool call limit exceeded. Do not call 'look_up' again.",
    "Model call failed after 3 attempts with TimeoutError: no answer\nin time",
    "Text was found that violates OpenAI's content policy.",
    "Max iterations of 20 reached! Either something went wrong, or you can increase the max",
)
"""Texts of LangGraph, LangChain and LlamaIndex."""
SPEAKS_OF_IT = (
    "An agent says: Agent stopped due to max iterations.",
    "Tool call limit reached? Then wait a minute.",
    "Model call limits exceeded: what it means.",
)


@pytest.mark.parametrize("text", GAVE_UP)
@pytest.mark.parametrize("shape", ["text", "message", "dict", "state", "role"])
def test_a_text_of_an_agent_that_gave_up(shape: str, text: str) -> None:
    shapes = {
        "text": text,
        "message": AIMessage(text),
        "dict": {"output": text},
        "state": {"messages": [HumanMessage(QUESTION), AIMessage(text)]},
        "role": {"messages": [{"role": "assistant", "content": text}]},
    }
    script = Script(shapes[shape], GOOD)
    cached = cache_of(RunnableLambda(lambda _: script.next()))
    cached.invoke(QUESTION)
    assert text_of(cached.invoke(QUESTION)) == GOOD
    assert text_of(cached.invoke(QUESTION)) == GOOD
    assert script.count == 2


@pytest.mark.parametrize("text", SPEAKS_OF_IT)
def test_an_answer_that_speaks_of_an_agent_that_gave_up(text: str) -> None:
    script = Script(text, "another")
    cached = cache_of(RunnableLambda(lambda _: script.next()))
    assert [cached.invoke(QUESTION), cached.invoke(QUESTION)] == [text, text]


# Agents that give up.


class Searching(BaseChatModel):
    """Calls a tool again and again while its script says so, and answers in the end."""

    number: int

    @property
    def _llm_type(self) -> str:
        return "searching"

    def bind_tools(self, tools: Any, **_: Any) -> Any:
        return self

    def _generate(self, messages: list[BaseMessage], *_: Any, **__: Any) -> ChatResult:
        SCRIPTS[self.number].count += 1
        searches = SCRIPTS[self.number].steps[0]()
        call = {**CALL, "name": "look_up", "args": {"query": "x"}, "id": str(len(messages))}
        message = AIMessage("", tool_calls=[call]) if searches else AIMessage(GOOD)
        return ChatResult(generations=[ChatGeneration(message=message)])


class Closed(AgentMiddleware):
    """Ends an agent in words of the application's."""

    @hook_config(can_jump_to=["end"])
    def before_model(self, state: Any, runtime: Any) -> dict[str, Any] | None:
        if any(message.type == "tool" for message in state["messages"]):
            return {"jump_to": "end", "messages": [AIMessage("Ask me tomorrow.")]}
        return None


def ask_once(cached: Any, way: str) -> None:
    """Ask in a way; what agents stream can't be added up."""

    async def collect() -> None:
        async for _ in cached.astream(QUESTION):
            pass

    if way == "stream":
        list(cached.stream(QUESTION))
    elif way == "astream":
        asyncio.run(collect())
    else:
        WAYS[way](cached)


LIMITS: dict[str, list[Any]] = {
    "calls of a model": [ModelCallLimitMiddleware(run_limit=1)],
    "calls of a tool": [ToolCallLimitMiddleware(run_limit=1, exit_behavior="end")],
    "calls of one tool": [
        ToolCallLimitMiddleware(tool_name="look_up", run_limit=1, exit_behavior="end")
    ],
    "of the application's own": [Closed()],
}


def agent_of(limit: str, model: Any) -> Any:
    plain = StructuredTool.from_function(lambda query: "5", name="look_up", description="d")
    if limit == "steps":
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # it has moved
            agent = create_react_agent(model, [plain])
        return RunnableLambda(lambda state: agent.invoke(state, {"recursion_limit": 4}))
    return create_agent(model, [plain], middleware=LIMITS[limit])


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("shape", ["state", "text"])
@pytest.mark.parametrize("limit", [*LIMITS, "steps"])
def test_an_agent_that_gives_up(limit: str, shape: str, way: str) -> None:
    searching = [True]
    SCRIPTS.append(Script(lambda: searching[0]))
    script, model = SCRIPTS[-1], Searching(number=len(SCRIPTS) - 1)
    chain: Any = RunnableLambda(lambda value: {"messages": [("user", value["input"])]})
    chain = chain | agent_of(limit, model)
    if shape == "text":
        chain = chain | RunnableLambda(lambda state: f"{state} Thanks!")
    cached = cache_of(chain)
    ask_once(cached, way)
    searching[0] = False
    told = script.count
    assert GOOD in str(WAYS["invoke"](cached))
    assert GOOD in str(WAYS["invoke"](cached))
    assert script.count == told + 1, "the right answer was kept"


class Executed(BaseSingleActionAgent):
    """Looks something up while its script says so."""

    number: int

    @property
    def input_keys(self) -> list[str]:
        return ["input"]

    def plan(self, *_: Any, **__: Any) -> AgentAction | AgentFinish:
        if SCRIPTS[self.number].next()():
            return AgentAction("look_up", "x", "")
        return AgentFinish({"output": GOOD}, "")

    async def aplan(self, *_: Any, **__: Any) -> AgentAction | AgentFinish:
        return self.plan()


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("shape", ["dict", "text"])
def test_an_executor_that_gives_up(shape: str, way: str) -> None:
    searching = [True]
    SCRIPTS.append(Script(lambda: searching[0]))
    script = SCRIPTS[-1]
    plain = StructuredTool.from_function(lambda query: "5", name="look_up", description="d")
    agent = Executed(number=len(SCRIPTS) - 1)
    chain: Any = AgentExecutor(agent=agent, tools=[plain], max_iterations=2)
    chain = RunnableLambda(lambda value: {"input": value["input"]}) | chain
    if shape == "text":
        chain = chain | RunnableLambda(lambda state: f"{state['output']} Thanks!")
    cached = cache_of(chain)
    ask_once(cached, way)
    searching[0] = False
    told = script.count
    assert GOOD in str(WAYS["invoke"](cached))
    assert GOOD in str(WAYS["invoke"](cached))
    assert script.count == told + 1


def test_an_agent_that_gave_up_in_an_earlier_turn() -> None:
    """What was said before is no reason to answer all that follows again."""
    model, script = model_of(finished("stop", GOOD), finished("stop", "another"))
    graph = StateGraph(MessagesState)
    graph.add_node("answer", lambda state: {"messages": [model.invoke(state["messages"])]})
    graph.add_edge(START, "answer")
    earlier = [("user", "hi"), ("ai", GAVE_UP[0])]
    turn: Any = RunnableLambda(lambda value: {"messages": [*earlier, ("user", value["input"])]})
    cached = cache_of(turn | graph.compile())
    for _ in range(2):
        assert cached.invoke(QUESTION)["messages"][-1].content == GOOD
    assert script.count == 1


@pytest.mark.parametrize("text", GAVE_UP[:2])
def test_tools_and_nodes_that_are_agents(text: str) -> None:
    tool, script = failing_tool(text, GOOD)
    assert [tool.invoke({"query": QUESTION}) for _ in range(3)] == [text, GOOD, GOOD]
    assert script.count == 2
    steps = Script({"messages": [AIMessage(text)]}, {"answer": GOOD})
    node = cached_node(RunnableLambda(lambda _: steps.next()), reads=["question"])
    node.invoke({"question": QUESTION})
    assert [node.invoke({"question": QUESTION}) for _ in range(2)] == [{"answer": GOOD}] * 2
    assert steps.count == 2


# LlamaIndex.


@pytest.mark.parametrize("later", [False, True])
@pytest.mark.parametrize("streams", [False, True])
@pytest.mark.parametrize("text", GAVE_UP)
def test_a_query_engine_of_an_agent_that_gave_up(text: str, streams: bool, later: bool) -> None:
    cached, script = scripted(stream_of(text[:9], text[9:]) if streams else text, GOOD)
    assert [ask_llama(cached, later) for _ in range(3)] == [text, GOOD, GOOD]
    assert script.count == 2


@pytest.mark.parametrize("text", SPEAKS_OF_IT)
def test_a_response_that_speaks_of_an_agent_that_gave_up(text: str) -> None:
    cached, _ = scripted(text, "another")
    assert [ask_llama(cached, later=False) for _ in range(2)] == [text, text]


@pytest.mark.parametrize("wrap", [str, Response])
def test_a_tool_of_llama_index_that_is_an_agent(wrap: Any) -> None:
    script = Script(wrap(GAVE_UP[-1]), GOOD)
    plain = FunctionTool.from_defaults(lambda query: script.next(), name="look_up", description="d")
    tool = llama.cached_tool(plain)
    tool.call(query=QUESTION)
    assert [tool.call(query=QUESTION).raw_output for _ in range(2)] == [GOOD, GOOD]
    assert script.count == 2
