"""Cached nodes of LangGraph's graphs."""

from __future__ import annotations

import copy
import json
from dataclasses import asdict, dataclass, replace
from operator import attrgetter, itemgetter
from typing import Any, Literal, TypedDict
from uuid import uuid4

import pytest
from langchain_core.language_models import GenericFakeChatModel
from langchain_core.messages import AIMessage, BaseMessage, HumanMessage, RemoveMessage
from langchain_core.runnables import RunnableConfig, RunnableLambda
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.graph.message import REMOVE_ALL_MESSAGES
from langgraph.runtime import Runtime
from langgraph.types import Command
from pydantic import BaseModel, PrivateAttr

from ragcache_integrations.errors import ConfigurationError
from ragcache_integrations.langchain import cached_node, hint_steps
from tests.answers.traffic import langchain_embeddings


class State(TypedDict, total=False):
    question: str
    count: int
    steps: int
    found: list[str]


class Search:
    """Counts its calls."""

    def __init__(self) -> None:
        self.calls = 0

    def __call__(self, state: State, config: RunnableConfig) -> dict[str, Any]:
        self.calls += 1
        found = [f"{state['question']} {self.calls}"] * state.get("count", 1)
        return {"found": found} if "nothing" not in state["question"] else {}


def graph_of(node: Any) -> Any:
    graph = StateGraph(State)
    graph.add_node("search", node)
    graph.add_edge(START, "search")
    return graph.compile()


async def test_a_result_is_served_again_where_what_the_node_reads_is_equal() -> None:
    search = Search()
    node = cached_node(
        search,
        reads=["question", "count"],
        query_argument="question",
        ttl=60,
        tolerance=0.3,
        embeddings=langchain_embeddings(),
    )
    graph = graph_of(node)

    def found(**state: Any) -> Any:
        return graph.invoke(state).get("found")

    assert found(question="rome is it nice", steps=1) == ["rome is it nice 1"]
    found(question="rome is it nice", steps=2).clear()
    assert found(question="Rome is it pretty?") == ["rome is it nice 1"]
    later = await graph.ainvoke({"question": "rome is it nice"})
    assert later["found"] == ["rome is it nice 1"]
    assert found(question="rome is it nice", count=2) == ["rome is it nice 2"] * 2
    assert found(question="oslo is it nice") == ["oslo is it nice 3"]
    assert (search.calls, node.stats().hits) == (3, 3)
    node.clear()
    assert found(question="rome is it nice") == ["rome is it nice 4"]


def test_a_graph_with_hints_shares_what_it_would_share_without() -> None:
    search = Search()
    graph = graph_of(cached_node(search, reads=["question"]))
    for either in (graph, hint_steps(graph), hint_steps(graph)):
        assert either.invoke({"question": "rome"})["found"] == ["rome 1"]


def test_users_and_namespaces_share_nothing() -> None:
    search = Search()
    graph = graph_of(cached_node(search, reads=["question"]))
    state = {"question": "rome"}
    for configurable in ({}, {"user": "ann"}, {"user": "bob"}, {"user": "ann"}):
        graph.invoke(state, {"configurable": configurable})
    graph.invoke(state, {"configurable": {"user": "ann", "thread_id": "7"}})
    assert search.calls == 3


def test_a_state_s_values_may_have_any_name() -> None:
    for name in ("the run", "arguments", "configurable"):
        node = cached_node(lambda state: {"found": list(state.values())}, reads=[name])
        assert [node.invoke({name: text})["found"] for text in "ab"] == [["a"], ["b"]]


def test_a_value_that_is_missing_is_not_none() -> None:
    node = cached_node(lambda state: {"found": state.get("count", 3)}, reads=["count"])
    assert node.invoke({"count": None}) == {"found": None}
    assert node.invoke({}) == {"found": 3}


def test_what_is_empty_is_kept_only_if_somebody_says_so() -> None:
    search = Search()
    for keep, calls in ((None, 2), (lambda _: True, 3)):
        graph = graph_of(cached_node(search, reads=["question"], keep=keep))
        for _ in range(2):
            graph.invoke({"question": "nothing"})
        assert search.calls == calls


@dataclass
class Record:
    question: str


def test_a_state_may_be_an_object() -> None:
    node = cached_node(RunnableLambda(lambda state: state.question), reads=["question"])
    assert [node.invoke(Record("rome")), node.invoke(Record("rome"))] == ["rome"] * 2
    assert node.stats().hits == 1


class Model(BaseModel):
    question: str
    user: str = "nobody"
    _kept: str = PrivateAttr("")

    def model_post_init(self, context: Any, /) -> None:
        self._kept = self.user


@dataclass
class Person:
    question: str
    user: str = "nobody"

    def greeting(self) -> str:
        return f"Dear {self.user}"


@dataclass(frozen=True, slots=True)
class Slotted:
    question: str
    user: str = "nobody"


def as_dict(question: str, user: str) -> dict[str, str]:
    return {"question": question, "user": user}


UNDECLARED: list[tuple[Any, Any]] = [
    *(
        (as_dict, read)
        for read in (
            lambda state: state["user"],
            lambda state: state.get("user"),
            lambda state: state.pop("user", ""),
            lambda state: "user" in state,
            lambda state: state.copy()["user"],
            itemgetter("user"),
        )
    ),
    *(
        (kind, read)
        for kind in (Person, Slotted, Model)
        for read in (lambda state: state.user, attrgetter("user"), lambda s: f"{s.user}")
    ),
    *(
        (kind, read)
        for kind in (Person, Slotted, Model)
        for read in (lambda s: getattr(s, "user", "nobody"), lambda s: hasattr(s, "user"))
    ),
    (Person, lambda state: state.greeting()),
    (Person, asdict),
    (Person, repr),
    (Slotted, replace),
]


@pytest.mark.parametrize(("kind", "read"), UNDECLARED)
@pytest.mark.parametrize("later", [False, True])
async def test_a_node_that_asks_for_more_than_it_declares_is_refused(
    kind: Any, read: Any, later: bool
) -> None:
    node = cached_node(RunnableLambda(lambda state: str(read(state))), reads=["question"])
    for user in ("ann", "bob"):
        state = kind(question="rome", user=user)
        with pytest.raises(ConfigurationError, match="asked for 'user' of the state, which is not"):
            await node.ainvoke(state) if later else node.invoke(state)
    assert node.stats().entries == 0


@pytest.mark.parametrize(
    ("kind", "read"),
    [
        (as_dict, str),
        (as_dict, json.dumps),
        (as_dict, lambda state: str({**state})),
        (as_dict, lambda state: str(list(state.values()))),
        (as_dict, lambda state: str(copy.deepcopy(state) | {})),
        (Person, lambda state: str(vars(state))),
        (Model, lambda state: str(vars(state))),
        (Model, lambda state: state.model_dump_json()),
        (Model, str),
    ],
)
def test_no_way_around_what_a_node_declares_leads_to_the_rest(kind: Any, read: Any) -> None:
    node = cached_node(RunnableLambda(read), reads=["question"])
    for user in ("ann", "bob"):
        assert user not in node.invoke(kind(question="rome", user=user))
    assert node.stats().hits == 1


def test_private_attributes_of_a_state_are_declared_as_fields_are() -> None:
    node = cached_node(RunnableLambda(lambda s: getattr(s, "_kept", "")), reads=["question"])
    with pytest.raises(ConfigurationError, match="asked for '_kept' of the state"):
        node.invoke(Model(question="rome", user="ann"))


class Found(TypedDict, total=False):
    question: str
    secret: str


class Answers:
    def method(self, state: Found) -> State:
        return {"found": [state["secret"]]}

    def __call__(self, state: Found) -> State:
        return self.method(state)


def answer_found(state: Found) -> State:
    return {"found": [state["secret"]]}


@pytest.mark.parametrize("answer", [answer_found, Answers().method, Answers()])
def test_a_node_has_the_schema_of_its_function(answer: Any) -> None:
    def find(state: State) -> Found:
        return {"secret": state["question"].upper()}

    for node in (answer, cached_node(answer, reads=["secret"])):
        graph = StateGraph(State)
        graph.add_sequence([("find", find), ("answer", node)])
        graph.add_edge(START, "find")
        assert graph.compile().invoke({"question": "rome"})["found"] == ["ROME"]
    assert node({"secret": "ROME"})["found"] == ["ROME"]
    assert node.stats().hits == 1


def test_a_node_has_the_edges_of_its_function() -> None:
    def choose(state: State) -> Command[Literal["end"]]:
        return Command(update={"count": 1}, goto="end")

    graph = StateGraph(State)
    graph.add_node("choose", cached_node(choose, reads=["question"]))
    graph.add_node("end", lambda _: {})
    graph.add_edge(START, "choose")
    edges = {(edge.source, edge.target) for edge in graph.compile().get_graph().edges}
    assert ("choose", "end") in edges


@pytest.mark.parametrize("kind", [as_dict, Person, Slotted, Model])
def test_a_node_gets_what_it_declares(kind: Any) -> None:
    def answer(state: Any) -> str:
        values = state if isinstance(state, dict) else state.__class__.__mro__
        user = state["user"] if isinstance(state, dict) else state.user
        assert isinstance(values, dict) or kind in values
        return f"dear {user}"

    node = cached_node(RunnableLambda(answer), reads=["question", "user"])
    for user in ("ann", "bob", "ann"):
        assert node.invoke(kind(question="rome", user=user)) == f"dear {user}"
    assert node.stats().hits == 1


@pytest.mark.parametrize("kind", [Model, Person])
def test_a_graph_of_any_state(kind: Any) -> None:
    def answer(state: Any) -> dict[str, str]:
        return {"user": state.question.upper()}

    graph = StateGraph(kind)
    node = cached_node(answer, reads=["question"])
    graph.add_node("answer", node)
    graph.add_edge(START, "answer")
    app: Any = graph.compile()
    for user in ("ann", "bob"):
        assert app.invoke({"question": "rome", "user": user})["user"] == "ROME"
    assert node.stats().hits == 1


def test_a_state_without_names_is_refused() -> None:
    node = cached_node(RunnableLambda(str), reads=["question"])
    for state in ("rome", ["rome"], 3):
        with pytest.raises(ConfigurationError, match="the state must be a dict, a dataclass"):
            node.invoke(state)


def test_nodes_that_depend_on_more_are_refused() -> None:
    def search(state: State, runtime: Runtime[Any]) -> State:
        return state

    with pytest.raises(ConfigurationError, match="the node gets runtime, so its results depend"):
        cached_node(search, reads=["question"])
    wrong: Any
    for wrong in ("question", [3], []):
        with pytest.raises(ConfigurationError, match="reads must be one or more names"):
            cached_node(Search(), reads=wrong)
    with pytest.raises(ConfigurationError, match="query_argument must name a value of reads="):
        cached_node(Search(), reads=["question"], query_argument="words")
    with pytest.raises(ConfigurationError, match="keep must be a function or None, got 3"):
        cached_node(Search(), reads=["question"], keep=3)  # type: ignore[arg-type]


def talk(node: Any, *questions: str) -> list[BaseMessage]:
    """Ask questions in one conversation; return its messages."""

    class Conversation(MessagesState):
        question: str

    graph: Any = StateGraph(Conversation).add_node("answer", node).add_edge(START, "answer")
    app = graph.compile(checkpointer=InMemorySaver())
    for question in questions:
        given = {"messages": [HumanMessage(question)], "question": question}
        state = app.invoke(given, {"configurable": {"thread_id": "1"}})
    return list(state["messages"])


@pytest.mark.parametrize("wrap", [list, lambda messages: Command(update={"messages": messages})])
def test_a_hit_is_a_new_message_of_the_conversation(wrap: Any) -> None:
    count = iter(range(9))

    def answer(state: Any) -> Any:
        said = wrap([AIMessage(f"{state['question']} {next(count)}", id=f"lc_run--{uuid4()}")])
        return said if isinstance(said, Command) else {"messages": said}

    node = cached_node(answer, reads=["question"])
    messages = talk(node, "fees", "hours", "fees")
    assert [each.text for each in messages] == [
        *("fees", "fees 0", "hours", "hours 1", "fees", "fees 0"),
    ]
    assert node.stats().hits == 1


def test_a_message_that_replaces_an_earlier_one_of_the_state() -> None:
    def summarize(state: Any) -> Any:
        return {"messages": [AIMessage(f"about {state['question']}", id="summary")]}

    node = cached_node(summarize, reads=["question"])
    messages = talk(node, "fees", "hours", "fees")
    assert [each.text for each in messages] == ["fees", "about fees", "hours", "fees"]


def test_what_refers_to_messages_that_are_not_read_is_not_kept() -> None:
    def forget(state: Any) -> Any:
        return {"messages": [RemoveMessage(id=f"{state['question']} 1")]}

    node = cached_node(forget, reads=["question"], keep=lambda _: True)
    state = {"question": "fees", "messages": [HumanMessage("fees", id="fees 1")]}
    for _ in range(3):
        assert node.invoke(state)["messages"][0].id == "fees 1"
    assert (node.stats().hits, node.stats().unkept) == (0, 3)
    all_of_them = cached_node(
        lambda _: {"messages": [RemoveMessage(id=REMOVE_ALL_MESSAGES)]}, reads=["question"]
    )
    assert talk(all_of_them, "fees", "fees") == []
    assert all_of_them.stats().hits == 1


def test_what_refers_to_messages_that_are_read_stays() -> None:
    def forget(state: Any) -> Any:
        return {"messages": [RemoveMessage(id=state["messages"][0].id)]}

    node = cached_node(forget, reads=["messages"])
    state = {"messages": [HumanMessage("fees", id="1")]}
    for _ in range(2):
        assert node.invoke(state)["messages"][0].id == "1"
    assert node.stats().hits == 1


async def test_a_node_whose_model_was_cut_off_is_asked_again() -> None:
    cut = AIMessage("first,", response_metadata={"finish_reason": "length"})
    model = GenericFakeChatModel(messages=iter([cut, cut, AIMessage("five"), AIMessage("never")]))

    def answer(state: Any) -> Any:
        return {"found": [model.invoke(state["question"]).text]}

    node = cached_node(answer, reads=["question"])
    graph: Any = graph_of(node)
    found = [
        graph.invoke({"question": "fees"})["found"],
        node.invoke({"question": "fees"})["found"],
    ]
    found += [(await node.ainvoke({"question": "fees"}))["found"] for _ in range(2)]
    assert found == [["first,"], ["first,"], ["five"], ["five"]]


def test_what_a_node_depends_on_is_noticed() -> None:
    style = {"greeting": "Hello"}
    node = cached_node(lambda state: {"found": [style["greeting"]]}, reads=["question"])
    graph = graph_of(node)
    for greeting in ("Hello", "Hi"):
        style["greeting"] = greeting
        for _ in range(2):
            assert graph.invoke({"question": "rome"})["found"] == [greeting]
    assert node.stats().hits == 2
