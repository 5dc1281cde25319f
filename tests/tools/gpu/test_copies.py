from __future__ import annotations

from collections.abc import Sequence

import pytest

from ragcache_integrations.engine.in_vllm.host_copies import CPUCopies
from tools.gpu.copies import CONTROL, LAYOUTS, check, kv_cache, right

BLOCKS, SLOTS, LAYERS, ROUNDS = 16, 12, 2, 12


class Late(CPUCopies):
    """Reads blocks back one step too late."""

    _next: tuple[Sequence[int], Sequence[int]] = ((), ())

    def read_back(self, slots: Sequence[int], blocks: Sequence[int]) -> None:
        last, self._next = self._next, (slots, blocks)
        super().read_back(*last)


@pytest.mark.parametrize("least", [1, 4])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_the_check_finds_wrong_values_only_where_there_are_some(layout: str, least: int) -> None:
    layers = kv_cache(BLOCKS, LAYOUTS[layout], "cpu", LAYERS)
    copies, late = CPUCopies(layers, BLOCKS, SLOTS), Late(layers, BLOCKS, SLOTS)
    assert check(copies, layers, BLOCKS, SLOTS, ROUNDS, seed=1, least=least) == 0
    assert check(late, layers, BLOCKS, SLOTS, ROUNDS, seed=1, least=least) > 0


def test_a_control_that_finds_nothing_is_a_failure() -> None:
    assert right({"wrong values": 0, CONTROL: 7})
    assert right({"wrong values": 0}), "the CPU has no control"
    assert not right({"wrong values": 0, CONTROL: 0})
    assert not right({"wrong values": 0, "wrong values, small buffer": 1, CONTROL: 7})
