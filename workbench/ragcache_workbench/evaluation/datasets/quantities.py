"""Numbers as financial reports write them: with signs, currencies, percents and units.

``$(1,234.5) million`` is -1234.5 with the unit 6, the power of ten that it is to be multiplied by;
``12.5%`` is 12.5 with the unit -2. Numbers are exact decimals, so nothing is lost by a unit.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from decimal import Decimal

__all__ = ["UNITS", "Quantity", "read_quantity", "same_quantity"]

UNITS = {
    "": 0,
    "%": -2,
    "percent": -2,
    "per cent": -2,
    "hundred": 2,
    "thousand": 3,
    "k": 3,
    "million": 6,
    "mn": 6,
    "m": 6,
    "billion": 9,
    "bn": 9,
    "b": 9,
    "trillion": 12,
}
"""Powers of ten that units stand for."""

_LONGEST = 400
"""Characters of an answer that are searched; and of a number, so that none is too large."""
_NAMES = "|".join(sorted((name.replace(" ", r"\s+") for name in UNITS if name), key=len)[::-1])
_NUMBER = re.compile(
    rf"""
    (?<![\w.])
    (?P<sign>[-+\u2212\u2013]\s?)? (?:(?:US|C|A)?[$\u20ac\u00a3\u00a5]\s*)?
    (?P<bracket>\()? (?:[$\u20ac\u00a3\u00a5]\s*)? (?P<inner>[-\u2212\u2013])?
    (?P<digits>(?:\d{{1,3}}(?:,\d{{3}})+|\d+)(?:\.\d+)?|\.\d+)
    \s* (?P<percent>%)? \s* (?P<close>\))? \s*
    (?P<unit>(?:{_NAMES})s?(?!\w))? \s* (?P<late>(?<!\))\))?
    """,
    re.VERBOSE | re.IGNORECASE | re.ASCII,
)


_ANOTHER = re.compile(r"\s*(?:[;,/&]|and\b|or\b|to\b|[-\u2013])\s*[$\u20ac\u00a3\u00a5]?\d")
"""What comes after a number that is the first of several."""


@dataclass(frozen=True, slots=True)
class Quantity:
    """A number with its unit.

    Attributes:
        number: The number as written, such as 12.5 of ``12.5%``.
        unit: The power of ten that it is multiplied by; ``None`` if no unit is written.
    """

    number: Decimal
    unit: int | None = None

    @property
    def value(self) -> Decimal:
        """The number times its unit."""
        return self.number.scaleb(self.unit or 0)

    @property
    def step(self) -> Decimal:
        """The value of the number's last digit, such as 0.001 of ``12.5%``."""
        exponent = self.number.as_tuple().exponent
        places = min(0, exponent) if isinstance(exponent, int) else 0
        return Decimal(1).scaleb(places + (self.unit or 0))


def read_quantity(text: str) -> Quantity | None:
    """Read the number of an answer: what the answer begins with, else the only number in it.

    Returns:
        The number; ``None`` if there is none, if the answer begins with a list of several, or if it
        has several elsewhere.
    """
    text = " ".join(text.split())[:_LONGEST]
    first = _NUMBER.match(text)
    if first is not None and _ANOTHER.match(text, first.end()):
        return None
    if first is None:
        matches = list(_NUMBER.finditer(text))
        if len(matches) != 1:
            return None
        first = matches[0]
    number = Decimal(first["digits"].replace(",", ""))
    # In accounts, a number in brackets is negative.
    bracketed = first["bracket"] is not None and (first["close"] or first["late"]) is not None
    minus = [part for part in (first["sign"], first["inner"]) if part and part.strip() != "+"]
    if bracketed or minus:
        number = -number
    name = "%" if first["percent"] else " ".join((first["unit"] or "").lower().split())
    return Quantity(number, UNITS[name if name in UNITS else name.rstrip("s")] if name else None)


def same_quantity(
    answer: Quantity, right: Quantity, *, step: Decimal | None = None, unit_needed: bool = True
) -> bool:
    """Whether an answer, rounded to the last digit of the right number, equals it.

    Args:
        answer: The answer.
        right: The right number.
        step: The value to round to; ``None`` for that of the right number's last digit.
        unit_needed: Whether an answer without a unit is taken as it is. Otherwise it is also right
            if it is with the right number's unit.
    """
    values = [answer.value]
    if not unit_needed and answer.unit is None:
        values.append(answer.number.scaleb(right.unit or 0))
    allowed = (right.step if step is None else step) / 2
    return any(abs(value - right.value) <= allowed for value in values)
