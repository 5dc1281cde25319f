"""``mode="gradual"``: little is read first, and more only if the answer is not there."""

from __future__ import annotations

import asyncio
import itertools
import threading
import time
from contextlib import aclosing, closing
from typing import Any

import pytest

from ragcache_integrations.adaptive import (
    AdaptiveSettings,
    MemoryLoad,
    ModelAnswer,
    ModelRequest,
    QueryProfile,
    SynthesisConfig,
)
from ragcache_integrations.adaptive.answers import Explanation
from ragcache_integrations.adaptive.best_fit import CallPlan
from ragcache_integrations.core.generation import Usage
from ragcache_integrations.errors import ConfigurationError, EngineDeadError

from .askers import ScriptedAsker, documents, read, said
from .test_pipeline import (
    ALONE,
    CHUNKS,
    COMPLEX,
    QUESTION,
    Memory,
    Profiling,
    Way,
    aretrieve,
    every_way,
    left_clean,
    make,
    retrieve,
    sure,
)

ONE = QueryProfile("low", joint_reasoning=True, pieces=1)
MANY = QueryProfile("low", joint_reasoning=True, pieces=6)
SUMMARIES: dict[str, Any] = {"method": "map_reduce", "intermediate_length": 40}
MISSING = "It is not in these documents."


def knows(place: int) -> ScriptedAsker:
    """A model that finds the answer in one of the chunks."""

    def answer(request: ModelRequest) -> ModelAnswer:
        return said("yes", -0.5) if CHUNKS[place].text in read(request) else said(MISSING, -0.1)

    return ScriptedAsker(answer)


def texts_read(asker: ScriptedAsker) -> list[int]:
    return [len(read(request)) for request in asker.requests]


@every_way
def test_the_fewest_chunks_are_enough_if_they_have_the_answer(way: Way) -> None:
    asker = knows(1)
    pipeline = make(memory=Memory(), asker=asker, mode="gradual")
    answer = way(pipeline)
    assert answer.text == "yes"
    assert texts_read(asker) == [2]
    explanation = answer.explanation
    assert (explanation.config, explanation.why) == (SynthesisConfig("stuff", 2), "enough")
    assert explanation.tried == ()
    assert answer.cost.calls == 1
    assert [citation.index for citation in answer.synthesised.citations] == [0, 1]
    assert str(explanation).startswith(
        "stuff with 2 chunks: that was enough, so no more was read; profile"
    )
    assert left_clean(pipeline)


@every_way
def test_more_is_read_if_the_answer_is_not_there(way: Way) -> None:
    asker = knows(5)
    pipeline = make(memory=Memory(), asker=asker, mode="gradual")
    answer = way(pipeline)
    assert answer.text == "yes"
    assert texts_read(asker) == [2, 4, 6]
    explanation = answer.explanation
    assert (explanation.config, explanation.why) == (SynthesisConfig("stuff", 6), "fits")
    assert explanation.tried == (SynthesisConfig("stuff", 2), SynthesisConfig("stuff", 4))
    assert "; stuff with 4 chunks did not have the answer; profile" in str(explanation)
    # All answers count, in the order in which they were made.
    assert answer.cost.calls == answer.synthesised.calls == 3
    assert answer.cost.usage == answer.synthesised.usage == Usage(30, 6, 12)
    assert [(step.found, len(step.chunks)) for step in answer.synthesised.steps] == [
        (False, 2),
        (False, 4),
        (True, 6),
    ]
    assert len(answer.synthesised.citations) == 6
    assert left_clean(pipeline)


@every_way
def test_no_more_is_read_than_needed(way: Way) -> None:
    asker = knows(3)
    pipeline = make(memory=Memory(), asker=asker, mode="gradual")
    answer = way(pipeline)
    assert texts_read(asker) == [2, 4]
    assert answer.explanation.why == "enough"
    assert answer.explanation.config == SynthesisConfig("stuff", 4)
    assert answer.explanation.tried == (SynthesisConfig("stuff", 2),)
    assert answer.cost.calls == 2
    assert left_clean(pipeline)


@every_way
def test_what_is_nowhere_is_said_to_be_nowhere(way: Way) -> None:
    asker = knows(30)
    answer = way(make(memory=Memory(), asker=asker, mode="gradual"))
    assert answer.text == MISSING
    assert answer.synthesised.citations == ()
    assert texts_read(asker) == [2, 4, 6]


@every_way
def test_an_empty_answer_is_none(way: Way) -> None:
    answers = iter([said("  \n"), said("yes")])
    answer = way(
        make(memory=Memory(), asker=ScriptedAsker(lambda _: next(answers)), mode="gradual")
    )
    assert (answer.text, answer.cost.calls) == ("yes", 2)


@every_way
def test_each_method_begins_with_its_fewest_chunks(way: Way) -> None:
    asker = knows(1)
    answer = way(make(Profiling(sure(COMPLEX)), Memory(), asker, mode="gradual"))
    # Without summaries it is smaller.
    assert answer.explanation.config == SynthesisConfig("stuff", 2)
    assert texts_read(asker) == [2]


@every_way
@pytest.mark.parametrize(("place", "read_until"), [(1, 2), (2, 4), (4, 6), (5, 6)])
def test_what_was_read_separately_is_not_read_again(way: Way, place: int, read_until: int) -> None:
    asker = knows(place)
    answer = way(make(Profiling(sure(ALONE)), Memory(), asker, mode="gradual"))
    texts = [text for request in asker.requests for text in read(request)]
    assert sorted(texts) == [chunk.text for chunk in CHUNKS[:read_until]]
    assert answer.explanation.config == SynthesisConfig("map_rerank", read_until)
    synthesised = answer.synthesised
    # Places are those among all that was retrieved.
    assert [(cited.index, cited.id) for cited in synthesised.citations] == [
        (place, CHUNKS[place].id)
    ]
    assert [step.chunks for step in synthesised.steps] == [(at,) for at in range(read_until)]
    assert [step.found for step in synthesised.steps].index(True) == place
    assert synthesised.calls == answer.cost.calls == read_until
    assert synthesised.left_out == ()


@every_way
def test_what_was_summarised_as_briefly_is_not_summarised_again(way: Way) -> None:
    def answer(request: ModelRequest) -> ModelAnswer:
        texts = read(request)
        if len(texts) == 1 and texts[0] in wanted:
            return said(f"about {wanted.index(texts[0])}")
        return said("yes", -0.5) if "about 5" in texts else said(MISSING, -0.1)

    wanted = [chunk.text for chunk in CHUNKS]
    asker = ScriptedAsker(answer)
    pipeline = make(Profiling(sure(COMPLEX)), Memory(), asker, mode="gradual", **SUMMARIES)
    answered = way(pipeline)
    assert answered.text == "yes"
    assert answered.explanation.config == SynthesisConfig("map_reduce", 6, 40)
    # The last step of each is made of all summaries, those of the steps before among them.
    assert texts_read(asker) == [1, 1, 2, 1, 1, 4, 1, 1, 6]
    synthesised = answered.synthesised
    assert synthesised.calls == 9
    assert [step.chunks for step in synthesised.steps if step.kind == "summary"] == [
        (place,) for place in range(6)
    ]
    assert [cited.index for cited in synthesised.citations] == list(range(6))
    assert left_clean(pipeline)


@every_way
def test_memory_for_no_more_than_the_fewest_is_one_answer(way: Way) -> None:
    asker = knows(30)
    answer = way(make(memory=Memory(0), asker=asker, mode="gradual"))
    explanation = answer.explanation
    assert (explanation.why, explanation.tried) == ("queued", ())
    assert explanation.config.num_chunks == 1
    assert texts_read(asker) == [1]


@every_way
def test_where_the_memory_is_unknown_the_median_comes_second(way: Way) -> None:
    asker = knows(3)
    answer = way(make(asker=asker, mode="gradual"))
    assert (answer.explanation.why, answer.explanation.config.num_chunks) == ("load unknown", 4)
    assert texts_read(asker) == [2, 4]


@every_way
def test_nothing_found_asks_no_model(way: Way) -> None:
    asker = ScriptedAsker()
    answer = way(make(memory=Memory(), asker=asker, mode="gradual"), lambda *_: [])
    assert (answer.explanation.why, asker.requests) == ("nothing found", [])


@every_way
def test_unknown_usage_of_any_answer_is_unknown(way: Way) -> None:
    answers = iter([said(MISSING), ModelAnswer(MISSING), said("yes")])
    asker = ScriptedAsker(lambda _: next(answers))
    answer = way(make(memory=Memory(), asker=asker, mode="gradual"))
    assert (answer.cost.calls, answer.cost.usage) == (3, None)


@every_way
@pytest.mark.parametrize("calls", [0, 1, 2])
def test_an_error_of_any_answer_gives_the_memory_back(way: Way, calls: int) -> None:
    def answer(_: ModelRequest) -> ModelAnswer:
        if len(asker.requests) > calls:
            msg = "gone"
            raise EngineDeadError(msg)
        return said(MISSING)

    asker = ScriptedAsker(answer)
    pipeline = make(memory=Memory(), asker=asker, mode="gradual")
    with pytest.raises(EngineDeadError):
        way(pipeline)
    assert len(asker.requests) == calls + 1
    assert left_clean(pipeline)


def test_a_stream_says_first_what_was_read() -> None:
    pipeline = make(memory=Memory(), asker=knows(5), mode="gradual")
    with closing(pipeline.stream(QUESTION, retrieve)) as pieces:
        explanation = next(pieces)
        assert isinstance(explanation, Explanation)
        assert explanation.config.num_chunks == 6
        assert MISSING not in [piece for piece in pieces if isinstance(piece, str)]


@pytest.mark.parametrize("place", [1, 5])
def test_a_stream_that_is_given_up_gives_the_memory_back(place: int) -> None:
    pipeline = make(memory=Memory(), asker=knows(place), mode="gradual")
    with closing(pipeline.stream(QUESTION, retrieve)) as pieces:
        next(pieces)
    assert left_clean(pipeline)

    async def give_up() -> None:
        async with aclosing(pipeline.astream(QUESTION, aretrieve)) as pieces:
            await anext(pieces)

    asyncio.run(give_up())
    assert left_clean(pipeline)


def test_cancelling_any_answer_gives_the_memory_back(monkeypatch: pytest.MonkeyPatch) -> None:
    for reached in (1, 2, 3):
        asker = knows(30)
        pipeline = make(memory=Memory(), asker=asker, mode="gradual")

        async def cancel(asker: ScriptedAsker, pipeline: Any, reached: int) -> None:
            async def ask(request: ModelRequest) -> ModelAnswer:
                asker.requests.append(request)
                if len(asker.requests) == reached:
                    begun.set()
                    await asyncio.Event().wait()
                return said(MISSING)

            begun = asyncio.Event()
            monkeypatch.setattr(asker, "aask", ask)
            answering = asyncio.ensure_future(pipeline.aanswer(QUESTION, aretrieve))
            await begun.wait()
            answering.cancel()
            with pytest.raises(asyncio.CancelledError):
                await answering

        asyncio.run(cancel(asker, pipeline, reached))
        assert len(asker.requests) == reached
        assert left_clean(pipeline)


@every_way
@pytest.mark.parametrize(
    ("estimate", "held", "calls"),
    [
        (sure(), {}, [1, 1, 1]),
        (sure(ALONE), {}, [2, 2, 2]),
        (sure(COMPLEX), SUMMARIES, [3, 3, 3]),
        # The last summaries are longer than those before.
        (sure(COMPLEX), {"method": "map_reduce"}, [3, 3, 7]),
    ],
)
def test_each_step_is_planned_as_it_is_read_and_teaches_the_pace(
    way: Way,
    estimate: Any,
    held: dict[str, Any],
    calls: list[int],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    planned: list[int] = []
    noted: list[float] = []
    pipeline = make(Profiling(estimate), Memory(), knows(30), mode="gradual", **held)
    reservations = pipeline._reservations
    reserve = reservations._enter

    def enter(plan: CallPlan) -> int:
        planned.append(len(plan.calls))
        return reserve(plan)

    # Nothing else shows what was reserved and learnt.
    monkeypatch.setattr(reservations, "_enter", enter)
    monkeypatch.setattr(reservations, "note", lambda each, _: noted.append(each))
    answer = way(pipeline)
    assert planned == calls
    assert answer.cost.calls == sum(calls)
    assert len(noted) == len(calls)


@every_way
def test_chunks_that_were_read_separately_take_no_more_time(
    way: Way, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = way(make(Profiling(sure(ALONE)), Memory())).explanation
    assert whole.choice is not None
    assert whole.config.num_chunks == 6
    now = time.perf_counter()

    def answer(request: ModelRequest) -> ModelAnswer:
        nonlocal now
        now += budget / 12
        return said("yes", -0.5) if CHUNKS[5].text in read(request) else said(MISSING, -0.1)

    # Less than two, four and six chunks would take one after the other.
    budget = 1.1 * whole.choice.seconds
    asker = ScriptedAsker(answer)
    pipeline = make(Profiling(sure(ALONE)), Memory(), asker, mode="gradual", latency_budget=budget)
    with monkeypatch.context() as patched:
        patched.setattr(time, "perf_counter", lambda: now)
        explanation = way(pipeline).explanation
    assert (explanation.config.num_chunks, len(asker.requests)) == (6, 6)


def wait_in(
    pipeline: Any, choice: int, monkeypatch: pytest.MonkeyPatch
) -> tuple[threading.Event, threading.Event]:
    """Make a choice take long; return an event for when it has begun, and one that ends it."""
    begun, end, choices = threading.Event(), threading.Event(), itertools.count(1)
    choose = pipeline._reservations.choose

    def wait(*args: Any, **more: Any) -> Any:
        if next(choices) == choice:
            begun.set()
            assert end.wait(10)
        return choose(*args, **more)

    monkeypatch.setattr(pipeline._reservations, "choose", wait)
    return begun, end


@pytest.mark.parametrize("choice", [1, 2])
def test_memory_chosen_after_the_event_loop_ended_is_given_back(
    choice: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    pipeline = make(memory=Memory(), asker=knows(30), mode="gradual")
    choosing, ended = wait_in(pipeline, choice, monkeypatch)

    async def cancel() -> None:
        answering = asyncio.ensure_future(pipeline.aanswer(QUESTION, aretrieve))
        assert await asyncio.to_thread(choosing.wait, 10)
        answering.cancel()
        with pytest.raises(asyncio.CancelledError):
            await answering
        # The loop cancels its tasks before this, and then waits for the thread.
        threading.Timer(0.2, ended.set).start()

    asyncio.run(cancel())
    assert left_clean(pipeline)


@every_way
def test_memory_that_is_no_longer_known_ends_it_at_the_median(way: Way) -> None:
    memory = Memory()

    def answer(request: ModelRequest) -> ModelAnswer:
        memory.gone = len(asker.requests) == 2
        return said(MISSING)

    asker = ScriptedAsker(answer)
    explanation = way(make(memory=memory, asker=asker, mode="gradual")).explanation
    assert texts_read(asker) == [2, 4]
    assert explanation.why == "no more"
    assert "what is known of the memory and time left" in str(explanation)


def test_an_early_answer_teaches_the_pace_however_slow_the_reader(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now, measured = time.perf_counter(), []

    def answer(request: ModelRequest) -> ModelAnswer:
        nonlocal now
        now += 1
        return said("yes", -0.5)

    pipeline = make(memory=Memory(), asker=ScriptedAsker(answer), mode="gradual")
    # Nothing else shows what was learnt.
    monkeypatch.setattr(pipeline._reservations, "note", lambda _, each: measured.append(each))
    with monkeypatch.context() as patched:
        patched.setattr(time, "perf_counter", lambda: now)
        for _ in pipeline.stream(QUESTION, retrieve):
            now += 10
    assert measured == pytest.approx([1])


def answered_slowly(
    way: Way, monkeypatch: pytest.MonkeyPatch, **settings: Any
) -> tuple[ScriptedAsker, Explanation]:
    """Each step takes 20 seconds by the clock, and finds nothing."""
    now = time.perf_counter()

    def answer(request: ModelRequest) -> ModelAnswer:
        nonlocal now
        now += 20
        return said(MISSING)

    asker = ScriptedAsker(answer)
    pipeline = make(asker=asker, mode="gradual", **settings)
    with monkeypatch.context() as patched:
        patched.setattr(time, "perf_counter", lambda: now)
        explanation = way(pipeline).explanation
    assert left_clean(pipeline)
    return asker, explanation


@every_way
def test_time_is_short_where_the_memory_is_unknown_too(
    way: Way, monkeypatch: pytest.MonkeyPatch
) -> None:
    asker, explanation = answered_slowly(way, monkeypatch, latency_budget=10)
    assert texts_read(asker) == [2]
    assert explanation.why == "no more"


@every_way
def test_reading_the_load_is_not_taken_for_a_slow_model(
    way: Way, monkeypatch: pytest.MonkeyPatch
) -> None:
    now, measured = time.perf_counter(), []

    class Slow(Memory):
        def read(self) -> MemoryLoad:
            nonlocal now
            now += 3
            return super().read()

    def answer(request: ModelRequest) -> ModelAnswer:
        nonlocal now
        now += 1
        return said(MISSING)

    pipeline = make(memory=Slow(), asker=ScriptedAsker(answer), mode="gradual")
    # Nothing else shows what was learnt.
    monkeypatch.setattr(pipeline._reservations, "note", lambda _, each: measured.append(each))
    with monkeypatch.context() as patched:
        patched.setattr(time, "perf_counter", lambda: now)
        way(pipeline)
    assert measured == pytest.approx([1, 1, 1])


@every_way
def test_less_memory_than_before_ends_it(way: Way, monkeypatch: pytest.MonkeyPatch) -> None:
    memory = Memory()
    noted: list[float] = []

    def answer(request: ModelRequest) -> ModelAnswer:
        memory.load = MemoryLoad(0, 100_000)
        return said(MISSING)

    asker = ScriptedAsker(answer)
    pipeline = make(memory=memory, asker=asker, mode="gradual")
    # Nothing else shows what was learnt.
    monkeypatch.setattr(pipeline._reservations, "note", lambda _, measured: noted.append(measured))
    answered = way(pipeline)
    explanation = answered.explanation
    assert texts_read(asker) == [2]
    assert (answered.text, answered.cost.calls) == (MISSING, 1)
    assert (explanation.config, explanation.why) == (SynthesisConfig("stuff", 2), "no more")
    assert explanation.tried == ()
    assert str(explanation).startswith(
        "stuff with 2 chunks: nothing larger suits the question and what is known of the memory "
        "and time left; "
    )
    assert len(noted) == 1
    assert left_clean(pipeline)


@every_way
def test_more_memory_than_before_reads_more(way: Way) -> None:
    four = way(make(memory=Memory(), method="stuff", max_chunks=4)).explanation
    assert four.choice is not None
    memory = Memory(four.choice.need)

    def answer(request: ModelRequest) -> ModelAnswer:
        memory.load = MemoryLoad(100_000, 100_000)
        return said("yes", -0.5) if CHUNKS[5].text in read(request) else said(MISSING, -0.1)

    asker = ScriptedAsker(answer)
    explanation = way(make(memory=memory, asker=asker, mode="gradual")).explanation
    # At first, no more than four chunks would have been read.
    assert texts_read(asker) == [2, 4, 6]
    assert (explanation.config.num_chunks, explanation.why) == (6, "fits")


@every_way
def test_all_steps_share_the_time(way: Way, monkeypatch: pytest.MonkeyPatch) -> None:
    asker, explanation = answered_slowly(way, monkeypatch, memory=Memory(), latency_budget=30)
    # After two steps there is no time for a third.
    assert len(asker.requests) == 2
    assert explanation.why == "no more"


@every_way
def test_what_is_read_first_fits_into_the_memory_too(way: Way) -> None:
    two = way(make(Profiling(sure(COMPLEX)), Memory(), method="stuff", max_chunks=2)).explanation
    assert two.choice is not None

    def answer(request: ModelRequest) -> ModelAnswer:
        known = {CHUNKS[1].text, "yes"} & set(read(request))
        return said("yes", -0.5) if known else said(MISSING, -0.1)

    asker = ScriptedAsker(answer)
    memory = Memory(two.choice.need - 1)
    explanation = way(make(Profiling(sure(COMPLEX)), memory, asker, mode="gradual")).explanation
    # Two chunks in one prompt would have to wait for memory, so that each is summarised.
    assert (explanation.why, explanation.config) == ("enough", SynthesisConfig("map_reduce", 2, 30))
    assert texts_read(asker) == [1, 1, 2]
    assert explanation.choice is not None
    assert explanation.choice.config == explanation.config


@every_way
def test_what_was_cut_is_told_of_all_that_was_read_separately(way: Way) -> None:
    long = documents("x" * 3000, *(chunk.text for chunk in CHUNKS[1:]))

    def answer(request: ModelRequest) -> ModelAnswer:
        return said("yes", -0.5) if CHUNKS[4].text in read(request) else said(MISSING, -0.1)

    asker = ScriptedAsker(answer, context_window=1000)
    pipeline = make(Profiling(sure(ALONE)), Memory(), asker, mode="gradual")
    answered = way(pipeline, lambda _, count: long[:count])
    assert answered.synthesised.calls == 6
    assert answered.synthesised.shortened == (0,)


def test_only_what_suits_the_question_is_read_before() -> None:
    profiler = Profiling(sure(ALONE), sure(MANY), sure(confidence=0.1))
    pipeline = make(profiler, Memory(), knows(30), mode="gradual")
    for _ in range(3):
        explanation = pipeline.answer(QUESTION, retrieve).explanation
    assert explanation.tried == (
        *(SynthesisConfig("map_rerank", count) for count in (2, 4)),
        SynthesisConfig("stuff", 8),
        SynthesisConfig("stuff", 16),
    )


def test_an_unsure_profile_takes_few_steps() -> None:
    """Any number of chunks may suit then, and each step reads at least twice as many."""
    profiler = Profiling(sure(ONE), sure(MANY), sure(confidence=0.1))
    asker = knows(30)
    pipeline = make(profiler, Memory(), asker, mode="gradual")
    for _ in range(3):
        asker.requests.clear()
        answer = pipeline.answer(QUESTION, retrieve)
    assert not answer.explanation.trusted
    assert texts_read(asker) == [1, 2, 6, 12, 18]


def test_a_number_of_chunks_that_is_held_leaves_nothing_to_do_gradually() -> None:
    with pytest.raises(ConfigurationError, match="chooses the number of chunks, got num_chunks=3"):
        AdaptiveSettings(mode="gradual", num_chunks=3)
    assert AdaptiveSettings(mode="gradual", method="stuff").held.method == "stuff"
