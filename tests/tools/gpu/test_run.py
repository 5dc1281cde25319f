from __future__ import annotations

import json
import os
import time
from pathlib import Path

import pytest

from tests.support.waiting import gone, wait_until
from tools.gpu.run import Record, describe_machine, last_object, run_all, run_part

GOOD = """
import json, pathlib, sys
ran = pathlib.Path(__file__).with_suffix(".ran")
ran.write_text(ran.read_text() + "x" if ran.exists() else "x")
print("begins")
print(json.dumps({"options": sys.argv[1:]}))
print("a library says goodbye", file=sys.stderr)
"""
BAD = """
print('{"half": 1}')
raise SystemExit("it went wrong")
"""
SLOW = """
import pathlib, subprocess, sys, time
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"],
                         start_new_session=True)
pathlib.Path(__file__).with_suffix(".child").write_text(str(child.pid))
print("waits")
time.sleep(600)
"""


@pytest.fixture
def scripts(tmp_path: Path) -> Path:
    folder = tmp_path / "scripts"
    folder.mkdir()
    for name, text in {"good": GOOD, "bad": BAD, "slow": SLOW, "silent": "print(1)"}.items():
        (folder / f"{name}.py").write_text(text)
    return folder


def stored(out: Path) -> dict[str, dict[str, object]]:
    parts: dict[str, dict[str, object]] = json.loads((out / "gpu.json").read_text())["parts"]
    return parts


def run(
    scripts: Path, out: Path, *parts: str, seconds: float = 60.0, options: tuple[str, ...] = ()
) -> list[str]:
    record = Record(out / "gpu.json")
    limits = dict.fromkeys(parts, 30.0)
    return run_all(limits, record, out, options, seconds=seconds, scripts=scripts, tested="abc")


def test_a_failed_part_is_recorded_and_the_next_one_follows(scripts: Path, tmp_path: Path) -> None:
    assert run(scripts, tmp_path, "bad", "silent", "good", options=("--quick",)) == [
        "bad",
        "silent",
    ]
    parts = stored(tmp_path)
    assert parts["good"]["result"] == {"options": ["--quick"]}
    assert parts["good"]["rc"] == 0
    assert parts["good"]["command"] == "python tools/gpu/good.py --quick"
    assert parts["good"]["commit"] == "abc"
    assert "error" not in parts["good"]
    assert parts["bad"]["rc"] == 1
    assert parts["bad"]["result"] == {"half": 1}
    assert "it went wrong" in str(parts["bad"]["tail"])
    assert parts["silent"]["error"] == "no JSON object at its end"
    assert "begins" in (tmp_path / "good.log").read_text()


def test_only_parts_without_a_result_run_again(scripts: Path, tmp_path: Path) -> None:
    run(scripts, tmp_path, "good", "bad")
    (scripts / "bad.py").write_text("print('{\"mended\": 1}')")
    assert run(scripts, tmp_path, "good", "bad") == []
    assert stored(tmp_path)["bad"]["result"] == {"mended": 1}
    assert "tail" not in stored(tmp_path)["bad"]
    assert (scripts / "good.ran").read_text() == "x"
    run(scripts, tmp_path, "good", options=("--cpu",))
    assert (scripts / "good.ran").read_text() == "xx", "another command is another measurement"


def test_a_part_ends_at_its_limit_with_all_its_processes(scripts: Path, tmp_path: Path) -> None:
    began = time.monotonic()
    outcome = run_part(["python3", str(scripts / "slow.py")], tmp_path / "slow.log", limit=5)
    assert time.monotonic() - began < 60
    assert outcome["rc"] is None
    assert outcome["error"] == "killed after 5 s"
    assert "waits" in outcome["tail"]
    child = int((scripts / "slow.child").read_text())
    wait_until(lambda: gone(child))


def test_without_time_no_part_is_started(scripts: Path, tmp_path: Path) -> None:
    assert run(scripts, tmp_path, "good", seconds=1) == ["good"]
    assert not (scripts / "good.ran").exists()


def test_the_result_is_the_last_object() -> None:
    assert last_object('{"a": 1}\n{"a": 2}\n{broken\n[3]\nbye\n') == {"a": 2}
    assert last_object("nothing\n") is None


def test_the_machine_is_described() -> None:
    machine = describe_machine()
    assert machine["cores"] == os.cpu_count()
    assert "numpy" in machine["versions"]
