"""Algorithm 1 of RAGServe, and what stands in where a profile is missing."""

from __future__ import annotations

import threading
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ragcache_integrations.adaptive import PrunedSpace, QueryProfile, SynthesisConfig
from ragcache_integrations.adaptive.best_fit import (
    Held,
    RecentSpaces,
    Region,
    pruned_space,
    size_order,
)
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


@given(profiles, st.integers(1, 20))
def test_the_largest_is_what_best_fit_takes_first(profile: QueryProfile, found: int) -> None:
    space = pruned_space(profile)
    largest = space.largest(found)
    configurations = list(space.configurations(found))
    assert largest in configurations
    assert size_order(largest) == max(map(size_order, configurations))


def test_the_largest_of_a_complex_question_summarises_at_length() -> None:
    space = pruned_space(
        QueryProfile("high", joint_reasoning=True, pieces=2, summary_words=(30, 60))
    )
    assert space.largest(30) == SynthesisConfig("map_reduce", 6, 60)
    assert space.largest(4) == SynthesisConfig("map_reduce", 4, 60)


# Knobs that are held


@given(profiles, st.sampled_from(["stuff", "map_reduce", "map_rerank"]))
def test_a_method_that_is_held_is_that_of_every_question(
    profile: QueryProfile, method: Any
) -> None:
    space = pruned_space(profile, Held(method=method))
    words = profile.summary_words if method == "map_reduce" else None
    assert space == PrunedSpace((Region(method, (profile.pieces, 3 * profile.pieces), words),))


@given(profiles, st.integers(1, 12))
def test_a_number_of_chunks_that_is_held(profile: QueryProfile, count: int) -> None:
    space = pruned_space(profile, Held(num_chunks=count))
    assert space.methods == pruned_space(profile).methods
    assert {config.num_chunks for config in space.configurations(30)} == {count}
    assert {config.num_chunks for config in space.configurations(2)} == {min(2, count)}
    assert space.fewest_chunks == count


@given(profiles, st.integers(1, 300))
def test_a_length_of_summaries_that_is_held(profile: QueryProfile, words: int) -> None:
    free, space = pruned_space(profile), pruned_space(profile, Held(intermediate_length=words))
    assert space.methods == free.methods
    for region, before in zip(space.regions, free.regions, strict=True):
        assert region.chunks == before.chunks
        assert region.lengths == ((words,) if region.method == "map_reduce" else (None,))


def test_knob_by_knob_a_complex_question_is_answered_in_more_ways() -> None:
    """The steps of RAGServe's figure 16: chunks, method, length of summaries."""
    profile = QueryProfile("high", joint_reasoning=True, pieces=2, summary_words=(30, 60))
    steps = (Held(method="stuff"), Held(intermediate_length=100), Held())
    spaces = [set(pruned_space(profile, held).configurations(30)) for held in steps]
    assert spaces[0] == {SynthesisConfig("stuff", count) for count in range(2, 7)}
    assert spaces[1] - spaces[0] == {
        SynthesisConfig("map_reduce", count, 100) for count in range(2, 7)
    }
    assert spaces[2] - spaces[0] == {
        SynthesisConfig("map_reduce", count, length)
        for count in range(2, 7)
        for length in (30, 40, 50, 60)
    }


def test_the_union_keeps_what_is_held() -> None:
    held = Held(num_chunks=4)
    union = PrunedSpace.union(
        pruned_space(QueryProfile("low", joint_reasoning=joint, pieces=2), held)
        for joint in (False, True)
    )
    assert union.fewest_chunks == 4
    assert set(union.methods) == {"map_rerank", "stuff"}


@pytest.mark.parametrize(
    ("held", "said"),
    [
        ({"method": "stuf"}, "method must be one of .* or None, got 'stuf'.*did you mean 'stuff'"),
        ({"method": 3}, "method must be one of"),
        ({"num_chunks": 0}, "num_chunks must be .*at least 1"),
        ({"num_chunks": True}, "num_chunks must be"),
        ({"intermediate_length": 2.5}, "intermediate_length must be"),
        (
            {"method": "stuff", "intermediate_length": 50},
            "intermediate_length is for map_reduce, got 50 with method='stuff'",
        ),
        ({"method": "stuff", "num_chunks": 3}, "leave nothing to choose.*mode='fixed'"),
        (
            {"method": "map_reduce", "num_chunks": 3, "intermediate_length": 50},
            "leave nothing to choose",
        ),
    ],
)
def test_wrong_values_to_hold_are_refused(held: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigurationError, match=said):
        Held(**held)


def test_what_leaves_a_choice_may_be_held() -> None:
    Held(method="map_reduce", num_chunks=3)
    Held(method="map_reduce", intermediate_length=50)
    Held(num_chunks=3, intermediate_length=50)


def test_recent_spaces_forget_all_but_ten() -> None:
    default = pruned_space(QueryProfile("low", joint_reasoning=True, pieces=3))
    recent = RecentSpaces(default)
    assert recent.space() == default
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
    assert recent.space() != PrunedSpace.union([first, *others])


def test_recent_spaces_in_many_threads() -> None:
    recent = RecentSpaces(pruned_space(QueryProfile("low", joint_reasoning=True, pieces=3)))
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


def test_a_space_needs_a_region() -> None:
    with pytest.raises(ConfigurationError, match="at least one"):
        PrunedSpace(())


@pytest.mark.parametrize("fewest", [0, 4])
def test_the_fewest_chunks_are_within_the_space(fewest: int) -> None:
    with pytest.raises(ConfigurationError, match="fewest_chunks"):
        PrunedSpace((Region("stuff", (1, 3)),), fewest)
