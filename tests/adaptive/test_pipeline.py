"""The pipeline from question to answer: modes, fallbacks, what it reserves, what it explains."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import aclosing, closing
from dataclasses import replace
from typing import Any

import pytest

from ragcache_integrations.adaptive import (
    AdaptiveAnswer,
    AdaptivePipeline,
    AdaptiveSettings,
    Explanation,
    HeuristicProfiler,
    MemoryLoad,
    ModelAnswer,
    ModelRequest,
    ProfileEstimate,
    QueryProfile,
    SynthesisConfig,
    SynthesisSettings,
)
from ragcache_integrations.adaptive.best_fit import DEFAULT_PROFILE, pruned_space
from ragcache_integrations.adaptive.resources import Resources
from ragcache_integrations.core.prompt import PromptDocument
from ragcache_integrations.errors import ConfigurationError, EngineDeadError

from .askers import ScriptedAsker, documents, said

QUESTION = "Why do cats purr?"
CHUNKS = documents(*(f"{number:03}" * 30 for number in range(40)))  # 90 tokens of a character
JOINT = QueryProfile("low", joint_reasoning=True, pieces=2)
ALONE = QueryProfile("low", joint_reasoning=False, pieces=2)
COMPLEX = QueryProfile("high", joint_reasoning=True, pieces=2, summary_words=(30, 60))


class Profiling:
    """Says what a test wants it to, after a while."""

    def __init__(self, *estimates: ProfileEstimate, wait: float = 0.0) -> None:
        self._estimates = list(estimates)
        self._wait = wait
        self.threads: set[int] = set()
        self.cancelled = 0

    def _next(self) -> ProfileEstimate:
        return self._estimates.pop(0) if len(self._estimates) > 1 else self._estimates[0]

    def profile(self, question: str) -> ProfileEstimate:
        self.threads.add(threading.get_ident())
        time.sleep(self._wait)
        return self._next()

    async def aprofile(self, question: str) -> ProfileEstimate:
        try:
            await asyncio.sleep(self._wait)
        except asyncio.CancelledError:
            self.cancelled += 1
            raise
        return self._next()


def sure(profile: QueryProfile = JOINT, confidence: float | None = 0.95) -> ProfileEstimate:
    return ProfileEstimate(profile, "llm", confidence)


class Memory:
    """A load source with so many tokens."""

    def __init__(self, free: int = 100_000, total: int | None = None, waiting: int = 0) -> None:
        self.load = MemoryLoad(free, free if total is None else total, 0, waiting)
        self.gone = False

    def read(self) -> MemoryLoad:
        if self.gone:
            msg = "gone"
            raise EngineDeadError(msg)
        return self.load

    async def aread(self) -> MemoryLoad:
        return self.read()


def retrieve(question: str, count: int) -> Sequence[PromptDocument]:
    return CHUNKS[:count]


async def aretrieve(question: str, count: int) -> Sequence[PromptDocument]:
    return CHUNKS[:count]


def make(
    profiler: Any = None,
    memory: Memory | None = None,
    asker: ScriptedAsker | None = None,
    synthesis: SynthesisSettings | None = None,
    **settings: Any,
) -> AdaptivePipeline:
    return AdaptivePipeline(
        asker or ScriptedAsker(),
        profiler or Profiling(sure()),
        AdaptiveSettings(**settings),
        synthesis,
        resources=lambda: Resources(memory),
    )


Way = Callable[..., AdaptiveAnswer]


def answered(pipeline: AdaptivePipeline, find: Any = None) -> AdaptiveAnswer:
    return pipeline.answer(QUESTION, find or retrieve)


def awaited(pipeline: AdaptivePipeline, find: Any = None) -> AdaptiveAnswer:
    return asyncio.run(pipeline.aanswer(QUESTION, _as_async(find)))


def streamed(pipeline: AdaptivePipeline, find: Any = None) -> AdaptiveAnswer:
    with closing(pipeline.stream(QUESTION, find or retrieve)) as pieces:
        return whole(list(pieces))


def astreamed(pipeline: AdaptivePipeline, find: Any = None) -> AdaptiveAnswer:
    async def collect() -> list[Any]:
        async with aclosing(pipeline.astream(QUESTION, _as_async(find))) as pieces:
            return [piece async for piece in pieces]

    return whole(asyncio.run(collect()))


def whole(pieces: list[Any]) -> AdaptiveAnswer:
    explanation, *texts, answer = pieces
    assert isinstance(explanation, Explanation)
    assert isinstance(answer, AdaptiveAnswer)
    assert answer.explanation == explanation
    assert "".join(texts).strip() == answer.text
    return answer


def _as_async(find: Any) -> Any:
    if find is None:
        return aretrieve

    async def found(question: str, count: int) -> Any:
        return find(question, count)

    return found


every_way = pytest.mark.parametrize("way", [answered, awaited, streamed, astreamed])


def left_clean(pipeline: AdaptivePipeline) -> bool:
    return pipeline._reservations.idle and not pipeline._answering


@every_way
def test_with_enough_memory_it_reads_the_most_that_suits(way: Way) -> None:
    pipeline = make(memory=Memory())
    answer = way(pipeline)
    explanation = answer.explanation
    assert explanation.config == SynthesisConfig("stuff", 6)
    assert (explanation.why, explanation.trusted, explanation.found) == ("fits", True, 18)
    assert answer.text == "yes"
    assert answer.cost.calls == 1
    assert answer.cost.usage == said("yes").usage
    assert left_clean(pipeline)
    text = str(explanation)
    assert "stuff with 6 chunks" in text
    assert "low yes 2 medium" in text
    assert "0.95" in text


@every_way
def test_with_little_memory_it_reads_less(way: Way) -> None:
    full = make(memory=Memory())
    need = way(full).explanation.choice.need  # type: ignore[union-attr] # it chose
    less = make(memory=Memory(need - 1))
    explanation = way(less).explanation
    assert explanation.config == SynthesisConfig("stuff", 5)
    assert explanation.choice is not None
    assert explanation.choice.need <= need - 1
    none = way(make(memory=Memory(0))).explanation
    assert (none.why, none.config.num_chunks) == ("queued", 1)
    assert "the smallest one" in str(none)


@every_way
def test_modes_for_comparison(way: Way) -> None:
    config = SynthesisConfig("map_rerank", 3)
    fixed = way(make(mode="fixed", config=config))
    assert (fixed.explanation.config, fixed.explanation.why) == (config, "fixed")
    assert fixed.explanation.estimate is None
    assert fixed.cost.calls == 3
    assert fixed.cost.profile_seconds == 0
    median = way(make(mode="median", memory=Memory(0)))
    assert (median.explanation.config, median.explanation.why) == (
        SynthesisConfig("stuff", 4),
        "median",
    )


@every_way
def test_the_largest_does_not_look_at_the_memory(way: Way) -> None:
    pipeline = make(Profiling(sure(COMPLEX)), Memory(0), mode="largest")
    explanation = way(pipeline).explanation
    assert explanation.config == SynthesisConfig("map_reduce", 6, 60)
    assert (explanation.why, explanation.load, explanation.choice) == ("largest", None, None)
    assert "the largest of what suits the question" in str(explanation)
    assert left_clean(pipeline)


@every_way
@pytest.mark.parametrize(
    ("settings", "config"),
    [
        ({"method": "stuff"}, SynthesisConfig("stuff", 6)),
        ({"method": "map_reduce"}, SynthesisConfig("map_reduce", 6, 60)),
        ({"intermediate_length": 40}, SynthesisConfig("map_reduce", 6, 40)),
        ({"num_chunks": 3}, SynthesisConfig("map_reduce", 3, 60)),
        ({"num_chunks": 3, "intermediate_length": 40}, SynthesisConfig("map_reduce", 3, 40)),
        ({"num_chunks": 3, "mode": "median"}, SynthesisConfig("stuff", 3)),
        ({"method": "stuff", "mode": "largest"}, SynthesisConfig("stuff", 6)),
    ],
)
def test_a_knob_that_is_held_is_the_same_for_every_question(
    way: Way, settings: dict[str, Any], config: SynthesisConfig
) -> None:
    pipeline = make(Profiling(sure(COMPLEX)), Memory(), **settings)
    assert way(pipeline).explanation.config == config
    assert left_clean(pipeline)


@every_way
def test_a_knob_is_held_for_questions_without_a_profile_too(way: Way) -> None:
    explanation = way(make(Broken(), Memory(), method="map_rerank", max_chunks=4)).explanation
    assert not explanation.trusted
    assert explanation.config == SynthesisConfig("map_rerank", 4)
    # In the space of recent questions, as well.
    pipeline = make(Profiling(sure(), sure(ALONE, 0.1)), Memory(), num_chunks=5)
    first, second = (way(pipeline).explanation for _ in range(2))
    assert (first.trusted, second.trusted) == (True, False)
    assert first.config == second.config == SynthesisConfig("stuff", 5)


@every_way
def test_a_number_of_chunks_that_is_held_is_what_is_retrieved(way: Way) -> None:
    found: list[int] = []

    def find(question: str, count: int) -> Sequence[PromptDocument]:
        found.append(count)
        return CHUNKS[:count]

    explanation = way(make(memory=Memory(0), num_chunks=25), find).explanation
    assert found == [25]
    # Not even these fit, and still it reads as many.
    assert (explanation.why, explanation.config) == ("queued", SynthesisConfig("stuff", 25))


def test_a_fixed_configuration_needs_no_profiler() -> None:
    config = SynthesisConfig("stuff", 2)
    settings = AdaptiveSettings(mode="fixed", config=config)
    found: list[int] = []

    def find(question: str, count: int) -> Sequence[PromptDocument]:
        found.append(count)
        return CHUNKS[:count]

    assert AdaptivePipeline(ScriptedAsker(), None, settings).answer(QUESTION, find).text == "yes"
    assert found == [2]
    with pytest.raises(ConfigurationError, match="needs a profiler"):
        AdaptivePipeline(ScriptedAsker())


@every_way
def test_an_unsure_profile_gives_way_to_those_of_recent_questions(way: Way) -> None:
    profiler = Profiling(sure(JOINT, 0.5), sure(ALONE, 0.95), sure(JOINT, 0.899))
    pipeline = make(profiler, Memory())
    first, second, third = (way(pipeline).explanation for _ in range(3))
    assert (first.trusted, first.space) == (False, pruned_space(DEFAULT_PROFILE))
    assert (second.trusted, second.space) == (True, pruned_space(ALONE))
    assert (third.trusted, third.space) == (False, pruned_space(ALONE))
    assert "unsure" in str(third)


@every_way
def test_a_profile_without_confidence_is_taken(way: Way) -> None:
    assert way(make(Profiling(sure(ALONE, None)), Memory())).explanation.trusted


class Broken:
    def profile(self, question: str) -> ProfileEstimate:
        raise RuntimeError("broken")

    async def aprofile(self, question: str) -> ProfileEstimate:
        raise RuntimeError("broken")


@every_way
@pytest.mark.parametrize(
    ("profiler", "problem"),
    [
        (Broken(), "broken"),
        (Profiling(ProfileEstimate(None, "llm", problem="nonsense")), "nonsense"),
        (Profiling(sure(), wait=5.0), "in time"),
    ],
    ids=["broken", "nonsense", "late"],
)
def test_whatever_the_profiler_does_the_question_is_answered(
    way: Way, profiler: Any, problem: str
) -> None:
    began = time.perf_counter()
    answer = way(make(profiler, Memory(), profile_timeout=0.05))
    assert time.perf_counter() - began < 4
    assert answer.text == "yes"
    explanation = answer.explanation
    assert explanation.space == pruned_space(DEFAULT_PROFILE)
    assert explanation.estimate is not None
    assert problem in explanation.estimate.problem
    assert "no profile" in str(explanation)


def test_the_profiler_runs_beside_retrieval() -> None:
    """Each waits for the other to have begun: one after the other, neither would end."""
    retrieving, profiling = threading.Event(), threading.Event()

    class Meeting:
        def profile(self, question: str) -> ProfileEstimate:
            profiling.set()
            assert retrieving.wait(10)
            return sure()

        async def aprofile(self, question: str) -> ProfileEstimate:
            profiling.set()
            assert await asyncio.to_thread(retrieving.wait, 10)
            return sure()

    def find(question: str, count: int) -> Sequence[PromptDocument]:
        retrieving.set()
        assert profiling.wait(10)
        return CHUNKS[:count]

    async def afind(question: str, count: int) -> Sequence[PromptDocument]:
        retrieving.set()
        assert await asyncio.to_thread(profiling.wait, 10)
        return CHUNKS[:count]

    pipeline = make(Meeting(), Memory())
    assert pipeline.answer(QUESTION, find).explanation.trusted
    retrieving.clear()
    profiling.clear()
    assert asyncio.run(pipeline.aanswer(QUESTION, afind)).explanation.trusted


@every_way
def test_nothing_found_asks_no_model(way: Way) -> None:
    asker = ScriptedAsker()
    answer = way(make(asker=asker, memory=Memory()), lambda question, count: [])
    assert answer.explanation.why == "nothing found"
    assert answer.cost.calls == 0
    assert asker.requests == []
    assert "nothing was retrieved" in str(answer.explanation)


@every_way
def test_chunks_longer_than_the_window_are_cut(way: Way) -> None:
    asker = ScriptedAsker(context_window=1200)
    long = documents("x" * 5000, "y" * 5000)
    answer = way(make(asker=asker, memory=Memory()), lambda question, count: long)
    assert answer.explanation.config.num_chunks == 1
    assert answer.synthesised.shortened == (0,)


@every_way
def test_a_load_source_that_is_gone(way: Way) -> None:
    memory = Memory()
    memory.gone = True
    explanation = way(make(memory=memory)).explanation
    assert (explanation.why, explanation.load) == ("load unknown", None)
    assert explanation.config == SynthesisConfig("stuff", 4)
    assert "memory is unknown" in str(explanation)


@every_way
def test_a_budget_that_nothing_meets_reads_one_chunk(way: Way) -> None:
    explanation = way(make(memory=Memory(), latency_budget=1e-9)).explanation
    assert (explanation.why, explanation.config.num_chunks) == ("late", 1)
    assert "in time" in str(explanation)


@every_way
@pytest.mark.parametrize("question", ["", "  ", 3, None])
def test_a_question_is_a_text(way: Way, question: object) -> None:
    pipeline = make(memory=Memory())
    with pytest.raises(ConfigurationError, match="question"):
        pipeline.answer(question, retrieve)  # type: ignore[arg-type] # that is the point


@every_way
def test_what_retrieval_raises_reaches_the_user(way: Way) -> None:
    def broken(question: str, count: int) -> Sequence[PromptDocument]:
        msg = "the store is gone"
        raise ConnectionError(msg)

    pipeline = make(memory=Memory())
    with pytest.raises(ConnectionError, match="the store is gone"):
        way(pipeline, broken)
    assert left_clean(pipeline)


@every_way
def test_what_the_model_runs_into_reaches_the_user_and_gives_the_memory_back(way: Way) -> None:
    def breaks(request: ModelRequest) -> ModelAnswer:
        msg = "the engine is gone"
        raise EngineDeadError(msg)

    pipeline = make(memory=Memory(), asker=ScriptedAsker(breaks))
    with pytest.raises(EngineDeadError):
        way(pipeline)
    assert left_clean(pipeline)


def test_a_stream_that_is_given_up_gives_the_memory_back() -> None:
    asker = ScriptedAsker(lambda request: said("a long answer"))
    pipeline = make(memory=Memory(), asker=asker)
    stream = pipeline.stream(QUESTION, retrieve)
    assert isinstance(next(stream), Explanation)
    assert not left_clean(pipeline)
    next(stream)
    stream.close()
    assert left_clean(pipeline)
    assert asker.running == 0

    async def give_up() -> None:
        astream = pipeline.astream(QUESTION, aretrieve)
        await anext(astream)
        await anext(astream)
        assert not left_clean(pipeline)
        await astream.aclose()

    asyncio.run(give_up())
    assert left_clean(pipeline)
    assert asker.running == 0


def test_cancelling_gives_everything_back_whenever_it_comes() -> None:
    """At each turn of the event loop in turn."""

    class Slow(ScriptedAsker):
        async def aask(self, request: ModelRequest) -> ModelAnswer:
            for _ in range(5):
                await asyncio.sleep(0)
            return await super().aask(request)

    async def cancel_after(turns: int) -> bool:
        asker = Slow()
        pipeline = make(memory=Memory(), asker=asker)
        task = asyncio.ensure_future(pipeline.aanswer(QUESTION, aretrieve))
        for _ in range(turns):
            await asyncio.sleep(0.0005)
        done = task.done()
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        for _ in range(1000):  # what runs in a thread cannot be cancelled, and ends on its own
            if left_clean(pipeline) and len(asyncio.all_tasks()) == 1:
                break
            await asyncio.sleep(0.005)
        assert left_clean(pipeline)
        assert asker.running == 0
        assert asyncio.all_tasks() == {asyncio.current_task()}
        return done

    for turns in range(200):
        if asyncio.run(cancel_after(turns)):
            break


def test_concurrent_questions_do_not_take_the_same_memory() -> None:
    """The engine says that all is free, for nothing has reached it yet."""
    barrier = threading.Barrier(8)
    held = threading.Event()

    def wait(request: ModelRequest) -> ModelAnswer:
        held.wait(10)
        return said("yes")

    one = make(memory=Memory()).answer(QUESTION, retrieve).explanation.choice
    assert one is not None
    total = 3 * one.need
    pipeline = make(memory=Memory(total), asker=ScriptedAsker(wait))
    explanations: list[Explanation] = []

    def ask() -> None:
        barrier.wait(10)
        stream = pipeline.stream(QUESTION, retrieve)
        explanations.append(next(stream))  # type: ignore[arg-type] # it comes first
        barrier.wait(10)
        stream.close()

    threads = [threading.Thread(target=ask) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    held.set()
    choices = [explanation.choice for explanation in explanations if explanation.choice is not None]
    assert len(choices) == 8
    taken = sum(choice.plan.footprint for choice in choices if choice.reason != "queued")
    assert taken <= total
    assert sum(choice.reason == "fits" for choice in choices) >= 3
    assert left_clean(pipeline)


def test_what_waits_in_the_queue_needs_memory_first() -> None:
    memory = Memory(5000)
    pipeline = make(memory=memory)
    free = pipeline.answer(QUESTION, retrieve).explanation.choice
    memory.load = replace(memory.load, waiting_requests=5)
    queued = pipeline.answer(QUESTION, retrieve).explanation.choice
    assert free is not None
    assert queued is not None
    assert queued.free_tokens < free.free_tokens
    assert queued.config.num_chunks < free.config.num_chunks


def test_the_cost_says_what_took_how_long() -> None:
    def slow(question: str, count: int) -> Sequence[PromptDocument]:
        time.sleep(0.02)
        return CHUNKS[:count]

    profiler = Profiling(sure(), wait=0.05)
    cost = make(profiler, Memory()).answer(QUESTION, slow).cost
    assert cost.retrieval_seconds >= 0.02
    assert cost.profile_seconds >= 0.05
    assert 0 < cost.profile_wait_seconds < cost.profile_seconds
    parts = (
        cost.retrieval_seconds,
        cost.profile_wait_seconds,
        cost.choice_seconds,
        cost.synthesis_seconds,
    )
    assert sum(parts) == pytest.approx(cost.total_seconds)
    assert 0 < cost.profile_share <= 1


def test_the_heuristic_profiler_will_do() -> None:
    answer = make(HeuristicProfiler(), Memory()).answer("Who purrs?", retrieve)
    assert answer.explanation.config.method == "map_rerank"
    assert answer.explanation.estimate is not None
    assert answer.explanation.estimate.source == "heuristic"


# Settings


@pytest.mark.parametrize(
    ("settings", "text"),
    [
        ({"mode": "best"}, "mode"),
        ({"mode": "medians"}, "did you mean 'median'"),
        ({"mode": "fixed"}, "takes a SynthesisConfig"),
        ({"config": SynthesisConfig("stuff", 1)}, "the other modes take none"),
        ({"method": "stuf"}, "did you mean 'stuff'"),
        ({"num_chunks": 0}, "num_chunks must be"),
        ({"method": "stuff", "intermediate_length": 9}, "is for map_reduce"),
        (
            {"mode": "fixed", "config": SynthesisConfig("stuff", 1), "method": "stuff"},
            "mode='fixed' takes all values from config",
        ),
        ({"max_chunks": 0}, "max_chunks"),
        ({"min_confidence": 1.5}, "min_confidence"),
        ({"profile_timeout": 0}, "profile_timeout"),
        ({"profile_timeout": None}, "profile_timeout"),
        ({"latency_budget": -1}, "latency_budget"),
        ({"latency_budget": float("nan")}, "latency_budget"),
        ({"golden_every": 0}, "golden_every"),
        ({"golden_token_budget": None}, "golden_token_budget"),
    ],
)
def test_wrong_settings_are_refused(settings: dict[str, Any], text: str) -> None:
    with pytest.raises(ConfigurationError, match=text):
        AdaptiveSettings(**settings)


def test_a_reader_that_lets_a_stream_wait_is_not_taken_for_a_slow_model(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pipeline = make(memory=Memory())
    learnt: list[float] = []
    monkeypatch.setattr(pipeline._reservations, "note", lambda _, measured: learnt.append(measured))
    answered(pipeline)
    assert len(learnt) == 1
    with closing(pipeline.stream(QUESTION, retrieve)) as pieces:
        for _ in pieces:
            time.sleep(0.05)

    async def read_slowly() -> None:
        async with aclosing(pipeline.astream(QUESTION, aretrieve)) as pieces:
            async for _ in pieces:
                await asyncio.sleep(0.05)

    asyncio.run(read_slowly())
    assert len(learnt) == 1
    assert left_clean(pipeline)


@pytest.mark.parametrize("way", [answered, awaited])
def test_a_late_profile_counts_from_the_question_on(way: Way) -> None:
    """However long the retrieval beside it took, plain or asynchronously."""

    def find(question: str, count: int) -> Sequence[PromptDocument]:
        time.sleep(0.1)
        return CHUNKS[:count]

    pipeline = make(Profiling(sure(), wait=5), Memory(), profile_timeout=0.2)
    cost = way(pipeline, find).cost
    assert cost.profile_seconds >= 0.2
    assert cost.profile_wait_seconds <= cost.profile_seconds
