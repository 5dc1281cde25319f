from __future__ import annotations

from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ragcache_workbench.evaluation.datasets.finance import (
    UNITS,
    Quantity,
    read_quantity,
    same_quantity,
)


@pytest.mark.parametrize(
    ("text", "number", "unit"),
    [
        ("12", "12", None),
        ("$1,496.5", "1496.5", None),
        ("$ 1,496.5 million", "1496.5", 6),
        ("US$3.2bn", "3.2", 9),
        ("\u20ac 5 thousands", "5", 3),
        ("(134)", "-134", None),
        ("$(1,234.5) million", "-1234.5", 6),
        ("-$12.6 million", "-12.6", 6),
        ("\u2212 12.6", "-12.6", None),
        ("$-3", "-3", None),
        ("+4.5%", "4.5", -2),
        ("(22.22)%", "-22.22", -2),
        ("(22.22 %)", "-22.22", -2),
        ("$(12.6 million)", "-12.6", 6),
        ("(12.5 percent )", "-12.5", -2),
        ("(12.6 million) in 2019", "-12.6", 6),
        ("12.6 million)", "12.6", 6),
        ("12.5 per cent", "12.5", -2),
        (".5", "0.5", None),
        ("12.6 million in 2019", "12.6", 6),
        ("It was 12.6 million.", "12.6", 6),
        ("5 more than before", "5", None),
        ("1234567", "1234567", None),
    ],
)
def test_numbers_as_reports_write_them(text: str, number: str, unit: int | None) -> None:
    assert read_quantity(text) == Quantity(Decimal(number), unit)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "none",
        "In 2019, it was 12",
        "FY19",
        "from 3 to 4",
        "v1.2.3",
        "2018; 2019",
        "3 to 4",
        "5-6",
    ],
)
def test_no_number_or_several(text: str) -> None:
    assert read_quantity(text) is None


@given(st.text(max_size=40) | st.from_regex(r"[-+($]*[\d.,]{0,30}[)%]? ?(million|k|percents?)?"))
def test_any_text_is_a_number_or_none(text: str) -> None:
    quantity = read_quantity(text)
    if quantity is not None:
        assert quantity.value.is_finite()
        assert quantity.step > 0
        assert same_quantity(quantity, quantity)


@given(st.decimals(-(10**9), 10**9, places=2), st.sampled_from(sorted(UNITS)))
def test_a_unit_is_a_power_of_ten(number: Decimal, name: str) -> None:
    quantity = read_quantity(f"{number} {name}")
    assert quantity is not None
    plain = Quantity(number.scaleb(UNITS[name]))
    assert quantity.value == plain.value
    assert same_quantity(quantity, plain)
    assert same_quantity(plain, quantity)


def test_an_answer_is_rounded_to_the_last_digit_of_the_right_one() -> None:
    right = Quantity(Decimal("12.5"), -2)
    assert right.step == Decimal("0.001")
    for text, same in (("12.54%", True), ("12.56%", False), ("0.1254", True), ("13%", False)):
        answer = read_quantity(text)
        assert answer is not None
        assert same_quantity(answer, right) is same
    bare = Quantity(Decimal("12.5"))
    assert not same_quantity(bare, right)
    assert same_quantity(bare, right, unit_needed=False)
    # A unit that is written has to be right.
    assert not same_quantity(Quantity(Decimal("12.5"), 6), right, unit_needed=False)
    assert same_quantity(Quantity(Decimal("12.6"), -2), right, step=Decimal("0.01"))
