"""The programs of docs/pml.md run from files, where Python finds their source."""

from __future__ import annotations

import re
import runpy
from pathlib import Path

import pytest

PAGE = Path(__file__).parents[2] / "docs" / "pml.md"
BLOCKS = re.findall(
    r"^<!-- not run: needs its source .*-->\n```python\n(.*?)^```",
    PAGE.read_text(encoding="utf-8"),
    re.MULTILINE | re.DOTALL,
)
ERRORS = re.findall(
    r"^# (line \d+, column \d+: .*)$", PAGE.read_text(encoding="utf-8"), re.MULTILINE
)


def is_shown(expected: str, shown: str) -> bool:
    return (
        re.fullmatch(".*".join(re.escape(part) for part in expected.split("...")), shown)
        is not None
    )


@pytest.mark.parametrize("block", BLOCKS)
def test_it_runs_and_prints_what_it_says(
    block: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "program.py"
    path.write_text(block, encoding="utf-8")
    runpy.run_path(str(path))
    shown = capsys.readouterr().out.splitlines()
    expected = re.findall(r"^print\(.*?\)  # (.+)$", block, re.MULTILINE)
    assert len(shown) == len(expected) == block.count("print(")
    assert all(map(is_shown, expected, shown))


def test_the_page_has_programs() -> None:
    assert BLOCKS
    assert len(ERRORS) == 4


def test_the_errors_are_those_it_shows(capsys: pytest.CaptureFixture[str]) -> None:
    (block,) = re.findall(
        r"^```python\n(from ragcache_integrations\.errors.*?)^```",
        PAGE.read_text(encoding="utf-8"),
        re.MULTILINE | re.DOTALL,
    )
    exec(compile(block, "pml.md", "exec"), {})
    shown = capsys.readouterr().out.splitlines()
    assert len(shown) == len(ERRORS)
    assert [
        line for line, said in zip(ERRORS, shown, strict=True) if not is_shown(line, said)
    ] == []
