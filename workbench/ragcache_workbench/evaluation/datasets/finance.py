"""FinQA and TAT-QA: questions on the tables and texts of companies' reports."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from decimal import Decimal
from typing import Any

from typing_extensions import override

from ragcache_integrations.core.checks import as_number
from ragcache_integrations.core.files import Row, text_of

from .base import Answer, EvalQuestion, Scored
from .metrics import normalise_answer, option_in_text
from .passages import Passages
from .published import Content, Published, PublishedDataset
from .quantities import Quantity, read_quantity, same_quantity
from .sources import texts_of

__all__ = ["TATQA", "FinQA", "table_text"]

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
    published = Published(
        home="https://github.com/NExTplusplus/TAT-QA (dataset_raw, CC BY 4.0)",
        files=(
            "tatqa_dataset_dev.json",
            "tatqa_dataset_test_gold.json",
            "tatqa_dataset_train.json",
        ),
        entry="table, paragraphs, and questions with answer, answer_type, answer_from and scale",
        bundled="tatqa.jsonl.gz",
    )

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
    published = Published(
        home="https://github.com/czyssrs/FinQA (dataset, MIT)",
        files=("dev.json", "test.json", "train.json"),
        entry="id, pre_text, table, post_text, and qa with question, answer, exe_ans and gold_inds",
    )

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
        msg = f"'exe_ans' must be a number, yes or no, got {value!r:.60}"
        raise ValueError(msg)
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
