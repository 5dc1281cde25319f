"""The page of a report, its pictures, and what is gathered for it."""

from __future__ import annotations

import asyncio
import json
import re
import struct
from hashlib import sha256
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from ragcache_integrations.errors import ConfigurationError
from ragcache_workbench.evaluation import (
    EvalRun,
    awrite_report,
    compare,
    evaluate,
    evaluate_grid,
    write_report,
)
from ragcache_workbench.evaluation.report.figures import sections
from ragcache_workbench.evaluation.report.report import gather, render, show
from ragcache_workbench.evaluation.scores import MECHANICS_ONLY
from ragcache_workbench.reports import Panel
from tests.evaluation.world import Echo, make_retriever
from tests.support.html_page import HtmlPage

SMALL: dict[str, Any] = {"sample": 6, "workload": "uniform", "variants": 2, "k": 3}


class CrashError(RuntimeError):
    """What a model may run into."""


def swept(out: Path, sweep: dict[str, list[Any]], **knobs: Any) -> list[EvalRun]:
    usual: dict[str, Any] = {"retriever": make_retriever, "model": Echo(), "out": out, **SMALL}
    return evaluate_grid("nq", sweep, **(usual | knobs))


@pytest.fixture(scope="module")
def grid(tmp_path_factory: pytest.TempPathFactory) -> list[EvalRun]:
    """Tolerances and capacities, in a folder with a run that is not complete."""
    out = tmp_path_factory.mktemp("grid")
    runs = swept(out, {"tolerance": [0.0, 0.8, 1.2], "capacity": [3, 25]}, command="ragcache eval")

    def called(number: int) -> None:
        if number == 5:
            raise CrashError

    with pytest.raises(CrashError):
        evaluate("nq", retriever=make_retriever, model=Echo(called=called), out=out, **SMALL)
    return runs


@pytest.fixture(scope="module")
def broken(tmp_path_factory: pytest.TempPathFactory) -> EvalRun:
    """One run of a model with random weights, broken off twice."""
    out = tmp_path_factory.mktemp("broken")
    found: list[EvalRun] = []
    for last in (5, 9, 1000):

        def called(number: int, last: int = last) -> None:
            if number == last:
                raise CrashError

        try:
            model = Echo(called=called)
            arguments: dict[str, Any] = {"random_weights": True, "checkpoint_seconds": 0.0, **SMALL}
            found.append(
                evaluate("nq", retriever=make_retriever, model=model, out=out, **arguments)
            )
        except CrashError:
            pass
    (run,) = found
    return run


@pytest.mark.parametrize(
    ("dataset", "noise"), [("nq", True), ("pubmedqa", False)], ids=["random weights", "macro-F1"]
)
def test_scores_that_cannot_be_paired_do_not_stop_a_report(
    dataset: str, noise: bool, tmp_path: Path
) -> None:
    runs = [
        evaluate(
            dataset,
            retriever=make_retriever,
            model=Echo(),
            out=tmp_path,
            sample=3,
            random_weights=noise,
            label=label,
        )
        for label in ("a", "b")
    ]
    assert "Compared with run" in render(gather(runs))
    console = Console(file=StringIO())
    with console.capture() as captured:
        show(runs, console)
    assert "Compared with the first" in captured.get()


@pytest.fixture(scope="module")
def page(grid: list[EvalRun], tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_report(grid, tmp_path_factory.mktemp("report"))


def test_the_page_is_well_formed_and_loads_nothing(page: Path, broken: EvalRun) -> None:
    for html in (page.read_text(), render(gather(broken))):
        found = HtmlPage(html)
        assert all(link.startswith("#run-") for link in found.links)
        assert {link.removeprefix("#") for link in found.links} <= set(found.ids)
        assert len(set(found.ids)) == len(found.ids)
        assert found.tags.count("script") == 1
        for loading in ("url(", "@import", "http:", "https:", "<img", "fetch("):
            assert loading not in html


def test_it_says_what_was_typed_under_every_figure(grid: list[EvalRun], page: Path) -> None:
    html = page.read_text()
    figures = re.findall(r"<figure.*?</figure>", html, re.DOTALL)
    assert len(figures) == sum(
        len(section.all_figures()) for section in sections(grid, numbers(grid))
    )
    for figure in figures:
        assert '<pre class="command"><span>ragcache</span> <span>eval</span></pre>' in figure
    assert html.count("<details id=") == len(grid)


def test_a_call_from_python_can_be_read(broken: EvalRun) -> None:
    text = HtmlPage(render(gather(broken))).text
    call = "evaluate('nq', retriever=..., model=..., sample=6, workload='uniform', variants=2, k=3)"
    assert call in text


def test_every_run_has_its_row_with_its_figures(grid: list[EvalRun], page: Path) -> None:
    html = page.read_text()
    head = html.index('aria-label="Figures of the runs')
    table = html[head : html.index("</table>", head)]
    heads = re.findall(r'<th scope="col">(.*?)</th>', table)
    rows = re.findall(r"<tr>(<th scope=\"row\".*?)</tr>", table)
    assert len(rows) == len(grid)
    column = heads.index("cache hit rate")
    for run, row in zip(grid, rows, strict=True):
        keys = re.findall(r'data-key="([^"]*)"', row)
        assert float(keys[column]) == run.figures["cache_hit_rate"]
        assert f"{100 * run.figures['cache_hit_rate']:.1f}\N{NO-BREAK SPACE}%" in row
        assert run.settings.cache["tolerance"] == float(keys[heads.index("tolerance")])


def test_mechanics_only_stands_where_quality_would(broken: EvalRun, grid: list[EvalRun]) -> None:
    text = HtmlPage(render(gather(broken))).text
    assert text.count(MECHANICS_ONLY) >= 4  # a remark, a tile, and two cells of the table
    assert MECHANICS_ONLY not in HtmlPage(render(gather(grid))).text
    # Neither does a figure of it slip in by another way.
    assert "0.000" not in re.sub(r"\d ms", "", text)


def test_breaks_are_marked(broken: EvalRun, grid: list[EvalRun]) -> None:
    assert len(broken.summary["breaks"]) == 2
    html = render(gather(broken))
    text = HtmlPage(html).text
    assert "interrupted and resumed" in text
    for number, answers in enumerate(broken.summary["breaks"], start=1):
        assert f"break {number}" in text
        assert f"after {answers} answers" in text
    (section,) = sections([broken], numbers([broken]))
    course = next(one for one in section.courses if one.title.startswith("Course"))
    for plot in course.plots:
        assert isinstance(plot, Panel)
        (breaks,) = [curve for curve in plot.curves if curve.kind == "break"]
        assert len(breaks.points) == 2
    # Between a run that has none and one that has, the second is drawn alone.
    both = sections([grid[0], broken], numbers([grid[0], broken]))[0]
    assert [one.runs for one in both.courses if one.title.startswith("Course")] == [(broken,)]


def numbers(runs: list[EvalRun]) -> dict[str, int]:
    return {str(run.path): number for number, run in enumerate(runs, start=1)}


def test_comparisons_are_those_of_compare(grid: list[EvalRun], page: Path) -> None:
    text = HtmlPage(page.read_text()).text
    (section,) = sections(grid, numbers(grid))
    (compared,) = section.compared
    assert compared.figure.runs[0] is grid[0]
    found = {(one.other.name, one.metric): one for _, one in compared.rows}
    expected = [one for one in compare(grid) if (one.other.name, one.metric) in found]
    assert len(expected) == len(found) >= 5 * 6
    for one in expected:
        assert found[one.other.name, one.metric].difference == one.difference
        assert found[one.other.name, one.metric].ratio == one.ratio
    ttft = next(one for one in expected if one.metric == "ttft_ms")
    assert ttft.ratio is not None
    assert f"{ttft.ratio.value:.2f} [{ttft.ratio.low:.2f}, {ttft.ratio.high:.2f}]" in text


def test_pictures_are_beside_it(grid: list[EvalRun], page: Path) -> None:
    (section,) = sections(grid, numbers(grid))
    names = {f"{figure.name}.png" for figure in section.all_figures()}
    assert {one.name for one in page.parent.iterdir()} == {"report.html", *names}
    for name in names:
        content = (page.parent / name).read_bytes()
        assert content.startswith(b"\x89PNG")
        width, height = struct.unpack(">II", content[16:24])
        assert 600 < width < 3000
        assert 300 < height < 6000


def test_without_pictures_and_in_a_coroutine(grid: list[EvalRun], tmp_path: Path) -> None:
    page = asyncio.run(awrite_report(grid, tmp_path / "new" / "folder", images=False))
    assert [one.name for one in page.parent.iterdir()] == ["report.html"]
    assert page.read_text() == render(gather(grid))


def test_a_folder_of_runs_is_read_in_the_order_of_their_knobs(grid: list[EvalRun]) -> None:
    found = gather(grid[0].path.parent)
    knobs = [
        (run.settings.cache["capacity"], run.settings.cache["tolerance"]) for run in found.runs
    ]
    assert knobs == sorted(knobs)
    assert len(knobs) == len(grid)
    assert len(found.left_out) == 1
    text = HtmlPage(render(found)).text
    assert f"Left out as incomplete: {found.left_out[0]}" in text
    # A run that is given twice is there once; what is given first comes first.
    again = gather([grid[2], grid[0].path, grid[0].path.parent, str(grid[2].path)])
    assert [one.path for one in again.runs][:2] == [grid[2].path, grid[0].path]
    assert len(again.runs) == len(grid)


def test_any_run_can_be_the_baseline(grid: list[EvalRun]) -> None:
    for baseline in (grid[3], grid[3].path, str(grid[3].path)):
        found = gather(grid, baseline)
        assert found.runs[0] is grid[3]
        assert len(found.runs) == len(grid)


def test_bad_input(grid: list[EvalRun], broken: EvalRun, tmp_path: Path) -> None:
    out = tmp_path / "report"
    incomplete = next(
        one for one in grid[0].path.parent.iterdir() if not (one / "summary.json").exists()
    )
    empty = tmp_path / "empty"
    empty.mkdir()
    alone = tmp_path / "alone"
    (alone / "run").mkdir(parents=True)
    (alone / "run" / "config.json").write_text("{}")
    for given, words in (
        ([], "at least one complete run"),
        (tmp_path / "nowhere", "must be the folder of a run"),
        (incomplete, "is not complete"),
        (empty, "has no run"),
        (alone, "only runs that are not complete: run"),
    ):
        with pytest.raises(ConfigurationError, match=words):
            write_report(given, out)
    with pytest.raises(ConfigurationError, match="baseline must be one of the runs"):
        write_report(grid, out, baseline=broken)
    assert not out.exists()
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigurationError, match="cannot write the report"):
        write_report(grid, tmp_path / "file", images=False)


def test_what_users_name_is_no_markup(tmp_path: Path) -> None:
    label = "<script>alert('&')</script>"
    run = evaluate(
        "nq",
        retriever=make_retriever,
        model=Echo(),
        out=tmp_path,
        label=label,
        command=f"ragcache eval {label}",
        **SMALL,
    )
    html = render(gather(run))
    assert HtmlPage(html).tags.count("script") == 1
    assert label in HtmlPage(html).text


def test_environments_that_differ_are_told_apart(grid: list[EvalRun], tmp_path: Path) -> None:
    assert "did not all run on the same machine" not in render(gather(grid))
    (run,) = swept(tmp_path, {"k": [2]})
    file = run.path / "environment.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {"device": "another one"}))
    text = HtmlPage(render(gather([grid[0], run.path]))).text
    assert "did not all run on the same machine" in text
    assert "another one" in text


def test_questions_that_failed_are_told(grid: list[EvalRun], tmp_path: Path) -> None:
    (run,) = swept(tmp_path, {"k": [2]})
    lines = (run.path / "records.jsonl").read_text().splitlines()
    rows = [json.loads(line) for line in lines]
    rows[3]["error"] = "PromptTooLongError: too long"
    changed = "".join(json.dumps(row) + "\n" for row in rows).encode()
    (run.path / "records.jsonl").write_bytes(changed)
    checkpoint = json.loads((run.path / "checkpoint.json").read_text())
    checkpoint |= {"records_bytes": len(changed), "records_sha256": sha256(changed).hexdigest()}
    (run.path / "checkpoint.json").write_text(json.dumps(checkpoint))
    summary = json.loads((run.path / "summary.json").read_text())
    summary["figures"]["errors"] = 1
    (run.path / "summary.json").write_text(json.dumps(summary))
    text = HtmlPage(render(gather([grid[0], run.path]))).text
    assert "Run 2: questions failed (1 PromptTooLongError)" in text
    assert "questions that failed" in text
    assert "questions failed" not in HtmlPage(render(gather(grid))).text
