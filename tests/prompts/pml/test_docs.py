"""Errors are what docs/pml.md shows of them; its other programs run with all pages'."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

PAGE = Path(__file__).parents[3] / "docs" / "pml.md"
ERRORS = re.findall(
    r"^# (line \d+, column \d+: .*)$", PAGE.read_text(encoding="utf-8"), re.MULTILINE
)


def is_shown(expected: str, shown: str) -> bool:
    return (
        re.fullmatch(".*".join(re.escape(part) for part in expected.split("...")), shown)
        is not None
    )


def test_the_errors_are_those_it_shows(capsys: pytest.CaptureFixture[str]) -> None:
    (block,) = re.findall(
        r"^```python\n(from ragcache_integrations\.errors.*?)^```",
        PAGE.read_text(encoding="utf-8"),
        re.MULTILINE | re.DOTALL,
    )
    exec(compile(block, "pml.md", "exec"), {})
    shown = capsys.readouterr().out.splitlines()
    assert len(shown) == len(ERRORS) == 4
    assert [
        line for line, said in zip(ERRORS, shown, strict=True) if not is_shown(line, said)
    ] == []
