"""Which changes of a chain are noticed."""

from __future__ import annotations

from functools import cached_property
from typing import Any

import pytest
from pydantic import BaseModel, ConfigDict

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


def test_what_somebodys_own_object_counts_is_no_setting() -> None:
    part = whole()
    watch = ChangeWatch(part, ())
    before = watch.version()
    part.anything.calls += 1
    assert watch.version() == before


def test_what_is_computed_once_is_no_setting() -> None:
    part = Lazy()
    watch = ChangeWatch(part, ())
    before = watch.version()
    assert part.length == 3
    assert watch.version() == before


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
