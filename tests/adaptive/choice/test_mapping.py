"""Algorithm 1 of RAGServe, and what stands in where a profile is missing."""

from __future__ import annotations

import threading

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ragcache_integrations.adaptive import PrunedSpace, QueryProfile, SynthesisConfig, pruned_space
from ragcache_integrations.adaptive.choice.mapping import DEFAULT_SPACE, RecentSpaces, Region
from ragcache_integrations.errors import ConfigurationError

profiles = st.builds(
    QueryProfile,
    st.sampled_from(["low", "high"]),
    st.booleans(),
    st.integers(1, 6),
    st.tuples(st.integers(30, 200), st.integers(30, 200)).map(lambda ends: tuple(sorted(ends))),
)


@given(profiles)
def test_it_maps_as_algorithm_1_does(profile: QueryProfile) -> None:
    # Line by line as the paper has it.
    if not profile.joint_reasoning:
        methods = {"map_rerank"}
    elif profile.complexity == "low":
        methods = {"stuff"}
    else:
        methods = {"stuff", "map_reduce"}
    space = pruned_space(profile)
    assert set(space.methods) == methods
    configurations = set(space.configurations(count=100))
    assert {configuration.method for configuration in configurations} == methods
    assert {configuration.num_chunks for configuration in configurations} == set(
        range(profile.pieces, 3 * profile.pieces + 1)
    )
    lengths = {
        configuration.intermediate_length
        for configuration in configurations
        if configuration.method == "map_reduce"
    }
    if lengths:
        assert (min(lengths), max(lengths)) == profile.summary_words  # type: ignore[type-var] # whole numbers


@given(profiles, st.integers(1, 20))
def test_no_configuration_reads_more_than_was_found(profile: QueryProfile, found: int) -> None:
    space = pruned_space(profile)
    configurations = list(space.configurations(found))
    assert configurations
    assert all(1 <= configuration.num_chunks <= found for configuration in configurations)
    assert 1 <= space.median(found).num_chunks <= found


def test_the_paper_prunes_1500_configurations_to_about_50() -> None:
    space = pruned_space(QueryProfile("high", joint_reasoning=True, pieces=3))
    assert 20 < len(set(space.configurations(30))) < 100


@given(st.lists(profiles, min_size=1, max_size=5))
def test_the_union_holds_what_each_holds_and_nothing_else(given_: list[QueryProfile]) -> None:
    spaces = [pruned_space(one) for one in given_]
    union = PrunedSpace.union(spaces)
    assert set(union.configurations(30)) == {
        one for space in spaces for one in space.configurations(30)
    }
    median = union.median(30)
    chunks = [
        configuration.num_chunks
        for configuration in union.configurations(30)
        if configuration.method == median.method
    ]
    assert min(chunks) <= median.num_chunks <= max(chunks)


def test_the_median_of_a_range() -> None:
    space = pruned_space(QueryProfile("high", joint_reasoning=True, pieces=2))
    assert space.median(30) == SynthesisConfig("stuff", 4)
    reduce_only = PrunedSpace((Region("map_reduce", (2, 6), (30, 60)),))
    assert reduce_only.median(30) == SynthesisConfig("map_reduce", 4, 45)


def test_recent_spaces_forget_all_but_ten() -> None:
    recent = RecentSpaces()
    assert recent.space() == DEFAULT_SPACE
    first = pruned_space(QueryProfile("low", joint_reasoning=False, pieces=1))
    recent.note(first)
    assert recent.space() == first
    others = [
        pruned_space(QueryProfile("low", joint_reasoning=True, pieces=1 + number % 6))
        for number in range(10)
    ]
    for other in others:
        recent.note(other)
    assert recent.space() == PrunedSpace.union(others)
    assert len(recent) == 10


def test_recent_spaces_in_many_threads() -> None:
    recent = RecentSpaces()
    spaces = [
        pruned_space(QueryProfile("high", joint_reasoning=True, pieces=pieces))
        for pieces in range(1, 7)
    ]
    problems = []

    def work(number: int) -> None:
        try:
            for _ in range(200):
                recent.note(spaces[number % 6])
                assert set(recent.space().regions) <= {
                    region for space in spaces for region in space.regions
                }
        except Exception as error:
            problems.append(error)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not problems


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("stuff", (0, 3)), "chunks must be two rising"),
        (("stuff", (3, 2)), "chunks must be two rising"),
        (("stuff", (1, 2), (30, 60)), "map_reduce alone"),
        (("map_reduce", (1, 2)), "map_reduce alone"),
    ],
)
def test_wrong_regions_are_refused(arguments: tuple[object, ...], said: str) -> None:
    with pytest.raises(ConfigurationError, match=said):
        Region(*arguments)  # type: ignore[arg-type] # that is the point


def test_a_space_needs_a_region() -> None:
    with pytest.raises(ConfigurationError, match="at least one"):
        PrunedSpace(())
