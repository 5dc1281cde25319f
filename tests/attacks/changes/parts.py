"""Chains that answer by all that they are given, and values of their settings that change."""

from __future__ import annotations

import array
import asyncio
import collections
import types
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
from langchain_core.documents import Document
from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage
from langchain_core.outputs import ChatGeneration, ChatResult
from langchain_core.prompts import (
    ChatPromptTemplate,
)
from langchain_core.runnables import (
    RunnableLambda,
)
from langchain_core.tools import StructuredTool
from pydantic import PrivateAttr

from ragcache_integrations.langchain import AnswerCache
from tests.attacks.faces import check_refusal

QUESTION = "what is the fee"


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
    "20 lists deep": lambda: ((n := nested(20))[0], lambda: n[1].append("two")),
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


def is_stale(change: Case, way: str, *, remembers: bool = False) -> bool:
    """Whether an answer from before the change is served after it.

    A chain that remembers answers differently each time it is asked, so that its right answer
    can't be compared.
    """
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
    if remembers:
        return served == first
    assert right != first, "the change changes the answer"
    changing.close()  # type: ignore[attr-defined]
    return served != right
