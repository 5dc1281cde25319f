from __future__ import annotations

import numpy as np
import pytest

from ragcache_workbench.evaluation.workloads import Kind, rephrase


def rephrasings(text: str, kind: Kind) -> set[str]:
    rng = np.random.default_rng(0)
    return {rephrase(text, kind, rng, set()) for _ in range(500)}


@pytest.mark.parametrize(
    ("kind", "text", "part"),
    [
        ("slight", "who won", "please tell me who won"),
        ("slight", "who won?", "who won, please?"),
        ("slight", "what is a tree", "what's a tree"),
        ("medium", "when did the movie end", "the film end"),
        ("medium", "what is it called", "known as"),
        ("medium", "who won the cup in 1998", "in 1998, who won the cup"),
        ("medium", "Amblyopia: is loss permanent?", "is loss permanent, Amblyopia"),
        ("heavy", "what is the owner of it", "the owner of it is what"),
        ("heavy", "who is the oldest king of all Spain", "oldest king all Spain"),
    ],
)
def test_rules(kind: Kind, text: str, part: str) -> None:
    assert any(part in rephrasing for rephrasing in rephrasings(text, kind))


def test_only_whole_words_are_replaced() -> None:
    for rephrasing in rephrasings("is filmed madeira usable", "medium"):
        assert "filmed madeira usable" in rephrasing
