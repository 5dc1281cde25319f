"""Whatever happens in whatever order, the tree keeps its promises and every hit reads its content.

``world.py`` says what is checked after every step.
"""

from __future__ import annotations

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from ragcache_integrations.knowledge_tree import POLICIES, tier
from tests.support.sizes import examples

from .world import LENGTHS, Asked, Setting, World

WHICH = st.integers(0, 7)
CHUNK = st.sampled_from([1, 2, 4, 100])
SETTINGS = st.builds(
    Setting,
    policy=st.sampled_from(sorted(POLICIES)),
    block_size=st.sampled_from([1, 2, 4]),
    gpu_blocks=st.sampled_from([4, 8, 12, 24]),
    host_blocks=st.sampled_from([0, 1, 3, 6, 12, 40]),
    cache_depth=st.sampled_from([None, None, 1, 2]),
    frequency_window=st.sampled_from([None, None, 3.0]),
    rule=st.sampled_from(["unused", "always"]),
    access_first=st.booleans(),
    gap=st.sampled_from([0, 0, 1]),
    quotas=st.sampled_from([(), (), (("tenant", 0.5),), (("tenant", 0.3), ("", 0.7))]),
    longest=st.sampled_from([0, 0, 4]),
)


REQUESTS = st.builds(
    Asked,
    namespace=st.sampled_from(["", "", "", "tenant"]),
    system=st.sampled_from([0, 3]),
    documents=st.lists(
        st.tuples(st.sampled_from(sorted(LENGTHS)), st.sampled_from([0, 0, 0, 0, 1])),
        min_size=1,
        max_size=3,
    ),
    question=st.sampled_from([0, 1, 3]),
    answer=st.integers(0, 4),
    earlier=st.one_of(st.none(), st.none(), st.none(), WHICH),
    priority=st.sampled_from([0, 0, 0, 1, -1]),
)


class TreeMachine(RuleBasedStateMachine):
    @initialize(setting=SETTINGS, before=st.lists(REQUESTS, max_size=10))
    def make(self, setting: Setting, before: list[Asked]) -> None:
        self.world = World(setting)
        for asked in before:
            self.world.serve(asked)

    @rule(asked=REQUESTS)
    def arrive(self, asked: Asked) -> None:
        self.world.arrive(asked)

    @rule(asked=REQUESTS)
    def serve(self, asked: Asked) -> None:
        self.world.serve(asked)

    @rule(asked=REQUESTS, chunk=CHUNK)
    def begin(self, asked: Asked, chunk: int) -> None:
        self.world.begin(asked, chunk)

    @rule(which=WHICH, chunk=CHUNK, pick=st.integers(0, 2))
    def admit(self, which: int, chunk: int, pick: int) -> None:
        self.world.admit(which, chunk, pick)

    @rule(which=WHICH, chunk=CHUNK)
    def advance(self, which: int, chunk: int) -> None:
        self.world.advance(which, chunk)

    @rule(which=WHICH)
    def preempt(self, which: int) -> None:
        self.world.preempt(which)

    @rule(which=WHICH, leave=st.booleans())
    def finish(self, which: int, leave: bool) -> None:
        self.world.finish(which, leave=leave)

    @rule(which=WHICH, leave=st.booleans())
    def abort(self, which: int, leave: bool) -> None:
        self.world.abort(which, leave=leave)

    @rule()
    def end_step(self) -> None:
        self.world.end_step()

    @rule(duration=st.sampled_from([0.5, 2.0, 10.0]))
    def sleep(self, duration: float) -> None:
        self.world.sleep(duration)

    @rule(which=WHICH, ttl=st.sampled_from([None, 1.0, 5.0]))
    def pin(self, which: int, ttl: float | None) -> None:
        self.world.pin(which, ttl)

    @rule(which=WHICH)
    def unpin(self, which: int) -> None:
        self.world.unpin(which)

    @rule(enter_again=st.booleans())
    def clear(self, enter_again: bool) -> None:
        self.world.clear(enter_again=enter_again)

    @invariant()
    def promises(self) -> None:
        self.world.check()


TestTreeMachine = TreeMachine.TestCase
TestTreeMachine.settings = examples(200)


@pytest.fixture(autouse=True)
def _little_heap_slack(monkeypatch: pytest.MonkeyPatch) -> None:
    """So that heaps are rebuilt in small trees too."""
    monkeypatch.setattr(tier, "HEAP_SLACK", 4)
