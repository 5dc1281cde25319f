"""What is relied upon in vLLM holds in the installed version.

The tests themselves are in ``in_vllm/``. They import vLLM, which gives warnings and lasts, so they
run in a pytest of their own, once; here each of them is reported. ``tools/oldest_vllm.sh`` and
``tools/newest_vllm.sh`` run them, with all other tests of the engine, on the oldest and the newest
supported version.
"""

from __future__ import annotations

import ast
from collections import defaultdict
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest

from tests.support.programs import run_program

pytestmark = pytest.mark.engine

ROOT = Path(__file__).parents[2]
FILES = sorted(Path(__file__).parent.glob("in_vllm/check_*.py"))
NAMES = [
    (file.stem, definition.name)
    for file in FILES
    for definition in ast.parse(file.read_text()).body
    if isinstance(definition, ast.FunctionDef) and definition.name.startswith("test_")
]

Outcomes = dict[tuple[str, str], list[str]]
"""What went wrong, for each test that ran."""


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory: pytest.TempPathFactory) -> Outcomes:
    report = tmp_path_factory.mktemp("contract") / "report.xml"
    options = ["-p", "no:cacheprovider", "-o", "filterwarnings=default", "--timeout=240"]
    ran = run_program("pytest", *map(str, FILES), f"--junit-xml={report}", *options, folder=ROOT)
    assert report.exists(), ran.stdout + ran.stderr
    found: Outcomes = defaultdict(list)
    for case in ET.parse(report).iter("testcase"):
        name = (case.attrib["classname"].rpartition(".")[2], case.attrib["name"].partition("[")[0])
        found[name] += [problem.text or "" for problem in case]
    return found


@pytest.mark.parametrize(("file", "name"), NAMES)
def test_it_holds(file: str, name: str, outcomes: Outcomes) -> None:
    assert (file, name) in outcomes, "it did not run"
    assert not outcomes[file, name], "\n".join(outcomes[file, name])
