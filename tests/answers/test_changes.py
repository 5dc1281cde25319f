"""Which changes of a chain are noticed."""

from __future__ import annotations

import array
import collections
import configparser
import functools
import json
import logging
import os
import sys
import types
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, ClassVar

import numpy as np
import pytest
from langchain_core.runnables import RunnableLambda
from pydantic import BaseModel, ConfigDict, PrivateAttr

from ragcache_integrations.answers.changes import ChangeWatch


class Part(BaseModel):
    model_config = ConfigDict(arbitrary_types_allowed=True)

    number: float = 0.5
    text: str = "one"
    items: list[Any] = []
    names: dict[str, Any] = {}
    anything: Any = None


class Lazy(Part):
    """Computes something when it is first asked."""

    @cached_property
    def length(self) -> int:
        return len(self.text)


class Open(Part):
    """Takes attributes that it does not declare."""

    model_config = ConfigDict(extra="allow")


class Counter:
    """Somebody's own object, which counts."""

    def __init__(self) -> None:
        self.calls = 0
        self.step = 1

    def __call__(self) -> None:
        self.count()

    def count(self) -> None:
        self.calls += self.step


def whole() -> Part:
    return Part(items=[Part(), Part(names={"deep": Part()})], anything=Counter())


def change_number(part: Part) -> None:
    part.number = 0.6


def change_deep_within(part: Part) -> None:
    part.items[1].names["deep"].text = "two"


def change_list(part: Part) -> None:
    part.items.append(1)


def change_dict(part: Part) -> None:
    part.items[1].names["other"] = None


def exchange_part(part: Part) -> None:
    part.items[0] = Part()


def change_type(part: Part) -> None:
    part.items[0].anything = False


@pytest.mark.parametrize(
    "change",
    [
        change_number,
        change_deep_within,
        change_list,
        change_dict,
        exchange_part,
        change_type,
    ],
)
def test_an_assignment_is_noticed_once(change: Any) -> None:
    part = whole()
    watch = ChangeWatch(part, ())
    before = watch.version()
    assert watch.version() == before
    change(part)
    after = watch.version()
    assert after != before
    assert watch.version() == after


def test_the_same_value_assigned_again_is_no_change() -> None:
    part = whole()
    watch = ChangeWatch(part, ())
    before = watch.version()
    part.text = f"{part.text} "[:3]
    part.number = float("0.5")
    assert watch.version() == before


def test_what_an_object_counts_itself_is_no_setting() -> None:
    part = whole()
    watch = ChangeWatch(part, ())
    before = watch.version()
    part.anything.count()
    assert watch.version() == before
    part.anything.step = 2
    assert watch.version() == before + 1


def test_what_is_computed_once_is_no_setting() -> None:
    part = Lazy()
    watch = ChangeWatch(part, ())
    before = watch.version()
    assert part.length == 3
    assert watch.version() == before


COUNTS = [0, 7]
FIGURES = np.zeros(2)
SIGNS = array.array("i", [0, 7])
HEARD: list[str] = []


class Listener:
    """Adds to a global, by a property."""

    @property
    def heard(self) -> list[str]:
        """What it heard."""
        return HEARD

    def listen(self, text: str) -> str:
        """Add a text."""
        self.heard.append(text)
        return text


def count_in_a_list(text: str) -> str:
    COUNTS[0] += 1
    return f"{text} {COUNTS[1]}"


def count_in_arrays(text: str) -> str:
    FIGURES[0] += 1
    SIGNS[-2] += 1
    return text


@pytest.mark.parametrize("function", [count_in_a_list, count_in_arrays, Listener().listen])
def test_what_a_function_counts_elsewhere_is_no_setting(function: Any) -> None:
    watch = ChangeWatch(RunnableLambda(function), ("langchain",))
    for _ in range(3):
        function("a")
        assert watch.version() == 0


def test_an_item_beside_the_one_that_is_counted_is_a_setting() -> None:
    watch = ChangeWatch(RunnableLambda(count_in_a_list), ("langchain",))
    COUNTS[1] += 1
    assert watch.version() == 1


@pytest.mark.parametrize(
    ("value", "change"),
    [
        ([0] * 200_000, lambda value: value.append(0)),
        ([0] * 200_000, lambda value: value.__setitem__(0, 1)),
        (collections.deque([0] * 200_000), lambda value: value.append(0)),
        (dict.fromkeys(range(200_000)), lambda value: value.pop(0)),
        (set(range(200_000)), lambda value: value.add(-1)),
        ([[]] * 20_000, lambda value: value.__setitem__(19_999, [])),
        (np.zeros(1_000_000), lambda value: value.fill(1)),
        (np.zeros(4), lambda value: setattr(value, "dtype", np.int64)),
        (np.array(["a" * 300_000]), lambda value: value.__setitem__(0, "b")),
        (np.array(1.0), lambda value: value.fill(2)),
        (np.array([None] * 20_000), lambda value: value.__setitem__(19_999, "a")),
        (array.array("b", bytes(2_000_000)), lambda value: value.append(0)),
        (array.array("d", [0.0]), lambda value: value.__setitem__(0, -0.0)),
        (bytearray(2_000_000), lambda value: value.extend(b"a")),
    ],
)
def test_what_is_large_is_watched_within_bounds(value: Any, change: Any) -> None:
    watch = ChangeWatch(Part(anything=value), ())
    assert watch.version() == 0
    held = watch._seen
    assert sum(len(parts) for _, _, parts, _ in held) < 60_000
    assert not [
        p for _, _, parts, _ in held for p in parts if isinstance(p, bytes) and len(p) > 2e6
    ]
    change(value)
    assert watch.version() == 1
    assert watch.version() == 1


def test_a_ring_of_objects_ends() -> None:
    part = whole()
    part.anything = part
    assert ChangeWatch(part, ()).version() == 0


def test_an_attribute_that_is_not_declared_is_noticed() -> None:
    part: Any = Open()
    watch = ChangeWatch(part, ())
    part.more = 1
    assert watch.version() == 1
    part.more = 2
    assert watch.version() == 2


def test_long_chains_and_long_prompts_are_watched_as_a_whole() -> None:
    parts = [Part(items=[Part()]) for _ in range(400)]
    watch = ChangeWatch(Part(items=parts), ())
    for number, part in enumerate((parts[0], parts[200].items[0], parts[399])):
        part.text = "two"
        assert watch.version() == number + 1


def test_what_is_too_large_to_be_watched_is_said_once(caplog: pytest.LogCaptureFixture) -> None:
    groups = [[Part() for _ in range(900)] for _ in range(4)]
    part = Part(items=groups)
    watch = ChangeWatch(part, ())
    part.text = "two"
    assert watch.version() == 1
    assert [record.getMessage() for record in caplog.records] == [
        "Of a chain, changes of the first 3000 objects are noticed"
    ]


NAMED = Part()


def test_what_a_function_names_is_watched() -> None:
    enclosed = Part()

    def answer(text: str, default: Part = Part()) -> str:  # noqa: B008 - the point
        return text + NAMED.text + enclosed.text + default.text

    watch = ChangeWatch(Part(anything=answer), ())
    assert answer.__defaults__ is not None
    for number, part in enumerate((NAMED, enclosed, answer.__defaults__[0])):
        part.text = f"{part.text}, too"
        assert watch.version() == number + 1
    enclosed = Part()
    assert watch.version() == 4


def test_what_the_object_of_a_method_holds_is_watched() -> None:
    class Own:
        def __init__(self) -> None:
            self.calls = 0
            self.part = Part()

        def answer(self) -> str:
            self.calls += 1
            return self.part.text

    own = Own()
    watch = ChangeWatch(Part(anything=own.answer), ())
    own.answer()
    assert watch.version() == 0
    own.part.text = "two"
    assert watch.version() == 1
    own.part = Part()
    assert watch.version() == 2


class Framework:
    """Stands for a class of a framework."""


Framework.__module__ = "framework.parts"


def test_objects_of_classes_that_derive_from_a_frameworks_are_watched() -> None:
    class Own(Framework):
        text = "one"

    own = Own()
    watch = ChangeWatch(own, ("framework",))
    own.text = "two"
    assert watch.version() == 1


MODULE = types.ModuleType("prompts_of_a_test")
TEMPLATE = "one"
NESTED: dict[str, Any] = {"texts": [{"text": "one"}], "count": 0}


class Style:
    """Settings in slots, and in the class."""

    __slots__ = ("text",)
    tone = "calm"

    def __init__(self) -> None:
        self.text = "one"


@dataclass
class Settings:
    text: str = "one"
    tags: set[str] = field(default_factory=set)


class Service:
    """An application's own object: a method of it answers, and others do other things."""

    kind = "short"

    def __init__(self) -> None:
        self.settings = Settings()
        self.style = Style()
        self.requests = 0
        self.log: list[str] = []
        self.seen: dict[str, int] = {}
        self.last = ""

    def answer(self, text: str) -> str:
        self.last = text
        self.log.append(text)
        self.seen[text] = self.seen.get(text, 0) + 1
        return self.prefix + self.helped(text) + self.kind

    def helped(self, text: str) -> str:
        return f"{self.settings.text} {sorted(self.settings.tags)} {self.style.text} {text}"

    @property
    def prefix(self) -> str:
        return self.style.tone

    def handle(self, text: str) -> str:
        self.requests += 1
        return text


def helper(text: str) -> str:
    return TEMPLATE + text


def outer(text: str) -> str:
    return " ".join(helper(part) for part in text.split())


Change = Callable[[], object]


def _of_global() -> Iterator[Any]:
    yield outer
    globals()["TEMPLATE"] += ", two"


def _of_function() -> Iterator[Any]:
    own = types.FunctionType(helper.__code__, {"TEMPLATE": "one"}, "helper")
    yield own
    own.__code__ = outer.__code__


def _of_module() -> Iterator[Any]:
    MODULE.text = "one"  # type: ignore[attr-defined]
    yield lambda text: MODULE.text + text
    MODULE.text = "two"  # type: ignore[attr-defined]


def _of_imported_module() -> Iterator[Any]:
    def answer(text: str) -> Any:
        import prompts_of_a_test  # type: ignore[import-not-found]  # noqa: PLC0415 - the point

        return prompts_of_a_test.text + text

    sys.modules[MODULE.__name__] = MODULE
    MODULE.text = "one"  # type: ignore[attr-defined]
    yield answer
    MODULE.text = "two"  # type: ignore[attr-defined]
    del sys.modules[MODULE.__name__]


def _of_dict_in_dict() -> Iterator[Any]:
    def answer(_: str) -> str:
        NESTED["count"] += 1
        return str(NESTED["texts"][0]["text"])

    yield answer
    NESTED["texts"][0]["text"] += ", two"


def _of_partial() -> Iterator[Any]:
    settings = Settings()
    yield functools.partial(lambda settings, text: settings.text + text, settings)
    settings.text = "two"


def _of_remembered_function() -> Iterator[Any]:
    settings = Settings()
    yield functools.lru_cache(lambda text: settings.text + text)
    settings.text = "two"


def _of_namespace() -> Iterator[Any]:
    settings = types.SimpleNamespace(text="one")
    yield lambda text: text.format(settings)
    settings.text = "two"


def _of_method_settings() -> Iterator[Any]:
    service = Service()
    yield service.answer
    service.settings.text = "two"


def _of_method_set() -> Iterator[Any]:
    service = Service()
    yield lambda text: service.answer(text).strip()
    service.settings.tags.add("two")


def _of_slots() -> Iterator[Any]:
    service = Service()
    yield service.answer
    service.style.text = "two"


def _of_class() -> Iterator[Any]:
    class Own(Service):
        pass

    yield Own().answer
    Own.kind = "long"


def _of_base_class() -> Iterator[Any]:
    class Own(Service):
        kind = "short"

    class Other(Own):
        pass

    yield Other().answer
    Own.kind = "long"


def _of_property() -> Iterator[Any]:
    class OwnStyle(Style):
        tone = "calm"

    service = Service()
    service.style = OwnStyle()
    yield service.answer
    OwnStyle.tone = "rude"


def _of_method() -> Iterator[Any]:
    class Own(Service):
        def helped(self, text: str) -> str:
            return text

    yield Own().answer
    Own.helped = Service.helped  # type: ignore[method-assign]


def _of_queue() -> Iterator[Any]:
    texts = collections.deque(["one"])
    yield lambda text: " ".join([*texts, text])
    texts.append("two")


def _of_bound_method() -> Iterator[Any]:
    texts = {"a": "one"}
    yield texts.get
    texts["a"] = "two"


def _of_default() -> Iterator[Any]:
    def answer(text: str, settings: Settings = Settings(), *, more: Any = None) -> str:  # noqa: B008
        return settings.text + str(more or text)

    yield answer
    assert answer.__kwdefaults__ is not None
    answer.__kwdefaults__["more"] = "two"


def _of_proxy() -> Iterator[Any]:
    texts = {"a": "one"}
    proxy = types.MappingProxyType(texts)
    yield lambda text: proxy["a"] + text
    texts["a"] = "two"


def _of_long_list() -> Iterator[Any]:
    texts = [f"text {number}" for number in range(5_000)]
    yield lambda text: texts[7] + text
    texts[7] = "another"


def _of_very_long_list() -> Iterator[Any]:
    texts = ["one"] * 20_000
    yield lambda text: texts[-1] + text
    texts.append("two")


def _of_coroutine() -> Iterator[Any]:
    settings = Settings()

    async def answer(text: str) -> str:
        return settings.text + text

    yield answer
    settings.text = "two"


def _of_own_model_class() -> Iterator[Any]:
    class Own(Part):
        style: ClassVar[str] = "one"

    yield Own()
    Own.style = "two"


def _of_environment() -> Iterator[Any]:
    os.environ["TEXT_OF_A_TEST"] = "one"
    yield lambda text: os.environ["TEXT_OF_A_TEST"] + text
    os.environ["TEXT_OF_A_TEST"] = "two"
    del os.environ["TEXT_OF_A_TEST"]


def _of_format() -> Iterator[Any]:
    service = Service()

    def answer(text: str) -> str:
        pattern = "{0.settings.text} {1}"
        return pattern.format(service, text)

    yield answer
    service.settings.text = "two"


def _of_match() -> Iterator[Any]:
    class Own(Service):
        __match_args__ = ("settings",)

    own = Own()

    def answer(text: str) -> str:
        match own:
            case Own(settings):
                return str(settings) + text
        return text

    yield answer
    own.settings.text = "two"


def _of_parser() -> Iterator[Any]:
    parser = configparser.ConfigParser()
    parser["prompts"] = {"text": "one"}
    yield lambda text: parser["prompts"]["text"] + text
    parser["prompts"]["text"] = "two"


def _of_private_attribute() -> Iterator[Any]:
    class Own(Part):
        _style: str = PrivateAttr("one")

    own = Own()
    yield own
    own._style = "two"


CHANGES = {
    name.removeprefix("_of_"): function
    for name, function in list(globals().items())
    if name.startswith("_of_")
}


@pytest.mark.parametrize("name", CHANGES)
def test_what_an_answer_depends_on_is_watched(name: str) -> None:
    steps = CHANGES[name]()
    chain = Part(anything=next(steps))
    watch = ChangeWatch(chain, ())
    assert watch.version() == 0
    next(steps, None)
    assert watch.version() == 1
    assert watch.version() == 1


def test_what_a_chain_writes_itself_is_no_setting() -> None:
    service = Service()
    calls: list[str] = []
    state: dict[str, Any] = {"count": 0, "text": "one"}
    total = 0

    def answer(text: str) -> str:
        nonlocal total
        total += 1
        calls.append(text)
        state["count"] += 1
        return service.answer(state["text"])

    watch = ChangeWatch(Part(anything=answer), ())
    for _ in range(3):
        answer("a")
        service.handle("a")
    assert (watch.version(), total, len(calls), len(service.log)) == (0, 3, 3, 3)
    state["text"] = "two"
    assert watch.version() == 1


def test_what_is_written_by_another_name_or_in_a_branch_is_no_setting() -> None:
    seen: dict[str, int] = {}
    calls: list[str] = []
    service = Service()

    def answer(text: str) -> str:
        known, log = seen, calls
        known[text.upper() if text else "nothing"] = (seen.get(text, 0) if text else 1) + 1
        log.append(text or "nothing")
        service.style.more = len(log)  # type: ignore[attr-defined]
        return text

    service.style = types.SimpleNamespace()  # type: ignore[assignment]
    watch = ChangeWatch(Part(anything=answer), ())
    for text in ("a", "", "b"):
        answer(text)
        assert watch.version() == 0
    assert (len(seen), len(calls)) == (3, 3)


def test_a_method_that_is_not_called_writes_settings() -> None:
    class Own(Service):
        def change(self) -> None:
            self.settings = Settings("two")
            self.kind = "long"

    own = Own()
    watch = ChangeWatch(Part(anything=own.answer), ())
    own.change()
    assert watch.version() == 1


def test_objects_that_look_like_anything_are_not_asked() -> None:
    class Proxy:
        """Fails whatever it is asked."""

        def __getattribute__(self, name: str) -> Any:
            raise RuntimeError(name)

        def __eq__(self, other: object) -> bool:
            raise RuntimeError

        __hash__ = None  # type: ignore[assignment]

    class Own(dict[str, Any]):
        def __getitem__(self, key: str) -> Any:
            raise RuntimeError(key)

        def __iter__(self) -> Iterator[str]:
            raise RuntimeError

    proxy, own = Proxy(), Own(a=Part())
    watch = ChangeWatch(Part(anything=lambda: (proxy, own)), ())
    assert watch.version() == 0
    dict.__getitem__(own, "a").text = "two"
    assert watch.version() == 1


def test_libraries_are_not_gone_through() -> None:
    client = logging.getLogger("a test")
    watch = ChangeWatch(Part(anything=lambda text: client.info(json.dumps(text))), ())
    client.setLevel(10)
    assert watch.version() == 0


def test_a_chain_that_always_changes_is_said_once(caplog: pytest.LogCaptureFixture) -> None:
    settings = Settings()
    watch = ChangeWatch(Part(anything=lambda text: settings.text + text), ())
    for number in range(25):
        settings.text = f"{number}"
        watch.version()
    [record] = caplog.records
    assert record.getMessage().startswith("A chain changed 20 times, the last time in a Settings.")


LAZY: Any = None


def lazy_global() -> Any:
    global LAZY  # noqa: PLW0603 - the point
    if LAZY is None:
        LAZY = Prompt()
    return LAZY


class Prompt(Part):
    """Something that answers are made with, rather than what they say."""

    def format(self, text: str) -> str:
        return self.text + text


class Postponing(Service):
    """Makes its prompt when it is first needed, and keeps its last answer."""

    def __init__(self) -> None:
        super().__init__()
        self._prompt: Prompt | None = None
        self.answers = 0
        self.last_answer: Any = None

    @property
    def prompt(self) -> Prompt:
        if self._prompt is None:
            self._prompt = Prompt()
        return self._prompt

    def answer(self, text: str) -> str:
        self.answers += 1
        self.last_answer = Part(text=text)
        return self.prompt.format(text)


def test_what_is_made_when_it_is_first_needed_is_watched_from_then_on() -> None:
    lazy = Postponing()
    watch = ChangeWatch(Part(anything=lambda text: lazy_global().format(lazy.answer(text))), ())
    for _ in range(2):
        lazy.answer("a")
        lazy_global()
        assert watch.version() == 0
    lazy.prompt.text = "two"
    assert watch.version() == 1
    lazy_global().text = "two"
    assert watch.version() == 2
    lazy._prompt = Prompt()
    assert watch.version() == 3


def test_what_is_made_hides_no_other_change() -> None:
    lazy, settings = Postponing(), Settings()
    watch = ChangeWatch(Part(anything=lambda text: lazy.answer(settings.text + text)), ())
    lazy.answer("a")
    settings.text = "two"
    assert watch.version() == 1


def test_an_object_that_is_only_written_to_is_still_watched() -> None:
    class Own:
        def __init__(self) -> None:
            self.prompt = Prompt()

        def answer(self, text: str) -> str:
            self.prompt.update(text)  # type: ignore[attr-defined]
            return text

    own = Own()
    watch = ChangeWatch(Part(anything=own.answer), ())
    own.prompt.text = "two"
    assert watch.version() == 1
