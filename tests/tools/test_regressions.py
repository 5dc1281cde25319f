"""Quick benchmarks held to what was recorded, on made benchmarks."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.support.waiting import gone, wait_until
from tools import regressions
from tools.benchmarks import machine_facts

RULES = """
[headlines]
[[rule]]
better = "none"
figures = ["*/requests"]
[[rule]]
better = "lower"
time = true
slack = 0.2
figures = ["*_ms"]
[[rule]]
better = "higher"
slack = 0.1
figures = ["*ratio"]
"""

SCRIPT = """
import argparse, json, pathlib, sys

parser = argparse.ArgumentParser()
parser.add_argument("--quick", action="store_true")
assert parser.parse_args().quick
here = pathlib.Path(__file__)
with here.with_suffix(".count").open("a") as file:
    file.write("x")
result = json.loads(here.with_suffix(".result").read_text())
print("a table")
if result is None:
    print("the reason why", file=sys.stderr)
    sys.exit(3)
print(json.dumps(result))
"""

GOOD = {"ttft_ratio": [2.0, 1.8, 2.2], "lookup_ms": 5.0, "requests": 10, "mystery": 7}


@dataclass
class Bench:
    """A folder of made benchmarks."""

    folder: Path

    def write(self, **results: dict[str, Any] | None) -> None:
        """Let benchmarks print these results, and fail where there is none."""
        for name, result in results.items():
            (self.folder / f"{name}.py").write_text(SCRIPT)
            (self.folder / f"{name}.result").write_text(json.dumps(result))

    def times_run(self, name: str) -> int:
        return len((self.folder / f"{name}.count").read_text())

    def run(self, *arguments: str) -> int:
        """Run the tool; its exit status."""
        (self.folder / "rules.toml").write_text(RULES)
        return regressions.main(
            [
                *("--scripts", str(self.folder), "--recorded", str(self.folder / "recorded")),
                *("--rules", str(self.folder / "rules.toml"), "--work", str(self.folder / "work")),
                *("--repeats", "2", *arguments),
            ]
        )


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    made = Bench(tmp_path)
    made.write(one=GOOD, two=GOOD)
    return made


def row(output: str, figure: str) -> list[str]:
    """The cells of a figure's row."""
    (line,) = [line for line in output.splitlines() if f" {figure} " in line]
    return line.split()


def test_what_stays_the_same_is_no_regression(
    bench: Bench, capsys: pytest.CaptureFixture[str]
) -> None:
    assert bench.run("--record") == 0
    assert bench.times_run("one") == bench.times_run("two") == 2
    assert bench.run() == 0
    assert bench.times_run("one") == 4
    output = capsys.readouterr().out
    assert "4 same, 2 not judged" in output
    assert "no rule in figures.toml knows it: one/mystery" in output


def test_what_got_worse_is_shown_and_ends_with_status_1(
    bench: Bench, capsys: pytest.CaptureFixture[str]
) -> None:
    bench.run("--record")
    bench.write(two=GOOD | {"ttft_ratio": [1.2, 1.1, 1.3], "lookup_ms": 4.9})
    capsys.readouterr()

    assert bench.run() == 1
    output = capsys.readouterr().out
    assert row(output, "ttft_ratio")[0] == "two"
    assert row(output, "ttft_ratio")[-1] == "worse"
    assert "lookup_ms" not in output
    assert "1 worse" in output


def test_a_slower_time_is_worse_and_a_faster_one_better(
    bench: Bench, capsys: pytest.CaptureFixture[str]
) -> None:
    bench.run("--record")
    bench.write(one=GOOD | {"lookup_ms": 9.0}, two=GOOD | {"lookup_ms": 2.0})
    assert bench.run() == 1
    output = capsys.readouterr().out
    verdicts = {
        line.split()[0]: line.split()[-1] for line in output.splitlines() if " lookup_ms " in line
    }
    assert verdicts == {"one": "worse", "two": "better"}


def test_on_another_processor_only_ratios_are_compared(
    bench: Bench, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    bench.run("--record")
    bench.write(one=GOOD | {"lookup_ms": 90.0}, two=GOOD | {"ttft_ratio": [1.0, 0.9, 1.1]})
    here = machine_facts()
    monkeypatch.setattr(
        regressions,
        "machine_facts",
        lambda: here | {"processor": "Another", "versions": here["versions"] | {"numpy": "9"}},
    )
    assert bench.run() == 1
    output = capsys.readouterr().out
    assert f"processor {here['processor']} then, Another now" in output
    assert f"numpy {here['versions']['numpy']} then, 9 now" in output
    assert "2 other machine" in output
    assert row(output, "ttft_ratio")[-1] == "worse"


def test_other_versions_alone_leave_times_comparable(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench.run("--record")
    bench.write(one=GOOD | {"lookup_ms": 90.0})
    here = machine_facts()
    monkeypatch.setattr(
        regressions, "machine_facts", lambda: here | {"versions": {"Python": "4.0"}}
    )
    assert bench.run() == 1


def test_a_failure_stops_no_other_and_is_not_kept(
    bench: Bench, capsys: pytest.CaptureFixture[str]
) -> None:
    bench.run("--record")
    bench.write(one=None)
    capsys.readouterr()

    assert bench.run() == 2
    output = capsys.readouterr().out
    assert "one failed: exit status 3" in output
    assert "the reason why" in output
    assert "2 same" in output
    assert bench.times_run("two") == 4

    bench.write(one=GOOD)
    assert bench.run() == 0
    assert bench.times_run("two") == 4, "its finished runs were kept"
    assert bench.times_run("one") == 2 + 1 + 2


def test_what_was_kept_can_be_forgotten(bench: Bench) -> None:
    bench.run("--record")
    bench.run("--only", "one")
    bench.run("--only", "one", "--again")
    assert (bench.times_run("one"), bench.times_run("two")) == (2 + 2 + 2, 2)


def test_more_repeats_add_to_the_kept_ones(bench: Bench) -> None:
    bench.run("--record", "--only", "one")
    assert bench.run("--record", "--only", "one", "--repeats", "3") == 0
    assert bench.times_run("one") == 3


def test_a_figure_that_is_gone_or_new_is_shown(
    bench: Bench, capsys: pytest.CaptureFixture[str]
) -> None:
    bench.run("--record")
    bench.write(one={"ttft_ratio": [2.0, 1.8, 2.2], "hit_ratio": 3.0})
    assert bench.run() == 2
    output = capsys.readouterr().out
    assert row(output, "lookup_ms")[-1] == "gone"
    assert row(output, "hit_ratio")[-1] == "new"


def test_what_was_never_recorded_is_said(bench: Bench, capsys: pytest.CaptureFixture[str]) -> None:
    bench.run("--record", "--only", "one")
    assert bench.run() == 0
    assert "two was not recorded yet" in capsys.readouterr().out


def test_where_nothing_was_recorded_nothing_was_compared(bench: Bench) -> None:
    assert bench.run() == 2


def test_a_figure_that_is_no_number_any_more_is_no_success(bench: Bench) -> None:
    bench.run("--record")
    bench.write(one=GOOD | {"ttft_ratio": float("nan")})
    assert bench.run() == 2


@pytest.mark.parametrize(
    ("part", "other"),
    [
        ('"figures"', '"figs"'),
        ('"machine"', '"engine"'),
        ('"cores"', '"course"'),
        ("[5.0, 5.0,", '["5.0", 5.0,'),
        ("[5.0, 5.0,", "[NaN, 5.0,"),
        ("[5.0, 5.0,", "[5.0,"),
        ("[2.0, 1.8,", "[2.0, 2.8,"),
        ("}", ""),
    ],
)
def test_a_damaged_baseline_is_refused_before_anything_runs(
    bench: Bench, part: str, other: str
) -> None:
    bench.run("--record")
    path = bench.folder / "recorded" / "two.json"
    text = path.read_text()
    assert part in text
    path.write_text(text.replace(part, other, 1))
    with pytest.raises(SystemExit, match=r"two\.json is no baseline") as refused:
        bench.run()
    assert "--record" in str(refused.value)
    assert bench.times_run("one") == 2
    assert bench.run("--record") == 0


def test_settings_are_not_recorded(bench: Bench) -> None:
    bench.run("--record")
    recorded = json.loads((bench.folder / "recorded" / "one.json").read_text())
    assert list(recorded["figures"]) == ["ttft_ratio", "lookup_ms", "mystery"]
    assert recorded["about"]["runs"] == 2
    assert recorded["about"]["machine"]["cores"] >= 1


def test_a_run_that_takes_too_long_is_killed_with_what_it_started(
    bench: Bench, capsys: pytest.CaptureFixture[str]
) -> None:
    bench.run("--record", "--only", "two")
    (bench.folder / "one.py").write_text(
        "import pathlib, subprocess, sys, time\n"
        '"--quick"\n'
        'child = subprocess.Popen(["sleep", "600"])\n'
        'pathlib.Path(__file__).with_suffix(".child").write_text(str(child.pid))\n'
        'print("waiting", flush=True)\n'
        "time.sleep(600)\n"
    )
    assert bench.run("--limit", "3") == 2
    output = capsys.readouterr().out
    assert "one failed: it took more than 3 s" in output
    assert "waiting" in output
    child = int((bench.folder / "one.child").read_text())
    wait_until(lambda: gone(child))


def test_a_last_line_that_is_no_object_is_a_failure(
    bench: Bench, capsys: pytest.CaptureFixture[str]
) -> None:
    (bench.folder / "one.py").write_text('"--quick"\nprint("no figures")\n')
    assert bench.run("--only", "one") == 2
    assert "its last line is no JSON object: 'no figures'" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["--only", "tow"], "no quick benchmark 'tow': there are one, two; did you mean 'two'?"),
        (["--repeats", "0"], "--repeats must be at least 1"),
        (["--limit", "0"], "--limit above 0"),
    ],
)
def test_what_makes_no_sense_is_refused(
    bench: Bench, arguments: list[str], told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as refused:
        bench.run(*arguments)
    assert told in str(refused.value) + capsys.readouterr().err


def test_benchmarks_without_a_quick_run_are_left_out(bench: Bench) -> None:
    (bench.folder / "slow.py").write_text("print('slow')\n")
    assert bench.run("--record") == 0
    assert {path.stem for path in (bench.folder / "recorded").iterdir()} == {"one", "two"}
