"""Mutants of a made package, and the tests that find them."""

from __future__ import annotations

import ast
import json
import shutil
import subprocess
from collections import Counter
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from tools import mutants
from tools.mutants import Mutant

TOOLS = Path(__file__).parents[2] / "tools"
PATH = "ragcache_integrations/shop/till.py"
TILL = '''"""A till: ``1 < 2``."""

import logging

_log = logging.getLogger(__name__)


class Till:
    """Has money."""

    def __init__(self, start: int = 0, *, closed: bool = False) -> None:
        self.sum = start
        self.closed = closed

    def pay(self, coins: list[int]) -> int | None:
        """Add coins."""
        for coin in coins:
            if self.closed and not coin:
                return None
            elif coin < 1:
                _log.warning("%d is less than %d", coin, 0 + 1)
                msg = f"{coin + 1} is less than {1 + 1}"
                raise ValueError(msg)
            self.sum += coin
        coins.clear()
        return self.sum * 2
'''
TESTS = """
import subprocess
import sys

import pytest

from ragcache_integrations.shop.till import Till


def test_fails_anyway():
    assert Till().pay([1, 2]) == 7


@pytest.mark.skip
def test_is_skipped():
    assert Till().pay([1, 2]) == 7


def test_pays():
    till = Till()
    assert till.pay([1, 2]) == 6
    assert till.sum == 3


def test_in_another_process():
    code = "from ragcache_integrations.shop.till import Till; print(Till(1, closed=True).pay([0]))"
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert done.stdout == "None\\n"
"""
ELSEWHERE = """
import pytest

from ragcache_integrations.shop.till import Till


def test_clears():
    coins = [1]
    Till().pay(coins)
    assert coins == []
"""


def places(source: str = TILL) -> list[mutants.Place]:
    return list(mutants.places(PATH, source))


def place_of(before: str, after: str) -> mutants.Place:
    (found,) = [p for p in places() if (p.mutant.before, p.mutant.after) == (before, after)]
    return found


def test_faults_of_each_kind_are_made_but_none_in_texts_and_logging() -> None:
    condition = "self.closed and (not coin)"
    assert Counter(place.mutant.change for place in places()) == Counter(
        [
            ("start=", "0", "1"),
            ("closed=", "False", "True"),
            (f"if {condition}:", condition, f"not ({condition})"),
            (f"if {condition}:", condition, "(self.closed) or (not coin)"),
            (f"if {condition}:", "not coin", "coin"),
            ("return None", "return None", "pass"),
            ("if coin < 1:", "coin < 1", "not (coin < 1)"),
            ("if coin < 1:", "coin < 1", "(coin) <= (1)"),
            ("if coin < 1:", "1", "2"),
            ("coins.clear()", "coins.clear()", "pass"),
            ("return self.sum * 2", "self.sum * 2", "None"),
            ("return self.sum * 2", "self.sum * 2", "(self.sum) // (2)"),
            ("return self.sum * 2", "2", "3"),
        ]
    )


def test_each_changes_only_its_place() -> None:
    for place in places():
        lines = mutants.changed(TILL, place).split("\n")
        ast.parse("\n".join(lines))
        different = [
            (old.strip(), new.strip())
            for old, new in zip(TILL.split("\n"), lines, strict=True)
            if old != new
        ]
        assert len(different) == 1, place
    changed = mutants.changed(TILL, place_of("coin < 1", "(coin) <= (1)"))
    assert changed == TILL.replace("elif coin < 1", "elif ((coin) <= (1))")


def test_positions_count_letters_of_several_bytes() -> None:
    source = 'def f(x):\n    g("ä", x); g("日本", x < 1)\n'
    (place,) = [p for p in places(source) if p.mutant.before == "x < 1"]
    assert mutants.changed(source, place) == source.replace("x < 1", "((x) <= (1))")


def test_statements_are_recorded_before_they_run(monkeypatch: pytest.MonkeyPatch) -> None:
    """An ``elif`` where its chain begins, and a default where its function does."""
    found = places()
    source = mutants.recording(TILL, list(enumerate(found)))
    reached: list[int] = []
    monkeypatch.setattr(mutants, "reached", reached.append)
    names: dict[str, Any] = {"__name__": "till"}
    exec(compile(source, PATH, "exec"), names)
    assert reached == []
    till = names["Till"]()
    assert {found[number].mutant.statement for number in reached} == {"start=", "closed="}
    reached.clear()
    till.pay([])
    assert {found[number].mutant.statement for number in reached} == {
        "coins.clear()",
        "return self.sum * 2",
    }
    till.pay([1])
    assert {found[number].mutant.before for number in reached} == {
        place.mutant.before for place in found if place.mutant.statement[-1] != "="
    } - {"return None"}
    assert names["Till"].pay.__doc__ == "Add coins."


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("class Till", "class Register"),
        ("def pay(", "def add("),
        (
            "return self.sum * 2",
            "return (\n            self.sum  # of all\n            * 2\n        )",
        ),
        ("for coin in coins:", "for coin in sorted(coins):"),
    ],
)
def test_mutants_are_found_again_after_code_was_moved_or_renamed(
    tmp_path: Path, old: str, new: str
) -> None:
    moved = tmp_path / "wheel" / "ragcache_wheel" / "purse.py"
    moved.parent.mkdir(parents=True)
    moved.write_text(TILL.replace(old, new))
    drawn = [place.mutant for place in places()]
    found = mutants.find_all(tmp_path, drawn)
    assert [place and place.mutant.change for place in found] == [m.change for m in drawn]


def test_of_several_alike_the_nearest_is_found(tmp_path: Path) -> None:
    code = "\n    if a:\n        return 0\n    if b:\n        return 0\n"
    one, other = (tmp_path / f"ragcache_integrations/{name}.py" for name in ("one", "other"))
    one.parent.mkdir()
    one.write_text(f"def f(a, b):{code}\n\ndef g(a, b):{code}")
    other.write_text(f"def f(a, b):{code}")
    drawn = Mutant("ragcache_integrations/other.py", "f", "return 0", "0", "1", 1)
    (found,) = mutants.find_all(tmp_path, [drawn])
    assert found is not None
    assert found.mutant == drawn
    (renamed,) = mutants.find_all(
        tmp_path, [Mutant("ragcache_integrations/other.py", "h", "return 0", "0", "1", 1)]
    )
    assert renamed is None


def test_rooms_have_shares_by_their_lines(tmp_path: Path) -> None:
    assert mutants.shares({"a": 500, "b": 333, "c": 167}, 10) == {"a": 5, "b": 3, "c": 2}
    for room, functions in (("large", 30), ("small", 10)):
        path = tmp_path / "ragcache_integrations" / room / "code.py"
        path.parent.mkdir(parents=True)
        path.write_text("".join(f"def f{n}(x):\n    return x < {n}\n" for n in range(functions)))
    drawn = mutants.draw(tmp_path, 1, 8)
    assert Counter(Path(mutant.path).parts[1] for mutant in drawn) == {"large": 6, "small": 2}
    assert len({(mutant.path, mutant.function) for mutant in drawn}) == 8
    assert drawn == mutants.draw(tmp_path, 1, 8)
    assert drawn != mutants.draw(tmp_path, 2, 8)


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    wanted = [
        place_of("self.sum * 2", "(self.sum) // (2)"),  # by a test of its room
        place_of("not coin", "coin"),  # in another process
        place_of("coins.clear()", "pass"),  # by a test of another room
        place_of("1", "2"),  # a test of its room fails anyway
        place_of("0", "1"),
    ]
    gone = Mutant(PATH, "Till.pay", "return 7", "7", "8")
    drawn = [*(place.mutant for place in wanted), gone]
    files = {
        "pyproject.toml": (
            "[tool.pytest.ini_options]\naddopts = '-p pytest_timeout -p _hypothesis_pytestplugin'\n"
        ),
        "ragcache_integrations/__init__.py": "",
        "ragcache_integrations/shop/__init__.py": "",
        PATH: TILL,
        "tests/shop/test_till.py": TESTS,
        "tests/street/test_street.py": ELSEWHERE,
        mutants.DRAWN: "".join(json.dumps(asdict(mutant)) + "\n" for mutant in drawn),
    }
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    for name in ("mutants.py", "size.py"):
        shutil.copy(TOOLS / name, tmp_path / "tools")
    for command in ("init --quiet", "add .", "commit --quiet --message all"):
        who = ["-c", "user.name=a", "-c", "user.email=a@b"]
        subprocess.run(["git", *who, *command.split()], cwd=tmp_path, check=True)
    return tmp_path


@pytest.mark.slow
def test_each_mutant_runs_the_tests_that_reach_it(
    repository: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")  # most of the time of a small run
    assert mutants.main(["run", "--only", "0-2"], repository) == 0
    assert mutants.main(["run"], repository) == 0
    results = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    told = [(line["mutant"], line["status"], line.get("by"), line.get("of")) for line in results]
    found, pays = "found", "tests/shop/test_till.py::test_pays"
    process = "tests/shop/test_till.py::test_in_another_process"
    assert told == [
        (0, found, pays, 1),
        (1, found, process, 2),
        (2, mutants.IN_ROOM, None, 1),
        (2, found, "tests/street/test_street.py::test_clears", 1),
        (3, found, pays, 2),
        (4, found, pays, 2),
        (5, "gone", None, None),
    ]
    assert mutants.main(["report"], repository) == 0
    assert "6 drawn, 6 run: {'found': 5, 'gone': 1}" in capsys.readouterr().out
    with (repository / mutants.RESULTS).open("a") as file:
        file.write(json.dumps({**results[0], "status": "survived", "version": "other"}) + "\n")
    assert mutants.main(["report"], repository) == 1
    assert "0 survived, found before: ragcache_integrations/" in capsys.readouterr().out
    assert (repository / PATH).read_text() == TILL
    assert mutants.main(["run"], repository) == 0
    assert capsys.readouterr().out == ""
