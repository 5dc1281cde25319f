"""Algorithm 2 of RAGCache §5.3, on an engine that counts turns."""

from __future__ import annotations

import asyncio
import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ragcache_integrations.errors import GenerationTimeoutError
from ragcache_integrations.speculation import Speculator
from tests.support.sizes import examples

from .doubles import (
    BUSY,
    FULL,
    PROMPT_TOKENS,
    FakeEngine,
    answer_to,
    assert_clean,
    prompt_of,
    stages_of,
    turns,
)

AMPLE = 60
"""Turns in which a prefill ends."""


def happened(report: object) -> list[tuple[str, int]]:
    return [(event.what, event.number) for event in report.events]  # type: ignore[attr-defined]


async def test_the_papers_example() -> None:
    """Figure 11: D1 D3, then D1 D2 three times."""
    engine = FakeEngine(prefill_turns=20)
    speculator = Speculator(engine)
    plan = (1, "13"), (8, "12"), (8, "12"), (8, "12")
    answer = await speculator.arun(stages_of(*plan), prompt_of)
    assert answer.generation.text == answer_to("12")
    assert answer.documents == ("1", "2")
    assert engine.submitted == [prompt_of("13"), prompt_of("12")]
    assert engine.aborted == [(prompt_of("13"), True)]
    assert happened(answer.report) == [
        ("stage", 1),
        ("submitted", 1),
        ("stage", 2),
        ("terminated", 1),
        ("submitted", 2),
        ("stage", 3),
        ("final stage", 4),
        ("confirmed", 2),
        ("first token", 2),
    ]
    report = answer.report
    assert (report.stages, report.guesses, report.aborted, report.held_back) == (4, 2, 1, 0)
    assert report.confirmed
    assert 0 < report.overlapped_seconds < report.search_seconds
    assert report.non_overlapped_seconds > 0
    assert_clean(engine, speculator)


async def test_a_right_guess_is_streamed_from_its_first_token() -> None:
    engine = FakeEngine(prefill_turns=1)
    speculator = Speculator(engine)
    stream = await speculator.astream(stages_of((1, "a"), (AMPLE, "a")), prompt_of)
    assert stream.documents == ("a",)
    assert ("first token", 1) in happened(stream.report)
    texts = [chunk.text async for chunk in stream]
    assert "".join(texts) == answer_to("a")
    assert len(texts) == 3
    assert len(engine.submitted) == 1
    assert_clean(engine, speculator)


async def test_a_guess_is_held_back_while_the_pool_is_full_and_tried_again() -> None:
    engine = FakeEngine(prefill_turns=12)
    speculator = Speculator(engine, max_prefill_bs=1)
    first = asyncio.create_task(speculator.arun(stages_of((0, "x")), prompt_of))
    await turns(4)
    answer = await speculator.arun(stages_of((1, "a"), (AMPLE, "a")), prompt_of)
    await first
    assert happened(answer.report)[:4] == [
        ("stage", 1),
        ("held back", 1),
        ("submitted", 1),
        ("first token", 1),
    ]
    assert answer.report.held_back == 1
    assert answer.report.confirmed
    assert engine.most_in_flight <= 2
    assert_clean(engine, speculator)


async def test_final_documents_are_submitted_however_full_the_pool_is() -> None:
    engine = FakeEngine(prefill_turns=50)
    speculator = Speculator(engine, max_prefill_bs=1)
    plans = [((1, "a"), (3, f"b{number}")) for number in range(5)]
    answers = [asyncio.create_task(speculator.arun(stages_of(*plan), prompt_of)) for plan in plans]
    await turns(20)
    assert len(engine.in_flight) == 5
    for number, answer in enumerate(await asyncio.gather(*answers)):
        assert answer.generation.text == answer_to(f"b{number}")
    assert_clean(engine, speculator)


@pytest.mark.parametrize("load", [BUSY, FULL], ids=["busy with others' requests", "no memory"])
async def test_the_engine_may_have_no_room_either(load: object) -> None:
    engine = FakeEngine()
    speculator = Speculator(engine, max_prefill_bs=1)
    await speculator.arun(stages_of((0, "x")), prompt_of)  # tells the length of prompts
    engine.busy = load  # type: ignore[assignment]
    engine.submitted.clear()
    answer = await speculator.arun(stages_of((1, "a"), (AMPLE, "a")), prompt_of)
    assert engine.submitted == [prompt_of("a")]
    assert answer.report.held_back == 1
    assert not answer.report.guesses
    assert not answer.report.confirmed
    assert answer.report.overlapped_seconds == 0
    assert_clean(engine, speculator)


async def test_without_speculation_only_final_documents_are_submitted() -> None:
    engine = FakeEngine()
    speculator = Speculator(engine, speculate=False)
    answer = await speculator.arun(stages_of((1, "a"), (AMPLE, "b")), prompt_of)
    assert engine.submitted == [prompt_of("b")]
    assert happened(answer.report)[0] == ("stage", 1)


async def test_nothing_found_yet_is_no_guess() -> None:
    engine = FakeEngine()
    await Speculator(engine).arun(stages_of((1, ""), (AMPLE, "a")), prompt_of)
    assert engine.submitted == [prompt_of("a")]


async def test_nothing_found_at_all_is_answered() -> None:
    engine = FakeEngine()
    answer = await Speculator(engine).arun(stages_of((1, "")), prompt_of)
    assert answer.documents == ()
    assert engine.submitted == [prompt_of("")]


async def test_documents_in_another_order_may_make_the_same_prompt() -> None:
    engine = FakeEngine()
    stages = stages_of((1, "ba"), (AMPLE, "ab"))
    answer = await Speculator(engine).arun(stages, lambda found: prompt_of(sorted(found)))
    assert answer.report.confirmed
    assert answer.documents == ("a", "b")
    assert len(engine.submitted) == 1


async def test_a_guess_that_fails_is_no_harm() -> None:
    engine = FakeEngine()
    engine.refuses = "a"
    speculator = Speculator(engine)
    answer = await speculator.arun(stages_of((1, "a"), (AMPLE, "b")), prompt_of)
    assert answer.generation.text == answer_to("b")
    assert ("failed", 1) in happened(answer.report)
    with pytest.raises(ValueError, match="no a"):
        await speculator.arun(stages_of((1, "a"), (AMPLE, "a")), prompt_of)
    assert_clean(engine, speculator)


async def test_what_a_wrong_guess_cost_is_counted() -> None:
    engine = FakeEngine(prefill_turns=1)
    speculator = Speculator(engine)
    answer = await speculator.arun(stages_of((1, "a"), (AMPLE, "b")), prompt_of)
    assert answer.report.wasted_prefill_tokens == PROMPT_TOKENS
    answer = await speculator.arun(stages_of((1, "a"), (AMPLE, "a")), prompt_of)
    assert answer.report.wasted_prefill_tokens == 0
    stats = speculator.stats()
    assert (stats.requests, stats.confirmed, stats.guesses, stats.aborted) == (2, 1, 2, 1)
    assert stats.wasted_prefill_tokens == PROMPT_TOKENS
    assert 0 < stats.overlapped_seconds < stats.search_seconds


async def test_the_timeout_covers_the_search() -> None:
    engine = FakeEngine()
    speculator = Speculator(engine)

    async def slow() -> object:
        await asyncio.sleep(60)
        yield

    with pytest.raises(GenerationTimeoutError, match=r"within 0\.05 s"):
        await speculator.arun(slow(), prompt_of, timeout=0.05)  # type: ignore[arg-type]
    assert_clean(engine, speculator)


async def test_a_searchs_own_timeout_error_is_its_own() -> None:
    async def failing() -> object:
        raise TimeoutError("the store")
        yield

    with pytest.raises(TimeoutError, match="the store") as caught:
        await Speculator(FakeEngine()).arun(failing(), prompt_of, timeout=60)  # type: ignore[arg-type]
    assert not isinstance(caught.value, GenerationTimeoutError)


PLANS = st.lists(
    st.tuples(st.integers(0, 12), st.sampled_from(["", "a", "b", "ab"])), min_size=1, max_size=6
)


@examples(300)
@given(
    plans=st.lists(PLANS, min_size=1, max_size=4),
    prefill=st.integers(0, 15),
    submit=st.integers(0, 3),
    limit=st.one_of(st.none(), st.integers(1, 3)),
)
def test_whatever_the_timing(
    plans: list[list[tuple[int, str]]], prefill: int, submit: int, limit: int | None
) -> None:
    async def check() -> None:
        engine = FakeEngine(prefill, submit)
        speculator = Speculator(engine, max_prefill_bs=limit)
        runs = [speculator.arun(stages_of(*plan), prompt_of) for plan in plans]
        answers = await asyncio.gather(*runs)
        assert_clean(engine, speculator)
        for plan, answer in zip(plans, answers, strict=True):
            assert answer.documents == tuple(plan[-1][1])
            assert answer.generation.text == answer_to(plan[-1][1])
            report = answer.report
            assert report.stages == len(plan)
            changes = [key for key, _ in itertools.groupby(text for _, text in plan)]
            assert report.guesses <= len(changes)
            assert report.aborted == report.guesses - report.confirmed
            assert 0 <= report.overlapped_seconds <= report.search_seconds
            times = [event.seconds for event in report.events]
            assert times == sorted(times)
        reports = [answer.report for answer in answers]
        certain = sum(not report.confirmed for report in reports)
        assert len(engine.submitted) <= sum(one.guesses for one in reports) + certain
        assert all(retract for _, retract in engine.aborted)

    asyncio.run(check())


@examples(200)
@given(PLANS)
def test_with_time_and_room_each_change_is_a_guess(plan: list[tuple[int, str]]) -> None:
    async def check() -> None:
        engine = FakeEngine(prefill_turns=3)
        speculator = Speculator(engine)
        ample = [(AMPLE, documents) for _, documents in plan]
        await speculator.arun(stages_of(*ample), prompt_of)
        *provisional, (_, final) = plan
        guessed = [key for key, _ in itertools.groupby(text for _, text in provisional if text)]
        if not guessed or guessed[-1] != final:
            guessed.append(final)
        assert engine.submitted == [prompt_of(documents) for documents in guessed]

    asyncio.run(check())
