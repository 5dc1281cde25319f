"""Lines of records that a folder from elsewhere may hold."""

from __future__ import annotations

import json
from typing import Any

import pytest

from ragcache_workbench.evaluation import Record

RECORD = Record(number=0, question="nq-1", text="Who?", session=1, sequence=0)
TIMES = [name for name in RECORD.as_dict() if name.endswith("_seconds")]


@pytest.mark.parametrize(
    ("name", "value"),
    [
        *((name, value) for name in TIMES for value in (-5.0, 1e308, float("nan"))),
        ("distance", float("nan")),
        ("recall_bound", 7.0),
        ("recall_bound", -0.5),
    ],
)
def test_fields_out_of_their_range_are_refused(name: str, value: Any) -> None:
    line = json.dumps(RECORD.as_dict() | {name: value}).encode()
    with pytest.raises(ValueError, match=name):
        Record.from_json(line)


def test_fields_at_the_ends_of_their_range_are_read() -> None:
    ends = dict.fromkeys(TIMES, 0.0) | {"recall_bound": 1.0}
    read = Record.from_json(json.dumps(RECORD.as_dict() | ends).encode())
    assert ends.items() <= read.as_dict().items()
