"""Best fit beside brute force, figure 8's case, and what a warm cache changes."""

from __future__ import annotations

import dataclasses
import math

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from ragcache_integrations.adaptive import PrunedSpace, QueryProfile, SynthesisConfig
from ragcache_integrations.adaptive.best_fit import (
    BestFit,
    Call,
    Choice,
    ChunkFacts,
    Held,
    PromptSizes,
    Region,
    Situation,
    pruned_space,
    size,
)
from ragcache_integrations.errors import ConfigurationError
from ragcache_integrations.knowledge_tree import PrefillCostModel

SIZES = PromptSizes(stuff=60, mapper=70, reduce=50, rerank=40, answer=30, separator=2)
METHODS = ("stuff", "map_reduce", "map_rerank")

ranges = st.tuples(st.integers(1, 6), st.integers(0, 6)).map(lambda ends: (ends[0], sum(ends)))
words = st.tuples(st.integers(10, 60), st.integers(0, 60)).map(lambda ends: (ends[0], sum(ends)))
regions = st.one_of(
    st.builds(Region, st.sampled_from(["stuff", "map_rerank"]), ranges),
    st.builds(Region, st.just("map_reduce"), ranges, words),
)
spaces = st.builds(
    lambda some, fewest: PrunedSpace(tuple(some), min(fewest, *(one.chunks[1] for one in some))),
    st.lists(regions, min_size=1, max_size=4),
    st.one_of(st.just(1), st.integers(1, 12)),
)
tokens = st.lists(st.integers(1, 300), min_size=1, max_size=14).map(tuple)
windows = st.one_of(st.none(), st.integers(120, 3000))


@st.composite
def chunk_facts(draw: st.DrawFn) -> ChunkFacts:
    """Chunks, a beginning of which is cached, and a beginning of that in use."""
    lengths = draw(tokens)
    depth = draw(st.integers(0, len(lengths)))
    used = draw(st.integers(0, depth))

    def path(deep: int) -> tuple[int, ...]:
        return tuple(10 + sum(lengths[: min(count, deep)]) for count in range(len(lengths) + 1))

    alone = tuple(draw(st.sampled_from([0, 10, 10 + length])) for length in lengths)
    alone_used = tuple(draw(st.sampled_from([0, one])) for one in alone)
    return ChunkFacts(lengths, path(depth), path(used), alone, alone_used)


def needed(config: SynthesisConfig, chunks: ChunkFacts, sizes: PromptSizes) -> int:
    """DESIGN.md's need, written down anew."""
    count = config.num_chunks
    window = sizes.window or math.inf

    def mapper(frame: int, output: int, place: int) -> int:
        prompt = int(min(frame + chunks.tokens[place] + sizes.separator, max(window - output, 1)))
        return prompt + output - min(chunks.alone_in_use[place], prompt)

    if config.method == "stuff":
        prompt = sizes.stuff + sum(chunks.tokens[:count]) + count * sizes.separator
        if count == 1:
            prompt = int(min(prompt, max(window - sizes.answer, 1)))
        return prompt + sizes.answer - min(chunks.path_in_use[count], prompt)
    if config.method == "map_rerank":
        return max(mapper(sizes.rerank, sizes.answer, place) for place in range(count))
    summary = math.ceil((config.intermediate_length or 0) * 4 / 3)
    largest = max(mapper(sizes.mapper, summary, place) for place in range(count))
    return max(largest, sizes.reduce + count * (summary + sizes.separator) + sizes.answer)


def order(config: SynthesisConfig) -> tuple[int, int, int]:
    """DESIGN.md's order: more chunks, then longer summaries, then map_reduce over stuff."""
    rank = {"map_rerank": 0, "stuff": 1, "map_reduce": 2}[config.method]
    return config.num_chunks, config.intermediate_length or 0, rank


def every(space: PrunedSpace, found: int) -> list[SynthesisConfig]:
    configurations = []
    for region in space.regions:
        low, high = region.chunks
        for count in range(1, found + 1):
            if min(low, found) <= count <= min(high, found):
                configurations += [
                    SynthesisConfig(region.method, count, length) for length in region.lengths
                ]
    return configurations


budgets = st.one_of(st.none(), st.floats(0.05, 20))


@given(spaces, chunk_facts(), windows, st.integers(-100, 4000), budgets)
@example(
    PrunedSpace((Region("stuff", (1, 1)),)), ChunkFacts((300,)), 120, 0, None
)  # not even one chunk
def test_it_is_the_largest_that_fits_by_brute_force(
    space: PrunedSpace,
    chunks: ChunkFacts,
    window: int | None,
    free: int,
    budget: float | None,
) -> None:
    sizes = dataclasses.replace(SIZES, window=window)
    situation = Situation(free, budget)
    fit = BestFit()

    def fits(config: SynthesisConfig) -> bool:
        if needed(config, chunks, sizes) > free:
            return False
        plan = size(config, chunks, sizes)
        if window is not None and any(call.prompt + call.output > window for call in plan.calls):
            return False
        return budget is None or fit.seconds(plan, situation) <= budget

    choice = fit.choose(space, chunks, sizes, situation)
    fitting = [one for one in every(space, len(chunks.tokens)) if fits(one)]
    assert choice.need == needed(choice.config, chunks, sizes)
    if fitting:
        assert choice.reason == "fits"
        assert choice.config in fitting
        assert order(choice.config) == max(map(order, fitting))
        return
    # Of the right method, with the shortest summaries, as many chunks as fit.
    lowest = {
        region.method: min(
            (one.lengths[0] for one in space.regions if one.method == region.method),
            key=lambda length: length or 0,
        )
        for region in space.regions
    }
    most = min(space.max_chunks, len(chunks.tokens))
    fewest = min(space.fewest_chunks, most)
    cheap = [
        SynthesisConfig(method, count, length)
        for method, length in lowest.items()
        for count in range(fewest, most + 1)
    ]
    assert choice.config in cheap
    enough = [one for one in cheap if fits(one)]
    if enough:
        assert choice.reason == "fallback"
        assert fits(choice.config)
        assert choice.config.num_chunks == max(one.num_chunks for one in enough)
    else:
        assert choice.reason == ("late" if choice.need <= choice.free_tokens else "queued")
        assert choice.config.num_chunks == fewest
        assert choice.need == min(
            needed(one, chunks, sizes) for one in cheap if one.num_chunks == fewest
        )


@given(spaces, chunk_facts(), st.integers(-100, 4000), budgets, st.integers(0, 20))
def test_a_step_is_the_smallest_that_reads_twice_as_many_by_brute_force(
    space: PrunedSpace, chunks: ChunkFacts, free: int, budget: float | None, read: int
) -> None:
    situation, fit = Situation(free, budget), BestFit()
    most = fit.choose(space, chunks, SIZES, situation)
    step = fit.choose_step(space, chunks, SIZES, situation, read)
    smaller = [
        config
        for config in every(space, len(chunks.tokens))
        if 2 * read <= config.num_chunks < most.config.num_chunks
        and fit.fits(size(config, chunks, SIZES), situation)
    ]
    if most.config.num_chunks <= read:
        assert step is None
    elif not smaller:
        assert step == most
    else:
        assert step is not None
        assert step.reason == "step"
        assert order(step.config) == min(map(order, smaller))
        plan = size(step.config, chunks, SIZES)
        assert (step.plan, step.need) == (plan, plan.need)
        assert step.seconds == fit.seconds(plan, situation)
        assert (step.free_tokens, step.considered) == (free, most.considered)


def choose(
    space: PrunedSpace, chunks: ChunkFacts, free: int, budget: float | None = None
) -> Choice:
    return BestFit().choose(space, chunks, SIZES, Situation(free, budget))


JOINT = pruned_space(QueryProfile("high", joint_reasoning=True, pieces=6, summary_words=(60, 120)))


def test_figure_8_stuff_would_queue_and_map_reduce_starts() -> None:
    """20 chunks and summaries of 100 words, in a memory that holds the mappers but not stuff."""
    space = PrunedSpace((Region("stuff", (20, 20)), Region("map_reduce", (20, 20), (100, 100))))
    chunks = ChunkFacts((500,) * 20)
    choice = choose(space, chunks, free=4000)
    assert choice.config == SynthesisConfig("map_reduce", 20, 100)
    assert choice.reason == "fits"
    assert choice.need <= 4000 < size(SynthesisConfig("stuff", 20), chunks, SIZES).need
    # With less, not even the mappers' summaries fit; with more, both would.
    assert choose(space, chunks, free=2000).reason == "fallback"
    assert choose(space, chunks, free=12_000).config.method == "map_reduce"


def test_a_number_of_chunks_that_is_held_waits_for_its_memory() -> None:
    chunks = ChunkFacts((500,) * 20)
    profile = QueryProfile("high", joint_reasoning=True, pieces=2)
    space = pruned_space(profile, Held(num_chunks=20))
    for free in (4000, 2000, 0):
        assert choose(space, chunks, free=free).config.num_chunks == 20
    assert choose(space, chunks, free=0).reason == "queued"
    assert choose(pruned_space(profile), chunks, free=0).config.num_chunks == 1


def test_five_or_six_chunks_fit_so_it_takes_six() -> None:
    """The example of RAGServe §4.3."""
    space = PrunedSpace((Region("stuff", (5, 10)),))
    chunks = ChunkFacts((100,) * 10)
    six = size(SynthesisConfig("stuff", 6), chunks, SIZES).need
    assert choose(space, chunks, free=six + 50).config == SynthesisConfig("stuff", 6)


def test_with_the_tree_warm_a_latency_budget_reads_more() -> None:
    cold = ChunkFacts((400,) * 18)
    path = tuple(30 + 400 * count for count in range(19))
    warm = ChunkFacts((400,) * 18, path, alone_cached=(430,) * 18)
    space = pruned_space(QueryProfile("low", joint_reasoning=True, pieces=6))
    budget = 1.7
    few, many = (choose(space, chunks, 100_000, budget) for chunks in (cold, warm))
    assert few.reason == many.reason == "fits"
    assert few.config.num_chunks < many.config.num_chunks
    assert few.seconds <= budget
    assert many.seconds <= budget
    # What is cached but nobody uses saves time, not memory.
    assert choose(space, warm, 4000).config == choose(space, cold, 4000).config


def test_what_running_requests_hold_needs_no_memory() -> None:
    path = tuple(30 + 400 * count for count in range(19))
    shared = ChunkFacts((400,) * 18, path, path)
    assert (
        choose(JOINT, shared, 800).config.num_chunks
        > choose(JOINT, ChunkFacts((400,) * 18), 800).config.num_chunks
    )


def test_a_budget_that_nothing_meets_takes_the_least() -> None:
    choice = choose(JOINT, ChunkFacts((400,) * 18), 100_000, budget=1e-6)
    assert choice.reason == "late"
    assert choice.config.num_chunks == 1


def test_a_queue_eats_the_budget() -> None:
    chunks = ChunkFacts((400,) * 18)
    space = pruned_space(QueryProfile("low", joint_reasoning=True, pieces=6))
    free = BestFit().choose(space, chunks, SIZES, Situation(100_000, 3.0))
    behind = BestFit().choose(space, chunks, SIZES, Situation(100_000, 3.0, queue_seconds=1.5))
    slow = BestFit().choose(space, chunks, SIZES, Situation(100_000, 3.0, pace=1.5))
    assert behind.config.num_chunks < free.config.num_chunks
    assert slow.config.num_chunks < free.config.num_chunks


def test_decoding_takes_rounds_where_not_all_mappers_fit() -> None:
    chunks = ChunkFacts((200,) * 8)
    fit = BestFit(PrefillCostModel((0, 1), (1, 2), ((0, 0), (0, 0))), decode_seconds=1.0)
    plan = size(SynthesisConfig("map_rerank", 8), chunks, SIZES)
    assert plan.need == 40 + 200 + 2 + 30
    assert fit.seconds(plan, Situation(8 * plan.need)) == 30
    assert fit.seconds(plan, Situation(4 * plan.need)) == 60
    assert fit.seconds(plan, Situation(plan.need)) == 240
    assert plan.footprint == 8 * plan.need
    reduced = size(SynthesisConfig("map_reduce", 8, 30), chunks, SIZES)
    assert reduced.last == Call(50 + 8 * (40 + 2), 30)
    assert fit.seconds(reduced, Situation(100_000)) == 40 + 30


def test_an_unknown_window_limits_nothing() -> None:
    chunks = ChunkFacts((5000,))
    assert size(SynthesisConfig("stuff", 1), chunks, SIZES).longest == 5000 + 60 + 2 + 30
    cut = dataclasses.replace(SIZES, window=1000)
    assert size(SynthesisConfig("stuff", 1), chunks, cut).longest == 1000
    assert size(SynthesisConfig("map_rerank", 1), chunks, cut).longest == 1000


def test_decoding_takes_no_negative_time() -> None:
    with pytest.raises(ConfigurationError, match="decode_seconds"):
        BestFit(decode_seconds=-1)
