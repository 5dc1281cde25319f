"""A chain that changes after its first answer gives its new answer, and not the kept one.

Right are three outcomes: the change is noticed, or what can't be known was not kept, or the cache
refuses such a chain in words. What code reads besides, and no cache can see, may instead stand in a
list of ``docs/answers.md`` that says so.
"""

from __future__ import annotations

import json
import threading
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest
from langchain_core.chat_history import BaseChatMessageHistory
from langchain_core.example_selectors import BaseExampleSelector
from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, HumanMessage, SystemMessage
from langchain_core.output_parsers import BaseOutputParser, StrOutputParser
from langchain_core.outputs import ChatGeneration, ChatResult
from langchain_core.prompts import (
    ChatPromptTemplate,
    FewShotChatMessagePromptTemplate,
    MessagesPlaceholder,
    PromptTemplate,
)
from langchain_core.runnables import (
    ConfigurableField,
    RunnableLambda,
    RunnableParallel,
    RunnablePassthrough,
)
from langchain_core.runnables.history import RunnableWithMessageHistory
from langchain_core.tools import StructuredTool
from langchain_core.vectorstores import InMemoryVectorStore
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import START, MessagesState, StateGraph

from ragcache_integrations.langchain import AnswerCache, ChatRAGCache
from tests.answers.traffic import langchain_embeddings
from tests.attacks.changes.parts import ASK, INPUTS, VALUES, Case, Echo, cache_of, is_stale, prompt

CASES: dict[str, Case] = {}
"""Changes of a chain's prompts, models and compositions."""


def case(function: Case) -> Case:
    CASES[function.__name__] = function
    return function


# Prompts.


@case
def a_message_within_a_prompt() -> Iterator[Any]:
    message = SystemMessage("Be kind.")
    yield ChatPromptTemplate.from_messages([message, ("user", "{input}")]) | Echo()
    message.content = "Be rude."


@case
def a_message_s_part_within_a_prompt() -> Iterator[Any]:
    message = SystemMessage([{"type": "text", "text": "Be kind."}])
    yield ChatPromptTemplate.from_messages([message, ("user", "{input}")]) | Echo()
    message.content[0]["text"] = "Be rude."  # type: ignore[index]


@case
def the_format_of_a_template() -> Iterator[Any]:
    made = PromptTemplate.from_template("{{x}} {input}")
    yield made | Echo()
    made.template = "{{y}} {input}"


@case
def the_messages_of_a_prompt_are_exchanged() -> Iterator[Any]:
    made = prompt()
    yield made | Echo()
    made.messages = prompt("Reply {input}").messages


@case
def a_message_of_a_prompt_is_removed() -> Iterator[Any]:
    made = ChatPromptTemplate.from_messages([("system", "Be kind."), ("user", "{input}")])
    yield made | Echo()
    del made.messages[0]


@case
def the_name_of_a_placeholder() -> Iterator[Any]:
    place = MessagesPlaceholder("history", optional=True)
    made = ChatPromptTemplate.from_messages([place, ("user", "{input}")])
    made = made.partial(history=[HumanMessage("one")], other=[HumanMessage("two")])
    yield made | Echo()
    place.variable_name = "other"
    made.messages[0].variable_name = "other"  # type: ignore[union-attr]


@case
def messages_that_are_filled_in() -> Iterator[Any]:
    turns: list[Any] = [HumanMessage("one")]
    place = MessagesPlaceholder("history")
    made = ChatPromptTemplate.from_messages([place, ("user", "{input}")]).partial(history=turns)
    yield made | Echo()
    made.partial_variables["history"].append(HumanMessage("two"))


@case
def examples_of_a_chat() -> Iterator[Any]:
    examples = [{"q": "one"}]
    few = FewShotChatMessagePromptTemplate(examples=examples, example_prompt=prompt("{q}"))
    yield ChatPromptTemplate.from_messages([few, ("user", "{input}")]) | Echo()
    few.examples[0]["q"] = "two"  # type: ignore[index]


class Selector(BaseExampleSelector):
    def __init__(self) -> None:
        self.examples = [{"q": "one"}]

    def add_example(self, example: dict[str, str]) -> None:
        self.examples.append(example)

    def select_examples(self, input_variables: dict[str, str]) -> list[dict[str, str]]:
        return self.examples


@case
def examples_that_are_selected() -> Iterator[Any]:
    selector = Selector()
    few = FewShotChatMessagePromptTemplate(example_selector=selector, example_prompt=prompt("{q}"))
    yield ChatPromptTemplate.from_messages([few, ("user", "{input}")]) | Echo()
    selector.add_example({"q": "two"})


# Models.


@case
def an_attribute_that_is_private() -> Iterator[Any]:
    model = Echo()
    yield prompt() | model
    model._hidden = "ornate"


def of_value(name: str) -> Case:
    def change() -> Iterator[Any]:
        value, do = VALUES[name]()
        model = Echo(anything=value)
        yield prompt() | model
        do()

    return change


CASES |= {f"a model's setting, {name}": of_value(name) for name in VALUES}


@case
def stop_words_that_are_bound() -> Iterator[Any]:
    bound = Echo().bind(stop=["one"])
    yield prompt() | bound
    bound.kwargs["stop"].append("two")


@case
def a_tool_that_is_bound() -> Iterator[Any]:
    tool = StructuredTool.from_function(lambda query: query, name="f", description="old")
    yield prompt() | Echo().bind(tools=[tool])
    tool.description = "new"


@case
def a_model_in_a_list_of_models() -> Iterator[Any]:
    models = [Echo(), Echo(temperature=1.0)]

    class Router(BaseChatModel):
        models: Any

        @property
        def _llm_type(self) -> str:
            return "router"

        def _generate(self, messages: list[Any], *_: Any, **__: Any) -> ChatResult:
            return self.models[0]._generate(messages)  # type: ignore[no-any-return]

    router = Router(models=models)
    yield prompt() | router
    router.models.reverse()


class Failing(Echo):
    def _generate(self, messages: list[Any], *_: Any, **__: Any) -> ChatResult:
        raise RuntimeError("down")


@case
def fallbacks() -> Iterator[Any]:
    chain = Failing().with_fallbacks([Echo()])
    yield prompt() | chain
    chain.fallbacks.insert(0, Echo(temperature=1.0))  # type: ignore[attr-defined]


@case
def a_model_that_is_retried() -> Iterator[Any]:
    model = Echo()
    yield prompt() | model.with_retry()
    model.temperature = 1.0


@case
def an_alternative() -> Iterator[Any]:
    chain = Echo().configurable_alternatives(
        ConfigurableField(id="model"), default_key="a", b=Echo(temperature=1.0)
    )
    yield prompt() | chain
    chain.default = Echo(temperature=2.0)  # type: ignore[attr-defined]


@case
def a_method_of_a_model_s_class() -> Iterator[Any]:
    class Patched(Echo):
        def word(self) -> str:
            return "one"

        def _generate(self, messages: list[Any], *_: Any, **__: Any) -> ChatResult:
            return ChatResult(generations=[ChatGeneration(message=AIMessage(self.word()))])

    yield prompt() | Patched()
    Patched.word = lambda self: "two"  # type: ignore[method-assign]


# Compositions.


@case
def a_step_of_a_sequence() -> Iterator[Any]:
    chain: Any = prompt() | Echo() | StrOutputParser()
    yield chain
    chain.middle[0] = Echo(temperature=1.0)


@case
def the_first_step_of_a_sequence() -> Iterator[Any]:
    chain: Any = prompt() | Echo() | StrOutputParser()
    yield chain
    chain.first = prompt("Reply {input}")


@case
def a_branch_of_a_parallel() -> Iterator[Any]:
    parallel: Any = RunnableParallel(a=prompt() | Echo(), b=RunnableLambda(lambda _: "x"))
    yield parallel | RunnableLambda(lambda value: str(value["a"].content))
    parallel.steps__["a"] = prompt("Reply {input}") | Echo()


@case
def what_is_assigned() -> Iterator[Any]:
    assigned: Any = RunnablePassthrough.assign(answer=prompt() | Echo())
    yield assigned | RunnableLambda(lambda value: str(value["answer"].content))
    assigned.mapper.steps__["answer"] = prompt("Reply {input}") | Echo()


@case
def what_is_picked() -> Iterator[Any]:
    picked = RunnableParallel(a=lambda _: "one", b=lambda _: "two").pick("a")
    yield picked
    picked.last.keys = "b"  # type: ignore[attr-defined]


@case
def what_a_binding_binds() -> Iterator[Any]:
    bound = Echo().bind(a=1)
    yield prompt() | bound
    bound.bound = Echo(temperature=1.0)


@case
def the_configuration_of_a_binding() -> Iterator[Any]:
    def read(_: Any, config: Any) -> str:
        return str(config["metadata"]["user"])

    bound = RunnableLambda(read).with_config(metadata={"user": "ann"})
    yield bound
    bound.config["metadata"]["user"] = "bob"  # type: ignore[attr-defined]


class Shout(BaseOutputParser[str]):
    mark: str = "!"

    def parse(self, text: str) -> str:
        return text + self.mark


@case
def a_setting_of_a_parser() -> Iterator[Any]:
    parser = Shout()
    yield prompt() | Echo() | parser
    parser.mark = "?"


@case
def a_second_retriever_s_documents() -> Iterator[Any]:
    """The chain searches a second store by itself, whose documents change."""
    store = InMemoryVectorStore(langchain_embeddings())
    store.add_texts(["what one"], ids=["1"])
    second = store.as_retriever(search_kwargs={"k": 1})

    def read(inputs: Any, config: Any) -> str:
        return str(second.invoke(inputs["input"], config)[0].page_content)

    yield RunnableLambda(read)
    store.add_texts(["what two"], ids=["1"])


@case
def a_second_retriever_in_the_composition() -> Iterator[Any]:
    store = InMemoryVectorStore(langchain_embeddings())
    store.add_texts(["what one"], ids=["1"])
    second = (lambda inputs: inputs["input"]) | store.as_retriever(search_kwargs={"k": 1})
    yield {"more": second} | RunnableLambda(lambda found: found["more"][0].page_content)
    store.add_texts(["what two"], ids=["1"])


class History(BaseChatMessageHistory):
    def __init__(self) -> None:
        self.messages = []

    def add_messages(self, messages: Any) -> None:
        self.messages = [*self.messages, *messages]

    def clear(self) -> None:
        self.messages = []


@case
def a_history_that_grows() -> Iterator[Any]:
    history = History()
    place = MessagesPlaceholder("history")
    made = ChatPromptTemplate.from_messages([place, ("user", "{input}")])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # applications still have it
        chain = RunnableWithMessageHistory(
            made | Echo(),
            lambda: history,
            input_messages_key="input",
            history_messages_key="history",
            history_factory_config=[],
        )
    yield chain
    history.add_messages([HumanMessage("I am Bob."), AIMessage("Hello, Bob.")])


@case
def a_compiled_graph_that_remembers() -> Iterator[Any]:
    def node(state: Any) -> Any:
        return {"messages": [AIMessage(f"after {len(state['messages'])}")]}

    graph = StateGraph(MessagesState)
    graph.add_node("n", node)
    graph.add_edge(START, "n")
    app: Any = graph.compile(checkpointer=InMemorySaver()).with_config(
        configurable={"thread_id": "1"}
    )
    chain = (
        RunnableLambda(lambda inputs: {"messages": [HumanMessage(inputs["input"])]})
        | app
        | RunnableLambda(lambda state: state["messages"][-1].content)
    )
    yield chain
    app.invoke({"messages": [HumanMessage("between")]})


@case
def a_node_of_a_compiled_graph() -> Iterator[Any]:
    model = Echo()

    def node(state: Any) -> Any:
        return {"messages": [model.invoke(state["messages"])]}

    graph = StateGraph(MessagesState)
    graph.add_node("n", node)
    graph.add_edge(START, "n")
    app: Any = graph.compile()
    yield (
        RunnableLambda(lambda inputs: {"messages": [HumanMessage(inputs["input"])]})
        | app
        | RunnableLambda(lambda state: state["messages"][-1].content)
    )
    model.temperature = 1.0


FEW = (
    *("a_message_within_a_prompt", "a_step_of_a_sequence", "a_second_retriever_s_documents"),
    "a_compiled_graph_that_remembers",
)
REMEMBERING = ("a_compiled_graph_that_remembers", "a_history_that_grows")


@pytest.mark.parametrize(
    ("name", "way"),
    [
        *((name, "invoke") for name in CASES),
        *((name, "ainvoke") for name in FEW),
        *((name, "stream") for name in FEW[:-1]),
    ],
)
def test_a_change_of_the_chain_ends_its_answers(name: str, way: str) -> None:
    """In coroutines and streams, the same objects are compared by the same code."""
    assert not is_stale(CASES[name], way, remembers=name in REMEMBERING)


@dataclass
class NamedAnswer:
    word: str

    def answer(self, inputs: Any) -> str:
        return f"{self.word} {inputs['input']}"


@pytest.mark.parametrize("way", ASK)
@pytest.mark.parametrize(
    "make",
    [
        lambda: prompt() | Echo(),
        lambda: prompt() | Echo(anything={"a": ["one"]}) | StrOutputParser(),
        lambda: prompt() | Echo().bind(stop=["x"]) | StrOutputParser(),
        lambda: prompt() | Failing().with_fallbacks([Echo()]),
        lambda: (
            RunnablePassthrough.assign(a=prompt() | Echo()) | (lambda value: value["a"].content)
        ),
        lambda: RunnableLambda(lambda inputs: f"one {inputs['input']}"),
        lambda: RunnableLambda(NamedAnswer("one").answer),
    ],
    ids=["model", "settings", "binding", "fallbacks", "assigned", "function", "object"],
)
def test_a_chain_that_does_not_change_is_served(make: Any, way: str) -> None:
    cached = cache_of(make())
    first = ASK[way](cached)
    for each in ("invoke", "ainvoke", way):
        assert ASK[each](cached) == first
    assert cached.stats().hits == 3


@pytest.mark.parametrize("way", ASK)
def test_a_chain_that_searches_again_for_the_same_documents_is_served(way: str) -> None:
    """Its own search finds what the cache was given; a hit needs no other one."""
    store = InMemoryVectorStore(langchain_embeddings())
    store.add_texts(["the page"], ids=["1"])
    retriever = store.as_retriever(search_kwargs={"k": 1})
    read: Any = RunnableLambda(lambda inputs: retriever.invoke(inputs["input"])[0].page_content)
    cached = AnswerCache(chain=read, retriever=retriever, documents_key="context", tolerance=0)
    assert [ASK[way](cached) for _ in range(3)] == ["the page"] * 3
    assert cached.stats().hits == 2
    store.add_texts(["the new page"], ids=["1"])
    assert ASK[way](cached) == "the new page"


@pytest.mark.parametrize("threads", [("1", "1"), ("1", "2")])
def test_a_chain_in_a_conversation_of_the_caller_is_served(threads: tuple[str, str]) -> None:
    """The thread of the call itself is no conversation within the chain."""
    cached = cache_of(prompt() | Echo())

    def node(state: Any) -> Any:
        return {"messages": [cached.invoke(dict(INPUTS))]}

    graph = StateGraph(MessagesState)
    graph.add_node("n", node)
    graph.add_edge(START, "n")
    app: Any = graph.compile(checkpointer=InMemorySaver())
    for thread in threads:
        app.invoke({"messages": []}, {"configurable": {"thread_id": thread}})
    assert cached.stats().hits == 1


def test_a_graph_that_remembers_is_served_if_the_application_says_so() -> None:
    chain = next(a_compiled_graph_that_remembers())
    cached = cache_of(chain, ignores=["thread_id"])
    first = ASK["invoke"](cached)
    assert ASK["invoke"](cached) == first
    assert cached.stats().hits == 1


def test_a_change_that_is_taken_back_may_serve_again_but_never_wrongly() -> None:
    model = Echo()
    chain = prompt() | model
    cached = cache_of(chain)
    for temperature in (0.0, 1.0, 0.0, 1.0, 2.0):
        model.temperature = temperature
        assert ASK["invoke"](cached) == ASK["invoke"](chain)


def test_a_chain_that_is_exchanged_within_the_cache() -> None:
    cached = cache_of(prompt() | Echo())
    first = ASK["invoke"](cached)
    try:
        cached.chain = prompt("Reply {input}") | Echo()  # type: ignore[misc] # the point
    except (ValueError, AttributeError, TypeError):
        return
    assert ASK["invoke"](cached) != first


def test_a_change_while_an_answer_is_being_given() -> None:
    model = Echo()
    entered, go_on = threading.Event(), threading.Event()

    class Slow(Echo):
        def _generate(self, messages: list[Any], *_: Any, **__: Any) -> ChatResult:
            text = str(self.temperature)
            entered.set()
            go_on.wait(5)
            return ChatResult(generations=[ChatGeneration(message=AIMessage(text))])

    model = Slow()
    cached = cache_of(prompt() | model)
    asking = threading.Thread(target=cached.invoke, args=(dict(INPUTS),))
    asking.start()
    entered.wait(5)
    model.temperature = 1.0
    go_on.set()
    asking.join()
    assert ASK["invoke"](cached) == "1.0"


# Our own chat model, whose settings reach a server.


class Server(BaseHTTPRequestHandler):
    def log_message(self, *_: Any) -> None:
        pass

    def _send(self, value: Any) -> None:
        body = json.dumps(value).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def do_GET(self) -> None:
        self._send({"object": "list", "data": [{"id": "m"}, {"id": "n"}]})

    def do_POST(self) -> None:
        request = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        text = json.dumps(request, sort_keys=True) + str(self.headers.get("X-User"))
        message = {"role": "assistant", "content": text}
        choice = {"index": 0, "finish_reason": "stop", "message": message}
        self._send({"id": "c", "object": "chat.completion", "model": "m", "choices": [choice]})


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), Server)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}/v1"
    server.shutdown()
    server.server_close()


@pytest.mark.parametrize(
    ("name", "old", "new"),
    [
        ("model", "m", "n"),
        ("temperature", 0.0, 0.7),
        ("max_tokens", 5, 6),
        ("seed", 1, 2),
        ("stop", ["one"], ["two"]),
        ("top_p", 0.5, 0.6),
    ],
)
def test_a_setting_of_our_own_model(url: str, name: str, old: Any, new: Any) -> None:
    settings = {"model": "m", name: old}
    model = ChatRAGCache(base_url=url, max_model_len=4096, **settings)
    if name not in type(model).model_fields:
        pytest.skip("no such setting")
    chain = prompt() | model | StrOutputParser()
    cached = cache_of(chain)
    first = cached.invoke(dict(INPUTS))
    assert cached.invoke(dict(INPUTS)) == first
    assert cached.stats().hits == 1
    try:
        setattr(model, name, new)
    except (ValueError, AttributeError):
        return
    right = chain.invoke(dict(INPUTS))
    assert cached.invoke(dict(INPUTS)) == right
