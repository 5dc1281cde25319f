"""Which figures a report has, and that they show what was measured."""

from __future__ import annotations

import warnings
from io import BytesIO
from pathlib import Path
from typing import Any

import pytest
from PIL import Image, ImageColor

from ragcache_workbench.evaluation import EvalRun, evaluate, evaluate_grid, throughputs
from ragcache_workbench.evaluation.report.figures import Figure, Section, sections, sweeps
from ragcache_workbench.evaluation.report.labels import (
    differing_knobs,
    facts_of,
    format_figure,
    in_order,
    label,
    main_quality,
    value_of,
)
from ragcache_workbench.evaluation.report.tables import numbers_in_words
from ragcache_workbench.evaluation.scores import MECHANICS_ONLY
from ragcache_workbench.reports import LIGHT, Bar, Bars, Curve, Missing, Panel, Point, png
from tests.evaluation.world import Echo, make_retriever, store

SMALL: dict[str, Any] = {"sample": 6, "workload": "uniform", "variants": 2, "k": 3}


def swept(out: Path, sweep: dict[str, list[Any]], **knobs: Any) -> list[EvalRun]:
    usual: dict[str, Any] = {"retriever": make_retriever, "model": Echo(), "out": out, **SMALL}
    return evaluate_grid("nq", sweep, **(usual | knobs))


def section(runs: list[EvalRun]) -> Section:
    (found,) = sections(runs, {str(run.path): number for number, run in enumerate(runs, 1)})
    return found


def panel(figure: Figure, title: str) -> Panel:
    found = next(plot for plot in figure.plots if plot.title == title)
    assert isinstance(found, Panel)
    return found


@pytest.mark.parametrize(("dataset", "name"), [("qmsum", "rouge_l"), ("nq", "f1")])
def test_figures_show_the_score_of_the_data_set(dataset: str, name: str, tmp_path: Path) -> None:
    run = evaluate(dataset, retriever=make_retriever, model=Echo(), out=tmp_path, sample=3)
    assert main_quality([run]) == name


@pytest.fixture(scope="module")
def grid(tmp_path_factory: pytest.TempPathFactory) -> list[EvalRun]:
    out = tmp_path_factory.mktemp("grid")
    return swept(out, {"tolerance": [0.0, 0.8, 1.2], "capacity": [3, 25]})


def test_proximitys_figures_over_tolerance_and_capacity(grid: list[EvalRun]) -> None:
    by_tolerance, by_capacity = section(grid).figures[:2]
    assert by_tolerance.title == "Over tolerance τ"
    assert by_capacity.title == "Over capacity c"
    titles = [one.title for one in by_tolerance.plots]
    assert titles == ["F1", "k-recall", "cache hit rate", "retrieval latency, ms, mean"]
    for name, title in (("cache_hit_rate", "cache hit rate"), ("k_recall", "k-recall")):
        curves = {curve.name: curve.points for curve in panel(by_tolerance, title).curves}
        assert set(curves) == {"capacity=3", "capacity=25"}
        for run in grid:
            cache = run.settings.cache
            points = {one.x: one for one in curves[f"capacity={cache['capacity']}"]}
            assert points[cache["tolerance"]].y == value_of(run, name)
            assert points[cache["tolerance"]].low is None
    # The same thing has the same colour in all plots of a figure.
    for figure in (by_tolerance, by_capacity):
        colours = {(one.name, one.colour) for plot in figure.plots for one in plot.curves}  # type: ignore[union-attr]  # all panels
        assert len(colours) == len({name for name, _ in colours}) == len(figure.legend())


def test_runs_that_differ_in_their_seeds_are_averaged(tmp_path: Path) -> None:
    runs = swept(tmp_path, {"tolerance": [0.0, 1.2], "seed": [0, 1, 2]})
    (figure,) = section(runs).figures[:1]
    (curve,) = panel(figure, "cache hit rate").curves
    assert "seeds 0, 1, 2" in figure.note
    rates = [
        run.figures["cache_hit_rate"] for run in runs if run.settings.cache["tolerance"] == 1.2
    ]
    last = curve.points[-1]
    assert last.y == pytest.approx(sum(rates) / 3)
    assert (last.low, last.high) == (min(rates), max(rates))
    assert figure.legend() == []
    # Other seeds are other questions.
    assert len(section(runs).compared) == 3


def test_what_has_no_place_on_the_axis_is_a_level(grid: list[EvalRun], tmp_path: Path) -> None:
    plain = store().as_retriever(search_kwargs={"k": 3})
    run = evaluate("nq", retriever=plain, model=Echo(), out=tmp_path, **SMALL)
    figure = section([*grid, run]).figures[0]
    curves = panel(figure, "retrieval latency, ms, mean").curves
    (level,) = [curve for curve in curves if curve.kind == "level"]
    assert level.name == f"retriever={type(plain).__name__}"
    assert level in figure.legend()
    assert level.points[0].y == run.figures["retrieval_ms_mean"]
    assert all(one.kind == "line" for one in panel(figure, "cache hit rate").curves)


def test_many_curves_come_in_several_figures(grid: list[EvalRun]) -> None:
    """Made of one run, as the figures look at nothing but settings and summaries."""
    runs = [
        _like(grid[0], tolerance=tolerance, capacity=capacity, eviction=eviction)
        for eviction in ("lru", "fifo")
        for capacity in range(1, 7)
        for tolerance in (0.0, 0.5)
    ]
    found = [sweep for sweep in sweeps(runs) if sweep.name.startswith("tolerance")]
    assert [one.title for one in found] == [
        "Over tolerance τ (eviction=lru)",
        "Over tolerance τ (eviction=fifo)",
    ]
    assert [len(one.legend()) for one in found] == [6, 6]
    shown = [run.path for one in found for run in one.runs]
    assert sorted(shown) == sorted(run.path for run in runs)


def _like(run: EvalRun, **knobs: Any) -> EvalRun:
    settings = run.settings.set(**knobs)
    path = run.path / "-".join(f"{name}={value}" for name, value in knobs.items())
    return EvalRun(path, run.config, settings, run.summary, run.records, run.scores)


def test_ragcaches_figures_over_the_rate(tmp_path: Path) -> None:
    runs = swept(tmp_path, {"rate": [20.0, 200.0], "capacity": [3, 25]})
    figure = next(one for one in section(runs).figures if "rate" in one.name)
    assert "RAGCache, figures 13 and 14" in figure.note
    curves = panel(figure, "TTFT, ms, mean").curves
    assert [[point.x for point in curve.points] for curve in curves] == [[20, 200], [20, 200]]
    bars = figure.plots[-1]
    assert isinstance(bars, Bars)
    expected = throughputs(runs)
    assert [bar.value for bar in bars.bars] == [one.throughput for one in expected]
    assert [one.label for one in bars.bars] == ["capacity=3", "capacity=25"]


def test_any_other_knob_that_is_a_number_is_swept(tmp_path: Path) -> None:
    runs = swept(tmp_path, {"users": [1, 2]})
    figure = section(runs).figures[0]
    assert figure.title == "Over users"
    assert [point.x for point in panel(figure, "cache hit rate").curves[0].points] == [1, 2]


def test_ragserves_delay_against_quality(tmp_path: Path) -> None:
    runs = swept(tmp_path, {"synthesis": ["stuff", "map_reduce"], "k": [1, 3]})
    figure = section(runs).figures[-1]
    assert figure.title == "Delay against quality"
    (plot,) = figure.plots
    assert isinstance(plot, Panel)
    dots = [curve for curve in plot.curves if curve.kind == "dots"]
    assert {one.name for one in dots} == {"synthesis=stuff", "synthesis=map_reduce"}
    points = {point.label: point for dot in dots for point in dot.points}
    for number, run in enumerate(runs, start=1):
        assert run.quality is not None
        assert points[str(number)].x == run.figures["end_to_end_ms_mean"]
        assert points[str(number)].y == run.quality["f1"]
    # What is on the edge is beaten by none; what is not, by one of them.
    edge = {(p.x, p.y) for one in plot.curves if one.kind == "edge" for p in one.points}
    for one in points.values():
        beaten = any(
            o.x <= one.x and o.y >= one.y and (o.x, o.y) != (one.x, one.y) for o in points.values()
        )
        assert not edge or beaten == ((one.x, one.y) not in edge)


def test_with_random_weights_quality_is_not_drawn(tmp_path: Path) -> None:
    runs = swept(tmp_path, {"k": [1, 3]}, random_weights=True)
    found = section(runs)
    by_k, quality = found.figures
    assert by_k.plots[0] == Missing("F1", MECHANICS_ONLY)
    assert quality.plots == (Missing("F1 over end-to-end latency", MECHANICS_ONLY),)
    (compared,) = found.compared
    assert compared.figure.plots[0] == Missing("F1, difference", MECHANICS_ONLY)
    metrics = {one.metric for _, one in compared.rows}
    assert metrics == {"k_recall", "cache_hit_rate", "ttft_ms", "end_to_end_ms", "retrieval_ms"}


def test_a_single_run_has_its_course_and_its_latencies(grid: list[EvalRun]) -> None:
    found = section(grid[-1:])
    assert not found.figures
    assert not found.compared
    latencies, course = found.courses
    assert latencies.title == "Distribution of latencies"
    (curve,) = latencies.plots[0].curves  # type: ignore[union-attr]  # a panel
    times = sorted(1000 * (record.ttft_seconds or 0) for record in grid[-1].records)
    assert curve.points[0].x == pytest.approx(times[0])
    assert curve.points[-1].x == pytest.approx(times[-1])
    shares = panel(course, "share so far").curves
    assert shares[0].points[-1].y == pytest.approx(grid[-1].figures["cache_hit_rate"])
    figures = grid[-1].figures
    saved = figures["tokens_saved"] / figures["prompt_tokens"]
    assert shares[1].points[-1].y == pytest.approx(saved)
    dots = panel(course, "TTFT, ms").curves
    assert sum(len(dot.points) for dot in dots) == len(grid[-1].records)


def test_runs_of_other_questions_are_not_compared(grid: list[EvalRun], tmp_path: Path) -> None:
    (other,) = swept(tmp_path, {"seed": [5]})
    found = section([grid[0], other, grid[1]])
    (compared,) = found.compared
    assert compared.figure.runs == (grid[0], grid[1])


def test_every_data_set_has_its_own_figures(grid: list[EvalRun], tmp_path: Path) -> None:
    other = evaluate("mmlu", retriever=make_retriever, model=Echo(), out=tmp_path, **SMALL)
    runs = [*grid, other]
    found = sections(runs, {str(run.path): number for number, run in enumerate(runs, 1)})
    assert [one.title for one in found] == ["Natural Questions", "MMLU"]
    assert not found[1].figures
    assert not found[1].compared
    names = [figure.name for one in found for figure in one.all_figures()]
    assert len(set(names)) == len(names)


def test_labels_say_what_differs(grid: list[EvalRun]) -> None:
    facts = facts_of(grid)
    assert differing_knobs(facts) == ["capacity", "tolerance"]
    assert label(facts[0], differing_knobs(facts)) == "capacity=3, tolerance=0"
    shuffled = [grid[place] for place in (4, 2, 0, 5, 1, 3)]
    assert [
        (r.settings.cache["capacity"], r.settings.cache["tolerance"]) for r in in_order(shuffled)
    ] == [
        (3, 0.0),
        (3, 0.8),
        (3, 1.2),
        (25, 0.0),
        (25, 0.8),
        (25, 1.2),
    ]


def test_defaults_are_known_where_another_run_sets_the_knob(grid: list[EvalRun]) -> None:
    ours = [_like(grid[0]), _like(grid[0], policy="lru")]
    assert [one.get("policy") for one in facts_of(ours)] == [None, "lru"]  # a model was given
    for run in ours:
        object.__setattr__(run, "config", {**run.config, "given": []})
    assert [one["policy"] for one in facts_of(ours)] == ["lrfu", "lru"]
    assert [one["tolerance"] for one in facts_of(ours)] == [0.0, 0.0]
    summed_up = [
        _like(grid[0], synthesis="map_reduce"),
        _like(grid[0], synthesis="map_reduce", intermediate_length=40),
        _like(grid[0], synthesis="stuff", intermediate_length=40),
    ]
    assert [one["intermediate_length"] for one in facts_of(summed_up)] == [100, 40, None]


@pytest.mark.parametrize(
    ("numbers", "total", "words"),
    [
        ([1], 1, "This run"),
        ([1, 2, 3], 3, "All runs"),
        ([2], 3, "Run 2"),
        ([5, 1, 2, 3], 9, "Runs 1 to 3, 5"),
    ],
)
def test_numbers_of_runs_in_words(numbers: list[int], total: int, words: str) -> None:
    assert numbers_in_words(numbers, total) == words


@pytest.mark.parametrize(
    ("value", "unit", "text"),
    [
        (0.4567, "share", "45.7 %"),
        (0.4567, "score", "0.457"),
        (1234.5, "ms", "1,234"),
        (12.34, "ms", "12.3"),
        (0.01234, "ms", "0.012"),
        (-3.456, "ms", "-3.46"),
        (12345, "count", "12,345"),
        (None, "ms", ""),
    ],
)
def test_numbers_as_they_read_well(value: float | None, unit: Any, text: str) -> None:
    assert format_figure(value, unit) == text


def test_pictures_of_everything_that_can_be_drawn() -> None:
    points = (Point(0, 0.1, 0.05, 0.2), Point(1, 0.5, label="1"))
    kinds: Any = ("line", "path", "level", "dots", "edge", "rule", "break")
    curves = tuple(Curve(kind, f"c{place}", points, kind) for place, kind in enumerate(kinds))
    panels = (
        Panel("one", "x", "share", curves),
        Bars("two", "x", (Bar("a", 2, 1.5, 3, "2", better=True), Bar("b", 1, 0.5, 2, "1")), 1.0),
        Bars("three", "x", (Bar("a", 2, None, None, "2"),)),
        Missing("four", "why"),
    )
    content = png("title", panels, curves)
    with Image.open(BytesIO(content)) as image:
        colours = {colour for _, colour in image.convert("RGB").getcolors(1 << 24) or []}
    for curve in curves:
        if curve.kind != "edge":
            assert ImageColor.getrgb(LIGHT[curve.colour]) in colours


def test_long_labels_leave_room_for_the_plots_and_are_not_cut_off() -> None:
    long = ", ".join(f"a_knob_of_some_length={number}" for number in range(9))
    bars = tuple(Bar(f"{number}: {long} {'x' * 200}", 2, 1.5, 3, "2") for number in range(4))
    curves = tuple(
        Curve(f"{place} {long}", f"c{place}", (Point(0, 0.1),), "dots") for place in range(4)
    )
    figures: list[tuple[Bars | Panel, ...]] = [
        (Bars("one", "x", bars, 1.0),) * 4,
        (Panel("two", "x", "share", curves),),
    ]
    for plots in figures:
        with warnings.catch_warnings():
            warnings.simplefilter("error")  # as matplotlib says that a plot has no room left
            content = png(f"Compared with {long}", plots, curves)
        with Image.open(BytesIO(content)) as image:
            edge = image.convert("L").crop((image.width - 4, 0, image.width, image.height))
        assert edge.getextrema() == (255, 255)
