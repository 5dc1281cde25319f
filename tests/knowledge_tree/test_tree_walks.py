"""Long random walks: they reach full tiers and long histories, where short sequences do not."""

from __future__ import annotations

import random

import pytest

from ragcache_integrations.knowledge_tree import POLICIES, tier
from tests.support.sizes import scaled

from .world import LENGTHS, Asked, Setting, World

STEPS = 250
ACTIONS = {
    "serve": 3,
    "begin": 3,
    "arrive": 2,
    "admit": 6,
    "advance": 4,
    "preempt": 1,
    "finish": 5,
    "abort": 1,
    "end_step": 6,
    "sleep": 1,
    "pin": 1,
    "unpin": 1,
}


class Walk:
    """Drives a world by the numbers of a seed."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        pick = self.random.choice
        self.world = World(
            Setting(
                policy=sorted(POLICIES)[seed % len(POLICIES)],
                block_size=pick([1, 2, 4]),
                gpu_blocks=pick([6, 10, 16]),
                host_blocks=pick([0, 1, 3, 8, 16, 40]),
                cache_depth=pick([None, None, 1, 2]),
                frequency_window=pick([None, None, 3.0]),
                rule=pick(["unused", "always"]),
                access_first=pick([False, True]),
                gap=pick([0, 0, 1]),
                quotas=pick([(), (("tenant", 0.5),), (("tenant", 0.3), ("", 0.7))]),
                longest=pick([0, 4]),
            )
        )
        self.names = sorted(LENGTHS)[: pick([2, 4, 5])]
        self.clears = seed % 3 == 0

    def asked(self) -> Asked:
        pick, number = self.random.choice, self.random.randrange
        return Asked(
            namespace=pick(["", "", "tenant"]),
            system=pick([0, 3]),
            documents=[(pick(self.names), pick([0, 0, 0, 0, 1])) for _ in range(pick([1, 2, 3]))],
            question=number(4),
            answer=number(4),
            earlier=pick([None, None, None, number(8)]),
            priority=pick([0, 0, 1, -1]),
        )

    def pass_on(self, action: str, which: int) -> None:
        """What depends on time."""
        if action == "pin":
            self.world.pin(which, self.random.choice([None, 1.0, 5.0]))
        else:
            self.world.sleep(self.random.choice([0.5, 2.0, 10.0]))

    def step(self) -> None:
        world, pick, number = self.world, self.random.choice, self.random.randrange
        chunk, which, leave = pick([1, 2, 4, 100]), number(8), pick([False, True])
        action = self.random.choices(list(ACTIONS), list(ACTIONS.values()))[0]
        if len(world.driver.waiting) > 6:
            action = "abort"
        if self.clears and not number(100):
            world.clear(enter_again=leave)
        elif action in ("arrive", "serve"):
            getattr(world, action)(self.asked())
        elif action == "begin":
            world.begin(self.asked(), chunk)
        elif action == "admit":
            world.admit(which, chunk, pick([0, 1, 2]))
        elif action == "advance":
            world.advance(which, chunk)
        elif action in ("preempt", "unpin"):
            getattr(world, action)(which)
        elif action in ("finish", "abort"):
            getattr(world, action)(which, leave=leave)
        elif action in ("pin", "sleep"):
            self.pass_on(action, which)
        else:
            world.end_step()
        world.check()


@pytest.mark.parametrize("seed", range(scaled(100)))
def test_walk(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tier, "HEAP_SLACK", 4)  # so that heaps are rebuilt in small trees too
    walk = Walk(seed)
    for _ in range(STEPS):
        walk.step()
