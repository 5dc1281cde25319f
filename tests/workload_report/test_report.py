"""The page, the tables and the sentences."""

from __future__ import annotations

import io
import json
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console

from ragcache_integrations.errors import ConfigurationError
from ragcache_workbench.reports import percent, short_number
from ragcache_workbench.workload_report import report as charts
from ragcache_workbench.workload_report.comparisons import duration
from ragcache_workbench.workload_report.report import Findings, report_of
from tests.support.html_page import HtmlPage


def printed(findings: Findings) -> str:
    output = io.StringIO()
    report_of(findings).show(Console(width=100, file=output))
    return output.getvalue()


@pytest.fixture(params=["findings", "in_vain"])
def either(request: pytest.FixtureRequest) -> Findings:
    chosen: Findings = request.getfixturevalue(request.param)
    return chosen


def test_the_page_is_well_formed_and_loads_nothing(either: Findings) -> None:
    html = report_of(either).render()
    page = HtmlPage(html)

    assert page.tags.count("svg") == 4
    assert page.tags.count("table") == 4
    assert "script" not in page.tags
    assert page.links == []
    assert "url(" not in html
    assert "@import" not in html


def test_names_are_text_and_no_markup(findings: Findings) -> None:
    page = HtmlPage(report_of(findings).render())
    assert "i" not in page.tags
    assert "log <i>.jsonl" in page.text


def test_page_and_terminal_give_the_same_verdict(either: Findings) -> None:
    page = " ".join(HtmlPage(report_of(either).render()).text.split())
    terminal = " ".join(printed(either).split())

    for sentence in (either.verdict(), either.advice(), *either.notes()):
        assert sentence in page
        assert sentence in terminal


def test_where_caching_pays_a_size_is_recommended(findings: Findings) -> None:
    size = findings.result.recommended

    assert size is not None
    assert findings.verdict().startswith(f"Caching pays here: give it {size.tokens:,} tokens")
    assert f"{size.tokens:,} ← recommended" in HtmlPage(report_of(findings).render()).text


def test_where_it_does_not_none_is(in_vain: Findings) -> None:
    assert in_vain.verdict().startswith("Caching will not pay here: at most 0%")
    assert "below 5% it is not worth its memory" in in_vain.advice()
    assert "← recommended" not in HtmlPage(report_of(in_vain).render()).text


def test_bytes_are_shown_where_they_are_known(findings: Findings) -> None:
    known = replace(findings, kv_bytes_per_token=2**20)

    for text in (HtmlPage(report_of(known).render()).text, printed(known), known.advice()):
        assert "GiB" in text
    for text in (HtmlPage(report_of(findings).render()).text, printed(findings), findings.advice()):
        assert "GiB" not in text
    assert known.gib(2048) == "2"


def test_what_is_odd_about_the_log_is_told(findings: Findings) -> None:
    workload = replace(findings.workload, without_documents=1234, changed_documents=5678)
    notes = " ".join(replace(findings, workload=workload).notes())

    assert "Requests that brought no document: 1,234." in notes
    assert "5,678 document ids came with more than one text" in notes


def test_plain_data_is_json(either: Findings) -> None:
    data = json.loads(json.dumps(either.as_dict(), allow_nan=False))

    assert data["pays"] is either.result.pays
    assert len(data["sizes"]) == len(either.result.sizes)
    assert (data["recommended"] is None) is not data["pays"]


def test_every_plot_shows_what_was_found(either: Findings) -> None:
    result = either.result
    prefill = charts.prefill(either)
    assert [curve.name for curve in prefill.legend] == ["prefix cached", "prefix computed"]
    assert [point.y for point in prefill.curves[1].points] == list(result.prefill.uncached)
    found, saved = charts.sizes(either)
    for plot, field in ((found, "token_hit_rate"), (saved, "saved_share")):
        ours, stock, *recommended = plot.curves
        assert [point.x for point in ours.points] == [size.tokens for size in result.sizes]
        assert [point.y for point in ours.points] == [getattr(s, field) for s in result.sizes]
        assert [point.y for point in stock.points] == [
            getattr(size, f"stock_{field}") for size in result.sizes
        ]
        assert len(recommended) == result.pays


def test_the_access_curve_is_the_distribution(findings: Findings) -> None:
    points = charts.access(findings).curves[0].points
    skew = findings.result.skew

    assert points[0][:2] == (0, 0)
    assert points[-1][:2] == (1, 1)
    assert len(points) == skew.documents + 1
    assert points[1].y == pytest.approx(skew.counts[0] / skew.accesses)


def test_a_report_that_cannot_be_written(findings: Findings, tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="cannot write the report"):
        report_of(findings).write(tmp_path)


@pytest.mark.parametrize(
    ("share", "text"),
    [(0, "0%"), (0.004, "0.4%"), (0.01, "1%"), (0.0349, "3.5%"), (0.1, "10%"), (1, "100%")],
)
def test_shares(share: float, text: str) -> None:
    assert percent(share) == text


@pytest.mark.parametrize(
    ("seconds", "text"), [(0.00123, "1.23 ms"), (0.5, "500 ms"), (1.0, "1 s"), (12.345, "12.3 s")]
)
def test_durations(seconds: float, text: str) -> None:
    assert duration(seconds) == text


@pytest.mark.parametrize(
    ("number", "text"), [(0, "0"), (500, "500"), (1500, "1.5k"), (3e6, "3M"), (2e9, "2G")]
)
def test_short_numbers(number: float, text: str) -> None:
    assert short_number(number) == text
