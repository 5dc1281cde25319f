"""FinQA and TAT-QA: questions on the tables and texts of companies' reports.

Numbers are read as reports write them: with signs, currencies, percents and units.
``$(1,234.5) million`` is -1234.5 with the unit 6, the power of ten that it is to be multiplied by;
``12.5%`` is 12.5 with the unit -2. Numbers are exact decimals, so nothing is lost by a unit.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

from typing_extensions import override

from ragcache_integrations.core.checks import as_number
from ragcache_integrations.core.files import Row, text_of

from .base import Answer, EvalQuestion, Scored
from .metrics import normalise_answer, option_in_text
from .published import Content, Passages, PublishedDataset, texts_of

__all__ = [
    "TATQA",
    "UNITS",
    "FinQA",
    "Quantity",
    "read_quantity",
    "same_quantity",
    "table_text",
]

SYSTEM = (
    "You answer questions about companies from the tables and texts of their reports that you are "
    "given. Give the answer alone, a number with its unit."
)
CELL, SPAN = " | ", "; "
PLACES = 2
"""Decimals to which TAT-QA's own metric rounds."""
EXACT = Decimal("0.00001")
"""FinQA's results of programs have five decimals."""
YES_NO = ("yes", "no")
UNIT_WORDS = {"hundred", "thousand", "million", "billion", "percent", "us"}


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


def table_text(rows: Sequence[Sequence[str]]) -> str:
    """Write a table as a line for each row, with its cells between bars; empty rows are left out.

    Raises:
        TypeError: A cell is no text.
    """
    lines = [[cell.strip() for cell in row] for row in rows]
    return "\n".join(CELL.join(line) for line in lines if any(line))


class TATQA(PublishedDataset):
    """Questions on a table and its paragraphs in a report (Zhu et al. 2021).

    Each table and each paragraph is a document; retrieval searches those of all reports, so a
    question that names no company may have its like in another report.

    Right answers have their unit, as in ``-12.6 million``. Exact match and F1 follow the authors'
    metric: a number has to be right to two decimals with its unit, where 0.1250 and 12.5 % are the
    same; several spans may come in any order. ``value_match`` also accepts a number without its
    unit, as it is in the table's cells. Scores are reported for each kind of answer, too.
    """

    name = "tatqa"
    title = "TAT-QA"
    metrics = ("exact_match", "f1", "value_match")
    max_tokens = 48
    system = SYSTEM

    @classmethod
    @override
    def questions_of(cls, content: Content, passages: Passages) -> Iterator[EvalQuestion]:
        for report in content.rows:
            table = passages.add(table_text(report["table"]["table"]))
            texts = {
                str(paragraph["order"]): passages.add(text_of(paragraph, "text"))
                for paragraph in report["paragraphs"]
            }
            for row in report["questions"]:
                source = text_of(row, "answer_from")
                named = [str(order) for order in row.get("rel_paragraphs", ())]
                gold = [] if source == "text" else [table]
                gold += [] if source == "table" else [texts[order] for order in named]
                yield EvalQuestion(
                    text_of(row, "uid"),
                    text_of(row, "question"),
                    (_right_answer(row),),
                    gold_documents=tuple(dict.fromkeys(gold)),
                    group=text_of(row, "answer_type"),
                )

    @override
    def score(self, question: EvalQuestion, answer: Answer) -> Scored:
        text, right = answer.text.strip(), question.answers[0]
        number = None if question.group == "multi-span" else _whole_quantity(right)
        if number is None:
            exact = float(_words(text) == _words(right))
            scores = {"exact_match": exact, "f1": _set_f1(text, right), "value_match": exact}
            return Scored(scores, text)
        said = read_quantity(text)
        step = Decimal(1).scaleb((number.unit or 0) - PLACES)
        exact, close = (
            float(said is not None and same_quantity(said, number, step=step, unit_needed=needed))
            for needed in (True, False)
        )
        return Scored({"exact_match": exact, "f1": exact, "value_match": close}, text)


class FinQA(PublishedDataset):
    """Questions that take arithmetic on a page of a report (Chen et al. 2021).

    The texts before and after a page's table are documents, in pieces of about 2,000 characters,
    and so is the table. Where the authors execute programs, a text is scored: an answer is right if
    it equals the authors' result, rounded to the last digit of their answer; a percent may be
    written as a fraction, and other units are ignored, since the data have none. Yes and no have to
    be named.
    """

    name = "finqa"
    title = "FinQA"
    metrics = ("accuracy",)
    max_tokens = 32
    system = SYSTEM

    @classmethod
    @override
    def questions_of(cls, content: Content, passages: Passages) -> Iterator[EvalQuestion]:
        for page in content.rows:
            sentences = [*page["pre_text"], *page["post_text"]]
            table = passages.add(table_text(page["table"]))
            texts: dict[str, str] = {}
            for part in (page["pre_text"], page["post_text"]):
                texts |= passages.add_long("\n".join(part))
            qa = page["qa"]
            gold: list[str] = []
            for name in qa["gold_inds"]:
                kind, _, place = name.partition("_")
                if kind == "table":
                    gold.append(table)
                else:
                    sentence = sentences[int(place)]
                    gold += [document for document, text in texts.items() if sentence in text]
            yield EvalQuestion(
                text_of(page, "id"),
                text_of(qa, "question"),
                (_result(qa), str(qa.get("answer", ""))),
                gold_documents=tuple(dict.fromkeys(gold)),
            )

    @override
    def score(self, question: EvalQuestion, answer: Answer) -> Scored:
        text = answer.text.strip()
        result, written = question.answers
        if result in YES_NO:
            chosen = option_in_text(text, YES_NO)
            right = chosen is not None and YES_NO[chosen] == result
        else:
            right = _equals(read_quantity(text), Quantity(Decimal(result)), read_quantity(written))
        return Scored({"accuracy": float(right)}, text)


def _equals(said: Quantity | None, result: Quantity, written: Quantity | None) -> bool:
    if said is None:
        return False
    step = EXACT
    # The answer that people wrote says how far the result was rounded, if it is the same number.
    if written is not None and same_quantity(result, written):
        step = written.step
    unit = said.unit if said.unit is not None and said.unit < 0 else 0
    return any(
        same_quantity(Quantity(said.number, power), result, step=step) for power in {0, unit}
    )


def _result(qa: Row) -> str:
    """Return the result of the authors' program: a number, or yes or no."""
    value = qa["exe_ans"]
    if not math.isfinite(as_number(value)) and value not in YES_NO:
        raise ValueError(f"'exe_ans' must be a number, yes or no, got {value!r:.60}")
    return value if isinstance(value, str) else f"{Decimal(repr(value)):f}"


def _right_answer(row: Row) -> str:
    """Return the right answer in words, each part with its unit."""
    value: Any = row["answer"]
    if math.isfinite(as_number(value)):
        parts: Sequence[str] = [f"{Decimal(repr(value)):f}"]
    else:
        parts = [value] if isinstance(value, str) else texts_of(row, "answer")
    scale = text_of(row, "scale", "")
    return SPAN.join(f"{part} {scale}" if scale and "%" not in part else part for part in parts)


def _whole_quantity(text: str) -> Quantity | None:
    """The number that a right answer is; ``None`` if it has several, or other words."""
    words = normalise_answer(text).split()
    numbers = [word for word in words if any(map(str.isdigit, word))]
    others = set(words).difference(numbers)
    return read_quantity(text) if len(numbers) == 1 and others <= UNIT_WORDS else None


def _words(text: str) -> list[str]:
    """Words in normal form and in any order, without what joins spans."""
    return sorted(word for word in normalise_answer(text).split() if word != "and")


def _set_f1(text: str, right: str) -> float:
    """F1 of the different words, as TAT-QA's metric takes it."""
    words, others = set(_words(text)), set(_words(right))
    common = len(words & others)
    return 2 * common / (len(words) + len(others)) if common else 0.0
