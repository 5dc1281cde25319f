"""Copies of a search's arguments: what was put in at the time of the question comes out."""

from __future__ import annotations

import copy
import threading
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ragcache_integrations.retrievers.keys.cache_keys import Snapshots, freeze_arguments

plain = st.recursive(
    st.none() | st.booleans() | st.integers(-2, 2) | st.text("ab", max_size=2),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text("ab"), inner, max_size=3),
    max_leaves=6,
)


def in_order(value: Any) -> Any:
    """Return a value with the keys of its dicts in order, which means nothing among arguments."""
    if isinstance(value, dict):
        return {key: in_order(value[key]) for key in sorted(value)}
    return [in_order(item) for item in value] if isinstance(value, list) else value


@given(st.lists(st.dictionaries(st.sampled_from(["filter", "where"]), plain), max_size=6))
def test_each_snapshot_is_of_its_own_question(questions: list[dict[str, Any]]) -> None:
    snapshots = Snapshots()
    arguments: dict[str, Any] = {}
    expected, taken = [], []
    for question in questions:
        arguments.clear()
        arguments |= copy.deepcopy(question)
        taken.append(snapshots.of(arguments).copies())
        expected.append(question)
    arguments.clear()
    # By their words, which tell 1 from True.
    assert [repr(in_order(dict(snapshot()))) for snapshot in taken] == [
        repr(in_order(question)) for question in expected
    ]


def test_what_is_changed_deep_within_is_noticed() -> None:
    snapshots = Snapshots()
    arguments: dict[str, Any] = {"filter": {"$and": [{"tenant": ["a"]}]}}
    before = snapshots.of(arguments).copies()
    arguments["filter"]["$and"][0]["tenant"][0] = "b"
    after = snapshots.of(arguments).copies()
    assert before() == {"filter": {"$and": [{"tenant": ["a"]}]}}
    assert after() == {"filter": {"$and": [{"tenant": ["b"]}]}}


@pytest.mark.parametrize(("first", "second"), [(1, True), (1, 1.0), ("1", b"1"), ([1], (1,))])
def test_values_that_python_holds_equal_are_told_apart(first: Any, second: Any) -> None:
    snapshots = Snapshots()
    for value in (first, second, first):
        arguments = {"filter": {"page": value}}
        taken = snapshots.of(arguments).copies()()["filter"]["page"]
        assert (type(taken), taken) == (type(value), value)


def test_a_search_that_changes_its_arguments_changes_no_other_search_s() -> None:
    snapshots = Snapshots()
    arguments = {"filter": {"tenant": "a"}}
    snapshot = snapshots.of(arguments).copies()
    snapshot()["filter"].pop("tenant")
    assert snapshot() == arguments == {"filter": {"tenant": "a"}}
    assert snapshots.of(arguments).copies()() == arguments


def test_functions_are_never_taken_for_one_another() -> None:
    """Their keys are equal: what they mean is known to whoever names them alone."""
    snapshots = Snapshots()
    for answer in (True, False, True):
        arguments = {"filter": lambda _, answer=answer: answer}
        assert snapshots.of(arguments).copies()()["filter"](None) is answer


def test_threads_with_different_arguments_get_their_own() -> None:
    snapshots = Snapshots()
    wrong: list[Any] = []

    def ask(tenant: str) -> None:
        for number in range(300):
            arguments = {"filter": {"tenant": tenant, "page": number % 3}}
            taken = snapshots.of(arguments).copies()()
            if taken != arguments:
                wrong.append(taken)

    threads = [threading.Thread(target=ask, args=(tenant,)) for tenant in "abcd"]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_what_is_changed_while_it_is_copied_has_the_key_of_the_copy(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As another thread may do, between the key and the copy."""
    snapshots = Snapshots()
    arguments = {"filter": {"tenant": "a"}}
    deep_copy = copy.deepcopy

    def change_before(value: Any) -> Any:
        arguments["filter"]["tenant"] = "b"
        return deep_copy(value)

    monkeypatch.setattr(copy, "deepcopy", change_before)
    snapshot = snapshots.of(arguments)
    monkeypatch.undo()
    assert snapshot.arguments == {"filter": {"tenant": "b"}}
    assert snapshot.frozen == freeze_arguments(snapshot.arguments)
    arguments["filter"]["tenant"] = "a"
    assert snapshots.of(arguments).copies()() == {"filter": {"tenant": "a"}}
