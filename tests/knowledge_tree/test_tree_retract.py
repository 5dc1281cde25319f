"""A wrong guess is no access to its documents."""

from __future__ import annotations

import pytest

from ragcache_integrations.knowledge_tree import KnowledgeTree
from ragcache_integrations.knowledge_tree.node import Path


def enter(tree: KnowledgeTree[int], *names: str) -> Path:
    """A request over documents of one block each; blocks are named by the path to them."""
    spans = [(name, 2 * number, 2 * number + 2) for number, name in enumerate(names)]
    keys = ["/".join(names[: number + 1]) for number in range(len(names))]
    return tree.enter("", spans, keys)


def frequencies(tree: KnowledgeTree[int]) -> dict[str, int]:
    return {node.name: node.frequency for node in tree.nodes() if node.name}


@pytest.fixture(params=[None, 10.0])
def tree(request: pytest.FixtureRequest) -> KnowledgeTree[int]:
    return KnowledgeTree(
        block_size=2, gpu_blocks=9, frequency_window=request.param, now=lambda: 5.0
    )


def test_a_wrong_guess_and_the_right_documents_count_once(tree: KnowledgeTree[int]) -> None:
    guess = enter(tree, "a", "c")
    tree.access(guess, 0, 0, 6)
    tree.retract(guess)
    tree.leave(guess)
    right = enter(tree, "a", "b")
    tree.access(right, 2, 0, 6)
    assert frequencies(tree) == {"a": 1, "b": 1}
    tree.retract(guess)  # a second time changes nothing
    assert frequencies(tree) == {"a": 1, "b": 1}


def test_a_guess_may_have_left_before_it_turns_out_to_be_wrong(tree: KnowledgeTree[int]) -> None:
    guess, other = enter(tree, "a", "c"), enter(tree, "a", "c")
    tree.access(guess, 0, 0, 6)
    tree.access(other, 0, 0, 6)
    tree.leave(guess)
    assert frequencies(tree) == {"a": 2, "c": 2}
    tree.retract(guess)
    assert frequencies(tree) == {"a": 1, "c": 1}


def test_what_computing_it_cost_stays_known(tree: KnowledgeTree[int]) -> None:
    guess, other = enter(tree, "a"), enter(tree, "a")
    tree.access(guess, 0, 0, 4)
    cost = guess.nodes[-1].average_cost
    assert cost > 0
    tree.retract(guess)
    assert other.nodes[-1].average_cost == cost


def test_a_request_that_was_not_admitted_has_nothing_to_take_back(
    tree: KnowledgeTree[int],
) -> None:
    guess, other = enter(tree, "a"), enter(tree, "a")
    tree.access(other, 0, 0, 4)
    tree.retract(guess)
    assert frequencies(tree) == {"a": 1}


def test_after_a_reset_there_is_nothing_to_take_back(tree: KnowledgeTree[int]) -> None:
    guess = enter(tree, "a")
    tree.access(guess, 0, 0, 4)
    tree.leave(guess)
    tree.clear()
    again = enter(tree, "a")
    tree.access(again, 0, 0, 4)
    tree.retract(guess)
    assert frequencies(tree) == {"a": 1}


def test_an_access_that_has_left_the_window_is_not_taken_back_twice() -> None:
    now = 0.0
    tree: KnowledgeTree[int] = KnowledgeTree(
        block_size=2, gpu_blocks=9, frequency_window=1.0, now=lambda: now
    )
    guess, other = enter(tree, "a"), enter(tree, "a")
    tree.access(guess, 0, 0, 4)
    now = 5.0
    tree.access(other, 2, 0, 4)
    assert frequencies(tree) == {"a": 1}
    tree.retract(guess)
    assert frequencies(tree) == {"a": 1}


def test_the_documents_of_a_wrong_guess_are_the_first_to_go() -> None:
    tree: KnowledgeTree[int] = KnowledgeTree(block_size=2, gpu_blocks=9)
    asked, guess = enter(tree, "a"), enter(tree, "b")
    for slot, path in enumerate((asked, guess)):
        tree.access(path, 0, 0, 4)
        for node in path.nodes:
            for key in node.keys:
                tree.release(key, slot)
    tree.retract(guess)
    assert tree.evict(1) == [1]
