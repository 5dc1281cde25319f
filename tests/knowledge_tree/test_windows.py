"""What groups of layers need of a prompt."""

from __future__ import annotations

import random

import pytest

from ragcache_integrations.knowledge_tree.node import in_group
from ragcache_integrations.knowledge_tree.tier import Windows


@pytest.mark.parametrize("windows", [(None,), (2,), (None, 2), (3, None, 1), (2, 4)])
def test_a_prompt_continues_at_the_last_place_at_which_every_group_has_its_window(
    windows: tuple[int | None, ...],
) -> None:
    dice = random.Random(3)
    keys = range(1, 13)
    seen = set()
    for _ in range(300):
        start = dice.randint(0, len(keys))
        share = dice.choice([0.5, 0.8, 0.95])
        there = {
            in_group(key, group)
            for key in keys
            for group in range(len(windows))
            if dice.random() < share
        }
        whole = Windows(windows)
        expected = max(
            end
            for end in range(start, len(keys) + 1)
            if all(
                in_group(key, group) in there
                for group in range(len(windows))
                for key in keys[whole.first(group, start, end) : end]
            )
        )
        assert whole.furthest(keys, start, there.__contains__) == expected
        seen.add(expected - start)
    assert len(seen) > 3


def test_what_a_group_needs_begins_where_the_window_or_the_rest_does() -> None:
    windows = Windows((None, 2))
    assert [windows.first(group, 3, 9) for group in range(2)] == [3, 7]
    assert [windows.first(group, 8, 9) for group in range(2)] == [8, 8]
