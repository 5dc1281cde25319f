"""A chain that changes after its first answer gives its new answer, and not the kept one.

Right are three outcomes: the change is noticed, or what can't be known was not kept, or the cache
refuses such a chain in words. What code reads besides, and no cache can see, may instead stand in a
list of ``docs/answers.md`` that says so.
"""

from __future__ import annotations

import array
import asyncio
import collections
import functools
import json
import os
import string
import threading
import types
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import jinja2
import numpy as np
import pytest
from langchain_core.chat_history import BaseChatMessageHistory
from langchain_core.documents import Document
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
from llama_index.core import PromptTemplate as LlamaPromptTemplate
from llama_index.core import Settings, VectorStoreIndex
from llama_index.core.base.response.schema import Response
from llama_index.core.indices.query.query_transform.base import BaseQueryTransform
from llama_index.core.llms import CompletionResponse, CustomLLM, LLMMetadata
from llama_index.core.postprocessor import MetadataReplacementPostProcessor
from llama_index.core.query_engine import (
    CitationQueryEngine,
    RetrieverQueryEngine,
    TransformQueryEngine,
)
from llama_index.core.response_synthesizers import get_response_synthesizer
from llama_index.core.retrievers import BaseRetriever as LlamaRetriever
from llama_index.core.schema import (
    ImageNode,
    MediaResource,
    Node,
    NodeWithScore,
    QueryBundle,
    TextNode,
)
from llama_index.core.types import BaseOutputParser as LlamaOutputParser
from pydantic import AnyUrl, PrivateAttr

from ragcache_integrations import llama_index as llama
from ragcache_integrations.langchain import AnswerCache, ChatRAGCache
from tests.answers.traffic import langchain_embeddings, llama_index_embeddings

QUESTION = "what is the fee"
DOCS = Path(__file__).parents[2] / "docs" / "answers.md"


SECTION = "## What the cache does not notice"


def listed(phrase: str) -> bool:
    """Whether the docs' list of what is not noticed has a phrase."""
    text = DOCS.read_text(encoding="utf-8").partition(SECTION)[2].partition("\n## ")[0]
    return phrase in " ".join(text.partition("\n- ")[2].split())


class Echo(BaseChatModel):
    """Answers by all that it was given and by its settings."""

    temperature: float = 0.0
    anything: Any = None
    _hidden: Any = PrivateAttr(default="plain")

    @property
    def _llm_type(self) -> str:
        return "echo"

    def _generate(self, messages: list[Any], stop: Any = None, *_: Any, **more: Any) -> ChatResult:
        more.pop("run_manager", None)
        told = [*(f"{each.type}: {each.content}" for each in messages), self.temperature]
        text = f"{told} {shown(self.anything)} {self._hidden} {stop} {shown(more)}"
        return ChatResult(generations=[ChatGeneration(message=AIMessage(text))])


def shown(value: Any) -> str:  # noqa: PLR0911 # one for each kind
    """A value as text, the same for equal ones, whatever it is."""
    match value:
        case set() | frozenset():
            return str(sorted(map(str, value)))
        case dict() | collections.ChainMap() | types.MappingProxyType():
            return str([(shown(key), shown(each)) for key, each in value.items()])
        case list() | tuple() | collections.deque():
            return str([shown(each) for each in value])
        case np.ndarray() | array.array():
            return str(value.tolist())
        case StructuredTool():
            return f"{value.name} {value.description}"
        case str() | bytes() | bytearray() | int() | float() | None:
            return str(value)
        case _:
            slots = [each for each in getattr(type(value), "__slots__", ()) if each[:2] != "__"]
            found = {**getattr(value, "__dict__", {}), **{s: getattr(value, s) for s in slots}}
            return shown({key: each for key, each in found.items() if key[:1] != "_"})


def prompt(text: str = "Answer {input}") -> ChatPromptTemplate:
    return ChatPromptTemplate.from_messages([("user", text)])


Case = Callable[[], Iterator[Any]]

CASES: dict[str, Case] = {}
"""Changes of a chain's parts, and of what lies behind them."""

UNNOTICED = {
    "a_file": "files",
    "a_template_of_jinja": "a template of Jinja",
    "a_value_of_the_thread": "values of a thread",
}
"""Changes that the docs name among what is not noticed, and by which phrase."""


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


class Settings2(NamedTuple):
    words: list[str]


@dataclass
class Deep:
    words: list[Any] = field(default_factory=lambda: ["one"])


class Slots:
    __slots__ = ("word",)

    def __init__(self) -> None:
        self.word = "one"


class Plain:
    def __init__(self) -> None:
        self.word = "one"


def nested(depth: int) -> tuple[Any, list[Any]]:
    inner: list[Any] = ["one"]
    value: Any = inner
    for _ in range(depth):
        value = [value]
    return value, inner


VALUES: dict[str, Callable[[], tuple[Any, Callable[[], object]]]] = {
    "deque": lambda: (d := collections.deque(["one"]), lambda: d.append("two")),
    "bytearray": lambda: (b := bytearray(b"one"), lambda: b.extend(b"two")),
    "array": lambda: (a := array.array("i", [1]), lambda: a.append(2)),
    "numpy array": lambda: (a := np.zeros(3), lambda: a.__setitem__(1, 5.0)),
    "large numpy array": lambda: (a := np.zeros(5000), lambda: a.__setitem__(2500, 5.0)),
    "numpy array of objects": lambda: (
        a := np.array([["one"], None], object), lambda: a[0].append("two")
    ),
    "numpy array's shape": lambda: (a := np.zeros(4), lambda: setattr(a, "shape", (2, 2))),
    "chain map": lambda: (
        c := collections.ChainMap({"a": "one"}, {"b": "two"}),
        lambda: c.maps[1].update(b="three"),
    ),
    "read-only view of a dict": lambda: (
        types.MappingProxyType(d := {"a": "one"}),
        lambda: d.update(a="two"),
    ),
    "default dict": lambda: (
        d := collections.defaultdict(list, {"a": ["one"]}),
        lambda: d["a"].append("two"),
    ),
    "order of a dict": lambda: (
        d := collections.OrderedDict(a="one", b="two"),
        lambda: d.move_to_end("a"),
    ),
    "named tuple": lambda: (t := Settings2(["one"]), lambda: t.words.append("two")),
    "dataclass": lambda: (d := Deep(), lambda: d.words.append("two")),
    "dataclass in a dataclass": lambda: (
        Deep([d := Deep()]), lambda: d.words.append("two")
    ),
    "object": lambda: (p := Plain(), lambda: setattr(p, "word", "two")),
    "object in a list in an object": lambda: (
        types.SimpleNamespace(a=[p := Plain()]), lambda: setattr(p, "word", "two")
    ),
    "object of slots": lambda: (s := Slots(), lambda: setattr(s, "word", "two")),
    "set in a tuple in a dict": lambda: ({"a": (s := {"one"},)}, lambda: s.add("two")),
    "20 lists deep": lambda: (n := nested(20), lambda: n[1].append("two"))[0:2],
    "list of 20,000": lambda: (
        v := [f"w{number}" for number in range(20_000)], lambda: v.__setitem__(15_000, "two")
    ),
    "list of 200,000 that grows": lambda: (
        v := [0] * 200_000, lambda: v.append(1)
    ),
    "dict of 20,000": lambda: (
        d := {str(number): "one" for number in range(20_000)}, lambda: d.update({"15000": "two"})
    ),
    "dict of 3,000 lists": lambda: (
        v := {number: ["one"] for number in range(3_000)}, lambda: v[2_999].append("two")
    ),
    "keys of a dict": lambda: (d := {"1": "one"}, lambda: d.update({"2": d.pop("1")})),
    "kind of a number": lambda: (v := [1.5, 1], lambda: v.append(v.pop() / 1)),
    "kind of a truth": lambda: (v := [1], lambda: v.append(v.pop() == 1)),
}  # fmt: skip


def of_value(name: str) -> Case:
    def change() -> Iterator[Any]:
        value, do = VALUES[name]()
        if name == "20 lists deep":
            value = value[0]
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


# Prompts and models that functions of the chain name: docs say that these are watched.


@case
def a_model_as_a_default_of_a_parameter() -> Iterator[Any]:
    model = Echo()

    def f(inputs: Any, model: Any = model) -> Any:
        return model.invoke(inputs["input"])

    yield RunnableLambda(f)
    model.temperature = 1.0


@case
def a_model_as_a_default_of_a_keyword() -> Iterator[Any]:
    model = Echo()

    def f(inputs: Any, *, model: Any = model) -> Any:
        return model.invoke(inputs["input"])

    yield RunnableLambda(f)
    model.temperature = 1.0


@case
def a_model_of_a_coroutine() -> Iterator[Any]:
    model = Echo()

    async def later(inputs: Any) -> Any:
        return await model.ainvoke(inputs["input"])

    yield RunnableLambda(lambda inputs: model.invoke(inputs["input"]), afunc=later)
    model.temperature = 1.0


@case
def a_prompt_in_a_list_of_a_closure() -> Iterator[Any]:
    prompts, model = [prompt()], Echo()
    yield RunnableLambda(lambda inputs: (prompts[0] | model).invoke(inputs))  # noqa: PLW0108
    prompts[0] = prompt("Reply {input}")


@case
def a_model_two_functions_away() -> Iterator[Any]:
    model = Echo()

    def inner(text: str) -> Any:
        return model.invoke(text)

    def middle(text: str) -> Any:
        return inner(text)

    yield RunnableLambda(lambda inputs: middle(inputs["input"]))
    model.temperature = 1.0


@case
def a_model_of_a_callable_object() -> Iterator[Any]:
    class Answers:
        def __init__(self) -> None:
            self.model = Echo()

        def __call__(self, inputs: Any) -> Any:
            return self.model.invoke(inputs["input"])

    answers = Answers()
    yield RunnableLambda(answers.__call__)
    answers.model = Echo(temperature=1.0)


@case
def a_model_that_is_exchanged_in_a_closure() -> Iterator[Any]:
    model = Echo()

    def exchange() -> None:
        nonlocal model
        model = Echo(temperature=1.0)

    yield RunnableLambda(lambda inputs: model.invoke(inputs["input"]))
    exchange()


@case
def a_model_of_a_decorated_function() -> Iterator[Any]:
    model = Echo()

    def decorated(function: Any) -> Any:
        @functools.wraps(function)
        def wrapper(*arguments: Any) -> Any:
            return function(*arguments)

        return wrapper

    @decorated
    def f(inputs: Any) -> Any:
        return model.invoke(inputs["input"])

    yield RunnableLambda(f)
    model.temperature = 1.0


@case
def keywords_of_a_partial() -> Iterator[Any]:
    partial = functools.partial(lambda inputs, model: model.invoke(inputs["input"]), model=Echo())
    yield RunnableLambda(partial)
    partial.keywords["model"] = Echo(temperature=1.0)


@case
def a_model_of_a_class() -> Iterator[Any]:
    class Answers:
        model: ClassVar[Any] = Echo()

        @classmethod
        def answer(cls, inputs: Any) -> Any:
            return cls.model.invoke(inputs["input"])

    yield RunnableLambda(Answers.answer)
    Answers.model = Echo(temperature=1.0)


# What functions read besides.


@case
def a_global_text() -> Iterator[Any]:
    space: dict[str, Any] = {"TEXT": "one"}
    exec("def f(inputs): return TEXT", space)
    yield RunnableLambda(space["f"])
    space["TEXT"] = "two"


@case
def a_global_function() -> Iterator[Any]:
    space: dict[str, Any] = {"helper": lambda: "one"}
    exec("def f(inputs): return helper()", space)
    yield RunnableLambda(space["f"])
    space["helper"] = lambda: "two"


@case
def a_text_of_a_closure() -> Iterator[Any]:
    text = "one"

    def change() -> None:
        nonlocal text
        text = "two"

    yield RunnableLambda(lambda _: text)
    change()


@case
def a_dict_of_a_closure() -> Iterator[Any]:
    settings = {"text": "one"}
    yield RunnableLambda(lambda _: settings["text"])
    settings["text"] = "two"


@case
def an_attribute_of_a_function() -> Iterator[Any]:
    def f(_: Any) -> str:
        return str(f.text)  # type: ignore[attr-defined]

    f.text = "one"  # type: ignore[attr-defined]
    yield RunnableLambda(f)
    f.text = "two"  # type: ignore[attr-defined]


@case
def defaults_of_a_function() -> Iterator[Any]:
    def f(_: Any, text: str = "one") -> str:
        return text

    yield RunnableLambda(f)
    f.__defaults__ = ("two",)


@case
def code_of_a_function() -> Iterator[Any]:
    def f(_: Any) -> str:
        return "one"

    def g(_: Any) -> str:
        return "two"

    yield RunnableLambda(f)
    f.__code__ = g.__code__


@case
def an_attribute_of_an_object() -> Iterator[Any]:
    plain = Plain()
    yield RunnableLambda(lambda _: plain.word)
    plain.word = "two"


@case
def a_property_of_an_object() -> Iterator[Any]:
    class Service:
        def __init__(self) -> None:
            self._word = "one"

        @property
        def word(self) -> str:
            return self._word

        def answer(self, _: Any) -> str:
            return self.word

    service = Service()
    yield RunnableLambda(service.answer)
    service._word = "two"


@case
def a_class_s_registry() -> Iterator[Any]:
    class Registry:
        words: ClassVar[dict[str, str]] = {"a": "one"}

    yield RunnableLambda(lambda _: Registry.words["a"])
    Registry.words["a"] = "two"


@case
def settings_that_a_function_returns() -> Iterator[Any]:
    settings = Plain()

    @functools.cache
    def get_settings() -> Plain:
        return settings

    yield RunnableLambda(lambda _: get_settings().word)
    settings.word = "two"


@case
def an_attribute_of_a_module() -> Iterator[Any]:
    module = types.ModuleType("prompts")
    module.word = "one"  # type: ignore[attr-defined]
    yield RunnableLambda(lambda _: module.word)
    module.word = "two"  # type: ignore[attr-defined]


@case
def a_template_of_jinja() -> Iterator[Any]:
    environment = jinja2.Environment(autoescape=True)
    environment.globals["word"] = "one"
    template = environment.from_string("{{ word }}")
    yield RunnableLambda(lambda _: template.render())
    environment.globals["word"] = template.globals["word"] = "two"


@case
def a_template_of_the_standard_library() -> Iterator[Any]:
    template = string.Template("$input one")
    yield RunnableLambda(lambda inputs: template.substitute(input=inputs["input"]))
    template.template = "$input two"


@case
def a_function_that_fills_in_a_prompt() -> Iterator[Any]:
    state = {"day": "monday"}
    yield prompt("{day} {input}").partial(day=lambda: state["day"]) | Echo()
    state["day"] = "tuesday"


@case
def a_file() -> Iterator[Any]:
    import tempfile  # noqa: PLC0415

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "prompt.txt"
        path.write_text("one", encoding="utf-8")
        yield RunnableLambda(lambda _: path.read_text(encoding="utf-8"))
        path.write_text("two", encoding="utf-8")
        yield None


@case
def the_environment() -> Iterator[Any]:
    os.environ["RAGCACHE_TEST_WORD"] = "one"
    yield RunnableLambda(lambda _: os.environ["RAGCACHE_TEST_WORD"])
    os.environ["RAGCACHE_TEST_WORD"] = "two"


@case
def the_clock() -> Iterator[Any]:
    now = iter(range(1_000))
    clock = {"now": next(now)}
    yield RunnableLambda(lambda _: str(clock["now"]))
    clock["now"] = next(now)


@case
def a_value_of_the_thread() -> Iterator[Any]:
    local = threading.local()
    local.word = "one"
    yield RunnableLambda(lambda _: local.word)
    local.word = "two"


FEW = (
    *("a_message_within_a_prompt", "a_step_of_a_sequence", "a_model_of_a_coroutine"),
    *("a_second_retriever_s_documents", "a_global_text", "a_compiled_graph_that_remembers"),
)


def cache_of(chain: Any, **settings: Any) -> AnswerCache:
    return AnswerCache(
        chain=chain,
        retriever=RunnableLambda(lambda _: [Document("page", id="1")]),
        documents_key="context",
        tolerance=0,
        **settings,
    )


def text_of(answer: Any) -> str:
    return str(getattr(answer, "content", answer))


INPUTS = {"input": QUESTION, "context": []}

ASK: dict[str, Callable[[Any], str]] = {
    "invoke": lambda runnable: text_of(runnable.invoke(dict(INPUTS))),
    "ainvoke": lambda runnable: text_of(asyncio.run(runnable.ainvoke(dict(INPUTS)))),
    "stream": lambda runnable: "".join(text_of(each) for each in runnable.stream(dict(INPUTS))),
}


def check_refusal(error: ValueError) -> None:
    assert len(str(error).split()) > 4, "a refusal is a sentence"


def is_stale(change: Case, way: str) -> bool:
    """Whether an answer from before the change is served after it."""
    changing = change()
    chain = next(changing)
    try:
        cached = cache_of(chain)
        first = ASK[way](cached)
    except ValueError as error:
        check_refusal(error)
        return False
    next(changing, None)
    try:
        served = ASK[way](cached)
    except ValueError as error:
        check_refusal(error)
        return False
    right = ASK[way](chain)
    if change is a_compiled_graph_that_remembers or change is a_history_that_grows:
        return served == first
    assert right != first, "the change changes the answer"
    changing.close()  # type: ignore[attr-defined]
    return served != right


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
    assert not is_stale(CASES[name], way) or (name in UNNOTICED and listed(UNNOTICED[name]))


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


# LlamaIndex.


class LlamaEcho(CustomLLM):
    style: str = "plain"
    anything: Any = None
    _hidden: Any = PrivateAttr(default="plain")

    @property
    def metadata(self) -> LLMMetadata:
        return LLMMetadata()

    def complete(self, prompt: str, formatted: bool = False, **more: Any) -> CompletionResponse:
        text = f"{prompt} {self.style} {shown(self.anything)} {self._hidden} {shown(more)}"
        return CompletionResponse(text=text)

    def stream_complete(self, prompt: str, formatted: bool = False, **more: Any) -> Any:
        yield self.complete(prompt, formatted, **more)


class Page(LlamaRetriever):
    def __init__(self, *nodes: Any) -> None:
        super().__init__()
        self._nodes = nodes or (TextNode(text="page", id_="1", metadata={"a": "x", "b": "y"}),)

    def _retrieve(self, query_bundle: QueryBundle) -> list[NodeWithScore]:
        return [NodeWithScore(node=node, score=1.0) for node in self._nodes]


def llama_engine(model: Any = None, *nodes: Any, **settings: Any) -> RetrieverQueryEngine:
    synthesizer = get_response_synthesizer(llm=model or LlamaEcho(), **settings)
    return RetrieverQueryEngine(Page(*nodes), response_synthesizer=synthesizer)


LLAMA: dict[str, Case] = {}


def llama_case(function: Case) -> Case:
    LLAMA[function.__name__] = function
    return function


@llama_case
def the_style_of_a_model() -> Iterator[Any]:
    model = LlamaEcho()
    yield llama_engine(model)
    model.style = "ornate"


@llama_case
def the_system_prompt_of_a_model() -> Iterator[Any]:
    model = LlamaEcho(system_prompt="Be kind.")
    yield llama_engine(model)
    model.system_prompt = "Be rude."


@llama_case
def a_private_attribute_of_a_model() -> Iterator[Any]:
    model = LlamaEcho()
    yield llama_engine(model)
    model._hidden = "ornate"


@llama_case
def the_function_that_writes_a_model_s_prompt() -> Iterator[Any]:
    model = LlamaEcho(completion_to_prompt=lambda text: f"one {text}")
    yield llama_engine(model)
    model.completion_to_prompt = lambda text: f"two {text}"


@llama_case
def prompts_that_are_updated() -> Iterator[Any]:
    engine = llama_engine()
    yield engine
    engine.update_prompts(
        {
            "response_synthesizer:text_qa_template": LlamaPromptTemplate(
                "{context_str} Reply {query_str}"
            )
        }
    )


@llama_case
def the_text_of_a_template() -> Iterator[Any]:
    template = LlamaPromptTemplate("{context_str} Answer {query_str}")
    engine = llama_engine(text_qa_template=template)
    yield engine
    used = engine._response_synthesizer._text_qa_template  # type: ignore[attr-defined]
    used.template = "{context_str} Reply {query_str}"


@llama_case
def what_a_template_is_filled_with() -> Iterator[Any]:
    template = LlamaPromptTemplate("{context_str} {lang} {query_str}", lang="en")
    engine = llama_engine(text_qa_template=template)
    yield engine
    engine._response_synthesizer._text_qa_template.kwargs["lang"] = "de"  # type: ignore[attr-defined]


@llama_case
def a_function_that_fills_a_template() -> Iterator[Any]:
    template = LlamaPromptTemplate(
        "{context_str} {lang} {query_str}", function_mappings={"lang": lambda **_: "en"}
    )
    engine = llama_engine(text_qa_template=template)
    yield engine
    used = engine._response_synthesizer._text_qa_template  # type: ignore[attr-defined]
    used.function_mappings["lang"] = lambda **_: "de"


class Marks(LlamaOutputParser):
    def __init__(self) -> None:
        self.mark = "!"

    def parse(self, output: str) -> Any:
        return output

    def format(self, query: str) -> str:
        return query + self.mark


@llama_case
def a_parser_of_a_template() -> Iterator[Any]:
    parser = Marks()
    template = LlamaPromptTemplate("{context_str} {query_str}", output_parser=parser)
    yield llama_engine(text_qa_template=template)
    parser.mark = "?"


@llama_case
def another_synthesizer() -> Iterator[Any]:
    engine = llama_engine()
    yield engine
    engine._response_synthesizer = get_response_synthesizer(llm=LlamaEcho(style="ornate"))


@llama_case
def another_model_of_the_synthesizer() -> Iterator[Any]:
    engine = llama_engine()
    yield engine
    engine._response_synthesizer._llm = LlamaEcho(style="ornate")


@llama_case
def metadata_that_a_model_is_not_shown() -> Iterator[Any]:
    node = TextNode(text="page", id_="1", metadata={"a": "x", "b": "y"})
    yield llama_engine(None, node)
    node.excluded_llm_metadata_keys.append("a")


@llama_case
def the_template_of_a_node() -> Iterator[Any]:
    node = TextNode(text="page", id_="1", metadata={"a": "x"})
    yield llama_engine(None, node)
    node.text_template = "{content}"


@llama_case
def the_template_of_a_node_s_metadata() -> Iterator[Any]:
    node = TextNode(text="page", id_="1", metadata={"a": "x"})
    yield llama_engine(None, node)
    node.metadata_template = "{key} is {value}"


@llama_case
def the_separator_of_a_node_s_metadata() -> Iterator[Any]:
    node = TextNode(text="page", id_="1", metadata={"a": "x", "b": "y"})
    yield llama_engine(None, node)
    node.metadata_separator = " / "


class TwoSteps(RetrieverQueryEngine):
    """Answers by its own synthesize, in all ways; LlamaIndex's class asks its synthesizer."""

    def _query(self, query_bundle: QueryBundle) -> Any:
        return self.synthesize(query_bundle, self.retrieve(query_bundle))

    async def _aquery(self, query_bundle: QueryBundle) -> Any:
        return self._query(query_bundle)

    async def asynthesize(
        self, query_bundle: Any, nodes: Any, additional_source_nodes: Any = None
    ) -> Any:
        return self.synthesize(query_bundle, nodes)


class ByImage(TwoSteps):
    def synthesize(self, query_bundle: Any, nodes: Any, additional_source_nodes: Any = None) -> Any:
        return Response(f"{nodes[0].node.image} {nodes[0].node.image_url}", source_nodes=nodes)


@llama_case
def the_image_of_a_node() -> Iterator[Any]:
    node = ImageNode(text="page", id_="1", image="b25l")
    yield ByImage(Page(node), response_synthesizer=get_response_synthesizer(llm=LlamaEcho()))
    node.image = "dHdv"


@llama_case
def the_address_of_a_node_s_image() -> Iterator[Any]:
    node = ImageNode(text="page", id_="1", image_url="http://127.0.0.1/one.png")
    yield ByImage(Page(node), response_synthesizer=get_response_synthesizer(llm=LlamaEcho()))
    node.image_url = "http://127.0.0.1/two.png"


@llama_case
def the_image_of_a_node_of_several_kinds() -> Iterator[Any]:
    class Shown(TwoSteps):
        def synthesize(
            self, query_bundle: Any, nodes: Any, additional_source_nodes: Any = None
        ) -> Any:
            return Response(str(nodes[0].node.image_resource.url), source_nodes=nodes)

    node = Node(id_="1", image_resource=MediaResource(url=AnyUrl("http://127.0.0.1/one.png")))
    yield Shown(Page(node), response_synthesizer=get_response_synthesizer(llm=LlamaEcho()))
    node.image_resource = MediaResource(url=AnyUrl("http://127.0.0.1/two.png"))


class Styled(TwoSteps):
    style: Any = "plain"

    def synthesize(self, query_bundle: Any, nodes: Any, additional_source_nodes: Any = None) -> Any:
        return Response(shown(self.style), source_nodes=nodes)


@llama_case
def an_attribute_of_an_engine() -> Iterator[Any]:
    engine = Styled(Page(), response_synthesizer=get_response_synthesizer(llm=LlamaEcho()))
    engine.style = {"a": ["one"]}
    yield engine
    engine.style["a"].append("two")


@llama_case
def an_attribute_of_an_engine_s_class() -> Iterator[Any]:
    class Mine(Styled):
        style = "one"

    yield Mine(Page(), response_synthesizer=get_response_synthesizer(llm=LlamaEcho()))
    Mine.style = "two"


@llama_case
def the_engine_s_own_postprocessors() -> Iterator[Any]:
    node = TextNode(text="page", id_="1", metadata={"a": "x", "b": "y"})
    engine = llama_engine(None, node)
    yield engine
    engine._node_postprocessors.append(MetadataReplacementPostProcessor(target_metadata_key="a"))


@llama_case
def a_setting_of_a_postprocessor() -> Iterator[Any]:
    node = TextNode(text="page", id_="1", metadata={"a": "x", "b": "y"})
    replace = MetadataReplacementPostProcessor(target_metadata_key="a")
    engine = llama_engine(None, node)
    engine._node_postprocessors.append(replace)
    yield engine
    replace.target_metadata_key = "b"


class Politely(BaseQueryTransform):
    def __init__(self) -> None:
        self.word = "please"

    def _get_prompts(self) -> dict[str, Any]:
        return {}

    def _update_prompts(self, prompts: Any) -> None:
        pass

    def _run(self, query_bundle: QueryBundle, metadata: Any) -> QueryBundle:
        return QueryBundle(f"{query_bundle.query_str} {self.word}")


@llama_case
def a_transformation_of_the_question() -> Iterator[Any]:
    transform = Politely()
    yield TransformQueryEngine(llama_engine(), transform)
    transform.word = "now"


@llama_case
def the_template_of_citations() -> Iterator[Any]:
    index = VectorStoreIndex([TextNode(text="page", id_="1")], embed_model=llama_index_embeddings())
    engine = CitationQueryEngine.from_args(index, llm=LlamaEcho())
    yield engine
    engine.update_prompts(
        {
            "response_synthesizer:text_qa_template": LlamaPromptTemplate(
                "{context_str} Reply {query_str}"
            )
        }
    )


@llama_case
def the_model_of_all_of_llama_index() -> Iterator[Any]:
    class ByDefault(TwoSteps):
        def synthesize(
            self, query_bundle: Any, nodes: Any, additional_source_nodes: Any = None
        ) -> Any:
            return Response(Settings.llm.complete("x").text, source_nodes=nodes)

    engine = ByDefault(Page(), response_synthesizer=get_response_synthesizer(llm=LlamaEcho()))
    Settings.llm = LlamaEcho()
    yield engine
    Settings.llm = LlamaEcho(style="ornate")


def of_llama_value(name: str) -> Case:
    def change() -> Iterator[Any]:
        value, do = VALUES[name]()
        if name == "20 lists deep":
            value = value[0]
        yield llama_engine(LlamaEcho(anything=value))
        do()

    return change


LLAMA |= {f"a model's setting, {name}": of_llama_value(name) for name in ("deque", "numpy array")}
"""Other values are compared by the code that compares those of LangChain's models."""


def query(engine: Any, later: bool) -> str:
    return str(asyncio.run(engine.aquery(QUESTION)) if later else engine.query(QUESTION))


LATER = ("the_style_of_a_model", "the_template_of_a_node", "an_attribute_of_an_engine")


@pytest.mark.parametrize(
    ("name", "later"), [*((name, False) for name in LLAMA), *((name, True) for name in LATER)]
)
def test_a_change_of_a_query_engine_ends_its_answers(name: str, later: bool) -> None:
    before = Settings._llm
    changing = LLAMA[name]()
    engine = next(changing)
    try:
        cached = llama.AnswerCache(engine, embed_model=llama_index_embeddings(), tolerance=0)
        first = query(cached, later)
        next(changing, None)
        served, right = query(cached, later), query(engine, later)
    except ValueError as error:
        check_refusal(error)
        return
    finally:
        Settings._llm = before
    assert right != first, "the change changes the answer"
    assert served == right


@pytest.mark.parametrize("later", [False, True])
def test_a_query_engine_that_does_not_change_is_served(later: bool) -> None:
    engine = llama_engine(LlamaEcho(anything={"a": ["one"]}))
    cached = llama.AnswerCache(engine, embed_model=llama_index_embeddings(), tolerance=0)
    first = query(cached, later)
    assert query(cached, later) == query(cached, not later) == first
    assert cached.stats().hits == 2
