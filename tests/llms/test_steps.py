"""Steps of workflows through the LLM classes, by hand and by the frameworks' own graphs."""

from __future__ import annotations

import asyncio
import itertools
import operator
from collections.abc import Callable, Sequence
from typing import Annotated, Any, Literal, TypedDict

import pytest
from langchain_core.prompts import ChatPromptTemplate
from llama_index.core.agent.workflow import FunctionAgent
from llama_index.core.base.llms.types import ChatMessage
from llama_index.core.workflow import Context, Event, StartEvent, StopEvent, Workflow, step

from ragcache_integrations import __version__, langchain, llama_index
from ragcache_integrations.engine import Generation, Prompt, RAGCacheEngine
from ragcache_integrations.engine.serving.wire import PROTOCOL
from ragcache_integrations.errors import ConfigurationError
from ragcache_integrations.llms.base import BaseRAGCacheLLM
from ragcache_integrations.llms.steps import step_hints
from tests.support.waiting import wait_until

from .doubles import StubServer, Tokenising

graphs = pytest.importorskip("langgraph.graph", reason="langgraph is not installed")
commands = pytest.importorskip("langgraph.types", reason="langgraph is not installed")

Said = tuple[str | None, dict[str, int] | None]
OWN: dict[str, Any] = {"step": "writer", "next_steps": {"critic": 1}}


class Listener(Tokenising):
    """Remembers which steps it was told of."""

    takes_reuse = True

    def __init__(self) -> None:
        super().__init__()
        self.said: list[Said] = []

    def generate(self, prompt: Prompt, options: Any = None, **call: Any) -> Generation:
        self.said.append((call.get("step"), call.get("next_steps")))
        return super().generate(prompt, options, **call)


class TestByHand:
    @pytest.mark.parametrize("way", ["sync", "async", "stream", "astream"])
    async def test_langchain(self, way: str) -> None:
        listener = Listener()
        chat = langchain.ChatRAGCache(engine=listener, step="planner", next_steps={"writer": 2})
        text = langchain.RAGCacheLLM(engine=listener)
        for model in (chat, text):
            for call in ({}, OWN):
                await run_langchain(model, way, call)
        writer = ("writer", {"critic": 1})
        assert listener.said == [("planner", {"writer": 2}), writer, (None, None), writer]

    @pytest.mark.parametrize("way", ["sync", "async", "stream", "astream"])
    async def test_llama_index(self, way: str) -> None:
        listener = Listener()
        llm = llama_index.RAGCacheLLM(engine=listener, step="planner", next_steps={"writer": 2})
        for call in ({}, OWN):
            await run_llama_index(llm, way, call)
        writer = ("writer", {"critic": 1})
        assert listener.said == [*[("planner", {"writer": 2})] * 2, *[writer] * 2]

    def test_an_object_s_own_may_be_changed(self) -> None:
        listener = Listener()
        chat = langchain.ChatRAGCache(engine=listener)
        chat.step = "planner"
        chat.invoke("?")
        chat.model_copy(update=OWN).invoke("?")
        assert listener.said == [("planner", {}), ("writer", {"critic": 1})]
        with pytest.raises(ConfigurationError, match="step must have 1 to 256 characters"):
            chat.step = "x" * 300

    @pytest.mark.parametrize(
        ("knobs", "words"),
        [
            ({"step": 3}, "step"),
            ({"next_steps": {"b": 1}}, "next_steps needs step"),
            ({"step": "a", "next_steps": {"b": "1"}}, "must be a whole number"),
            ({"engine": "modular", "step": "a"}, "an engine with a knowledge tree"),
            ({"engine": Tokenising(), "step": "a"}, "an engine with a knowledge tree"),
        ],
    )
    def test_wrong_ones(self, knobs: dict[str, Any], words: str) -> None:
        for kind in (langchain.ChatRAGCache, llama_index.RAGCacheLLM):
            with pytest.raises(ConfigurationError, match=words):
                kind(**knobs)

    def test_answers_do_not_depend_on_them(self) -> None:
        assert BaseRAGCacheLLM()._identity() == BaseRAGCacheLLM(**OWN)._identity()


def test_our_server_hears_of_steps_and_no_other_does(stub: StubServer) -> None:
    def fields() -> list[Any]:
        with langchain.ChatRAGCache(base_url=stub.base_url, model="m", **OWN) as chat:
            chat.invoke("Who purrs?")  # no documents are needed
            chat.invoke("Who purrs?", step="critic", next_steps={})
        return [
            {name: seen.body[name] for name in OWN if name in seen.body} for seen in stub.seen[-2:]
        ]

    assert fields() == [{}, {}]
    facts = {"ragcache": __version__, "protocol": PROTOCOL, "tokenizer": "another's"}
    stub.introduce = lambda exchange: exchange.send(facts)
    assert fields() == [OWN, {"step": "critic", "next_steps": {}}]
    with langchain.ChatRAGCache(base_url=stub.base_url, model="m") as chat:
        known = len(stub.introductions)
        chat.invoke("Who purrs?")
        assert len(stub.introductions) == known, "nobody asks what the server is for nothing"


async def run_langchain(model: Any, way: str, call: dict[str, Any]) -> None:
    if way == "sync":
        model.invoke("?", **call)
    elif way == "async":
        await model.ainvoke("?", **call)
    elif way == "stream":
        list(model.stream("?", **call))
    else:
        _ = [chunk async for chunk in model.astream("?", **call)]


async def run_llama_index(llm: Any, way: str, call: dict[str, Any]) -> None:
    messages = [ChatMessage("?")]
    if way == "sync":
        llm.complete("?", **call)
        llm.chat(messages, **call)
    elif way == "async":
        await llm.acomplete("?", **call)
        await llm.achat(messages, **call)
    elif way == "stream":
        list(llm.stream_complete("?", **call))
        list(llm.stream_chat(messages, **call))
    else:
        _ = [text async for text in await llm.astream_complete("?", **call)]
        _ = [text async for text in await llm.astream_chat(messages, **call)]


class TestOrder:
    def test_the_shortest_way_counts(self) -> None:
        hints = step_hints("abcd", [("a", "b"), ("a", "c"), ("b", "d"), ("c", "d"), ("d", "a")])
        assert hints["a"].next_steps == {"b": 1, "c": 1, "d": 2, "a": 3}
        assert hints["d"].next_steps == {"a": 1, "b": 2, "c": 2, "d": 3}

    def test_the_end_counts_nothing(self) -> None:
        hints = step_hints("ab", [("a", "b"), ("b", "end"), ("start", "a")])
        assert hints["b"].next_steps == {}
        assert set(hints) == {"a", "b"}

    def test_of_very_many_the_nearest_count(self) -> None:
        names = [str(number) for number in range(200)]
        hints = step_hints(names, itertools.pairwise(names))
        assert hints["0"].next_steps == {str(number): number for number in range(1, 65)}

    def test_names_have_bounds(self) -> None:
        with pytest.raises(ConfigurationError, match="characters"):
            step_hints(["x" * 300], [])


class State(TypedDict):
    answers: Annotated[list[str], operator.add]


WRITING = [
    ("planner", {"writer": 1, "critic": 2}),
    ("writer", {"critic": 1, "writer": 2}),
    ("critic", {"writer": 1, "critic": 2}),
    ("writer", {"critic": 1, "writer": 2}),
    ("critic", {"writer": 1, "critic": 2}),
]
"""What is said in a loop of a writer and a critic, who lets the second text pass."""


def writing_graph(answer: Callable[[str, str], str]) -> Any:
    """A graph whose nodes answer by their names."""

    def node(name: str) -> Callable[[State], Any]:
        def run(state: State) -> dict[str, list[str]]:
            return {"answers": [answer(name, f"Turn {len(state['answers'])}?")]}

        return run

    builder = graphs.StateGraph(State)
    for name in ("planner", "writer", "critic"):
        builder.add_node(name, node(name))
    builder.add_edge(graphs.START, "planner")
    builder.add_edge("planner", "writer")
    builder.add_edge("writer", "critic")
    builder.add_conditional_edges(
        "critic",
        lambda state: graphs.END if len(state["answers"]) > 4 else "writer",
        ["writer", graphs.END],
    )
    return builder.compile()


class TestLangGraph:
    @pytest.mark.parametrize("way", ["invoke", "ainvoke", "stream", "astream"])
    def test_each_node_says_what_comes_next(self, way: str) -> None:
        listener = Listener()
        chain = ChatPromptTemplate.from_template("{x}") | langchain.ChatRAGCache(engine=listener)
        plain = writing_graph(lambda _, question: str(chain.invoke({"x": question}).content))
        hinted = langchain.hint_steps(plain)
        for graph in (plain, hinted):
            run_graph(graph, way)
        assert listener.said == [(None, None)] * 5 + WRITING, "the graph itself has none"

    @pytest.mark.parametrize("way", ["async", "stream", "astream"])
    def test_in_every_way_of_calling(self, way: str) -> None:
        listener = Listener()
        models = [kind(engine=listener) for kind in (langchain.ChatRAGCache, langchain.RAGCacheLLM)]

        async def run(state: State) -> dict[str, list[str]]:
            for model in models:
                await run_langchain(model, way, {})
            return {"answers": []}

        builder = graphs.StateGraph(State)
        builder.add_node("only", run)
        builder.add_edge(graphs.START, "only")
        asyncio.run(langchain.hint_steps(builder.compile()).ainvoke({"answers": []}))
        assert listener.said == [("only", {})] * 2

    def test_who_has_a_step_keeps_it(self) -> None:
        listener = Listener()
        chat = langchain.ChatRAGCache(engine=listener, step="mine")
        graph = writing_graph(lambda _, question: str(chat.invoke(question).content))
        run_graph(langchain.hint_steps(graph), "invoke")
        assert listener.said == [("mine", {})] * 5

    def test_an_engine_without_steps_is_told_none(self) -> None:
        chat = langchain.ChatRAGCache(engine=Tokenising())
        graph = writing_graph(lambda _, question: str(chat.invoke(question).content))
        run_graph(langchain.hint_steps(graph), "invoke")

    def test_a_graph_in_a_node_is_that_node(self) -> None:
        listener = Listener()
        chat = langchain.ChatRAGCache(engine=listener)
        inner = writing_graph(lambda _, question: str(chat.invoke(question).content))
        for within in (inner, langchain.hint_steps(inner)):
            builder = graphs.StateGraph(State)
            builder.add_node("team", within)
            builder.add_node("last", lambda _: {"answers": [str(chat.invoke("?").content)]})
            builder.add_edge(graphs.START, "team")
            builder.add_edge("team", "last")
            langchain.hint_steps(builder.compile()).invoke({"answers": []})
        builder.compile().invoke({"answers": []})
        team = [("team", {"last": 1})] * 5
        last = ("last", dict[str, int]())
        assert listener.said == [*team, last, *team, last, *WRITING, (None, None)]

    @pytest.mark.parametrize("called", [False, True], ids=["as a node", "called by it"])
    def test_so_it_is_if_its_nodes_have_names_of_the_outer_graph(self, called: bool) -> None:
        listener = Listener()
        chat = langchain.ChatRAGCache(engine=listener)
        inner = writing_graph(lambda _, question: str(chat.invoke(question).content))
        builder = graphs.StateGraph(State)
        builder.add_node("team", (lambda _: inner.invoke({"answers": []})) if called else inner)
        builder.add_node("writer", lambda _: {"answers": [str(chat.invoke("?").content)]})
        builder.add_edge(graphs.START, "team")
        builder.add_edge("team", "writer")
        langchain.hint_steps(builder.compile()).invoke({"answers": []})
        assert listener.said == [*[("team", {"writer": 1})] * 5, ("writer", {})]

    def test_a_condition_s_targets_are_known_by_its_annotation(self) -> None:
        listener = Listener()
        chat = langchain.ChatRAGCache(engine=listener)

        def end(state: State) -> Any:
            return graphs.END if len(state["answers"]) > 1 else "only"

        for annotation in (Any, Literal["only", "__end__"]):
            end.__annotations__["return"] = annotation
            builder = graphs.StateGraph(State)
            builder.add_node("only", lambda _: {"answers": [str(chat.invoke("?").content)]})
            builder.add_edge(graphs.START, "only")
            builder.add_conditional_edges("only", end)
            langchain.hint_steps(builder.compile()).invoke({"answers": []})
        assert listener.said == [("only", {})] * 2 + [("only", {"only": 1})] * 2

    def test_a_command_goes_where_its_annotation_says(self) -> None:
        listener = Listener()
        chat = langchain.ChatRAGCache(engine=listener)

        def first(state: State) -> Any:
            chat.invoke("?")
            return commands.Command(goto="second")

        first.__annotations__["return"] = commands.Command[Literal["second", "third"]]
        builder = graphs.StateGraph(State)
        builder.add_node("first", first)
        for name in ("second", "third"):
            builder.add_node(name, lambda _: {"answers": []})
        builder.add_edge(graphs.START, "first")
        langchain.hint_steps(builder.compile()).invoke({"answers": []})
        assert listener.said == [("first", {"second": 1, "third": 1})]

    def test_checkpoints_hold_nothing_of_it(self) -> None:
        memory = pytest.importorskip("langgraph.checkpoint.memory")
        listener = Listener()
        chat = langchain.ChatRAGCache(engine=listener)
        graph = writing_graph(lambda _, question: str(chat.invoke(question).content))
        graph.checkpointer = memory.InMemorySaver()
        hinted = langchain.hint_steps(graph)
        config = {"configurable": {"thread_id": "1"}}
        hinted.invoke({"answers": []}, config)
        assert listener.said == WRITING
        assert "ragcache" not in repr(
            [state.metadata for state in hinted.get_state_history(config)]
        )

    @pytest.mark.parametrize("wrong", [None, "graph", graphs.StateGraph(State)])
    def test_it_takes_compiled_graphs(self, wrong: Any) -> None:
        with pytest.raises(ConfigurationError, match="hint_steps takes a compiled graph"):
            langchain.hint_steps(wrong)


def run_graph(graph: Any, way: str) -> list[str]:
    state: dict[str, list[str]] = {"answers": []}
    if way == "invoke":
        last = graph.invoke(state)
    elif way == "ainvoke":
        last = asyncio.run(graph.ainvoke(state))
    elif way == "stream":
        *_, last = graph.stream(state, stream_mode="values")
    else:

        async def stream() -> Any:
            return [part async for part in graph.astream(state, stream_mode="values")][-1]

        last = asyncio.run(stream())
    answers: list[str] = last["answers"]
    return answers


class Planned(Event):
    answers: Sequence[str]


class Written(Event):
    answers: Sequence[str]


class WritingWorkflow(Workflow):
    """The same loop; one step is a plain function."""

    def __init__(self, answer: Callable[[str, str], str], **knobs: Any) -> None:
        super().__init__(**knobs)
        self._answer = answer

    @step
    async def planner(self, _: StartEvent) -> Planned:
        return Planned(answers=[self._answer("planner", "Turn 0?")])

    @step
    async def writer(self, ctx: Context, event: Planned) -> Written:
        assert ctx is not None
        answer = self._answer("writer", f"Turn {len(event.answers)}?")
        return Written(answers=[*event.answers, answer])

    @step
    def critic(self, event: Written) -> Planned | StopEvent:
        answers = [*event.answers, self._answer("critic", f"Turn {len(event.answers)}?")]
        return StopEvent(result=answers) if len(answers) > 4 else Planned(answers=answers)


class TestLlamaIndexWorkflows:
    async def test_each_step_says_what_comes_next(self) -> None:
        listener = Listener()
        llm = llama_index.RAGCacheLLM(engine=listener)

        def answer(_: str, question: str) -> str:
            text: str = llm.complete(question).text
            return text

        plain, hinted = WritingWorkflow(answer), WritingWorkflow(answer)
        assert llama_index.hint_steps(hinted) is hinted
        for workflow in (plain, hinted, hinted):
            assert await workflow.run() == ["Yes."] * 5
        assert listener.said == [(None, None)] * 5 + 2 * WRITING

    @pytest.mark.parametrize("way", ["async", "stream", "astream"])
    async def test_in_every_way_of_calling(self, way: str) -> None:
        listener = Listener()
        llm = llama_index.RAGCacheLLM(engine=listener)

        class Caller(Workflow):
            @step
            async def only(self, _: StartEvent) -> StopEvent:
                await run_llama_index(llm, way, {})
                return StopEvent()

        await llama_index.hint_steps(Caller()).run()
        assert listener.said == [("only", {})] * 2

    async def test_a_step_that_is_no_method(self) -> None:
        listener = Listener()
        llm = llama_index.RAGCacheLLM(engine=listener)

        class Open(Workflow):
            @step
            async def first(self, _: StartEvent) -> Planned:
                return Planned(answers=[llm.complete("?").text])

        @step(workflow=Open)
        async def second(event: Planned) -> StopEvent:
            return StopEvent(result=[*event.answers, llm.complete("?").text])

        assert await llama_index.hint_steps(Open()).run() == ["Yes."] * 2
        assert listener.said == [("first", {"second": 1}), ("second", {})]

    async def test_an_agent_is_a_workflow_whose_model_comes_again_after_its_tools(self) -> None:
        listener = Listener()
        llm = llama_index.RAGCacheLLM(engine=listener, is_function_calling_model=True)
        agent = llama_index.hint_steps(FunctionAgent(tools=[str.upper], llm=llm))
        assert str(await agent.run("?")) == "Yes."
        ((name, coming),) = listener.said
        assert name == "run_agent_step"
        assert coming is not None
        assert {"call_tool", "run_agent_step"} <= coming.keys()
        assert coming["call_tool"] < coming["run_agent_step"]

    async def test_steps_of_runs_at_the_same_time_stay_apart(self) -> None:
        listener = Listener()
        llm = llama_index.RAGCacheLLM(engine=listener)

        class Slow(Workflow):
            @step
            async def first(self, _: StartEvent) -> Planned:
                await asyncio.sleep(0)
                return Planned(answers=[(await llm.acomplete("?")).text])

            @step
            async def second(self, _: Planned) -> StopEvent:
                await asyncio.sleep(0)
                return StopEvent(result=(await llm.acomplete("?")).text)

        workflow = llama_index.hint_steps(Slow())
        await asyncio.gather(*(workflow.run() for _ in range(20)))
        assert sorted(name or "" for name, _ in listener.said) == ["first"] * 20 + ["second"] * 20
        assert (await llm.acomplete("?")).text == "Yes."
        assert listener.said[-1] == (None, None), "outside of the workflow"

    def test_it_takes_workflows(self) -> None:
        with pytest.raises(ConfigurationError, match="a Workflow of LlamaIndex, got str"):
            llama_index.hint_steps("workflow")  # type: ignore[type-var]


AGENTS = {
    name: f"You are the {name}. " + " ".join(f"{name} rule {number}." for number in range(60))
    for name in ("planner", "writer", "critic")
}


@pytest.mark.engine
def test_langgraph_over_the_engine(engine: RAGCacheEngine) -> None:
    chat = langchain.ChatRAGCache(engine=engine, namespace="graph", max_tokens=4)
    chain = (
        ChatPromptTemplate.from_messages([("system", "{rules}"), ("human", "{question}")]) | chat
    )

    def answer(name: str, question: str) -> str:
        return str(chain.invoke({"rules": AGENTS[name], "question": question}).content)

    graph = writing_graph(answer)
    plain = [run_graph(graph, "invoke") for _ in range(3)]
    assert engine.reset_cache()
    hinted = [run_graph(langchain.hint_steps(graph), "invoke") for _ in range(3)]
    assert hinted == plain
    assert hints_arrived(engine, "graph")


@pytest.mark.engine
async def test_a_workflow_over_the_engine(engine: RAGCacheEngine) -> None:
    llm = llama_index.RAGCacheLLM(engine=engine, namespace="workflow", max_tokens=4)

    def answer(name: str, question: str) -> str:
        messages = [ChatMessage(AGENTS[name], role="system"), ChatMessage(question)]
        return str(llm.chat(messages).message.content)

    plain = [await WritingWorkflow(answer).run() for _ in range(3)]
    assert await engine.areset_cache()
    workflow = llama_index.hint_steps(WritingWorkflow(answer))
    assert [await workflow.run() for _ in range(3)] == plain
    assert await asyncio.to_thread(hints_arrived, engine, "workflow")


def hints_arrived(engine: RAGCacheEngine, namespace: str) -> bool:
    """Whether what the steps' prompts begin with is known by their names, and kept for them."""

    def arrived() -> bool:
        tree = engine.tree()
        assert tree is not None
        (root,) = (root for root in tree.roots if root.name == namespace)
        stats = engine.stats().tree
        expected = stats is not None and stats.hints > 0
        return expected and {"writer", "critic"} <= {node.name for node in root.children}

    wait_until(arrived)
    return True
