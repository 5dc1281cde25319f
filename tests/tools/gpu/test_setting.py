"""What the parts that compare engines have in common."""

from __future__ import annotations

import random

import pytest
from parts.servers.serving import Served

from tools.gpu.setting import Words, compared, poisson


def count_tokens(text: str) -> int:
    return sum(1 + len(word) // 5 for word in text.split())


@pytest.mark.parametrize("tokens", [1, 2, 100, 1777])
def test_texts_have_the_number_of_tokens(tokens: int) -> None:
    words = Words(count_tokens)
    texts = [words(tokens, random.Random(seed)) for seed in range(3)]
    assert [count_tokens(text) for text in texts] == [tokens] * 3
    assert len(set(texts)) == 3


def test_ratios_are_the_others_over_ours() -> None:
    served = {
        "stock": Served([0.2, 0.4], [(1,), (2,)], [0, 10], 1.0, [100, 100]),
        "ours": Served([0.1, 0.2], [(1,), (2,)], [90, 90], 1.0, [100, 100]),
    }
    shown = compared(served, "ours")
    assert shown["stock_over_ours"]["median"] == [2.0, 2.0, 2.0]
    assert shown["stock"]["cached_share"] == 0.05
    assert shown["ours"]["ttft_median_ms"] == 150.0
    assert "ours_over_ours" not in shown


def test_requests_arrive_at_the_rate() -> None:
    arrivals = poisson(10.0, 4000, (0, 1))
    assert arrivals == sorted(arrivals) == poisson(10.0, 4000, (0, 1))
    assert len(arrivals) / arrivals[-1] == pytest.approx(10.0, rel=0.1)
