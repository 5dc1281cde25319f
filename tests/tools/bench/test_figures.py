"""Figures of results: what they are, and which got worse."""

from __future__ import annotations

import json
from collections.abc import Iterator
from fnmatch import fnmatchcase
from pathlib import Path

import pytest

from tools.bench.figures import Figure, Rule, Rules, figures_of, judge, merged
from tools.bench.runs import ROOT, quick_scripts
from tools.regressions import RECORDED, Baseline
from tools.results import FOLDER

RULES = Rules.read()
QUICK = quick_scripts(ROOT / "benchmarks")


def plain(value: float) -> Figure:
    return Figure(value, value, value)


class TestFiguresOf:
    def test_a_number_is_named_by_its_path(self) -> None:
        result = {"a": {"b c": 2, "d": None, "e": "text"}, "f": True, "g": float("nan")}
        assert figures_of(result) == {"a/b c": plain(2), "f": plain(1)}

    def test_three_numbers_are_a_value_and_its_interval(self) -> None:
        found = figures_of({"x": [1.5, 1.2, 1.9]})
        assert found == {"x": Figure(1.5, 1.2, 1.9, has_interval=True)}

    def test_other_lists_are_figures_by_place(self) -> None:
        found = figures_of({"times": [3.0, 4.0, 5.0], "points": [{"y": 1}, {"y": 2}], "none": []})
        assert list(found) == ["times/0", "times/1", "times/2", "points/0/y", "points/1/y"]

    @pytest.mark.parametrize(
        "result",
        [
            {"hit_ratio": 2.0, "hit_interval": [1.8, 2.2]},
            {"hit_ratio": 2.0, "hit_ratio_interval": [1.8, 2.2]},
            {"hit_ratio_interval": [1.8, 2.2], "hit_ratio": 2.0},
        ],
    )
    def test_an_interval_next_to_its_value(self, result: dict[str, object]) -> None:
        assert figures_of(result) == {"hit_ratio": Figure(2.0, 1.8, 2.2, has_interval=True)}

    def test_intervals_of_several_values(self) -> None:
        found = figures_of({"ratio": {"512": 6.0}, "ratio_interval": {"512": [4.6, 6.6]}})
        assert found == {"ratio/512": Figure(6.0, 4.6, 6.6, has_interval=True)}

    def test_two_numbers_without_a_value_are_two_figures(self) -> None:
        found = figures_of({"x_interval": [1, 2], "same": [3, 4]})
        assert {path: figure.value for path, figure in found.items()} == {
            "x_interval/0": 1,
            "x_interval/1": 2,
            "same/0": 3,
            "same/1": 4,
        }


def test_runs_are_merged_to_their_median_and_whole_spread() -> None:
    runs = [
        {"a": plain(3.0), "b": Figure(2.0, 1.5, 2.5, has_interval=True)},
        {"a": plain(1.0), "b": Figure(2.2, 1.9, 2.9, has_interval=True)},
        {"a": plain(2.0)},
    ]
    assert merged(runs) == {
        "a": Figure(2.0, 1.0, 3.0),
        "b": Figure(2.1, 1.5, 2.9, has_interval=True),
    }


class TestJudge:
    @pytest.mark.parametrize(
        ("better", "now", "verdict"),
        [
            ("higher", (1.0, 0.9, 1.1), "worse"),
            ("higher", (1.8, 1.05, 1.9), "same"),
            ("higher", (3.0, 2.5, 3.5), "better"),
            ("lower", (1.0, 0.9, 1.1), "better"),
            ("lower", (3.0, 2.5, 3.5), "worse"),
        ],
    )
    def test_intervals_that_overlap_are_the_same(
        self, better: str, now: tuple[float, float, float], verdict: str
    ) -> None:
        recorded = Figure(1.6, 1.2, 2.0, has_interval=True)
        assert judge(Rule((), better), recorded, Figure(*now, has_interval=True)) == verdict

    def test_a_plain_figure_has_the_spread_of_its_runs_widened(self) -> None:
        recorded = Figure(10.0, 9.0, 11.0)  # from 7 to 13
        rule = Rule((), "lower", time=True)
        assert judge(rule, recorded, Figure(14.0, 13.5, 14.5)) == "same"  # from 12.5
        assert judge(rule, recorded, Figure(16.0, 15.5, 16.5)) == "worse"  # from 14.5

    def test_what_never_varies_is_worse_at_once_unless_there_is_slack(self) -> None:
        assert judge(Rule((), "higher"), plain(0.500), plain(0.499)) == "worse"
        assert judge(Rule((), "higher", slack=0.01), plain(0.500), plain(0.499)) == "same"
        assert judge(Rule((), "higher", slack=0.01), plain(0.500), plain(0.490)) == "worse"


@pytest.mark.parametrize(
    ("entry", "told"),
    [
        ({"better": "bigger"}, "better must be one of higher, lower, none, got 'bigger'"),
        ({"better": "lower", "slack": 1.5}, "slack must be from 0 to below 1, got 1.5"),
    ],
)
def test_a_rule_that_makes_no_sense_is_refused(entry: dict[str, object], told: str) -> None:
    with pytest.raises(ValueError, match=told):
        Rule(figures=("*",), **entry)  # type: ignore[arg-type]  # wrong on purpose


def test_the_first_rule_that_fits_decides(tmp_path: Path) -> None:
    path = tmp_path / "rules.toml"
    path.write_text(
        '[headlines]\na = ["x"]\n'
        '[[rule]]\nbetter = "none"\nfigures = ["a/*peer*"]\n'
        '[[rule]]\nbetter = "lower"\ntime = true\nfigures = ["*_ms"]\n'
    )
    rules = Rules.read(path)
    found = [rules.of("a", path) for path in ("peer_ms", "b/ours_ms", "count")]
    assert [rule and rule.better for rule in found] == ["none", "lower", None]


class TestOurBenchmarks:
    def test_every_quick_benchmark_has_headlines_that_are_judged(self) -> None:
        assert sorted(RULES.headlines) == sorted(QUICK)
        for name, headlines in RULES.headlines.items():
            for headline in headlines:
                rule = RULES.of(name, headline.replace("*", "x"))
                assert rule is not None, f"{name}/{headline}"
                assert rule.better != "none", f"{name}/{headline}"

    def test_every_recorded_figure_is_known(self) -> None:
        unknown = {
            f"{name}/{path}"
            for name, paths in recorded_paths()
            for path in paths
            if RULES.of(name, path) is None
        }
        assert not unknown

    def test_recorded_quick_runs_have_their_headlines(self) -> None:
        for path in RECORDED.glob("*.json"):
            baseline = Baseline.read(path)
            assert baseline is not None
            for headline in RULES.headlines[path.stem]:
                found = [name for name in baseline.figures if fnmatchcase(name, headline)]
                assert found, f"{path.stem}/{headline}"


def recorded_paths() -> Iterator[tuple[str, list[str]]]:
    """Names of benchmarks and paths of figures: of quick runs, and of the long ones in the docs."""
    for path in RECORDED.glob("*.json"):
        yield path.stem, list(json.loads(path.read_text(encoding="utf-8"))["figures"])
    for path in FOLDER.glob("*.json"):
        content = json.loads(path.read_text(encoding="utf-8"))
        script = Path(content["command"].split()[1])
        if script.parent.name == "benchmarks" and script.stem in QUICK:
            yield script.stem, list(figures_of(content["result"]))
