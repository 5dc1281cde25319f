"""The replacement policies by examples: which document goes first under each of them."""

from __future__ import annotations

import pytest

from .library import Library


class PolicyContract:
    """What holds for every policy; ``victims`` tells them apart.

    D1 is asked for four times, D2 is costly, D3 was asked for last, D4 and D5 are nothing special.
    """

    policy: str
    victims: tuple[str, ...]

    @staticmethod
    def costs(cached: int, new: int) -> float:
        return 50.0 if new == 10 else float(new)

    @pytest.fixture
    def library(self) -> Library:
        library = Library(
            policy=self.policy,
            lengths={"S": 0, "D2": 9},
            prefill_seconds=self.costs,
        )
        for name in ("D5", "D1", "D1", "D1", "D1", "D2", "D4", "D3"):
            library.ask(name)
        return library

    def test_order_of_eviction(self, library: Library) -> None:
        order: list[str] = []
        while gone := library.in_gpu():
            library.evict(1)
            order += [name for name in gone if name not in library.in_gpu()]
        assert tuple(order) == self.victims

    def test_an_access_never_lowers_the_priority(self, library: Library) -> None:
        before = library.node("D4").gpu.priority
        library.ask("D4")
        assert library.node("D4").gpu.priority >= before

    def test_the_clock_is_the_highest_priority_that_went(self, library: Library) -> None:
        priorities = [node.gpu.priority for node in library.tree.nodes() if node.keys]
        library.evict(len(library.tree.gpu))
        assert library.tree.gpu.clock == max(0.0, *priorities)  # it never goes back

    def test_parents_outlive_their_children(self, library: Library) -> None:
        for _ in range(9):
            library.ask("D4", "D6")  # D6 is worth as much as D4 or more
        while "D6" in library.in_gpu():
            assert "D4" in library.in_gpu()
            library.evict(1)


class TestLRFU(PolicyContract):
    policy = "lrfu"
    victims = ("D5", "D4", "D3", "D2", "D1")


class TestPGDSF(PolicyContract):
    policy = "pgdsf"
    victims = ("D5", "D4", "D3", "D1", "D2")


class TestGDSF(PolicyContract):
    policy = "gdsf"
    victims = ("D5", "D2", "D4", "D3", "D1")


class TestLRU(PolicyContract):
    policy = "lru"
    victims = ("D5", "D1", "D2", "D4", "D3")


class TestLFU(PolicyContract):
    policy = "lfu"
    victims = ("D5", "D2", "D4", "D3", "D1")


@pytest.mark.parametrize(("policy", "goes"), [("gdsf", "famous"), ("lfu", "new")])
def test_only_a_clock_lets_old_fame_fade(policy: str, goes: str) -> None:
    library = Library(policy=policy, lengths={"S": 0})
    for _ in range(3):
        library.ask("famous")
    for number in range(4):  # each comes when the clock is higher by one
        library.ask(f"D{number}")
        library.evict(2)
    library.ask("new")
    library.evict(2)
    assert goes not in library.in_gpu()
