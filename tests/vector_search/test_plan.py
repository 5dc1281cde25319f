from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ragcache_integrations.errors import ConfigurationError
from ragcache_integrations.vector_search import StagePlan
from ragcache_integrations.vector_search.searches import Pace


@pytest.mark.parametrize(
    ("given_", "message"),
    [
        ({}, "exactly one of number, seconds and share, got none"),
        ({"number": 2, "share": 0.5}, "exactly one"),
        ({"number": 0}, "number must be a whole number of at least 1, got 0"),
        ({"number": 2.5}, "number must be"),
        ({"number": True}, "number must be"),
        ({"number": "8"}, "number must be"),
        ({"seconds": 0}, "seconds must be a number above 0, got 0"),
        ({"seconds": math.inf}, "seconds must be"),
        ({"seconds": math.nan}, "seconds must be"),
        ({"share": 1.1}, "share must be a number above 0 and at most 1, got 1.1"),
        ({"share": -1}, "share must be"),
    ],
)
def test_what_is_no_plan(given_: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        StagePlan(**given_)


@given(st.integers(1, 50), st.floats(1, 1e9))
def test_a_number_of_stages_shares_the_work(number: int, total: float) -> None:
    plan = StagePlan(number=number)
    assert plan.most == number
    *ends, last = plan.ends(total)
    assert ends == pytest.approx([total * one / number for one in range(1, number)])
    assert last == math.inf  # whatever it turns out to be


@pytest.mark.parametrize(("share", "most"), [(1, 1), (0.5, 2), (0.125, 8), (0.1, 10), (0.3, 4)])
def test_shares_are_whole_together(share: float, most: int) -> None:
    plan = StagePlan(share=share)
    assert plan.most == most
    assert plan.ends(100)[:-1] == pytest.approx([100 * share * one for one in range(1, most)])


def test_seconds_are_measured() -> None:
    pace = Pace()
    plan = StagePlan(seconds=0.5)
    assert plan.most is None
    assert plan.until(0, 1600, pace) == 100  # a guess, as long as nothing was measured
    pace.note(3000, 1)
    assert plan.until(0, 1600, pace) == 1500
    assert plan.until(200, 1600, pace) == 1700
    pace.note(0, 1)
    pace.note(10, 0)
    assert plan.until(0, 1600, pace) == 1500
