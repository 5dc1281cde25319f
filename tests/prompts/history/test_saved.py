"""A conversation that is saved and restored goes on as if nothing had happened."""

from __future__ import annotations

import json
import threading
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ragcache_integrations.errors import ConfigurationError
from ragcache_integrations.prompts.history import saved as history_saved
from ragcache_integrations.prompts.history.history import ChatHistory, Summary
from ragcache_integrations.prompts.history.policy import HistorySettings
from ragcache_integrations.prompts.history.saved import (
    SavedConversation,
    check_saved,
    dump_saved,
    parse_saved,
)

from .conversations import Plain, Said, Scripted, Shelf, make, turn

BUDGET = 100


class Quoting:
    """A model whose summary depends on what it is to be about, and on nothing else."""

    def __init__(self) -> None:
        self.free = threading.Event()
        self.free.set()
        self.fails = False

    def ask(self, messages: Sequence[Said], max_tokens: int, timeout: float | None) -> str:
        del timeout
        assert self.free.wait(30)
        if self.fails:
            msg = "out of order"
            raise ConnectionError(msg)
        return "so" if max_tokens == 1 else f"before {messages[-1].text.split('“')[1][:12]}"

    def is_idle(self) -> bool:
        return True


def new(
    model: Quoting | None,
    saved: SavedConversation[Said] | None = None,
    shelf: Shelf | None = None,
    **knobs: Any,
) -> ChatHistory[Said]:
    chosen = HistorySettings(budget=BUDGET, **{"summary_tokens": 8, **knobs})
    return ChatHistory(chosen, Plain(), shelf or Shelf(), model, (), saved)


def dump(message: Said) -> dict[str, Any]:
    summary = message.summary and [message.summary.text, message.summary.start]
    return {
        "role": message.role,
        "text": message.text,
        "pinned": message.pinned,
        "summary": summary,
        "calls": list(message.calls),
        "answers": list(message.answers),
    }


def load(written: dict[str, Any]) -> Said:
    if not isinstance(written["text"], str) or not isinstance(written["role"], str):
        raise TypeError
    summary = None
    if written["summary"] is not None:
        summary_text, start = written["summary"]
        summary = Summary(str(summary_text), int(start))
    calls, answers = tuple(written["calls"]), tuple(written["answers"])
    return Said(written["role"], written["text"], written["pinned"], summary, calls, answers)


def through_json(history: ChatHistory[Said]) -> SavedConversation[Said]:
    text = dump_saved({"budget": BUDGET, "saved": history.save().to_dict(dump)})
    return SavedConversation.from_dict(parse_saved(text)["saved"], load)


# What is done to a conversation, with a number of tokens.
STEPS = st.lists(
    st.one_of(
        st.tuples(st.sampled_from(["turn", "question", "reply", "tool"]), st.integers(1, 14)),
        st.tuples(st.sampled_from(["pinned", "system"]), st.integers(1, 2)),
        st.tuples(st.sampled_from(["view", "settle", "set view", "fail", "work"]), st.just(0)),
    ),
    max_size=25,
)


def step(history: ChatHistory[Said], model: Quoting | None, what: str, size: int) -> object:
    """Do it; gives what comes of it, for comparison."""
    words = f"about{size} " * size
    said = {
        "turn": [Said("user", words), Said("assistant", words)],
        "question": [Said("user", words)],
        "reply": [Said("assistant", words)],
        "tool": [
            Said("assistant", "look", calls=("1",)),
            Said("tool", words, answers=("1",)),
        ],
        "pinned": [Said("user", words, pinned=True)],
        "system": [Said("system", words)],
    }
    try:
        if what in said:
            history.add(said[what])
        elif what == "view":
            return history.view()
        elif what == "set view":
            history.replace(history.view()[-5:])
        elif what == "settle" and (model is None or model.free.is_set()):
            assert history.settle(30)
        elif model is not None:
            model.fails = {"fail": True, "work": False}.get(what, model.fails)
    except ConfigurationError as error:
        return str(error)
    return None


@settings(deadline=None)
@given(
    before=STEPS,
    after=STEPS,
    busy_from=st.none() | st.integers(0, 25),
    kind=st.sampled_from(["half", "oldest", "no model", "no summaries"]),
)
def test_it_goes_on_as_the_original_does(
    before: list[tuple[str, int]],
    after: list[tuple[str, int]],
    busy_from: int | None,
    kind: str,
) -> None:
    """Whatever was said, and whatever the background was doing when it was saved."""
    knobs: dict[str, Any] = {
        "policy": "oldest" if kind == "oldest" else "half",
        "summary_tokens": 0 if kind == "no summaries" else 8,
    }
    model, again_model = (None, None) if kind == "no model" else (Quoting(), Quoting())
    history = new(model, **knobs)
    for place, (what, size) in enumerate(before):
        if model is not None and place == busy_from:
            model.free.clear()  # what is begun from now on is under way when it is saved
        step(history, model, what, size)
        if model is not None and model.free.is_set():
            assert history.settle(30)
    saved = through_json(history)
    again = new(again_model, saved, **knobs)
    if model is not None and again_model is not None:
        again_model.fails = model.fails
        model.free.set()
    for what, size in [("settle", 0), *after, ("view", 0)]:
        results = [step(history, model, what, size), step(again, again_model, what, size)]
        assert results[0] == results[1]
        assert history.settle(30)
        assert again.settle(30)
        assert again.messages() == history.messages()
        assert again.stats().kept_tokens == history.stats().kept_tokens
    assert again.view() == history.view()
    assert through_json(again) == through_json(history)


def test_what_was_being_summarised_is_summarised_after_all() -> None:
    model = Scripted()
    history = make(200, model=model)
    model.answers.clear()
    number = 0
    while not model.asked.is_set():
        history.add(turn(number))
        number += 1
        model.asked.wait(0.05)
    saved = history.save()
    model.answers.set()
    other = Scripted()
    settings_ = HistorySettings(budget=200, summary_tokens=8)
    again = ChatHistory(settings_, Plain(), Shelf(), other, (), saved)
    assert again.view() == [one for number in range(number) for one in turn(number)]
    assert again.settle(30)
    assert len(other.summaries) == 1
    again.add(turn(number))
    assert again.view()[0].text == "summary 1"


def test_without_its_model_nothing_is_lost_until_it_is_connected_again() -> None:
    model = Quoting()
    model.free.clear()
    history = new(model)
    while history.save().working is None:
        history.add(turn(0))
    saved = through_json(history)
    model.free.set()
    assert history.settle(30)
    again = new(None, saved)
    everything = again.view()
    assert everything == again.messages()  # it waits for the model
    again.connect(Plain(), Quoting())
    assert again.settle(30)
    again.add(turn(1))
    history.add(turn(1))
    assert again.view() == history.view() != again.messages()


# The store


def test_an_empty_store_is_filled_and_read_by_the_next() -> None:
    history = new(Quoting())
    for number in range(30):
        history.add(turn(number))
        assert history.settle(30)
    shelf = Shelf()
    again = new(Quoting(), history.save(), shelf)
    assert again.view() == history.view()
    assert shelf.kept[:60] == history.messages()
    assert new(Quoting(), None, shelf).messages() == history.messages()


def test_a_store_that_went_on_is_right() -> None:
    shelf = Shelf()
    history = new(Quoting(), None, shelf)
    for number in range(4):
        history.add(turn(number))
    saved = history.save()
    for number in range(4, 30):
        history.add(turn(number))
        assert history.settle(30)
    assert new(Quoting(), saved, shelf).messages() == history.messages()
    shelf.kept = [*turn(7)]
    assert new(Quoting(), saved, shelf).view() == turn(7)


def test_a_store_that_fails_loses_nothing() -> None:
    history = new(None)
    history.add(turn(0))
    shelf = Shelf()
    again = new(None, history.save(), shelf)
    shelf.fails = True
    for _ in range(2):
        with pytest.raises(ConnectionError):
            again.view()
    shelf.fails = False
    assert again.view() == shelf.kept == turn(0)


def test_another_budget_decides_again() -> None:
    history = new(None)
    for number in range(9):
        history.add(turn(number))
    smaller = ChatHistory(HistorySettings(budget=40), Plain(), Shelf(), None, (), history.save())
    assert smaller.messages() == history.messages()
    assert sum(one.tokens for one in smaller.view()) <= 40


def test_it_can_be_saved_while_others_talk() -> None:
    history = new(Quoting())
    wrong: list[object] = []
    done = threading.Event()

    def save() -> None:
        try:
            while not done.is_set():
                again = new(Quoting(), through_json(history))
                said = again.messages()
                if [one.role for one in said] != ["user", "assistant"] * (len(said) // 2):
                    wrong.append(said)
                if sum(one.tokens for one in again.view()) > BUDGET:
                    wrong.append(again.view())
        except BaseException as error:
            wrong.append(error)

    threads = [threading.Thread(target=save) for _ in range(2)]
    for thread in threads:
        thread.start()
    for number in range(60):
        history.add(turn(number))
        history.view()
    done.set()
    for thread in threads:
        thread.join()
    assert not wrong
    assert history.settle(30)


# A view that is put in the place of the conversation


def test_a_view_that_is_set_is_the_view() -> None:
    shelf = Shelf()
    history = new(Quoting(), None, shelf)
    history.add([Said("system", "rules")])
    for number in range(30):
        history.add(turn(number))
        assert history.settle(30)
    view = history.view()
    assert view[1].summary is not None
    history.replace(view)
    assert [one.text for one in history.view()] == [one.text for one in view]
    assert history.messages() == [view[0], *view[2:]]
    assert new(Quoting(), None, shelf).view() == history.view()
    history.replace(view[-3:])
    assert history.view() == shelf.kept == view[-3:]
    history.replace(view[:2])
    assert [one.text for one in history.view()] == ["rules", view[1].text]
    history.add(turn(0))
    assert history.view()[2:] == turn(0)


def test_a_summary_of_another_conversation_is_a_message() -> None:
    shelf = Shelf()
    history = new(None, None, shelf)
    history.add([Said("system", "before that", summary=Summary("before that", 7)), *turn(0)])
    assert history.messages() == [Said("system", "before that"), *turn(0)]
    assert new(None, None, shelf).messages() == history.messages()


# What is damaged


def a_saved_one() -> dict[str, Any]:
    history = new(Quoting())
    history.add([Said("system", "rules")])
    for number in range(9):
        history.add(turn(number))
        assert history.settle(30)
    history.view()
    return json.loads(json.dumps(history.save().to_dict(dump)))  # type: ignore[no-any-return] # JSON


SAVED = a_saved_one()
JUNK: st.SearchStrategy[Any] = st.sampled_from(
    [None, True, -1, 0, 3, 10**6, 1 << 80, 0.5, float("nan"), "x", "", [], {}, [[]], {"x": []}]
)


def damage(content: Any, path: Sequence[int], junk: Any, *, drop: bool) -> Any:
    """Replace or drop what stands at a place of the tree."""
    if not path or not isinstance(content, dict | list) or not content:
        return junk
    keys = list(content) if isinstance(content, dict) else list(range(len(content)))
    key = keys[path[0] % len(keys)]
    if drop and len(path) == 1:
        if isinstance(content, dict):
            return {name: one for name, one in content.items() if name != key}
        return [one for place, one in enumerate(content) if place != key]
    changed = damage(content[key], path[1:], junk, drop=drop)
    if isinstance(content, dict):
        return {**content, key: changed}
    return [changed if place == key else one for place, one in enumerate(content)]


@settings(deadline=None)
@given(st.lists(st.integers(0, 30), min_size=1, max_size=4), JUNK, st.booleans())
def test_what_is_damaged_is_refused_or_works(path: list[int], junk: Any, drop: bool) -> None:
    content = damage(SAVED, path, junk, drop=drop)
    try:
        saved = SavedConversation.from_dict(content, load)
    except ConfigurationError:
        return
    history = new(Quoting(), saved)
    try:
        history.view()
        history.add(turn(50))
    except ConfigurationError:  # a pinned message may have become very long
        assert any(entry.tokens > BUDGET for entry in saved.entries)
    assert history.settle(30)


def test_bounds_of_what_is_loaded(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ConfigurationError, match="no JSON"):
        parse_saved("{")
    with pytest.raises(ConfigurationError, match="it is a list"):
        parse_saved("[]")
    with pytest.raises(ConfigurationError, match="no JSON"):
        parse_saved("[" * 100_000)
    with pytest.raises(ConfigurationError, match="got bytes"):
        parse_saved(b"{}")
    with pytest.raises(ConfigurationError, match=r"it must hold a budget .* got list"):
        check_saved([], {})
    with pytest.raises(ConfigurationError, match=r"got \['budget'\]"):
        check_saved({"budget": 1}, {})
    monkeypatch.setattr(history_saved, "MAX_CHARACTERS", 10)
    with pytest.raises(ConfigurationError, match="at most 10 characters, got 11"):
        parse_saved("{" + " " * 9 + "}")
    with pytest.raises(ConfigurationError, match="at most 10 characters"):
        dump_saved({"budget": 100, "saved": {}})


def test_a_message_that_is_no_json_is_named() -> None:
    history = new(None)
    history.add(turn(0))
    with pytest.raises(ConfigurationError, match="message 0 cannot be written as JSON"):
        history.save().to_dict(lambda message: {"object": message})
