from __future__ import annotations

import importlib.util
import json
import re
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from xml.etree import ElementTree as ET

import pytest

TOOLS = Path(__file__).parents[1] / "tools"


def tool(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(f"tools_{name}", TOOLS / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look for theirs
    spec.loader.exec_module(module)
    return module


class TestMap:
    def test_the_drawing_and_the_list_are_up_to_date(self) -> None:
        stale = [
            path.name for path, text in tool("map").texts().items() if path.read_text() != text
        ]
        assert not stale, "python tools/map.py"

    def test_arrows_that_a_longer_way_makes_superfluous_are_left_out(self) -> None:
        edges = {"a": {"b", "c", "d"}, "b": {"c"}, "c": {"d"}, "d": set()}
        assert tool("map").without_detours(edges) == {
            "a": {"b"},
            "b": {"c"},
            "c": {"d"},
            "d": set(),
        }

    def test_a_room_is_above_all_that_it_imports(self) -> None:
        edges = {"a": {"b", "d"}, "b": {"c"}, "c": set(), "d": set()}
        assert tool("map").ranks(edges) == {"a": 2, "b": 1, "c": 0, "d": 0}


class TestGains:
    """That the files are up to date is tested with the other generated ones."""

    def test_bars_are_as_long_as_the_values(self) -> None:
        gains = tool("bench/gain_drawing")
        pairs = [gains.Pair("a < b", 200, 50, "ms"), gains.Pair("worse", 100, 125, "ms")]
        page = ET.fromstring(gains.draw_pairs(pairs))
        bars = page.findall("{*}rect")
        lengths = [float(bar.attrib["width"]) for bar in bars]
        assert lengths == pytest.approx([420, 105, 336, 420])
        assert [bar.attrib["class"] for bar in bars] == ["other", "c0", "other", "bad"]

    def test_the_drawings_have_colours_for_dark_pages(self) -> None:
        gains = tool("bench/gain_drawing")
        for name in gains.INKS:
            drawing = gains.draw_pairs([gains.Pair("a", 2, 1, "")])
            light, dark = drawing.split("@media (prefers-color-scheme: dark)")
            assert f".{name} {{ fill: {gains.LIGHT[name]}; }}" in light
            assert f".{name} {{ fill: {gains.DARK[name]}; }}" in dark

    def test_what_falls_short_of_its_aim_comes_first(self) -> None:
        equal = tool("equal_quality")
        arguments = "anywhere --data data --only lengths"  # any that has a title
        findings = {
            "large": equal.Finding([3.0, 2.9, 3.1], [0.01, -0.02, 0.04], "a, compared with b"),
            "small": equal.Finding([1.2, 1.1, 1.3], [-0.01, -0.029, 0.01], "c, compared with d"),
            "worse": equal.Finding([9.0, 8.0, 10.0], [-0.01, -0.03, 0.01], "worse answers"),
            "none": None,
        }
        aims = [
            equal.Aim(name, 2.0, arguments, lambda _, found=found: found, "{:.1f}".format)
            for name, found in findings.items()
        ]
        _, _, *rows = equal.equal_quality_table({}, aims).splitlines()
        assert [row.split(" | ")[0] for row in rows] == ["| none", "| worse", "| small", "| large"]
        for row in rows[:2]:
            assert "none at equal quality" in row
            assert "9.0" not in row
        assert rows[2].startswith(
            "| small | 2.0 | **1.2** [1.1, 1.3] | -0.010 [-0.029, +0.010] | c, compared with d | ["
        )

    def test_a_figure_is_the_one_of_its_row_and_command(self) -> None:
        gains = tool("gains")
        results = {
            f"python benchmarks/{name}.py": tool("results").Result.of("", "", printed)
            for name, printed in (
                ("a", "  row 1  1.5  2,000 ms [1, 2]"),
                ("b", 'row 1  3e+04\n{"x": 4}'),
            )
        }
        assert gains.printed(results, "a", "row 1") == [1.5, 2000, 1, 2]
        assert gains.printed(results, "b", "row 1") == [3e4]
        assert gains.result(results, "b").found == {"x": 4}
        with pytest.raises(SystemExit, match=r"no result of python benchmarks/c\.py"):
            gains.result(results, "c")

    def test_the_short_table_has_seven_rows_and_a_loss(self) -> None:
        gains = tool("gains")
        table = gains.short_table(gains.saved(gains.FOLDER)).splitlines()
        assert len(table) == 2 + 7
        assert any(re.search(r"\b0\.\d\dx", row) for row in table)


PLACE = "2026-11-26, a machine"
PRINTED = """\
times on a <fast> machine
          keys  us   95 % interval
flat, k 1    2   3  1.5 [1.0, 2.0]
      lsh   20   -               -
(a) best: flat
requests  200
kills     5
errors    []
{"ratio": [1.5, 1.0, 2.0]}"""


class TestResults:
    def test_a_command_has_a_file_and_running_it_again_replaces_it(self, tmp_path: Path) -> None:
        results = tool("results")
        for output in ("first", PRINTED):
            results.Result.of("python benchmarks/a.py --only x", PLACE, output).save(tmp_path)
        results.Result.of(f"python benchmarks/b.py {'x' * 80}", PLACE, "", "A note.").save(tmp_path)
        first, second = results.saved(tmp_path).values()
        assert first.name == "a-only-x"
        assert f"{first.output}\n{json.dumps(first.found)}" == PRINTED
        assert (second.note, second.found) == ("A note.", None)
        assert len(second.name) < 80
        assert {path.stem for path in tmp_path.iterdir()} == {first.name, second.name}

    def test_what_is_aligned_becomes_a_table(self) -> None:
        results = tool("results")
        result = results.Result.of("python a.py", PLACE, PRINTED)
        assert list(results.blocks(result.output, [["name", "value"]])) == [
            "times on a \\<fast\\> machine\n",
            """\
|  | keys | us | 95 % interval |
| :-- | --: | --: | --: |
| flat, k 1 | 2 | 3 | 1.5\N{NO-BREAK SPACE}[1.0,\N{NO-BREAK SPACE}2.0] |
| lsh | 20 | - | - |
""",
            "(a) best: flat\n",
            "| name | value |\n| :-- | :-- |\n| requests | 200 |\n| kills | 5 |\n| errors | [] |\n",
        ]

    def test_what_is_long_is_folded(self) -> None:
        results = tool("results")
        rows = [f"row {number}  {number}  2" for number in range(results.MOST_ROWS + 1)]
        (folded,) = results.blocks("\n".join(["long", "  a  b", *rows]))
        assert folded.startswith("<details><summary>long</summary>\n\n|  | a | b |\n")
        (folded,) = results.blocks("\n".join(f"line {number}." for number in range(9)))
        assert folded.startswith("<details><summary>9 lines</summary>")

    def test_a_page_of_tables_stands_below_its_title(self) -> None:
        results = tool("results")
        page = "# A paper\n\n## Quality\n\n| a |\n| --- |\n| 1 |\n\nA remark."
        made = results.Result("python benchmarks/papers/run.py proximity", PLACE, page, {"runs": 2})
        entry = {"command": made.command, "title": "A title", "sentence": "A sentence."}
        words = {"part": [{"title": "Some part", "result": [entry]}]}
        shown = results.pages({made.command: made}, words)[results.PARTS / "some_part.md"]
        assert "# A paper" not in shown
        assert "\n## A title\n" in shown
        assert "\n### Quality\n\n| a |\n| --- |\n| 1 |\n\nA remark.\n" in shown

    def test_each_part_has_a_page_and_what_is_in_none_has_one_too(self) -> None:
        results = tool("results")
        known, unknown = (
            results.Result.of(f"python {name}.py", PLACE, "the output", note)
            for name, note in (("a", "A note."), ("b", ""))
        )
        entry = {"command": known.command, "title": "A title", "sentence": "A sentence."}
        pages = results.pages(
            {unknown.command: unknown, known.command: known},
            {"part": [{"title": "Some part", "result": [entry]}, {"title": "Empty", "result": []}]},
        )
        assert set(pages) == {
            results.PAGE,
            results.PARTS / "some_part.md",
            results.PARTS / "others.md",
        }
        part = pages[results.PARTS / "some_part.md"]
        order = ["# Benchmarks: Some part", "## A title", "A sentence.", "the output", "A note."]
        places = [part.index(text) for text in [*order, "(../results/a.json)"]]
        assert places == sorted(places)
        assert "## `python b.py`" in pages[results.PARTS / "others.md"]
        row = "| Some part | [A title](benchmarks/some_part.md#a-title) |"
        assert row in pages[results.PAGE].splitlines()

    def test_every_result_has_a_title_and_every_title_a_result(self) -> None:
        results = tool("results")
        words = results.read_words()
        commands = [entry["command"] for part in words["part"] for entry in part["result"]]
        assert sorted(commands) == sorted(results.saved(results.FOLDER))

    def test_what_ran_elsewhere_is_shown_with_that_machine(self, tmp_path: Path) -> None:
        benchmarks = tool("benchmarks")
        part = {
            "command": "python tools/gpu/x.py",
            "commit": "0123456789",
            "date": "2026-11-25",
            "seconds": 61.2,
            "result": {"ratio": 2.5, "all": ["long"] * benchmarks.LONGEST_VALUE},
        }
        machine = {
            "gpu": {"name": "GPU 1"},
            "cores": 16,
            "memory_gib": 125.9,
            "python": "3.12.3",
            "versions": {"vllm": "0.32.0"},
        }
        late = part | {"command": "python y.py", "error": "killed after 60 s"}
        content = {"machine": machine, "parts": {"x": part, "y": late}}
        (tmp_path / "gpu.json").write_text(json.dumps(content))
        for name in ("x", "y"):
            (tmp_path / f"{name}.log").write_text(f'{name} runs\n{{"step": 1}}\n')
        place = "2026-11-25, GPU 1, 16 cores, 126 GiB; Python 3.12.3, vllm 0.32.0"
        note = "Commit 0123456, 61 s."
        first, second = benchmarks.brought_back(tmp_path)
        assert (first.command, first.place, first.note) == (part["command"], place, note)
        assert (first.output, first.found) == ("x runs", {"ratio": 2.5})
        assert second.note == f"{note} It was killed after 60 s, after what is shown."


class TestFuzz:
    def test_examples_are_counted_in_every_phase(self) -> None:
        statistics = """\
tests/fuzz/test_lint.py::test_one:
  - during reuse phase (0.01 seconds):
    - 1 passing, 0 failing, and 0 invalid test cases
  - during generate phase (2.18 seconds):
    - Typical runtimes: ~ 1-159 ms, of which ~ 0-5 ms in data generation
    - 1000 passing, 0 failing, and 9 invalid test cases
"""
        assert tool("fuzz").passing(statistics) == 1001

    def test_a_part_for_each_file(self) -> None:
        folder = TOOLS.parent / "tests" / "fuzz"
        parts = tool("fuzz").PARTS
        assert [(folder / f"test_{part}.py").is_file() for part in parts] == [True] * 14


class TestTryInstall:
    """The other rows take gigabytes: ``make try-install``."""

    @pytest.mark.slow
    def test_the_retriever_in_a_new_environment(self, tmp_path: Path) -> None:
        reach = [sys.executable, "-m", "pip", "download", "--no-deps", "--dest", str(tmp_path)]
        if subprocess.run([*reach, "hatchling"], check=False, capture_output=True).returncode:
            pytest.skip("no package index")
        done = subprocess.run(
            [sys.executable, str(TOOLS / "try_install.py"), "retriever-langchain"],
            check=False,
            capture_output=True,
            text=True,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        assert done.stdout.splitlines()[-1].endswith("ok")

    @pytest.mark.parametrize("framework", ["langchain", "llama-index"])
    def test_the_page_has_the_code_of_every_row(self, framework: str) -> None:
        module = tool("try_install")
        for kind in module.KINDS.values():
            code = module.code(kind, framework)
            compile(code, "page", "exec")
            assert "assert ' '.join(" in code
            assert ("OwnEmbeddings(" in code) is kind.own_embeddings
            assert ("MiniLMEmbeddings" in code) is not kind.own_embeddings
            assert ("max_tokens" in code) is kind.engine
