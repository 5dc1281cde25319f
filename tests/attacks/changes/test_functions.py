"""A function of a chain that reads something else than before gives its new answer.

What no cache can see may instead stand in a list of ``docs/answers.md`` that says so.
"""

from __future__ import annotations

import functools
import os
import string
import threading
import types
from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from typing import Any, ClassVar, Self

import jinja2
import pytest
from langchain_core.runnables import (
    RunnableLambda,
)
from pydantic import BaseModel, Field, PrivateAttr, model_validator

from tests.attacks.changes.parts import Case, Echo, Plain, is_stale, prompt

DOCS = Path(__file__).parents[3] / "docs" / "answers.md"


SECTION = "## What the cache does not notice"


def listed(phrase: str) -> bool:
    """Whether the docs' list of what is not noticed has a phrase."""
    text = DOCS.read_text(encoding="utf-8").partition(SECTION)[2].partition("\n## ")[0]
    return phrase in " ".join(text.partition("\n- ")[2].split())


CASES: dict[str, Case] = {}
"""Changes of what lies behind a chain's functions."""

UNNOTICED = {
    "a_file": "files",
    "a_template_of_jinja": "a template of Jinja",
    "a_value_of_the_thread": "values of a thread",
}
"""Changes that the docs name among what is not noticed, and by which phrase."""


def case(function: Case) -> Case:
    CASES[function.__name__] = function
    return function


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


# What runs when a function makes an object, of which the chain holds none.

TENANT = {"name": "one"}


class OfInit:
    def __init__(self) -> None:
        self.name = TENANT["name"]


class OfMethod:
    def __init__(self) -> None:
        self._load()

    def _load(self) -> None:
        self.name = TENANT["name"]


class OfNew:
    name: str

    def __new__(cls) -> Self:
        made = super().__new__(cls)
        made.name = TENANT["name"]
        return made


class OfEnvironment:
    def __init__(self) -> None:
        self.name = os.environ["RAGCACHE_TEST_WORD"]


@dataclass
class OfPostInit:
    name: str = ""

    def __post_init__(self) -> None:
        self.name = TENANT["name"]


@dataclass
class OfFactory:
    name: str = field(default_factory=lambda: TENANT["name"])


class OfModelFactory(BaseModel):
    name: str = Field(default_factory=lambda: TENANT["name"])


class OfPrivateFactory(BaseModel):
    _name: str = PrivateAttr(default_factory=lambda: TENANT["name"])

    @property
    def name(self) -> str:
        return self._name


class OfModelPostInit(BaseModel):
    name: str = ""

    def model_post_init(self, context: Any, /) -> None:
        self.name = TENANT["name"]


class OfValidator(BaseModel):
    name: str = ""

    @model_validator(mode="before")
    @classmethod
    def _named(cls, values: Any) -> Any:
        return {"name": TENANT["name"], **values}


class OfBase(OfInit):
    pass


MAKERS: list[Any] = [
    *(OfInit, OfMethod, OfNew, OfEnvironment, OfPostInit, OfFactory, OfModelFactory),
    *(OfPrivateFactory, OfModelPostInit, OfValidator, OfBase),
]


def made_by(maker: Any) -> Case:
    def change() -> Iterator[Any]:
        TENANT["name"] = os.environ["RAGCACHE_TEST_WORD"] = "one"
        yield RunnableLambda(lambda _: maker().name)
        TENANT["name"] = os.environ["RAGCACHE_TEST_WORD"] = "two"

    return change


CASES |= {f"made_{maker.__name__}": made_by(maker) for maker in MAKERS}


class Colour(Enum):
    RED = 1

    def of(self) -> str:
        return TENANT["name"]


@case
def a_method_of_an_enumeration() -> Iterator[Any]:
    TENANT["name"] = "one"
    yield RunnableLambda(lambda _: Colour.RED.of())
    TENANT["name"] = "two"


@case
def an_attribute_of_a_member() -> Iterator[Any]:
    member: Any = Colour.RED
    member.note = "one"
    yield RunnableLambda(lambda _: member.note)
    member.note = "two"


class Meta(type):
    tenant = "one"


class OfMeta(metaclass=Meta):
    pass


@case
def an_attribute_of_a_metaclass() -> Iterator[Any]:
    Meta.tenant = "one"
    yield RunnableLambda(lambda _: OfMeta.tenant)
    Meta.tenant = "two"


class One:
    name = "one"


class Two:
    name = "two"


@case
def the_class_of_an_object() -> Iterator[Any]:
    held: Any = One()
    yield RunnableLambda(lambda _: held.name)
    held.__class__ = Two


class LogsIn:
    def __init__(self) -> None:
        self.login("one")

    def login(self, name: str) -> None:
        self.name = name


@case
def what_a_constructor_assigns_is_no_note() -> Iterator[Any]:
    held = LogsIn()
    yield RunnableLambda(lambda _: held.name if LogsIn().name else "")
    held.login("two")


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


FEW = ("a_model_of_a_coroutine", "a_global_text")


@pytest.mark.parametrize(
    ("name", "way"),
    [
        *((name, "invoke") for name in CASES),
        *((name, way) for name in FEW for way in ("ainvoke", "stream")),
    ],
)
def test_a_change_of_the_chain_ends_its_answers(name: str, way: str) -> None:
    """In coroutines and streams, the same objects are compared by the same code."""
    assert not is_stale(CASES[name], way) or (name in UNNOTICED and listed(UNNOTICED[name]))
