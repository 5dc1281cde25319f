"""A conversation within its budget: nothing lost, nothing torn, nobody kept waiting."""

from __future__ import annotations

import itertools
import logging
import threading
from typing import Any

import pytest

from ragcache_integrations.errors import ConfigurationError
from ragcache_integrations.prompts.history.history import Summary
from ragcache_integrations.prompts.history.policy import HistorySettings, read_settings

from .conversations import Said, Scripted, Shelf, make, total, turn

BUDGET = 200  # of which 40 are for the summary


@pytest.fixture
def model() -> Scripted:
    return Scripted()


def until_cut(history: Any) -> int:
    """Turns until the background has been asked to shorten."""
    for number in itertools.count():
        history.add(turn(number))
        if history._state.planned:
            return number + 1
    raise AssertionError


def test_all_of_a_short_conversation_is_in_the_prompt(model: Scripted) -> None:
    history = make(BUDGET, model=model)
    said = [*turn(0), *turn(1)]
    history.add(said)
    assert history.view() == history.messages() == said
    assert history.settle()
    assert not model.summaries
    assert not model.prefills


def test_a_summary_stands_for_the_dropped_half(model: Scripted) -> None:
    history = make(BUDGET, model=model)
    turns = until_cut(history)
    assert history.settle(30)
    view = history.view()
    assert view[0].text == "summary 1"
    assert view[1].role == "user"
    assert view[1:] == history.messages()[-len(view) + 1 :]
    assert len(history.messages()) == 2 * turns
    stats = history.stats()
    assert (stats.truncations, stats.forced_truncations, stats.summaries) == (1, 0, 1)
    assert stats.kept_tokens == total(view)


def test_a_thread_that_cannot_be_started_costs_no_message(
    model: Scripted, monkeypatch: pytest.MonkeyPatch
) -> None:
    history = make(BUDGET, model=model)

    def refuse(thread: threading.Thread) -> None:
        raise RuntimeError

    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", refuse)
        turns = until_cut(history)
        assert len(history.messages()) == 2 * turns
        assert history.settle()
    history.add(turn(turns))
    assert history.settle(30)
    assert len(model.summaries) == 1
    assert len(history.messages()) == 2 * turns + 2


def test_the_summary_is_asked_for_at_the_end_of_the_same_conversation(model: Scripted) -> None:
    system = [Said("system", "be brief")]
    history = make(BUDGET, model=model, system=system)
    before: list[Said] = []
    while not model.summaries:
        number = len(history.messages()) // 2
        (question, reply) = turn(number)
        before = history.view()
        history.add([question, reply])
        history.settle(30)
    asked = model.summaries[0]
    assert asked[:-1] == [*system, *before, question, reply]
    assert asked[-1].role == "user"
    assert history.view()[1].text.strip()[:80] in asked[-1].text


def test_the_shortened_prompt_is_prefilled_before_it_is_used(model: Scripted) -> None:
    system = [Said("system", "be brief")]
    history = make(BUDGET, model=model, system=system)
    until_cut(history)
    history.settle(30)
    assert model.prefills == [[*system, *history.view()]]


def test_a_question_without_its_reply_is_not_followed_by_another(model: Scripted) -> None:
    history = make(BUDGET, model=model)
    while not model.summaries:
        (question, reply) = turn(len(history.messages()) // 2)
        history.add([question])
        history.settle(30)
        history.add([reply])
        history.settle(30)
    roles = [message.role for message in model.summaries[0]]
    assert all(roles[i : i + 2] != ["user", "user"] for i in range(len(roles)))


def test_no_turn_waits_for_a_summary(model: Scripted) -> None:
    """The model does not answer during the whole conversation."""
    model.answers.clear()
    history = make(BUDGET, model=model)
    for number in range(200):
        (question, reply) = turn(number)
        history.add([question])
        assert total(history.view()) <= BUDGET
        history.add([reply])
    assert len(model.summaries) == 1
    assert history.stats().forced_truncations > 5
    assert not history.settle(0.01)
    model.answers.set()
    assert history.settle(30)
    assert len(history.messages()) == 400


def test_a_late_summary_is_taken_when_it_comes(model: Scripted) -> None:
    model.answers.clear()
    history = make(BUDGET, model=model)
    number = until_cut(history)
    while not history.stats().forced_truncations:
        history.add(turn(number))
        number += 1
    assert all(message.summary is None for message in history.view())
    model.answers.set()
    history.settle(30)
    history.add(turn(number))
    assert history.view()[0].text == "summary 1"
    assert total(history.view()) <= BUDGET


def test_the_prompt_stays_the_same_within_a_turn(model: Scripted) -> None:
    """LangChain reads it again at the turn's end, and takes as many messages off."""
    model.answers.clear()
    history = make(BUDGET, model=model)
    until_cut(history)
    before = history.view()
    model.answers.set()
    history.settle(30)
    assert history.view() == before
    history.add(turn(99))
    assert history.view() != [*before, *turn(99)]


def test_the_engine_is_asked_when_it_is_idle(model: Scripted) -> None:
    model.busy = True
    history = make(BUDGET, model=model, idle_wait=30)
    until_cut(history)
    assert not model.asked.wait(0.1)
    model.busy = False
    assert model.asked.wait(30)
    history.settle(30)


def test_a_busy_engine_is_asked_all_the_same_after_a_while(model: Scripted) -> None:
    model.busy = True
    history = make(BUDGET, model=model, idle_wait=0.05)
    until_cut(history)
    assert history.settle(30)
    assert model.summaries


def test_a_summary_that_fails_leaves_the_earlier_one(
    model: Scripted, caplog: pytest.LogCaptureFixture
) -> None:
    history = make(BUDGET, model=model)
    until_cut(history)
    history.settle(30)
    assert history.view()[0].text == "summary 1"
    model.error = RuntimeError("out of order")
    with caplog.at_level(logging.WARNING):
        for number in range(40):
            history.add(turn(number))
            history.settle(30)
            history.view()
    assert history.view()[0].text == "summary 1"
    stats = history.stats()
    assert stats.failed_summaries == stats.failed_prefills > 1
    warnings = [record for record in caplog.records if record.levelno == logging.WARNING]
    assert len(warnings) == 2  # once for either


def test_an_empty_summary_is_none(model: Scripted, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(model, "ask", lambda *_: " \n")
    history = make(BUDGET, model=model)
    until_cut(history)
    history.settle(30)
    assert all(message.summary is None for message in history.view())
    assert history.stats().failed_summaries == 1


def test_a_store_that_fails_changes_nothing(model: Scripted) -> None:
    shelf = Shelf()
    history = make(BUDGET, model=model, shelf=shelf)
    history.add(turn(0))
    shelf.fails = True
    with pytest.raises(ConnectionError):
        history.add(turn(1))
    shelf.fails = False
    assert history.view() == turn(0)
    history.add(turn(1))
    assert history.view() == [*turn(0), *turn(1)] == shelf.kept


def test_a_store_that_refuses_summaries_loses_them_at_a_restart_alone(model: Scripted) -> None:
    shelf = Shelf()
    shelf.refuses = lambda message: message.summary is not None
    history = make(BUDGET, model=model, shelf=shelf)
    until_cut(history)
    history.settle(30)
    assert history.view()[0].text == "summary 1"
    assert all(message.summary is None for message in shelf.kept)
    assert total(make(BUDGET, model=model, shelf=shelf).view()) <= BUDGET


@pytest.mark.parametrize("with_model", [True, False])
def test_another_object_over_the_store_goes_on_where_this_one_stopped(with_model: bool) -> None:
    shelf, model = Shelf(), Scripted() if with_model else None
    history = make(BUDGET, model=model, shelf=shelf)
    for number in range(60):
        history.add(turn(number))
        history.settle(30)
        again = make(BUDGET, model=model, shelf=shelf)
        assert again.view() == history.view()
        assert again.messages() == history.messages()


@pytest.mark.parametrize(
    "said",
    [
        [Said("user", "w " * 201)],
        [Said("system", "w " * 190), *turn(0)],
        [
            Said("user", "w"),
            Said("assistant", "w", calls=("a",)),
            Said("tool", "w " * 200, answers=("a",)),
        ],
    ],
    ids=["message", "pinned", "tool call"],
)
def test_what_cannot_be_kept_is_refused_and_changes_nothing(
    said: list[Said], model: Scripted
) -> None:
    shelf = Shelf()
    history = make(BUDGET, model=model, shelf=shelf)
    history.add(turn(0))
    with pytest.raises(ConfigurationError, match="at most 160 of the budget of 200"):
        history.add(said)
    with pytest.raises(ConfigurationError):
        history.replace(said)
    assert history.view() == history.messages() == shelf.kept == turn(0)


def test_pinned_messages_stay_and_the_summary_stands_behind_the_system(model: Scripted) -> None:
    history = make(BUDGET, model=model)
    held = [Said("system", "rules"), Said("user", "my name is Ada", pinned=True)]
    history.add(held)
    for number in range(60):
        history.add(turn(number))
        history.settle(30)
    view = history.view()
    assert [view[0], view[2]] == held
    assert view[1].summary is not None
    assert total(view) <= BUDGET


def test_replacing_forgets_what_the_background_works_on(model: Scripted) -> None:
    model.answers.clear()
    shelf = Shelf()
    history = make(BUDGET, model=model, shelf=shelf)
    until_cut(history)
    assert model.asked.wait(30)
    history.replace([])
    worker = next(t for t in threading.enumerate() if t.name == "ragcache-history")
    model.answers.set()
    worker.join(30)
    assert shelf.kept == []
    assert history.view() == []
    history.add(turn(0))
    assert history.view() == turn(0)


def test_drop_oldest_drops_a_turn_at_a_time(model: Scripted) -> None:
    history = make(BUDGET, model=model, policy="oldest")
    for number in range(50):
        history.add(turn(number))
        view = history.view()
        assert total(view) == min(BUDGET, 10 * (number + 1))
    assert history.stats().truncations == 30
    assert not model.summaries
    assert not model.prefills


def test_without_a_model_the_prompt_is_shortened_at_once() -> None:
    history = make(BUDGET)
    for number in range(17):
        history.add(turn(number))
    assert total(history.view()) == 80
    assert history.stats().forced_truncations == 0


def test_concurrent_turns_lose_nothing_and_tear_nothing(model: Scripted) -> None:
    shelf = Shelf()
    history = make(BUDGET, model=model, shelf=shelf, idle_wait=0)
    wrong: list[object] = []

    def talk(name: int) -> None:
        try:
            for number in range(50):
                view = history.view()
                if total(view) > BUDGET:
                    wrong.append(view)
                roles = [message.role for message in view if message.summary is None]
                if roles != ["user", "assistant"] * (len(roles) // 2):
                    wrong.append(roles)
                history.add(turn(1000 * name + number))
        except BaseException as error:
            wrong.append(error)

    threads = [threading.Thread(target=talk, args=(name,)) for name in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert history.settle(30)
    assert not wrong
    said = history.messages()
    assert said == [message for message in shelf.kept if message.summary is None]
    pairs = list(zip(said[::2], said[1::2], strict=True))
    numbers = [int(question.text.split()[0].removeprefix("question")) for question, _ in pairs]
    assert sorted(numbers) == sorted(1000 * name + n for name in range(8) for n in range(50))
    assert all(reply == turn(n)[1] for n, (_, reply) in zip(numbers, pairs, strict=True))


@pytest.mark.parametrize(
    ("knobs", "said"),
    [
        ({"budget": 0}, "budget must be a whole number"),
        ({"budget": True}, "budget must be a whole number"),
        ({"policy": "newest"}, "policy must be one of half, oldest"),
        ({"threshold": 0}, "threshold must be a number above 0"),
        ({"threshold": float("nan")}, "threshold must be a number above 0"),
        ({"summary_tokens": -1}, "summary_tokens must be a whole number"),
        ({"summary_instruction": " "}, "summary_instruction must be a text"),
        ({"prefill": "yes"}, "prefill must be True or False"),
        ({"idle_wait": -1}, "idle_wait must be a number"),
        ({"timeout": 0}, "timeout must be a number"),
        ({"treshold": 0.5}, "unknown argument 'treshold': allowed are budget, documents_once, "),
    ],
)
def test_wrong_knobs_are_refused_in_words(knobs: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigurationError, match=said):
        read_settings(knobs.pop("budget", 100), knobs)


def test_summaries_leave_half_of_the_budget(model: Scripted) -> None:
    with pytest.raises(ConfigurationError, match="summary_tokens must be at most 18"):
        make(100, model=model, summary_tokens=19)
    make(100, summary_tokens=19)  # nobody to ask for one
    assert HistorySettings(budget=100).truncation(summarises=False).limit == 80


def test_a_stored_summary_of_messages_that_are_not_there_is_ignored() -> None:
    shelf = Shelf()
    shelf.kept = [Said("system", "so", summary=Summary("so", 7)), *turn(0)]
    assert make(BUDGET, shelf=shelf).view() == turn(0)
