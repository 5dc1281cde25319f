from __future__ import annotations

import json
from io import StringIO

import pytest
from papers.base import Cell, Claim, Table, Unit, claims_table
from papers.outcome import markdown, show_tables
from rich.console import Console

from ragcache_workbench.evaluation import Interval

TABLE = Table(
    "A table",
    ("setting", "F1", "hit rate"),
    (
        (Cell("a | b"), Cell(Interval(0.5, 0.4, 0.6)), Cell(0.25, "share")),
        (Cell("c"), Cell(None), Cell(None, "share")),
    ),
    ("A note.",),
)


@pytest.mark.parametrize(
    ("value", "unit", "text"),
    [
        (None, "score", "-"),
        ("a text", "share", "a text"),
        (0.5, "score", "0.500"),
        (0.5, "share", "50.0 %"),
        (-0.02, "difference", "-0.020"),
        (1.5, "times", "1.50"),
        (1234.0, "count", "1,234"),
        (12.345, "ms", "12.3"),
        (Interval(0.5, 0.25, 0.75), "share", "50.0 % [25.0, 75.0]"),
        (Interval(2.0, 1.5, 2.5), "times", "2.00 [1.50, 2.50]"),
        (Interval(0.0, -0.1, 0.1), "difference", "+0.000 [-0.100, +0.100]"),
    ],
)
def test_figures_as_text(value: Interval | float | str | None, unit: Unit, text: str) -> None:
    assert Cell(value, unit).text == text


def test_as_markdown() -> None:
    page = markdown("A title", [TABLE], ["A remark."])
    assert page == (
        "# A title\n\n## A table\n\n"
        "| setting | F1 | hit rate |\n"
        "| --- | ---: | ---: |\n"
        "| a \\| b | 0.500 [0.400, 0.600] | 25.0 % |\n"
        "| c | - | - |\n\n"
        "A note.\n\nA remark.\n"
    )


def test_as_json() -> None:
    content = json.loads(json.dumps(TABLE.as_dict()))
    assert content == {
        "title": "A table",
        "columns": ["setting", "F1", "hit rate"],
        "rows": [["a | b", [0.5, 0.4, 0.6], 0.25], ["c", None, None]],
        "notes": ["A note."],
    }


def test_on_the_terminal() -> None:
    claims = claims_table("A paper", (Claim("[speed]", "2", "§1", Cell(3.0, "times")),))
    shown = StringIO()
    show_tables([TABLE, claims], ["A remark."], Console(file=shown, width=100))
    text = shown.getvalue()
    for words in ("A table", "0.500 [0.400, 0.600]", "A note.", "[speed]", "3.00", "A remark."):
        assert words in text
