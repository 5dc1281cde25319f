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
