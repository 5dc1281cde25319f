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
        gains = tool("gains_drawing")
        pairs = [gains.Pair("a < b", 200, 50, "ms"), gains.Pair("worse", 100, 125, "ms")]
        page = ET.fromstring(gains.draw_pairs(pairs))
        bars = page.findall("{*}rect")
        lengths = [float(bar.attrib["width"]) for bar in bars]
        assert lengths == pytest.approx([420, 105, 336, 420])
        assert [bar.attrib["class"] for bar in bars] == ["other", "c0", "other", "bad"]

    def test_the_drawings_have_colours_for_dark_pages(self) -> None:
        gains = tool("gains_drawing")
        for name in gains.INKS:
            drawing = gains.draw_pairs([gains.Pair("a", 2, 1, "")])
            light, dark = drawing.split("@media (prefers-color-scheme: dark)")
            assert f".{name} {{ fill: {gains.LIGHT[name]}; }}" in light
            assert f".{name} {{ fill: {gains.DARK[name]}; }}" in dark

    def test_a_figure_is_the_one_of_its_row_and_command(self) -> None:
        page = (
            "## `python benchmarks/a.py`\n\n```text\n  row 1  1.5  2,000 ms [1, 2]\n```\n"
            '## `python benchmarks/b.py`\n\n```text\nrow 1  3e+04\n{"x": 4}\n```\n'
        )
        gains = tool("gains")
        assert gains.printed(page, "a", "row 1") == [1.5, 2000, 1, 2]
        assert gains.printed(page, "b", "row 1") == [3e4]
        assert gains.results(page, "b") == {"x": 4}
        with pytest.raises(SystemExit, match=r"no section for python benchmarks/c\.py"):
            gains.results(page, "c")

    def test_the_short_table_has_five_rows_and_a_loss(self) -> None:
        gains = tool("gains")
        table = gains.short_table(gains.RESULTS.read_text(encoding="utf-8")).splitlines()
        assert len(table) == 2 + 5
        assert any(re.search(r"\b0\.\d\dx", row) for row in table)


PLACE = "2026-11-26, a machine"


class TestBenchmarksPage:
    def test_a_section_for_each_command_in_order(self) -> None:
        benchmarks = tool("benchmarks")
        page = benchmarks.written("", "python b.py", "## not a title\nb 1", PLACE)
        page = benchmarks.written(page, "python a.py --only x", "a 1", PLACE)
        assert page.startswith("# Benchmarks\n")
        assert page.index("## `python a.py --only x`") < page.index("## `python b.py`")
        assert "```text\na 1\n```" in page
        assert "```text\n## not a title\nb 1\n```" in page

    def test_a_run_beside_other_work_is_marked(self) -> None:
        benchmarks = tool("benchmarks")
        page = benchmarks.written("", "python a.py", "a 1", PLACE, benchmarks.BUSY)
        assert f"{benchmarks.BUSY}\n\n```text\na 1\n```" in page
        assert benchmarks.BUSY not in benchmarks.written(page, "python a.py", "a 2", PLACE)

    def test_running_it_again_replaces_the_section(self) -> None:
        benchmarks = tool("benchmarks")
        page = benchmarks.written("", "python a.py", "first", PLACE)
        page = benchmarks.written(page, "python a.py --quick", "other", PLACE)
        page = benchmarks.written(page, "python a.py", "second", PLACE)
        assert "first" not in page
        assert page.count("## `") == 2
        assert "second" in page
        assert "other" in page

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
        page = benchmarks.brought_back(tmp_path, "")
        place = "2026-11-25, GPU 1, 16 cores, 126 GiB; Python 3.12.3, vllm 0.32.0"
        note = "Commit 0123456, 61 s."
        output = '```text\nx runs\n{"ratio": 2.5}\n```'
        assert f"## `python tools/gpu/x.py`\n\n{place}\n\n{note}\n\n{output}" in page
        assert f"{note} It was killed after 60 s, after what is shown.\n" in page


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
        assert [(folder / f"test_{part}.py").is_file() for part in tool("fuzz").PARTS] == [True] * 8


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
